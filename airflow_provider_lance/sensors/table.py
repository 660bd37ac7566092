"""Sensors about tables: a newer version, a tag that exists or moved, a table that exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, PokeReturnValue

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.operators.base import read_table_id, task_error
from airflow_provider_lance.sensors.base import LanceBaseSensor
from airflow_provider_lance.triggers.position import Goal, Place

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class _PlaceSensor(LanceBaseSensor):
    """Waits until a place has reached a goal; subclasses say which."""

    template_fields: Sequence[str] = (*LanceBaseSensor.template_fields, "table_id")

    def __init__(self, *, table_id: Identifier, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table_id = table_id

    def place(self, table_id: list[str]) -> Place:
        return Place(table_id)

    def goal(self) -> Goal:
        raise NotImplementedError

    def _place(self) -> Place:
        return self.place(read_table_id(self.hook, self.table_id, self.task_id))

    def poke(self, context: Context) -> bool | PokeReturnValue:
        place, goal = self._place(), self.goal()
        operation, fields = place.request()
        present, version = True, None
        failure: AirflowException | None = None
        try:
            version = place.read(self.hook.call(operation, fields))
        except WireError as error:
            if not error.missing:
                failure = task_error(error)
            present = False
        if failure is not None:
            raise failure
        if not goal.reached(present, version):
            self.log.info("Waiting for %s: %s; it is %s.", place.describe(), goal.describe(), version or "not there")
            return False
        return PokeReturnValue(True, _found(place, version))

    def execute(self, context: Context) -> Any:
        if not self.defers:
            return super().execute(context)
        if found := self.first_look(context):
            return found.xcom_value
        from airflow_provider_lance.triggers.table import LanceTableTrigger

        place = self._place()
        self.wait_for(
            LanceTableTrigger(
                table_id=place.table_id,
                lance_conn_id=self.lance_conn_id,
                branch=place.branch,
                tag=place.tag,
                goal=asdict(self.goal()),
                deadline=self.deadline,
                poll_interval=self.poke_interval if self.poke_interval != 60 else None,
            )
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Where a deferred sensor goes on."""
        if event.get("timeout"):
            raise self.timed_out()
        if event.get("error"):
            raise AirflowException(f"Cannot look at {self._place().describe()} any longer: {event['error']}")
        place, version = self._place(), event.get("version")
        seen = Place(list(event["table_id"]), event.get("branch"), event.get("tag"))
        if seen != place or not self.goal().reached(True, version):
            return self.wait_again(context, seen.describe())
        return _found(place, version)


class LanceTableVersionSensor(_PlaceSensor):
    """Waits for a version of a table.

    :param table_id: the table. (templated)
    :param min_version: at least this version. (templated)
    :param newer_than: a version above this one: a number, or the dict another Lance task returned. (templated)
    :param branch: of the table. (templated)
    :return: ``{"table_id", "version"}``.
    """

    template_fields: Sequence[str] = (*_PlaceSensor.template_fields, "min_version", "newer_than", "branch")

    def __init__(
        self,
        *,
        min_version: int | str | None = None,
        newer_than: Any = None,
        branch: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if min_version is not None and newer_than is not None:
            raise ValueError("Give `min_version` or `newer_than`, not both.")
        self.min_version = min_version
        self.newer_than = newer_than
        self.branch = branch

    def place(self, table_id: list[str]) -> Place:
        return Place(table_id, branch=self.branch or None)

    def goal(self) -> Goal:
        if self.newer_than is not None:
            return Goal(after=_version("newer_than", self.newer_than))
        least = _version("min_version", self.min_version) if self.min_version is not None else 1
        return Goal(after=least - 1)


class LanceTagSensor(_PlaceSensor):
    """Waits for a tag to exist, to point to a version, or to move away from one.

    :param table_id: the table. (templated)
    :param tag: the tag. (templated)
    :param version: exactly this version. (templated)
    :param moved_from: any other version than this one: a number, or the dict another Lance task returned. (templated)
    :return: ``{"table_id", "tag", "version"}``.
    """

    template_fields: Sequence[str] = (*_PlaceSensor.template_fields, "tag", "version", "moved_from")

    def __init__(self, *, tag: str, version: int | str | None = None, moved_from: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.version = version
        self.moved_from = moved_from

    def place(self, table_id: list[str]) -> Place:
        return Place(table_id, tag=self.tag)

    def goal(self) -> Goal:
        return Goal(
            equals=_version("version", self.version) if self.version is not None else None,
            moved_from=_version("moved_from", self.moved_from) if self.moved_from is not None else None,
        )


class LanceTableExistsSensor(_PlaceSensor):
    """Waits for a table to exist, be it only declared.

    :param table_id: the table. (templated)
    :param with_data: wait for its first version too.
    :return: ``{"table_id", "version"}``.
    """

    def __init__(self, *, with_data: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.with_data = with_data

    def goal(self) -> Goal:
        return Goal(exists=not self.with_data)


def _found(place: Place, version: int | None) -> dict[str, Any]:
    named = {name: value for name, value in (("branch", place.branch), ("tag", place.tag)) if value}
    return {"table_id": place.table_id, **named, "version": version}


def _version(name: str, given: Any) -> int:
    value: Any = given.get("version") if isinstance(given, dict) else given
    try:
        return int(value)
    except (TypeError, ValueError):
        raise AirflowFailException(f"`{name}` must be a version number, not {given!r}.") from None
