"""Sensors about tables: a newer version, a tag that exists or moved, a table that exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, PokeReturnValue

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.operators.base import log_reason, read_table_id, task_error
from airflow_provider_lance.operators.rendered import given, version_number
from airflow_provider_lance.sensors.base import LanceBaseSensor
from airflow_provider_lance.triggers.looks import FailedLooks
from airflow_provider_lance.triggers.position import Goal, Place

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class _PlaceSensor(LanceBaseSensor):
    """Waits until a place has reached a goal; subclasses say which."""

    template_fields: Sequence[str] = (*LanceBaseSensor.template_fields, "table_id")

    def __init__(self, *, table_id: Identifier, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table_id = table_id
        self._failed: FailedLooks | None = None

    def place(self, table_id: list[str]) -> Place:
        return Place(table_id)

    def goal(self) -> Goal:
        raise NotImplementedError

    def _place(self) -> Place:
        return self.place(read_table_id(self.hook, self.table_id, self.task_id))

    def poke(self, context: Context) -> bool | PokeReturnValue:
        place, goal = self._place(), self.goal()
        operation, fields = place.request()
        if self._failed is None:
            self._failed = FailedLooks(self.log, read_configuration().poll_errors)
        present, version = True, None
        failure: AirflowException | None = None
        try:
            version = place.read(self.hook.call(operation, fields))
        except WireError as error:
            present = False
            if not error.missing:
                # What may pass by itself is tolerated, as in the triggerer.
                if self._failed.failed(error, may_pass=error.transient or error.refused):
                    if error.refused:
                        self.hook.reread()
                    return False
                failure = task_error(error)
        if failure is not None:
            raise log_reason(self.log, failure)
        self._failed.answered()
        if not goal.reached(present, version):
            self.log.info("Waiting for %s: %s; it is %s.", place.describe(), goal.describe(), version or "not there")
            return False
        return PokeReturnValue(True, _found(place, version))

    def execute(self, context: Context) -> Any:
        if not self.defers:
            return super().execute(context)
        deadline = self.deadline  # before the first look, which may take long
        if found := self.first_look(context):
            return found.xcom_value
        from airflow_provider_lance.triggers.table import LanceTableSensorTrigger

        place = self._place()
        self.wait_for(
            LanceTableSensorTrigger(
                table_id=place.table_id,
                lance_conn_id=self.lance_conn_id,
                branch=place.branch,
                tag=place.tag,
                goal=asdict(self.goal()),
                deadline=deadline,
                poll_interval=self.poll_interval,
            )
        )

    def failed_look(self) -> str | None:
        return self._failed.reason if self._failed is not None else None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Where a deferred sensor goes on."""
        place, version, error = self._place(), event.get("version"), event.get("error")
        seen = Place(list(event["table_id"]), event.get("branch"), event.get("tag"))
        if seen == place and event.get("timeout"):
            # It may have happened while nobody looked; not asked for where the server does not answer.
            found = self.poke(context) if not error else False
            if isinstance(found, PokeReturnValue) and found.xcom_value is not None:
                return found.xcom_value
            raise self.timed_out(error)
        if seen == place and error:
            raise AirflowException(f"Cannot look at {place.describe()} any longer: {error}")
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
        return Place(table_id, branch=given(self.branch))

    def goal(self) -> Goal:
        after = version_number("newer_than", self.newer_than)
        if after is not None:
            return Goal(after=after)
        least = version_number("min_version", self.min_version)
        return Goal(after=(1 if least is None else least) - 1)


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
            equals=version_number("version", self.version),
            moved_from=version_number("moved_from", self.moved_from),
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
