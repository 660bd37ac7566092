"""``LanceCancelJobOperator``: end a job that somebody started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.operators.base import LanceBaseOperator, task_error
from airflow_provider_lance.operators.result import job_result, job_table, read_job_id

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class LanceCancelJobOperator(LanceBaseOperator):
    """Cancel a job and wait until it has ended. A job that has already ended stays as it is.

    :param job_id: the job, or the dict a job operator returned. (templated)
    :param wait_seconds: how long to wait for its end; 0 returns at once.
    :param if_missing: when the server does not know the job: ``fail``, or ``skip`` the task.
    """

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "job_id")

    def __init__(
        self,
        *,
        job_id: str | Mapping[str, Any],
        wait_seconds: float = 60.0,
        if_missing: Literal["fail", "skip"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.wait_seconds = wait_seconds
        self.if_missing = if_missing

    def execute(self, context: Context) -> dict[str, Any]:
        job_id = read_job_id(self.job_id)
        failure: AirflowException | None = None
        try:
            known = self.hook.cancel_job(job_id)
            job = self.hook.find_job(job_id) if known else None
            until = time.monotonic() + self.wait_seconds
            while job is not None and not job.state.terminal and time.monotonic() < until:
                time.sleep(0.5)
                job = self.hook.find_job(job_id)
        except WireError as error:
            failure = task_error(error)
        if failure is not None:
            raise failure
        if job is None:
            message = f"The server does not know job {job_id}."
            raise (AirflowSkipException if self.if_missing == "skip" else AirflowException)(message)
        if self.wait_seconds and not job.state.terminal:
            raise AirflowException(f"Job {job_id} was told to end and still runs after {self.wait_seconds:g} s.")
        self.log.info("Job %s is %s.", job_id, job.state.value)
        return job_result(job_id, job.job_type, job_table(self.hook, job), job.state.value, job.result)
