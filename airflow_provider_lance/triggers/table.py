"""Triggers that watch a table: ``LanceTableTrigger`` for asset watchers, ``LanceTableSensorTrigger`` for sensors.

They are two classes, because Airflow takes every event trigger for a watcher. A watcher belongs to no triggerer queue,
so a task that defers to one never continues where every triggerer serves a queue.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self, TypedDict

from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.api.versions import version_of
from airflow_provider_lance.configuration import DEFAULT_CONNECTION, read_configuration
from airflow_provider_lance.tasks.poll_errors import PollErrors
from airflow_provider_lance.tasks.table_reference import TableReference, VersionGoal

if TYPE_CHECKING:
    from airflow_provider_lance.triggers.poller import Poller

# The stored version of what does not exist. Versions count from 1.
_ABSENT = 0
_MOST_ERROR = 4000


class TableEvent(TypedDict):
    """What ``LanceTableSensorTrigger`` sends to its sensor; Airflow stores it as JSON."""

    table_id: list[str]
    branch: str | None
    tag: str | None
    version: int | None
    timeout: bool
    error: str | None


@dataclass(frozen=True)
class PolledTable:
    """What a poll shows: whether the table, branch or tag exists, and its version."""

    reference: TableReference
    present: bool
    version: int | None


class TablePoller:
    """Polls a table, a branch or a tag over the HTTP connections of the shared poller.

    The connection is read again after a failed poll, because its credentials may have been rotated.
    """

    def __init__(
        self,
        *,
        lance_conn_id: str,
        table_id: str | Sequence[str],
        branch: str | None,
        tag: str | None,
        interval: float,
        errors: PollErrors,
    ) -> None:
        self._lance_conn_id = lance_conn_id
        self._table_id = table_id
        self._branch = branch
        self._tag = tag
        self._interval = interval
        self._errors = errors
        self._stack = AsyncExitStack()
        self._connected: tuple[Poller, TableReference] | None = None
        #: Whether a poll has begun and was not answered yet.
        self.unanswered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def poll(self) -> PolledTable | None:
        """Poll once. ``None`` means that the poll failed and the next may succeed. Any other error is raised."""
        self.unanswered = True
        try:
            if self._connected is None:
                self._connected = await self._connect()
            polled = await _poll(*self._connected)
        except Exception as error:
            self.unanswered = False
            self._connected = None
            await self._stack.aclose()
            may_pass = not isinstance(error, WireError) or error.transient or error.refused
            if not self._errors.tolerate(error, may_pass=may_pass):
                raise
            return None
        self.unanswered = False
        self._errors.clear()
        return polled

    async def pause(self) -> None:
        """Sleep until the next poll."""
        await asyncio.sleep(self._errors.pause(self._interval) * (0.9 + 0.2 * random.random()))

    async def _connect(self) -> tuple[Poller, TableReference]:
        # These imports are not needed while a DAG that watches an asset is parsed.
        from airflow_provider_lance.hooks.lance import resolve_async
        from airflow_provider_lance.triggers.poller import shared_poller

        resolved = await resolve_async(self._lance_conn_id)
        if resolved.settings is None:
            raise ValueError(f"The connection {self._lance_conn_id!r} has no server that a trigger could ask.")
        reference = TableReference(parse_id(self._table_id, resolved.delimiter), self._branch, self._tag)
        batch = read_configuration().poll_batch
        poller = await self._stack.enter_async_context(
            shared_poller(resolved.settings, interval=self._interval, batch=batch)
        )
        return poller, reference


class LanceTableTrigger(BaseEventTrigger):
    """Watch a table, one of its branches or one of its tags, for the watcher of an asset.

    It fires at least one event for each change, with the version in its payload::

        Asset(uri="lance://prod/sales/orders", watchers=[
            AssetWatcher(name="new version", trigger=LanceTableTrigger(table_id=["sales", "orders"])),
        ])

    A DAG reads the event from ``triggering_asset_events[...].extra["payload"]``. Several versions between two polls are
    one event, for the newest. A table or tag that appears while it is watched is a change from ``None``. Airflow keeps
    the last version with the asset. Airflow 3.2 keeps none, so changes while no triggerer runs are not noticed there.

    The guide is ``docs/triggers/table.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
    :param lance_conn_id: The id of the namespace's connection. It is read in the triggerer, so no secret is stored
        with the trigger.
    :param branch: The branch of the table. By default it is the main branch.
    :param tag: The tag to watch instead of the table's newest version.
    :param poll_interval: The seconds between two polls. The default is ``[lance] poll_interval``.
    :return: Events with ``table_id``, ``version``, ``previous_version``, ``branch`` and ``tag``.
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
        super().__init__()  # type: ignore[no-untyped-call]
        self.table_id = table_id if isinstance(table_id, str) else list(table_id)
        self.lance_conn_id = lance_conn_id
        self.branch = branch
        self.tag = tag
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, object]]:
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
        async with TablePoller(
            lance_conn_id=self.lance_conn_id,
            table_id=self.table_id,
            branch=self.branch,
            tag=self.tag,
            interval=self.poll_interval or read_configuration().poll_interval,
            errors=PollErrors(self.log),
        ) as table:
            while True:
                try:
                    polled = await table.poll()
                    if polled is not None and not recalled:
                        known, recalled = await self._recall(polled.reference), True
                    if polled is not None and (version := polled.version or _ABSENT) != known:
                        if version != _ABSENT and known is not None:
                            payload = {**asdict(polled.reference), "version": version}
                            yield TriggerEvent({**payload, "previous_version": known or None})  # type: ignore[no-untyped-call]
                        # The version is stored after the event, so that a triggerer that dies in between fires again.
                        await self._remember(polled.reference, version)
                        known = version
                except Exception as error:  # Airflow does not restart a watcher that raised
                    self.log.warning("The watcher goes on after %s: %s", type(error).__name__, error)
                await table.pause()

    async def _recall(self, reference: TableReference) -> int | None:
        """The version that was stored with the asset."""
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return None
        try:
            stored = await store.aget(reference.key)
        except ValueError:  # several assets share this trigger, so there is no single stored version
            self.asset_state_store = None
            return None
        return int(stored) if isinstance(stored, int | str) and str(stored).isdigit() else None

    async def _remember(self, reference: TableReference, version: int) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is not None:
            await store.aset(reference.key, version)


