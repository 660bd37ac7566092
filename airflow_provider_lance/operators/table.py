"""Operators that create a table, with or without data, and that drop one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.declarations.columns import compare_schema
from airflow_provider_lance.operators.base import LanceTableOperator, table_facets
from airflow_provider_lance.tasks.errors import log_failure
from airflow_provider_lance.tasks.operator_arguments import TableArguments
from airflow_provider_lance.tasks.templating import as_mapping, choice, none_if_blank

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.arrow import ArrowData
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.lineage import TaskLineage
    from airflow_provider_lance.tasks.row_source import RowCount

IfEmptyTableExists = Literal["fail", "skip"]
IfTableExists = Literal["fail", "skip", "overwrite"]
IfTableMissing = Literal["fail", "skip"]


class LanceCreateEmptyTableOperator(LanceTableOperator):
    """Record a table without data (``CreateEmptyTable``; ``DeclareTable`` where a server knows only that).

    The guide is ``docs/operators/create_empty_table.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param location: The place where the table is stored. By default the namespace chooses it. (templated)
    :param properties: The properties that the namespace keeps for the table. (templated)
    :param if_exists: What happens if the table exists. ``fail`` fails the task. ``skip`` succeeds, and fails if
        ``location`` is given and the table is stored elsewhere.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id`` and ``created``, and with ``location``, ``properties`` and ``version`` where the
        namespace tells them.
    """

    template_fields: Sequence[str] = (*LanceTableOperator.template_fields, "location", "properties")
    template_fields_renderers: ClassVar[dict[str, str]] = {"properties": "json"}

    def __init__(
        self,
        *,
        location: str | None = None,
        properties: Mapping[str, str] | str | None = None,
        if_exists: IfEmptyTableExists = "fail",
        **kwargs: Unpack[TableArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.location = location
        self.properties = properties
        self.if_exists = choice("if_exists", if_exists, IfEmptyTableExists)

    def execute(self, context: Context) -> JsonObject:
        table_id, location = self.parse_id(self.table_id), none_if_blank(self.location)
        answer = self.call_tolerant(
            "create_empty_table",
            {"id": table_id, "location": location, "properties": as_mapping("properties", self.properties)},
            tolerate=(ErrorCode.TABLE_ALREADY_EXISTS,) if self.if_exists == "skip" else (),
        )
        created = answer is not None
        name = self.hook.join_id(table_id)
        if answer is not None:
            self.log.info("Declared table %s at %s.", name, answer.get("location") or "a place the server did not tell")
        else:
            answer = self.describe(table_id)
            there, wanted = _path(answer.get("location")), _path(location)
            if wanted and there and wanted != there:
                failed = AirflowFailException(f"The table {name} is there already, at {there}, not at {wanted}.")
                raise log_failure(self.log, failed)
            self.log.info("The table %s is there already, at %s (if_exists=skip).", name, there)
        self.publish(context, table_id, version=answer.get("version"))
        return {"table_id": table_id, "created": created, **_known(answer, "location", "properties", "version")}

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the table."""
        return table_facets(self)


