"""Buttons on a task instance: the job's page at its namespace, and the Spark UI of its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, Context, TaskInstanceKey


class _XComLink(BaseOperatorLink):
    """A link whose URL the operator pushes as an XCom as soon as it is known."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        if not getattr(operator, "has_job", True):
            return ""  # Airflow would log the missing XCom as an error in the task's log
        return str(XCom.get_value(key=self.xcom_key, ti_key=ti_key) or "")

    def push(self, context: Context, url: str | None) -> None:
        """Show the button from now on, if there is a URL."""
        if url:
            context["ti"].xcom_push(key=self.xcom_key, value=url)


class LanceJobLink(_XComLink):
    """The button that leads to the job's page with its progress, events and result."""

    name = "Lance job"


class LanceSparkLink(_XComLink):
    """The button that leads to the UI of the Spark application that executes the job."""

    name = "Spark UI"
