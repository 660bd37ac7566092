"""``LanceTableTrigger``: notices a new version of a table or a moved tag.

Deferred tasks use it with a goal and get one event. An ``AssetWatcher`` uses it without and gets an event for every
change, from where the last one left off: its position is kept with the asset (Airflow 3.3).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import TriggerEvent

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.triggers.position import Goal, Place

if TYPE_CHECKING:
    from airflow_provider_lance.triggers.poller import Poller

_LONGEST_PAUSE = 60.0
_ABSENT = 0  # the position of what is not there (yet); versions count from 1


class LanceTableTrigger(BaseEventTrigger):
    """Watches one table, one of its branches, or one of its tags.

    As an asset's watcher, at least one event for each change, with the version in its payload::

        Asset(uri="lance://prod/sales/orders", watchers=[
            AssetWatcher(name="new version", trigger=LanceTableTrigger(table_id=["sales", "orders"])),
        ])

    Its consumer reads ``triggering_asset_events[...].extra["payload"]``: ``{"table_id", "version",
    "previous_version", "branch", "tag"}``. Several versions between two looks are one event, for the newest; a
    table or tag that appears while it is watched is a change from ``None``. On Airflow 3.2, which keeps no position,
    changes while no triggerer runs are not noticed.

    :param table_id: the table, a list of strings or one string with the connection's delimiter.
    :param lance_conn_id: the connection; resolved in the triggerer, so no secret is stored with the trigger.
    :param branch: of the table; its main branch by default.
    :param tag: watch this tag instead.
    :param goal: end at this goal, with one event (what the sensors use).
    :param deadline: of the goal, in seconds since the epoch.
    :param poll_interval: seconds between looks; the configuration's when ``None``.
    """

    def __init__(
        self,
        *,
        table_id: str | Sequence[str],
        lance_conn_id: str = DEFAULT_CONNECTION,
        branch: str | None = None,
        tag: str | None = None,
        goal: dict[str, Any] | None = None,
        deadline: float | None = None,
        poll_interval: float | None = None,
    ) -> None:
        super().__init__()
        self.table_id = table_id if isinstance(table_id, str) else list(table_id)
        self.lance_conn_id = lance_conn_id
        self.branch = branch
        self.tag = tag
        self.goal = goal
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._errors = 0
        self._known: int | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_provider_lance.triggers.table.LanceTableTrigger",
            {
                "table_id": self.table_id,
                "lance_conn_id": self.lance_conn_id,
                "branch": self.branch,
                "tag": self.tag,
                "goal": self.goal,
                "deadline": self.deadline,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        configuration = read_configuration()
        interval = self.poll_interval or configuration.poll_interval
        while True:
            try:
                async for event in self._look_on(interval, configuration.poll_batch):
                    yield event
                    if self.goal is not None:
                        return
            except Exception as error:  # a watcher that raises is gone for good
                self._errors += 1
                self.log.warning("Look %d failed, will look again: %s: %s", self._errors, type(error).__name__, error)
                if self.goal is not None and (self._errors > configuration.poll_errors or not _may_pass(error)):
                    yield TriggerEvent({"error": f"{type(error).__name__}: {error}"[:4000]})
                    return
                await asyncio.sleep(min(_LONGEST_PAUSE, interval * 2 ** min(self._errors - 1, 6)))

    async def _look_on(self, interval: float, batch: int) -> AsyncIterator[TriggerEvent]:
        """Look until something is wrong; the caller reads the connection again then."""
        # Not needed while a DAG that watches an asset is parsed.
        from airflow_provider_lance.hooks.lance import resolve_async
        from airflow_provider_lance.triggers.poller import share

        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            raise ValueError(f"The connection {self.lance_conn_id!r} has no server that a trigger could ask.")
        place = Place(parse_id(self.table_id, resolved.delimiter), self.branch, self.tag)
        async with share(resolved.settings, interval=interval, batch=batch) as poller:
            if self.goal is not None:
                goal = Goal(**self.goal)
                while True:
                    present, version = await self._look(poller, place)
                    if goal.reached(present, version):
                        yield TriggerEvent(_payload(place, version, None))
                        return
                    pause = _jittered(interval)
                    if self.deadline is not None:
                        pause = min(pause, max(0.0, self.deadline - time.time()))
                        if not pause:
                            yield TriggerEvent({**_payload(place, version, None), "timeout": True})
                            return
                    await asyncio.sleep(pause)
            if self._known is None:
                self._known = await self._recall(place)
            while True:
                version = (await self._look(poller, place))[1] or _ABSENT
                if version != self._known:
                    if version != _ABSENT and self._known is not None:
                        yield TriggerEvent(_payload(place, version, self._known or None))
                    # Only now: a triggerer that dies in between fires again rather than not at all.
                    await self._remember(place, version)
                    self._known = version
                await asyncio.sleep(_jittered(interval))

    async def _look(self, poller: Poller, place: Place) -> tuple[bool, int | None]:
        operation, fields = place.request()
        present, version = True, None
        try:
            version = place.read((await poller.wire.call(operation, fields)).value)
        except WireError as error:
            if not error.missing:
                raise
            present = False
        self._errors = 0
        return present, version

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


def _payload(place: Place, version: int | None, before: int | None) -> dict[str, Any]:
    return {**asdict(place), "version": version, "previous_version": before}


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, WireError) or error.transient or error.refused


def _jittered(interval: float) -> float:
    return interval * (0.9 + 0.2 * random.random())
