"""One poller for each connection and event loop, so that a server is asked a few times per interval for all triggers.

A trigger takes the poller of its connection with :func:`shared_poller` and subscribes to its job. The last trigger
closes the poller. The poller logs nothing, because each trigger logs what concerns its own task.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.http.retry import RetryPolicy
from airflow_provider_lance.api.http.wire import AsyncWire
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.settings import Settings

# A Retry-After of up to a quarter of an hour is honoured inside of one poll.
POLL_RETRY = RetryPolicy(attempts=4, first_delay=0.5, longest_delay=10.0, total_seconds=900.0)
# The seconds until the first poll of a new job. They double with each poll, up to the interval.
_FIRST_DELAY = 0.1
# These bound the requests. Jobs that come due within a quarter of the interval are polled together, and a new job that
# comes due sooner waits until the shortest pause is over.
_POLLS_PER_INTERVAL = 4
_SHORTEST_PAUSE = 0.25
_LONGEST_PAUSE = 60.0

#: What a poll shows: the job, the error of the poll, or ``None`` where the server does not know the job.
PolledJob = Job | WireError | None

# The keys are weak, because ``dag.test`` runs every trigger in a loop of its own and a loop that ended must not keep
# a client.
_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poller]] = WeakKeyDictionary()


@asynccontextmanager
async def shared_poller(settings: Settings, *, interval: float, batch: int = 200) -> AsyncIterator[Poller]:
    """The poller of this connection in the running loop. It is closed when the last context ends."""
    of_loop = _pollers.setdefault(asyncio.get_running_loop(), {})
    key = settings.fingerprint()
    poller = of_loop.get(key)
    if poller is None:
        poller = of_loop[key] = Poller(settings, batch=batch)
    poller.intervals.append(interval)
    try:
        yield poller
    finally:
        poller.intervals.remove(interval)
        if not poller.intervals:
            of_loop.pop(key, None)
            await poller.close()


@dataclass(eq=False)
class JobSubscription:
    """One trigger's interest in one job. It holds the result of the latest poll until the trigger takes it."""

    job_id: str
    due: float
    delay: float = _FIRST_DELAY
    _latest: asyncio.Queue[PolledJob] = field(default_factory=lambda: asyncio.Queue(1))

    async def next(self) -> PolledJob:
        """Wait for the result of the next poll. A result that was not taken before is lost."""
        return await self._latest.get()

    def put(self, polled: PolledJob) -> None:
        """Hand over the result of a poll."""
        if self._latest.full():
            self._latest.get_nowait()
        self._latest.put_nowait(polled)


class Poller:
    """Polls all subscribed jobs of one connection. :func:`shared_poller` makes it."""

    def __init__(self, settings: Settings, *, batch: int) -> None:
        self.wire = AsyncWire(replace(settings, retry=POLL_RETRY))
        self.batch = batch
        #: The interval that each of its triggers asks for.
        self.intervals: list[float] = []
        self._subscriptions: OrderedDict[JobSubscription, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._errors = 0

    @property
    def interval(self) -> float:
        """The shortest interval that a trigger asks for."""
        return min(self.intervals)

    @asynccontextmanager
    async def subscribe(self, job_id: str) -> AsyncIterator[JobSubscription]:
        """Poll a job for as long as the context lasts."""
        loop = asyncio.get_running_loop()
        subscription = JobSubscription(job_id, due=loop.time() + _FIRST_DELAY)
        self._subscriptions[subscription] = None
        self._changed.set()
        if self._task is None:
            # The context is empty, because with the first trigger's own everything would be logged for its task.
            self._task = loop.create_task(self._run(), name="lance-poller", context=contextvars.Context())
        try:
            yield subscription
        finally:
            self._subscriptions.pop(subscription, None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.wire.aclose()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            soonest = min((subscription.due for subscription in self._subscriptions), default=None)
            pause = None if soonest is None else max(0.0, soonest - loop.time())
            if pause is None or pause > 0:
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                else:
                    continue  # a new subscription may be due sooner
            await self._poll(loop.time())
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """The seconds between two polls, which grow while the server fails."""
        pause = self.interval / _POLLS_PER_INTERVAL
        if self.wire.protocol.filters_jobs is True:
            pause = min(pause, _SHORTEST_PAUSE)
        if self._errors:
            pause = min(_LONGEST_PAUSE, self.interval * 2 ** min(self._errors - 1, 6))
        return pause * (1 + 0.2 * random.random())

    async def _poll(self, now: float) -> None:
        # Jobs that come due before the next poll are polled now, so that jobs of one interval get into step.
        horizon = now + self.interval / _POLLS_PER_INTERVAL
        due = [subscription for subscription in self._subscriptions if subscription.due <= horizon]
        if self.wire.protocol.filters_jobs is not True:
            due = due[: max(1, self.batch // _POLLS_PER_INTERVAL)]
        if not due:
            return
        failed: WireError | None = None
        found: dict[str, Job | WireError] = {}
        try:
            found = await self.wire.jobs(list(dict.fromkeys(subscription.job_id for subscription in due)))
        except WireError as error:
            failed = error
        except Exception as error:  # the waiting tasks must hear of any error
            failed = WireError(f"Polling failed: {type(error).__name__}: {error}", code=None)
        # The pauses grow only where the server answers for no job at all, not where it fails for a single one.
        all_failed = bool(found) and all(isinstance(polled, WireError) for polled in found.values())
        self._errors = self._errors + 1 if failed is not None or all_failed else 0
        now = asyncio.get_running_loop().time()
        for subscription in due:
            if subscription not in self._subscriptions:
                continue
            subscription.delay = min(self.interval, subscription.delay * 2)
            subscription.due = now + subscription.delay
            self._subscriptions.move_to_end(subscription)  # where requests are limited, all jobs take turns
            subscription.put(failed if failed is not None else found.get(subscription.job_id))
