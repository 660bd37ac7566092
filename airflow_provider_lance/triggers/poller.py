"""One poller per connection and event loop: however many triggers wait, the server is asked a few times an interval.

A trigger :func:`joins <share>` the poller of its connection, watches its job and leaves; the last one closes it. The
poller logs nothing: each trigger logs what concerns its own task.
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
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.retry import RetryPolicy
from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.api.wire import AsyncWire

# A Retry-After of up to a quarter of an hour is honoured inside of one look.
POLL_RETRY = RetryPolicy(attempts=4, first_delay=0.5, longest_delay=10.0, total_seconds=900.0)
_YOUNG = 0.5  # seconds until the first look at a new job; doubled at each look up to the interval
_LOOKS_PER_INTERVAL = 4  # bounds the requests: watches that come due in between wait for the next look
_LONGEST_PAUSE = 60.0

Sighting = Job | WireError | None

# Weak by loop: ``dag.test`` runs every trigger in a loop of its own, and an ended loop must not keep a client.
_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Poller]] = WeakKeyDictionary()


@asynccontextmanager
async def share(settings: Settings, *, interval: float, batch: int = 200) -> AsyncIterator[Poller]:
    """The poller of this connection in the running loop, for as long as the context lasts."""
    mine = _pollers.setdefault(asyncio.get_running_loop(), {})
    key = settings.fingerprint()
    poller = mine.get(key)
    if poller is None:
        poller = mine[key] = Poller(settings, batch=batch)
    poller.intervals.append(interval)
    try:
        yield poller
    finally:
        poller.intervals.remove(interval)
        if not poller.intervals:
            mine.pop(key, None)
            await poller.close()


@dataclass(eq=False)
class Watch:
    """One trigger's interest in one job: the latest sighting, handed over once."""

    job_id: str
    due: float
    delay: float = _YOUNG
    _latest: asyncio.Queue[Sighting] = field(default_factory=lambda: asyncio.Queue(1))

    async def next(self) -> Sighting:
        """The next sighting; an older one that nobody took is forgotten."""
        return await self._latest.get()

    def show(self, sighting: Sighting) -> None:
        if self._latest.full():
            self._latest.get_nowait()
        self._latest.put_nowait(sighting)


class Poller:
    """Asks for all watched jobs of one connection. Made by :func:`share`."""

    def __init__(self, settings: Settings, *, batch: int) -> None:
        self.wire = AsyncWire(replace(settings, retry=POLL_RETRY))
        self.batch = batch
        #: What each of its users asks for.
        self.intervals: list[float] = []
        self._watches: OrderedDict[Watch, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._errors = 0

    @property
    def interval(self) -> float:
        """The shortest anybody asks for."""
        return min(self.intervals)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        """Watch a job for as long as the context lasts."""
        loop = asyncio.get_running_loop()
        watch = Watch(job_id, due=loop.time() + _YOUNG)
        self._watches[watch] = None
        self._changed.set()
        if self._task is None:
            # An empty context: with the trigger's own, everything here would land in that one task's log for ever.
            self._task = loop.create_task(self._run(), name="lance-poller", context=contextvars.Context())
        try:
            yield watch
        finally:
            self._watches.pop(watch, None)

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
            soonest = min((watch.due for watch in self._watches), default=None)
            pause = None if soonest is None else max(0.0, soonest - loop.time())
            if pause is None or pause > 0:
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                else:
                    continue  # a newcomer may be due sooner
            await self._look(loop.time())
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Between two looks; longer and longer while the server fails."""
        gap = self.interval / _LOOKS_PER_INTERVAL
        if self._errors:
            gap = min(_LONGEST_PAUSE, self.interval * 2 ** min(self._errors - 1, 6))
        return gap * (1 + 0.2 * random.random())

    async def _look(self, now: float) -> None:
        # Who comes due before the next look could be had is looked at now: watches of an interval drift together.
        horizon = now + self.interval / _LOOKS_PER_INTERVAL
        due = [watch for watch in self._watches if watch.due <= horizon]
        if self.wire.protocol.filters_jobs is not True:
            due = due[: max(1, self.batch // _LOOKS_PER_INTERVAL)]
        if not due:
            return
        failed: WireError | None = None
        seen: dict[str, Job | WireError] = {}
        try:
            seen = await self.wire.jobs(list(dict.fromkeys(watch.job_id for watch in due)))
        except WireError as error:
            failed = error
        except Exception as error:  # whatever it is, the waiting tasks must hear of it
            failed = WireError(f"Polling failed: {type(error).__name__}: {error}", code=None)
        # The server is left alone for longer where it answers nobody, not where it cannot tell of a single job.
        nothing = bool(seen) and all(isinstance(sighting, WireError) for sighting in seen.values())
        self._errors = self._errors + 1 if failed is not None or nothing else 0
        now = asyncio.get_running_loop().time()
        for watch in due:
            if watch not in self._watches:
                continue
            watch.delay = min(self.interval, watch.delay * 2)
            watch.due = now + watch.delay
            self._watches.move_to_end(watch)  # where looks are rationed, everybody gets a turn
            watch.show(failed if failed is not None else seen.get(watch.job_id))
