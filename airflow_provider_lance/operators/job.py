"""``LanceCancelJobOperator``: cancels a job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Unpack

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.operators.base import LanceBaseOperator
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.job_follower import poll_job
from airflow_provider_lance.tasks.job_outcome import LOST, JobResult, job_result, job_table
from airflow_provider_lance.tasks.operator_arguments import LanceArguments
from airflow_provider_lance.tasks.poll_errors import PollErrors
from airflow_provider_lance.tasks.templating import choice, read_job_id

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.tasks.templating import TaskOutput

IfJobMissing = Literal["fail", "skip", "skip_task"]


class LanceCancelJobOperator(LanceBaseOperator):
    """Cancel a job and wait until it has ended. A job that has already ended stays as it is.

    The guide is ``docs/operators/cancel_job.md``.

    :param job_id: The job's id, or the dict that a job operator returned. (templated)
    :param wait_seconds: How long the task waits for the job's end. With 0 it returns at once.
    :param if_missing: What happens if the server does not know the job. ``fail`` fails the task, ``skip`` succeeds
        with the state ``LOST``, and ``skip_task`` ends the task as skipped.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: The dict that a job operator returns, with the state in which the job ended.
    """

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "job_id")

    def __init__(
        self,
        *,
        job_id: str | TaskOutput,
        wait_seconds: float = 60.0,
        if_missing: IfJobMissing = "fail",
        **kwargs: Unpack[LanceArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.wait_seconds = wait_seconds
        self.if_missing = choice("if_missing", if_missing, IfJobMissing)

    def execute(self, context: Context) -> JobResult:
        job_id = read_job_id(self.job_id)
        failure: AirflowException | None = None
        try:
            known = self.hook.cancel_job(job_id)
            job = self._wait_for_end(job_id) if known else None
        except WireError as error:
            failure = task_error(error)
        if failure is not None:
            raise log_failure(self.log, failure)
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

    def _wait_for_end(self, job_id: str) -> Job | None:
        """The job when it has ended, or after ``wait_seconds``. Polls in between may fail."""
        until, errors = time.monotonic() + self.wait_seconds, PollErrors(self.log)
        while True:
            polled = poll_job(self.hook, job_id)
            over = time.monotonic() >= until
            if isinstance(polled, WireError):
                if over or not polled.transient:
                    raise polled
                errors.tolerate(polled)
                time.sleep(min(errors.pause(0.5), max(0.0, until - time.monotonic())))
                continue
            errors.clear()
            if polled is None or polled.state.terminal or over:
                return polled
            time.sleep(0.5)
