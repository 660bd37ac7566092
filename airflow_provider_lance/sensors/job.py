"""``LanceJobSensor``: waits for a job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from airflow.providers.common.compat.sdk import PokeReturnValue

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.links.job import LanceJobLink
from airflow_provider_lance.sensors.base import LanceBaseSensor
from airflow_provider_lance.tasks.errors import log_failure
from airflow_provider_lance.tasks.job_follower import JobFollower, poll_job, recheck_timeout
from airflow_provider_lance.tasks.job_outcome import (
    TIMEOUT,
    JobEvent,
    JobResult,
    job_failure,
    job_result,
    job_table,
    job_target,
)
from airflow_provider_lance.tasks.operator_arguments import SensorArguments
from airflow_provider_lance.tasks.templating import parse_literal, read_job_id, read_result_without_job

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.tasks.templating import TaskOutput


class LanceJobSensor(LanceBaseSensor):
    """Wait for a job that another task started. The sensor succeeds or fails with the job.

    Ending the sensor does not end the job. The guide is ``docs/sensors/job.md``.

    :param job_id: The job's id, or the dict that a job operator returned. (templated)
    :param deferrable: Whether the sensor waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration. A namespace without a server is poked on the worker.
    :param poke_interval: The seconds between two polls. By default a deferred sensor polls every ``[lance]
        poll_interval`` seconds, and a sensor on a worker every minute.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: The dict that a job operator returns.
    """

    template_fields: Sequence[str] = (*LanceBaseSensor.template_fields, "job_id")
    operator_extra_links = (LanceJobLink(),)

    def __init__(self, *, job_id: str | TaskOutput, **kwargs: Unpack[SensorArguments]) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self._follower: JobFollower | None = None
        self._link: str | None = None

    def execute(self, context: Context) -> object:
        if (answer := read_result_without_job(self.job_id)) is not None:
            self.log.info("There is no job to wait for: %s", answer)
            return answer
        job_id = read_job_id(self.job_id)
        if not self.can_defer:
            return super().execute(context)
        deadline = self.deadline  # taken before the first poke, which may take long
        found = self.poke_before_deferring(context)
        if isinstance(found, PokeReturnValue):
            return found.xcom_value
        from airflow_provider_lance.triggers.job import LanceJobTrigger

        self.defer_to(
            LanceJobTrigger(
                job_id=job_id,
                lance_conn_id=self.lance_conn_id,
                deadline=deadline,
                poll_interval=self.poll_interval,
                cancel_on_kill=False,
            )
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:
        job_id = read_job_id(self.job_id)
        if self._follower is None:
            self._follower = JobFollower(job_id, errors=read_configuration().poll_errors, log=self.log)
        polled = poll_job(self.hook, job_id)
        if self._link is None:
            self._link = self.hook.resolved.link(job_id, polled.page if isinstance(polled, Job) else None)
            LanceJobLink().push(context, self._link)
        event = self._follower.observe(polled)
        while polled is None and event is None and self.reschedule and not self.can_defer:
            # A rescheduled poke runs in another process, which would count absences anew. So they are counted here.
            time.sleep(read_configuration().poll_interval)
            polled = poll_job(self.hook, job_id)
            event = self._follower.observe(polled)
        if event is None:
            return False
        return PokeReturnValue(True, self._finish(event, polled if isinstance(polled, Job) else None))

    def last_error(self) -> str | None:
        return self._follower.last_error if self._follower is not None else None

    def execute_complete(self, context: Context, event: JobEvent) -> object:
        """Continue a sensor that was deferred."""
        if event["job_id"] != read_job_id(self.job_id):
            return self.wait_again(context, f"job {event['job_id']}")
        event = recheck_timeout(self.hook, event)
        if event["state"] == TIMEOUT:
            raise self.timed_out((event.get("failure") or {}).get("message"))
        # The event does not have the job's type and table, so the server is asked once more.
        polled = poll_job(self.hook, event["job_id"])
        return self._finish(event, polled if isinstance(polled, Job) else None)

    def _finish(self, event: JobEvent, job: Job | None) -> JobResult:
        """Return the result of a job that is DONE, and raise the failure of any other event."""
        if event["state"] != JobState.DONE.value:
            target, page = (job_target(self.hook, job), job.page) if job is not None else ("", None)
            link = self._link or self.hook.resolved.link(event["job_id"], page)
            raise log_failure(self.log, job_failure(event, target, link))
        found = parse_literal(self.job_id)
        argument: Mapping[str, object] = found if isinstance(found, Mapping) else {}
        job_type = str((job.job_type if job is not None else "") or argument.get("job_type") or "")
        table_id = job_table(self.hook, job) if job is not None else []
        if not table_id and isinstance(listed := argument.get("table_id"), list):
            table_id = listed
        return job_result(event["job_id"], job_type, table_id, event["state"], event.get("result"))
