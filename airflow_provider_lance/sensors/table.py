"""Sensors that wait for a table, for one of its versions, or for a tag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Unpack

from airflow.providers.common.compat.sdk import AirflowException, PokeReturnValue

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.versions import version_of
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.sensors.base import LanceBaseSensor
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.operator_arguments import SensorArguments, TableSensorArguments
from airflow_provider_lance.tasks.poll_errors import PollErrors
from airflow_provider_lance.tasks.table_reference import TableReference, VersionGoal
from airflow_provider_lance.tasks.templating import as_version, none_if_blank, read_table_id

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.tasks.templating import TaskOutput
    from airflow_provider_lance.triggers.table import TableEvent


class _TableSensor(LanceBaseSensor):
    """The base class of the sensors that wait for a version of a table, branch or tag."""

    template_fields: Sequence[str] = (*LanceBaseSensor.template_fields, "table_id")

    def __init__(self, *, table_id: Identifier, **kwargs: Unpack[SensorArguments]) -> None:
        super().__init__(**kwargs)
        self.table_id = table_id
        self._errors: PollErrors | None = None

    # What a subclass defines

    def reference(self, table_id: list[str]) -> TableReference:
        """What the sensor waits for."""
        return TableReference(table_id)

    def goal(self) -> VersionGoal:
        """When the wait is over."""
        raise NotImplementedError

    def _reference(self) -> TableReference:
        return self.reference(read_table_id(self.hook, self.table_id, self.task_id))

    def _describe(self, reference: TableReference) -> str:
        return reference.describe(self.hook.resolved.delimiter)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        reference, goal = self._reference(), self.goal()
        operation, fields = reference.request()
        if self._errors is None:
            self._errors = PollErrors(self.log, read_configuration().poll_errors)
        present, version = True, None
        failure: AirflowException | None = None
        try:
            version = version_of(self.hook.call(operation, fields))
        except WireError as error:
            present = False
            if not error.missing:
                # An error that may pass by itself is tolerated, as in the triggerer.
                if self._errors.tolerate(error, may_pass=error.transient or error.refused):
                    if error.refused:
                        self.hook.reread()
                    return False
                failure = task_error(error)
        if failure is not None:
            raise log_failure(self.log, failure)
        self._errors.clear()
        if not goal.is_reached(present, version):
            subject = self._describe(reference)
            self.log.info("Waiting for %s: %s; it is %s.", subject, goal.describe(), version or "not there")
            return False
        return PokeReturnValue(True, _result(reference, version))

    def execute(self, context: Context) -> object:
        if not self.can_defer:
            return super().execute(context)
        deadline = self.deadline  # taken before the first poke, which may take long
        found = self.poke_before_deferring(context)
        if isinstance(found, PokeReturnValue):
            return found.xcom_value
        from airflow_provider_lance.triggers.table import LanceTableSensorTrigger

        reference = self._reference()
        self.defer_to(
            LanceTableSensorTrigger(
                table_id=reference.table_id,
                lance_conn_id=self.lance_conn_id,
                branch=reference.branch,
                tag=reference.tag,
                goal=asdict(self.goal()),
                deadline=deadline,
                poll_interval=self.poll_interval,
            )
        )

    def last_error(self) -> str | None:
        return self._errors.reason if self._errors is not None else None

    def execute_complete(self, context: Context, event: TableEvent) -> object:
        """Continue a sensor that was deferred."""
        reference, version, error = self._reference(), event.get("version"), event.get("error")
        seen = TableReference(list(event["table_id"]), event.get("branch"), event.get("tag"))
        if seen == reference and event.get("timeout"):
            # The goal may have been reached since the last poll. A server that does not answer is not asked again.
            found = self.poke(context) if not error else False
            if isinstance(found, PokeReturnValue) and found.xcom_value is not None:
                return found.xcom_value
            raise self.timed_out(error)
        if seen == reference and error:
            raise AirflowException(f"Cannot look at {self._describe(reference)} any longer: {error}")
        if seen != reference or not self.goal().is_reached(True, version):
            return self.wait_again(context, self._describe(seen))
        return _result(reference, version)


class LanceTableVersionSensor(_TableSensor):
    """Wait for a version of a table or branch. By default the first version is enough.

    The guide is ``docs/sensors/table_version.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param min_version: The smallest version that ends the wait. (templated)
    :param newer_than: The version that must be exceeded, as a number or as the dict that another Lance task returned.
        (templated)
    :param branch: The branch of the table. By default it is the main branch. (templated)
    :param deferrable: Whether the sensor waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration. A namespace without a server is poked on the worker.
    :param poke_interval: The seconds between two polls. By default a deferred sensor polls every ``[lance]
        poll_interval`` seconds, and a sensor on a worker every minute.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id`` and ``version``, and with ``branch`` where one was given.
    """

    template_fields: Sequence[str] = (*_TableSensor.template_fields, "min_version", "newer_than", "branch")

    def __init__(
        self,
        *,
        min_version: int | str | None = None,
        newer_than: int | str | TaskOutput | None = None,
        branch: str | None = None,
        **kwargs: Unpack[TableSensorArguments],
    ) -> None:
        super().__init__(**kwargs)
        if min_version is not None and newer_than is not None:
            raise ValueError("Give `min_version` or `newer_than`, not both.")
        self.min_version = min_version
        self.newer_than = newer_than
        self.branch = branch

    def reference(self, table_id: list[str]) -> TableReference:
        return TableReference(table_id, branch=none_if_blank(self.branch))

    def goal(self) -> VersionGoal:
        after = as_version("newer_than", self.newer_than)
        if after is not None:
            return VersionGoal(after=after)
        least = as_version("min_version", self.min_version)
        return VersionGoal(after=(1 if least is None else least) - 1)


class LanceTagSensor(_TableSensor):
    """Wait for a tag to exist, to point to a version, or to move away from one.

    The guide is ``docs/sensors/tag.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param tag: The name of the tag. (templated)
    :param version: The version that the tag must point to. (templated)
    :param moved_from: The version that the tag must have left, as a number or as the dict that another Lance task
        returned. (templated)
    :param deferrable: Whether the sensor waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration. A namespace without a server is poked on the worker.
    :param poke_interval: The seconds between two polls. By default a deferred sensor polls every ``[lance]
        poll_interval`` seconds, and a sensor on a worker every minute.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``tag`` and ``version``.
    """

    template_fields: Sequence[str] = (*_TableSensor.template_fields, "tag", "version", "moved_from")

    def __init__(
        self,
        *,
        tag: str,
        version: int | str | TaskOutput | None = None,
        moved_from: int | str | TaskOutput | None = None,
        **kwargs: Unpack[TableSensorArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.tag = tag
        self.version = version
        self.moved_from = moved_from

    def reference(self, table_id: list[str]) -> TableReference:
        return TableReference(table_id, tag=self.tag)

    def goal(self) -> VersionGoal:
        return VersionGoal(
            equals=as_version("version", self.version), moved_from=as_version("moved_from", self.moved_from)
        )


class LanceTableExistsSensor(_TableSensor):
    """Wait for a table to exist. A table that was only declared counts.

    The guide is ``docs/sensors/table_exists.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param with_data: Whether the sensor also waits for the table's first version.
    :param deferrable: Whether the sensor waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration. A namespace without a server is poked on the worker.
    :param poke_interval: The seconds between two polls. By default a deferred sensor polls every ``[lance]
        poll_interval`` seconds, and a sensor on a worker every minute.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id`` and ``version``.
    """

    def __init__(self, *, with_data: bool = False, **kwargs: Unpack[TableSensorArguments]) -> None:
        super().__init__(**kwargs)
        self.with_data = with_data

    def goal(self) -> VersionGoal:
        return VersionGoal(exists=not self.with_data)


def _result(reference: TableReference, version: int | None) -> dict[str, object]:
    """What the sensor returns."""
    named = {name: value for name, value in (("branch", reference.branch), ("tag", reference.tag)) if value}
    return {"table_id": reference.table_id, **named, "version": version}