class LanceTableSensorTrigger(BaseTrigger):
    """Fire once, when a table, branch or tag has reached a goal, the deadline has passed or polling is hopeless.

    The table sensors defer to it. The guide is ``docs/triggers/table_sensor.md``.

    :param table_id: The table's identifier, as a list of strings.
    :param goal: When the wait is over: any of ``after``, ``equals`` and ``moved_from``, which are versions, and
        ``exists``.
    :param lance_conn_id: The id of the namespace's connection. It is read in the triggerer, so no secret is stored
        with the trigger.
    :param branch: The branch of the table. By default it is the main branch.
    :param tag: The tag to poll instead of the table's newest version.
    :param deadline: The time, in seconds since the epoch, at which the wait is over. It also ends a poll that fails.
    :param poll_interval: The seconds between two polls. The default is ``[lance] poll_interval``.
    :return: An event with ``table_id``, ``branch``, ``tag``, ``version``, ``timeout`` and ``error``.
    """

    def __init__(
        self,
        *,
        table_id: Sequence[str],
        goal: Mapping[str, int | bool | None],
        lance_conn_id: str = DEFAULT_CONNECTION,
        branch: str | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        poll_interval: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table_id = list(table_id)
        self.goal = dict(goal)
        self.lance_conn_id = lance_conn_id
        self.branch = branch
        self.tag = tag
        self.deadline = deadline
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, object]]:
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
        errors = PollErrors(self.log, configuration.poll_errors)
        version: int | None = None
        timeout = False
        async with TablePoller(
            lance_conn_id=self.lance_conn_id,
            table_id=self.table_id,
            branch=self.branch,
            tag=self.tag,
            interval=self.poll_interval or configuration.poll_interval,
            errors=errors,
        ) as table:
            try:
                # A single poll may take minutes, because requests are retried. The deadline ends that, too.
                async with asyncio.timeout(None if self.deadline is None else max(0.0, self.deadline - time.time())):
                    version = await self._wait_for_goal(table)
            except TimeoutError:
                timeout = True
            except Exception as error:  # a trigger that raises fails its task without the sensor's own message
                if errors.reason is None:
                    errors.tolerate(error, may_pass=False)
        reason = errors.reason or ("The last look was not answered." if table.unanswered else None)
        event: TableEvent = {
            "table_id": self.table_id,
            "branch": self.branch,
            "tag": self.tag,
            "version": version,
            "timeout": timeout,
            "error": reason[:_MOST_ERROR] if reason else None,
        }
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _wait_for_goal(self, table: TablePoller) -> int | None:
        """Poll until the goal is reached; returns the version."""
        goal = VersionGoal(**self.goal)  # type: ignore[arg-type]
        while True:
            polled = await table.poll()
            if polled is not None and goal.is_reached(polled.present, polled.version):
                return polled.version
            await table.pause()


async def _poll(poller: Poller, reference: TableReference) -> PolledTable:
    operation, fields = reference.request()
    try:
        return PolledTable(reference, True, version_of((await poller.wire.call(operation, fields)).value))
    except WireError as error:
        if not error.missing:
            raise
    return PolledTable(reference, False, None)
