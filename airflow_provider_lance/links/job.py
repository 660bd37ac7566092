"""Buttons on a task instance: the job's page at its namespace, and the Spark UI that executes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class _XComLink(BaseOperatorLink):
    """A link whose URL the operator pushed as soon as it knew it."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        if not getattr(operator, "has_job", True):
            return ""  # a look that finds nothing would stand in the task's log as an error of its own
        return XCom.get_value(key=self.xcom_key, ti_key=ti_key) or ""

    def push(self, context: Any, url: str | None) -> None:
        """Show the button from now on; does nothing without a URL."""
        if url:
            context["ti"].xcom_push(key=self.xcom_key, value=url)


class LanceJobLink(_XComLink):
    """The job's page: its progress, events and result."""

    name = "Lance job"


class LanceSparkLink(_XComLink):
    """The UI of the Spark application that executes the job."""

    name = "Spark UI"
