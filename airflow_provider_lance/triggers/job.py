"""``LanceJobTrigger``: waits for one job in the triggerer, through the poller all of its siblings share.

Yields one event and never raises; what the event means is the task's business (``operators/result.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.wire import AsyncWire
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.hooks.lance import resolve_async
from airflow_provider_lance.triggers.outcome import Event, Follower
from airflow_provider_lance.triggers.poller import share


class LanceJobTrigger(BaseTrigger):
    """Fires once, when a job has ended, its deadline has passed or it cannot be followed any longer.

    :param job_id: the job.
    :param lance_conn_id: the connection; resolved in the triggerer, so no secret is stored with the trigger.
    :param deadline: seconds since the epoch; Airflow itself does not enforce ``execution_timeout`` on a deferred task.
    :param poll_interval: seconds between looks; the configuration's when ``None``.
    :param cancel_on_kill: cancel the job when a user ends the task while it is deferred (Airflow 3.3 and newer).
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
        super().__init__()
        self.job_id = job_id
        self.lance_conn_id = lance_conn_id
        self.deadline = deadline
        self.poll_interval = poll_interval
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
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
        follower = Follower(self.job_id, deadline=self.deadline, errors=configuration.poll_errors, log=self.log)
        interval = self.poll_interval or configuration.poll_interval
        event: Event | None = None
        while event is None:
            try:
                event = await self._follow(follower, interval, configuration.poll_batch)
            except Exception as error:  # a trigger that raises fails its task without a word about the job
                event = follower.see(WireError(f"{type(error).__name__}: {error}", code=None))
                if event is None:
                    await asyncio.sleep(follower.pause_before_deadline(interval))
        yield TriggerEvent(event)

    async def _follow(self, follower: Follower, interval: float, batch: int) -> Event | None:
        """Until the end; ``None`` when the connection should be read again, because its credentials were refused."""
        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            raise ValueError(f"The connection {self.lance_conn_id!r} has no server that a trigger could ask.")
        async with (
            share(resolved.settings, interval=interval, batch=batch) as poller,
            poller.watch(self.job_id) as watch,
        ):
            while True:
                try:
                    async with asyncio.timeout(follower.seconds_left):
                        sighting = await watch.next()
                except TimeoutError:
                    if (event := follower.expired()) is not None:
                        return event
                    continue
                if (event := follower.see(sighting)) is not None:
                    return event
                if isinstance(sighting, WireError) and sighting.refused:
                    await asyncio.sleep(follower.pause_before_deadline(interval))
                    return None

    async def on_kill(self) -> None:
        """A user marked the deferred task failed or successful, or cleared it: its job has no owner any more.

        Not in ``cleanup()``, which also runs when a triggerer restarts and the wait goes on elsewhere.
        """
        if not self.cancel_on_kill:
            return
        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            return
        async with AsyncWire(resolved.settings) as wire:
            await wire.call("cancel_job", {"job_id": self.job_id})
        self.log.info("Cancelled job %s, because its task was ended.", self.job_id)
