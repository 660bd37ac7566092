"""``LanceJobTrigger``: waits for one job in the triggerer, with the poller that all triggers of a connection share.

It yields one event and never raises. ``tasks/job_outcome.py`` says what the event means to the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.http.wire import AsyncWire
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.hooks.lance import resolve_async
from airflow_provider_lance.tasks.job_follower import JobFollower
from airflow_provider_lance.tasks.job_outcome import JobEvent
from airflow_provider_lance.triggers.poller import shared_poller


class LanceJobTrigger(BaseTrigger):
    """Fire once, when a job has ended, its deadline has passed or it cannot be followed any longer.

    The guide is ``docs/triggers/job.md``.

    :param job_id: The job's id.
    :param lance_conn_id: The id of the namespace's connection. It is read in the triggerer, so no secret is stored
        with the trigger.
    :param deadline: The time, in seconds since the epoch, at which the wait is over. Airflow itself does not enforce
        ``execution_timeout`` on a deferred task.
    :param poll_interval: The seconds between two polls of the job. The default is ``[lance] poll_interval``.
    :param cancel_on_kill: Whether the job is cancelled when a user ends the deferred task. It needs Airflow 3.3.
    :return: An event with ``job_id``, ``state``, ``result`` and ``failure``.
    """

    def __init__(
        self,
        *,
        job_id: str,
        lance_conn_id: str = DEFAULT_CONNECTION,
        deadline: float | None = None,
        poll_interval: float | None = None,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        self.lance_conn_id = lance_conn_id
        self.deadline = deadline
        self.poll_interval = poll_interval
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, object]]:
        return (
            "airflow_provider_lance.triggers.job.LanceJobTrigger",
            {
                "job_id": self.job_id,
                "lance_conn_id": self.lance_conn_id,
                "deadline": self.deadline,
                "poll_interval": self.poll_interval,
                "cancel_on_kill": self.cancel_on_kill,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        configuration = read_configuration()
        follower = JobFollower(self.job_id, deadline=self.deadline, errors=configuration.poll_errors, log=self.log)
        interval = self.poll_interval or configuration.poll_interval
        event: JobEvent | None = None
        while event is None:
            try:
                event = await self._follow(follower, interval, configuration.poll_batch)
            except Exception as error:  # a trigger that raises fails its task without naming the job
                event = follower.observe(WireError(f"{type(error).__name__}: {error}", code=None))
                if event is None:
                    await asyncio.sleep(follower.pause(interval))
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _follow(self, follower: JobFollower, interval: float, batch: int) -> JobEvent | None:
        """Wait for the event. ``None`` means that the credentials were refused: the connection is to be read again."""
        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            raise ValueError(f"The connection {self.lance_conn_id!r} has no server that a trigger could ask.")
        async with (
            shared_poller(resolved.settings, interval=interval, batch=batch) as poller,
            poller.subscribe(self.job_id) as subscription,
        ):
            while True:
                try:
                    async with asyncio.timeout(follower.seconds_left):
                        polled = await subscription.next()
                except TimeoutError:
                    if (event := follower.expired()) is not None:
                        return event
                    continue
                if (event := follower.observe(polled)) is not None:
                    return event
                if isinstance(polled, WireError) and polled.refused:
                    await asyncio.sleep(follower.pause(interval))
                    return None

    async def on_kill(self) -> None:
        """Cancel the job, because a user marked the deferred task failed or successful, or cleared it.

        This is not done in ``cleanup()``, which also runs when a triggerer restarts and another one continues the wait.
        """
        if not self.cancel_on_kill:
            return
        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            return
        async with AsyncWire(resolved.settings) as wire:
            await wire.call("cancel_job", {"job_id": self.job_id})
        self.log.info("Cancelled job %s, because its task was ended.", self.job_id)