class LanceCreateTableOperator(LanceTableOperator):
    """Create a table from a schema or from data (``CreateTable``). Give exactly one of ``schema``, ``data``, ``path``.

    The guide is ``docs/operators/create_table.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param schema: The column names and their Arrow types, such as ``{"id": "int64", "embedding": "float32[384]"}``.
        (templated)
    :param data: A function that returns a pyarrow table, a batch reader or a pandas data frame. It is called on the
        worker, so that parsing the DAG imports none of them. Arrow data itself is accepted, too.
    :param path: A file or folder of Parquet, CSV, JSON, Arrow or Lance data that the worker can read. (templated)
    :param file_format: The format of ``path``. By default it follows from the path's ending.
    :param properties: The properties that the namespace keeps for the table. (templated)
    :param if_exists: What happens if the table exists. ``fail`` fails the task. ``skip`` succeeds, and fails if a
        column of ``schema`` is missing or has another type; ``data`` and ``path`` are not compared. ``overwrite``
        writes a new version of the table.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id`` and ``created``, and with ``version`` and ``location`` where the namespace tells
        them.
    """

    template_fields: Sequence[str] = (*LanceTableOperator.template_fields, "schema", "path", "properties")
    template_fields_renderers: ClassVar[dict[str, str]] = {"schema": "json", "properties": "json"}

    def __init__(
        self,
        *,
        schema: Mapping[str, str] | str | None = None,
        data: Callable[[], object] | object | None = None,
        path: str | None = None,
        file_format: str | None = None,
        properties: Mapping[str, str] | str | None = None,
        if_exists: IfTableExists = "fail",
        **kwargs: Unpack[TableArguments],
    ) -> None:
        super().__init__(**kwargs)
        if sum(source is not None for source in (schema, data, path)) != 1:
            raise ValueError("Give exactly one of `schema`, `data` and `path`.")
        self.schema = schema
        self.data = data
        self.path = path
        self.file_format = file_format
        self.properties = properties
        self.if_exists = choice("if_exists", if_exists, IfTableExists)

    def execute(self, context: Context) -> JsonObject:
        table_id = self.parse_id(self.table_id)
        if self.if_exists == "skip":
            described = self.call_tolerant(
                "describe_table", {"id": table_id, **WITH_VERSION}, tolerate=(ErrorCode.TABLE_NOT_FOUND,)
            )
            # A table without a version was only declared and can still be created.
            if described is not None and described.get("version") is not None:
                return self._skip(context, table_id, described)
        mode = "overwrite" if self.if_exists == "overwrite" else "create"
        data, count = self._counted_data()
        answer = self.call_tolerant(
            "create_table",
            {"id": table_id, "mode": mode, "properties": as_mapping("properties", self.properties)},
            data,
            tolerate=(ErrorCode.TABLE_ALREADY_EXISTS,) if self.if_exists == "skip" else (),
        )
        if answer is None:  # another task created it in the meantime
            return self._skip(context, table_id, self.describe(table_id))
        rows = "rows that were not counted" if count.rows is None else f"{count.rows:,} rows"
        done = "Wrote" if mode == "overwrite" else "Created"
        version = answer.get("version")
        self.log.info("%s table %s with %s, version %s.", done, self.hook.join_id(table_id), rows, version)
        self.publish(context, table_id, version=version, rows=None if self.schema is not None else count.rows)
        return {"table_id": table_id, "created": True, **_known(answer, "version", "location")}

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the table, and the files that it was made from."""
        return table_facets(self, self.path)

    def _skip(self, context: Context, table_id: list[str], described: JsonObject) -> JsonObject:
        if self.schema is not None:
            self._check_schema(table_id, described)
        version = described.get("version")
        name = self.hook.join_id(table_id)
        self.log.info("The table %s is there already, at version %s (if_exists=skip).", name, version)
        self.publish(context, table_id, version=version)
        return {"table_id": table_id, "created": False, **_known(described, "version", "location")}

    def _check_schema(self, table_id: list[str], described: JsonObject) -> None:
        """Fail where a declared column is missing or has another type. The table may have more columns."""
        fields = (described.get("schema") or {}).get("fields")
        if not fields:
            self.log.warning("The server does not tell the table's schema: it was not compared.")
            return
        compared = compare_schema(fields, as_mapping("schema", self.schema) or {})
        for name in compared.unknown:
            self.log.warning("The server's word for the type of %s is not known: not compared.", name)
        differing = [f"{name} is not there" for name in compared.missing] + [str(each) for each in compared.different]
        if differing:
            failed = AirflowFailException(
                f"The table {self.hook.join_id(table_id)} is there already, with another schema: "
                f"{'; '.join(differing)}. if_exists='overwrite' makes it anew, without its rows."
            )
            raise log_failure(self.log, failed)

    def _counted_data(self) -> tuple[ArrowData, RowCount]:
        from airflow_provider_lance.definitions.arrow_types import arrow_schema, empty_batch
        from airflow_provider_lance.tasks.row_source import RowCount, RowSource

        count = RowCount()
        try:
            if self.schema is not None:
                return count.counted(empty_batch(arrow_schema(as_mapping("schema", self.schema) or {}))), count
            return count.counted(RowSource(self.data, self.path, self.file_format).read()), count
        except (ValueError, OSError) as error:
            raise AirflowFailException(str(error)) from None


class LanceDropTableOperator(LanceTableOperator):
    """Drop a table and its data (``DropTable``).

    The guide is ``docs/operators/drop_table.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param if_missing: What happens if there is no such table. ``fail`` fails the task, and ``skip`` succeeds.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id`` and ``dropped``.
    """

    def __init__(self, *, if_missing: IfTableMissing = "fail", **kwargs: Unpack[TableArguments]) -> None:
        super().__init__(**kwargs)
        self.if_missing = choice("if_missing", if_missing, IfTableMissing)

    def execute(self, context: Context) -> JsonObject:
        table_id = self.parse_id(self.table_id)
        tolerate = (ErrorCode.TABLE_NOT_FOUND,) if self.if_missing == "skip" else ()
        answer = self.call_tolerant("drop_table", {"id": table_id}, tolerate=tolerate)
        done = "Dropped table %s." if answer is not None else "There is no table %s to drop (if_missing=skip)."
        self.log.info(done, self.hook.join_id(table_id))
        self.publish(context, table_id, dropped=answer is not None)
        return {"table_id": table_id, "dropped": answer is not None}


def _path(location: str | None) -> str:
    return (location or "").strip().removeprefix("file://").rstrip("/")


def _known(answer: JsonObject, *names: str) -> JsonObject:
    """The fields of these names that the answer has."""
    return {name: answer[name] for name in names if answer.get(name) is not None}
