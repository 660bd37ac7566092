"""``LanceCancelJobOperator``: end a job that somebody started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.operators.base import LanceBaseOperator, choice, log_reason, task_error
from airflow_provider_lance.operators.result import job_result, job_table, look, read_job_id
from airflow_provider_lance.triggers.looks import FailedLooks
from airflow_provider_lance.triggers.outcome import LOST

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.jobs import Job


class LanceCancelJobOperator(LanceBaseOperator):
    """Cancel a job and wait until it has ended. A job that has already ended stays as it is.

    :param job_id: the job, or the dict a job operator returned. (templated)
    :param wait_seconds: how long to wait for its end; 0 returns at once.
    :param if_missing: when the server does not know the job: ``fail``; ``skip`` (succeed, with the state ``LOST``); or
        ``skip_task``: end the task as skipped.
    """

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "job_id")

    def __init__(
        self,
        *,
        job_id: str | Mapping[str, Any],
        wait_seconds: float = 60.0,
        if_missing: Literal["fail", "skip", "skip_task"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("if_missing", if_missing, "fail", "skip", "skip_task")
        self.job_id = job_id
        self.wait_seconds = wait_seconds
        self.if_missing = if_missing

    def execute(self, context: Context) -> dict[str, Any]:
        job_id = read_job_id(self.job_id)
        failure: AirflowException | None = None
        try:
            known = self.hook.cancel_job(job_id)
            job = self._see_end(job_id) if known else None
        except WireError as error:
            failure = task_error(error)
        if failure is not None:
            raise log_reason(self.log, failure)
        if job is None:
            message = f"The server does not know job {job_id}."
            if self.if_missing == "skip":
                self.log.info("%s There is nothing to cancel (if_missing=skip).", message)
                return job_result(job_id, "", [], LOST, None)
            raise (AirflowSkipException if self.if_missing == "skip_task" else AirflowException)(message)
        if self.wait_seconds and not job.state.terminal:
            raise AirflowException(f"Job {job_id} was told to end and still runs after {self.wait_seconds:g} s.")
        self.log.info("Job %s is %s.", job_id, job.state.value)
        return job_result(job_id, job.job_type, job_table(self.hook, job), job.state.value, job.result)

    def _see_end(self, job_id: str) -> Job | None:
        """The job as it is once it has ended or the time for that is over; a look in between may fail."""
        until, failed = time.monotonic() + self.wait_seconds, FailedLooks(self.log)
        while True:
            job = look(self.hook, job_id)
            over = time.monotonic() >= until
            if isinstance(job, WireError):
                if over or not job.transient:
                    raise job
                failed.failed(job)
                time.sleep(min(failed.pause(0.5), max(0.0, until - time.monotonic())))
                continue
            failed.answered()
            if job is None or job.state.terminal or over:
                return job
            time.sleep(0.5)
