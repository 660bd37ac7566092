"""``LanceJobSensor``: waits for a job that somebody else started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import PokeReturnValue

from airflow_provider_lance.api.job_words import JobState
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.links.job import LanceJobLink
from airflow_provider_lance.operators.base import log_reason
from airflow_provider_lance.operators.rendered import literal
from airflow_provider_lance.operators.result import (
    job_failure,
    job_result,
    job_table,
    job_target,
    look,
    needed_no_job,
    read_job_id,
    settled,
)
from airflow_provider_lance.sensors.base import LanceBaseSensor
from airflow_provider_lance.triggers.outcome import TIMEOUT, Event, Follower

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class LanceJobSensor(LanceBaseSensor):
    """Succeeds when a job is done, with the same dict a job operator returns; fails with the job.

    It looks on only: ending the sensor does not end the job.

    :param job_id: the job, or the dict a job operator returned. (templated)
    """

    template_fields: Sequence[str] = (*LanceBaseSensor.template_fields, "job_id")
    operator_extra_links = (LanceJobLink(),)

    def __init__(self, *, job_id: str | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self._follower: Follower | None = None
        self._link: str | None = None

    def execute(self, context: Context) -> Any:
        if (answer := needed_no_job(self.job_id)) is not None:
            self.log.info("There is no job to wait for: %s", answer)
            return answer
        job_id = read_job_id(self.job_id)
        if not self.defers:
            return super().execute(context)
        deadline = self.deadline  # before the first look, which may take long
        if found := self.first_look(context):
            return found.xcom_value
        from airflow_provider_lance.triggers.job import LanceJobTrigger

        self.wait_for(
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
            self._follower = Follower(job_id, errors=read_configuration().poll_errors, log=self.log)
        seen = look(self.hook, job_id)
        if self._link is None:  # once: where the page is may be the server's to say
            self._link = self.hook.resolved.link(job_id, seen.page if isinstance(seen, Job) else None)
            LanceJobLink().push(context, self._link)
        event = self._follower.see(seen)
        while seen is None and event is None and self.reschedule and not self.defers:
            # The next poke is another process, which would count absences anew: settle it in this one.
            time.sleep(read_configuration().poll_interval)
            seen = look(self.hook, job_id)
            event = self._follower.see(seen)
        if event is None:
            return False
        return PokeReturnValue(True, self._end(event, seen if isinstance(seen, Job) else None))

    def failed_look(self) -> str | None:
        return self._follower.failed_look if self._follower is not None else None

    def execute_complete(self, context: Context, event: Event) -> dict[str, Any]:
        """Where a deferred sensor goes on."""
        if event["job_id"] != read_job_id(self.job_id):
            return self.wait_again(context, f"job {event['job_id']}")
        event = settled(self.hook, event)
        if event["state"] == TIMEOUT:
            raise self.timed_out((event.get("failure") or {}).get("message"))
        seen = look(self.hook, event["job_id"])  # the event is small: what kind of job it was is asked for once more
        return self._end(event, seen if isinstance(seen, Job) else None)

    def _end(self, event: Event, job: Job | None) -> dict[str, Any]:
        if event["state"] != JobState.DONE.value:
            about, page = (job_target(self.hook, job), job.page) if job is not None else ("", None)
            link = self._link or self.hook.resolved.link(event["job_id"], page)
            raise log_reason(self.log, job_failure(event, about, link))
        found = literal(self.job_id)
        given = found if isinstance(found, Mapping) else {}
        job_type = str((job.job_type if job is not None else "") or given.get("job_type") or "")
        table_id = (job_table(self.hook, job) if job is not None else []) or list(given.get("table_id") or [])
        return job_result(event["job_id"], job_type, table_id, event["state"], event.get("result"))
