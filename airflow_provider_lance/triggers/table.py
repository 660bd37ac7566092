"""Triggers that look at a table: ``LanceTableTrigger`` for asset watchers, ``LanceTableSensorTrigger`` for tasks.

They are two classes because Airflow takes every event trigger for a watcher. A watcher belongs to no triggerer
queue, so a task that defers to one never goes on where every triggerer serves a queue.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.triggers.looks import FailedLooks
from airflow_provider_lance.triggers.position import Goal, Place

if TYPE_CHECKING:
    from airflow_provider_lance.triggers.poller import Poller

_ABSENT = 0  # the position of what is not there (yet); versions count from 1
_MOST_TEXT = 4000


@dataclass(frozen=True)
class Seen:
    """What a look showed: the place, whether it exists, and its version."""

    place: Place
    present: bool
    version: int | None


class TableLooks:
    """One look after the other at a table, a branch or a tag, over the poller's HTTP connections.

    The connection is read again after a failed look, because its credentials may have been rotated.
    """

    def __init__(
        self,
        *,
        lance_conn_id: str,
        table_id: str | Sequence[str],
        branch: str | None,
        tag: str | None,
        interval: float,
        failed: FailedLooks,
    ) -> None:
        self._lance_conn_id = lance_conn_id
        self._table_id = table_id
        self._branch = branch
        self._tag = tag
        self._interval = interval
        self._failed = failed
        self._stack = AsyncExitStack()
        self._asked: tuple[Poller, Place] | None = None
        #: Whether a look has begun and was not answered yet.
        self.unanswered = False

    async def __aenter__(self) -> TableLooks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def look(self) -> Seen | None:
        """What is there now; ``None`` if the look failed and another one may succeed. Raises what ends the wait."""
        self.unanswered = True
        try:
            if self._asked is None:
                self._asked = await self._connect()
            seen = await _ask(*self._asked)
        except Exception as error:
            self.unanswered = False
            self._asked = None
            await self._stack.aclose()
            if not self._failed.failed(error, may_pass=_may_pass(error)):
                raise
            return None
        self.unanswered = False
        self._failed.answered()
        return seen

    async def pause(self) -> None:
        await asyncio.sleep(self._failed.pause(self._interval) * (0.9 + 0.2 * random.random()))

    async def _connect(self) -> tuple[Poller, Place]:
        # Not needed while a DAG that watches an asset is parsed.
        from airflow_provider_lance.hooks.lance import resolve_async
        from airflow_provider_lance.triggers.poller import share

        resolved = await resolve_async(self._lance_conn_id)
        if resolved.settings is None:
            raise ValueError(f"The connection {self._lance_conn_id!r} has no server that a trigger could ask.")
        place = Place(parse_id(self._table_id, resolved.delimiter), self._branch, self._tag)
        batch = read_configuration().poll_batch
        poller = await self._stack.enter_async_context(share(resolved.settings, interval=self._interval, batch=batch))
        return poller, place


class LanceTableTrigger(BaseEventTrigger):
    """Watches one table, one of its branches, or one of its tags, for an asset.

    It fires at least one event for each change, with the version in its payload::

        Asset(uri="lance://prod/sales/orders", watchers=[
            AssetWatcher(name="new version", trigger=LanceTableTrigger(table_id=["sales", "orders"])),
        ])

    Its consumer reads ``triggering_asset_events[...].extra["payload"]``: ``{"table_id", "version",
    "previous_version", "branch", "tag"}``. Several versions between two looks are one event, for the newest; a
    table or tag that appears while it is watched is a change from ``None``. The position is kept with the asset. On
    Airflow 3.2, which keeps no position, changes while no triggerer runs are not noticed.

    :param table_id: the table, a list of strings or one string with the connection's delimiter.
    :param lance_conn_id: the connection; resolved in the triggerer, so no secret is stored with the trigger.
    :param branch: of the table; its main branch by default.
    :param tag: watch this tag instead.
    :param poll_interval: seconds between looks; the configuration's when ``None``.
    """

    def __init__(
        self,
        *,
        table_id: str | Sequence[str],
        lance_conn_id: str = DEFAULT_CONNECTION,
        branch: str | None = None,
        tag: str | None = None,
        poll_interval: float | None = None,
    ) -> None:
        super().__init__()
        self.table_id = table_id if isinstance(table_id, str) else list(table_id)
        self.lance_conn_id = lance_conn_id
        self.branch = branch
        self.tag = tag
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_provider_lance.triggers.table.LanceTableTrigger",
            {
                "table_id": self.table_id,
                "lance_conn_id": self.lance_conn_id,
                "branch": self.branch,
                "tag": self.tag,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        known: int | None = None
        recalled = False
        async with TableLooks(
            lance_conn_id=self.lance_conn_id,
            table_id=self.table_id,
            branch=self.branch,
            tag=self.tag,
            interval=self.poll_interval or read_configuration().poll_interval,
            failed=FailedLooks(self.log),
        ) as looks:
            while True:
                try:
                    seen = await looks.look()
                    if seen is not None and not recalled:
                        known, recalled = await self._recall(seen.place), True
                    if seen is not None and (version := seen.version or _ABSENT) != known:
                        if version != _ABSENT and known is not None:
                            yield TriggerEvent(
                                {**asdict(seen.place), "version": version, "previous_version": known or None}
                            )
                        # Only now: a triggerer that dies in between fires again rather than not at all.
                        await self._remember(seen.place, version)
                        known = version
                except Exception as error:  # a watcher that raises is gone for good
                    self.log.warning("The watcher goes on after %s: %s", type(error).__name__, error)
                await looks.pause()

    async def _recall(self, place: Place) -> int | None:
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return None
        try:
            stored = await store.aget(place.key)
        except ValueError:  # watched by several assets, which the store keeps apart: no single position
            self.asset_state_store = None
            return None
        return int(stored) if isinstance(stored, int | str) and str(stored).isdigit() else None

    async def _remember(self, place: Place, version: int) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is not None:
            await store.aset(place.key, version)


class LanceTableSensorTrigger(BaseTrigger):
    """Fires once, when a table, branch or tag has reached a goal, the deadline has passed or looking is hopeless.

    The table sensors defer to it.

    :param table_id: the table.
    :param goal: any of ``after``, ``equals``, ``moved_from`` (versions) and ``exists``.
    :param lance_conn_id: the connection; resolved in the triggerer, so no secret is stored with the trigger.
    :param branch: of the table; its main branch by default.
    :param tag: look at this tag instead.
    :param deadline: seconds since the epoch. It holds while looks fail, too.
    :param poll_interval: seconds between looks; the configuration's when ``None``.
    """

    def __init__(
        self,
        *,
        table_id: Sequence[str],
        goal: dict[str, Any],
        lance_conn_id: str = DEFAULT_CONNECTION,
        branch: str | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        poll_interval: float | None = None,
    ) -> None:
        super().__init__()
        self.table_id = list(table_id)
        self.goal = goal
        self.lance_conn_id = lance_conn_id
        self.branch = branch
        self.tag = tag
        self.deadline = deadline
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_provider_lance.triggers.table.LanceTableSensorTrigger",
            {
                "table_id": self.table_id,
                "goal": self.goal,
                "lance_conn_id": self.lance_conn_id,
                "branch": self.branch,
                "tag": self.tag,
                "deadline": self.deadline,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        configuration = read_configuration()
        failed = FailedLooks(self.log, configuration.poll_errors)
        version: int | None = None
        timeout = False
        async with TableLooks(
            lance_conn_id=self.lance_conn_id,
            table_id=self.table_id,
            branch=self.branch,
            tag=self.tag,
            interval=self.poll_interval or configuration.poll_interval,
            failed=failed,
        ) as looks:
            try:
                # A single look may take minutes, because requests are retried: the deadline ends that too.
                async with asyncio.timeout(None if self.deadline is None else max(0.0, self.deadline - time.time())):
                    version = await self._reach(looks)
            except TimeoutError:
                timeout = True
            except Exception as error:  # a trigger that raises fails its task without the sensor's own words
                if failed.reason is None:
                    failed.failed(error, may_pass=False)
        reason = failed.reason or ("The last look was not answered." if looks.unanswered else None)
        yield TriggerEvent(
            {
                **asdict(Place(self.table_id, self.branch, self.tag)),
                "version": version,
                "timeout": timeout,
                "error": reason[:_MOST_TEXT] if reason else None,
            }
        )

    async def _reach(self, looks: TableLooks) -> int | None:
        """The version with which the goal was reached."""
        goal = Goal(**self.goal)
        while True:
            seen = await looks.look()
            if seen is not None and goal.reached(seen.present, seen.version):
                return seen.version
            await looks.pause()


async def _ask(poller: Poller, place: Place) -> Seen:
    operation, fields = place.request()
    try:
        return Seen(place, True, place.read((await poller.wire.call(operation, fields)).value))
    except WireError as error:
        if not error.missing:
            raise
    return Seen(place, False, None)


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, WireError) or error.transient or error.refused
