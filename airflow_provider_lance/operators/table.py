"""Tables: create empty, create with data, add columns, create a version, drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_lance.api.errors import CONFLICT, WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.job_words import IF_EXISTS
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.operators.base import LanceBaseOperator, choice, log_reason, task_error
from airflow_provider_lance.operators.rendered import given, mapping, whole_number

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.operators.arrow import RowCount
    from airflow_provider_lance.operators.udf import UdfColumn

_NO_TABLE, _TABLE_EXISTS = 4, 5
_CANNOT_REPLACE = (
    "A server that cannot replace rules knows no if_exists='replace': there, drop the column and declare it again."
)


class _TableOperator(LanceBaseOperator):
    """An operator about one table."""

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "table_id")

    def __init__(self, *, table_id: Identifier, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table_id = table_id


class LanceCreateEmptyTableOperator(_TableOperator):
    """Record a table without data (``CreateEmptyTable``; ``DeclareTable`` where a server knows only that).

    :param table_id: the table. (templated)
    :param location: where it shall be stored; the namespace chooses by default. (templated)
    :param properties: the namespace's properties for it. (templated)
    :param if_exists: for a table that is there: ``fail``, or ``skip`` the creation and succeed; a ``location`` other
        than the table's fails then, with both.
    :return: ``{"table_id", "location", "created"}``.
    """

    template_fields: Sequence[str] = (*_TableOperator.template_fields, "location", "properties")

    def __init__(
        self,
        *,
        location: str | None = None,
        properties: dict[str, str] | None = None,
        if_exists: Literal["fail", "skip"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("if_exists", if_exists, "fail", "skip")
        self.location = location
        self.properties = properties
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        answer = self.call(
            "create_empty_table",
            {"id": table_id, "location": given(self.location), "properties": mapping("properties", self.properties)},
            tolerate=(_TABLE_EXISTS,) if self.if_exists == "skip" else (),
        )
        created = answer is not None
        name = "$".join(table_id)
        if answer is not None:
            self.log.info("Declared table %s at %s.", name, answer.get("location") or "a place the server did not tell")
        else:
            answer = self.answer("describe_table", {"id": table_id, **WITH_VERSION})
            there, wanted = _path(answer.get("location")), _path(given(self.location))
            if wanted and there and wanted != there:
                failed = AirflowFailException(f"The table {name} is there already, at {there}, not at {wanted}.")
                raise log_reason(self.log, failed)
            self.log.info("The table %s is there already, at %s (if_exists=skip).", name, there)
        self.publish(context, table_id, version=answer.get("version"))
        return {"table_id": table_id, "created": created, **_kept(answer, "location", "properties", "version")}


class LanceCreateTableOperator(_TableOperator):
    """Create a table from a schema or from data (``CreateTable``).

    Give exactly one of ``schema``, ``data`` and ``path``.

    :param table_id: the table. (templated)
    :param schema: column names and Arrow types, such as ``{"id": "int64", "embedding": "float32[384]"}``. (templated)
    :param data: a function that returns a pyarrow table, a batch reader or a pandas data frame; called on the worker,
        so that parsing the DAG imports none of them. Arrow data itself works too.
    :param path: a file or folder of Parquet, CSV, JSON, Arrow or Lance data that the worker can read. (templated)
    :param file_format: of ``path``; by its ending when ``None``.
    :param properties: the namespace's properties for the table.
    :param if_exists: for a table that is there: ``fail``; ``skip`` the creation and succeed, or fail with both types
        where a column of ``schema`` is missing or of another type (``data`` and ``path`` are not compared); or
        ``overwrite`` the table with a new version.
    :return: ``{"table_id", "version", "location", "created"}``.
    """

    template_fields: Sequence[str] = (*_TableOperator.template_fields, "schema", "path", "properties")

    def __init__(
        self,
        *,
        schema: Mapping[str, str] | None = None,
        data: Callable[[], Any] | Any = None,
        path: str | None = None,
        file_format: str | None = None,
        properties: dict[str, str] | None = None,
        if_exists: Literal["fail", "skip", "overwrite"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if sum(source is not None for source in (schema, data, path)) != 1:
            raise ValueError("Give exactly one of `schema`, `data` and `path`.")
        choice("if_exists", if_exists, "fail", "skip", "overwrite")
        self.schema = schema
        self.data = data
        self.path = path
        self.file_format = file_format
        self.properties = properties
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        if self.if_exists == "skip":
            described = self.call("describe_table", {"id": table_id, **WITH_VERSION}, tolerate=(_NO_TABLE,)) or {}
            if described.get("version") is not None:  # one that was only declared may still be created
                return self._there(context, table_id, described)
        mode = "overwrite" if self.if_exists == "overwrite" else "create"
        data, count = self._arrow()
        answer = self.call(
            "create_table",
            {"id": table_id, "mode": mode, "properties": mapping("properties", self.properties)},
            data,
            tolerate=(_TABLE_EXISTS,) if self.if_exists == "skip" else (),
        )
        if answer is None:  # somebody was faster
            return self._there(context, table_id, self.answer("describe_table", {"id": table_id, **WITH_VERSION}))
        rows = "rows that were not counted" if count.rows is None else f"{count.rows:,} rows"
        done = "Wrote" if mode == "overwrite" else "Created"
        self.log.info("%s table %s with %s, version %s.", done, "$".join(table_id), rows, answer.get("version"))
        self.publish(context, table_id, version=answer.get("version"))
        return {"table_id": table_id, "created": True, **_kept(answer, "version", "location")}

    def _there(self, context: Context, table_id: list[str], described: Mapping[str, Any]) -> dict[str, Any]:
        if self.schema is not None:
            self._check_schema(table_id, described)
        self.log.info(
            "The table %s is there already, at version %s (if_exists=skip).",
            "$".join(table_id),
            described.get("version"),
        )
        self.publish(context, table_id, version=described.get("version"))
        return {"table_id": table_id, "created": False, **_kept(described, "version", "location")}

    def _check_schema(self, table_id: list[str], described: Mapping[str, Any]) -> None:
        """Fail where a declared column is missing or of another type; the table may have got columns since."""
        from airflow_provider_lance.operators.arrow import arrow_schema

        fields = (described.get("schema") or {}).get("fields")
        if not fields:
            self.log.warning("The server does not tell the table's schema: it was not compared.")
            return
        there = {str(field.get("name")): _arrow_type(field) for field in fields}
        differing = []
        for field in arrow_schema(mapping("schema", self.schema) or {}):
            if field.name not in there:
                differing.append(f"{field.name} is not there")
            elif there[field.name] is None:
                self.log.warning("The server's word for the type of %s is not known: not compared.", field.name)
            elif there[field.name] != field.type:
                differing.append(f"{field.name} is {there[field.name]} there and {field.type} here")
        if differing:
            failed = AirflowFailException(
                f"The table {'$'.join(table_id)} is there already, with another schema: {'; '.join(differing)}. "
                "if_exists='overwrite' makes it anew, without its rows."
            )
            raise log_reason(self.log, failed)

    def _arrow(self) -> tuple[Any, RowCount]:
        from airflow_provider_lance.operators.arrow import RowCount

        count = RowCount()
        return count.of(self._read()), count

    def _read(self) -> Any:
        from airflow_provider_lance.operators.arrow import arrow_schema, empty_batch, read_path

        try:
            if self.schema is not None:
                # One batch without rows: pylance's server takes a stream without any for missing data.
                return empty_batch(arrow_schema(mapping("schema", self.schema) or {}))
            if self.path is not None:
                return read_path(self.path, self.file_format)
        except (ValueError, OSError) as error:
            raise AirflowFailException(str(error)) from None
        data = self.data() if callable(self.data) else self.data
        if type(data).__module__.partition(".")[0] == "pandas":
            import pyarrow as pa

            return pa.Table.from_pandas(data, preserve_index=False)  # its own Arrow stream has the index in it
        return data


class LanceAddColumnsOperator(_TableOperator):
    """Add columns to a table (``AlterTableAddColumns``).

    :param table_id: the table. (templated)
    :param expressions: name → SQL expression; the values are written now. (templated)
    :param computed: name → SQL expression; the rule is declared, a backfill computes the values. (templated)
    :param virtual: name → a :class:`~airflow_provider_lance.operators.udf.UdfColumn`, or the request's own entry
        (``input_columns``, ``outputs``, ``udf`` …), for Python functions; a backfill computes the values. (templated)
    :param branch: of the table. (templated)
    :param if_exists: for columns that are there already: ``fail``; ``skip`` those whose rule is equal, and fail with
        both texts for a different one; or ``replace`` a different rule. After that all values of the column are
        outdated: readers see the old ones until the next backfill. ``expressions`` are not kept with the table, so they
        are neither compared nor replaced.
    :return: ``{"table_id", "version", "added", "replaced"}``.
    """

    template_fields: Sequence[str] = (*_TableOperator.template_fields, "expressions", "computed", "virtual", "branch")

    def __init__(
        self,
        *,
        expressions: Mapping[str, str] | None = None,
        computed: Mapping[str, str] | None = None,
        virtual: Mapping[str, UdfColumn | Mapping[str, Any]] | None = None,
        branch: str | None = None,
        if_exists: Literal["fail", "skip", "replace"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("if_exists", if_exists, "fail", "skip", "replace")
        if not (expressions or computed or virtual):
            raise ValueError("Give at least one column in `expressions`, `computed` or `virtual`.")
        self.expressions = expressions
        self.computed = computed
        self.virtual = virtual
        self.branch = branch
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_lance.operators.udf import UdfColumn

        table_id, branch = self.parse_id(self.table_id), given(self.branch)
        columns: list[dict[str, Any]] = [
            {"name": name, kind: rule.entry(name) if isinstance(rule, UdfColumn) else rule}
            for kind, rules in (
                ("expression", self.expressions),
                ("computed", self.computed),
                ("virtual_column", self.virtual),
            )
            for name, rule in (mapping(kind, rules) or {}).items()
        ]
        if self.if_exists == "fail":
            answer = self.answer("alter_table_add_columns", {"id": table_id, "new_columns": columns, "branch": branch})
            added = [column["name"] for column in columns]
            self.log.info(
                "Added %s to table %s, version %s.", ", ".join(added), "$".join(table_id), answer.get("version")
            )
            self.publish(context, table_id, version=answer.get("version"))
            return {"table_id": table_id, "added": added, "replaced": [], **_kept(answer, "version")}
        return self._declare(context, {"id": table_id, "branch": branch}, columns)

    def _declare(self, context: Context, table: dict[str, Any], columns: list[dict[str, Any]]) -> dict[str, Any]:
        """Add what is missing, leave what is equal, and replace what is different or fail with it."""
        from airflow_provider_lance.engine.declarations import declared_columns

        described, there = self._rules(table)
        new, different = [], []
        for column in columns:
            names = declared_columns(column)
            if not any(name in there for name in names):
                new.append(column)
            elif problems := self._differences(there, column, names):
                different.append((column, problems))
            else:
                self.log.info("Column %s is there already, with an equal rule (if_exists=%s).", names, self.if_exists)
        if different and self.if_exists == "skip":
            told = " ".join(f"Column {column['name']!r}: {problems}." for column, problems in different)
            failed = AirflowFailException(
                f"The table {'$'.join(table['id'])} has columns of these names with other rules. {told} "
                "if_exists='replace' changes them."
            )
            raise log_reason(self.log, failed)
        for column, problems in different:
            if "expression" in column:
                raise AirflowFailException(
                    f"Column {column['name']!r}: {problems}. The values of an expression are written once, so there is "
                    "no rule to replace: declare it in `computed`, or drop the column first."
                )
            self.log.info("Replacing the rule of column %s: %s.", column["name"], problems)
        result = {
            "table_id": table["id"],
            "added": [column["name"] for column in new],
            "replaced": [column["name"] for column, _ in different],
        }
        sent = [*new, *(column for column, _ in different)]
        if not sent:
            return {**result, **_kept(described, "version")}
        fields = {**table, "new_columns": sent}
        if different:
            fields["context"] = {IF_EXISTS: "replace"}
        failure: AirflowException | None = None
        try:
            answer = self.hook.call("alter_table_add_columns", fields)
        except WireError as error:
            failure = task_error(error)
            if different and error.code != CONFLICT:
                failure = type(failure)(f"{error} {_CANNOT_REPLACE}")
        if failure is not None:
            raise log_reason(self.log, failure)
        if different:
            _, there = self._rules(table)
            if any(self._differences(there, column, declared_columns(column)) for column, _ in different):
                raise log_reason(
                    self.log,
                    AirflowFailException(f"The server accepted the request and kept the old rules. {_CANNOT_REPLACE}"),
                )
        done = [f"added {', '.join(result['added'])}"] if new else []
        done += [f"replaced the rule of {', '.join(result['replaced'])}"] if different else []
        self.log.info("Table %s: %s, version %s.", "$".join(table["id"]), " and ".join(done), answer.get("version"))
        self.publish(context, table["id"], version=answer.get("version"))
        return {**result, **_kept(answer, "version")}

    def _rules(self, table: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
        """The table as it is described, and the metadata of its columns, which holds their rules."""
        described = self.answer("describe_table", {**table, **WITH_VERSION})
        fields = (described.get("schema") or {}).get("fields") or []
        return described, {field["name"]: field.get("metadata") or {} for field in fields}

    def _differences(self, there: dict[str, dict[str, str]], column: dict[str, Any], names: list[str]) -> str:
        """In what the declaration differs from the table's rules, as words; empty where they are equal."""
        from airflow_provider_lance.engine.declarations import rule_differences

        found = [f"its output {name!r} is missing" for name in names if name not in there]
        for name in names:
            if name in there:
                found += [str(one) for one in rule_differences(there[name], column)]
        if not found and "expression" in column:
            self.log.info("The table does not keep the expression of column %s: it was not compared.", column["name"])
        return "; ".join(dict.fromkeys(found))


class LanceCreateTableVersionOperator(_TableOperator):
    """Make a staged manifest the table's next version, if that version does not exist yet (``CreateTableVersion``).

    Lance itself does this on every commit to a table with managed versions. This operator is for a manifest that was
    staged earlier, to be published later (after a check, or together with other tables); see
    :func:`airflow_provider_lance.operators.staging.stage_version` for a way to stage one in a task.

    :param table_id: the table. (templated)
    :param version: the version to create. (templated)
    :param manifest_path: of the staged manifest, an object-store path inside the table. (templated)
    :param manifest_size: in bytes. (templated)
    :param e_tag: of the manifest. (templated)
    :param metadata: of the version. (templated)
    :param naming_scheme: of manifests, ``V1`` or ``V2``.
    :param branch: of the table. (templated)
    :param staged: a dict with any of these fields, as ``stage_version`` returns it; the arguments win. (templated)
    :param if_exists: for a version that is there already: ``fail``; ``skip`` (succeed if its manifest is this one, by
        its ``e_tag``, and fail otherwise); or ``skip_task``: end as skipped, because another commit came first.
    :return: ``{"table_id", "version", "manifest_path", …}``.
    """

    template_fields: Sequence[str] = (
        *_TableOperator.template_fields,
        "version",
        "manifest_path",
        "manifest_size",
        "e_tag",
        "metadata",
        "branch",
        "staged",
    )
    _FIELDS = ("version", "manifest_path", "manifest_size", "e_tag", "metadata", "naming_scheme", "branch")

    def __init__(
        self,
        *,
        version: int | str | None = None,
        manifest_path: str | None = None,
        manifest_size: int | str | None = None,
        e_tag: str | None = None,
        metadata: dict[str, str] | None = None,
        naming_scheme: str | None = None,
        branch: str | None = None,
        staged: Mapping[str, Any] | None = None,
        if_exists: Literal["fail", "skip", "skip_task"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("if_exists", if_exists, "fail", "skip", "skip_task")
        if staged is None and (version is None or manifest_path is None):
            raise ValueError("Give `version` and `manifest_path`, or `staged`.")
        self.version = version
        self.manifest_path = manifest_path
        self.manifest_size = manifest_size
        self.e_tag = e_tag
        self.metadata = metadata
        self.naming_scheme = naming_scheme
        self.branch = branch
        self.staged = staged
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        staged = mapping("staged", self.staged) or {}
        fields: dict[str, Any] = {}
        for name in self._FIELDS:
            value = given(getattr(self, name))
            value = staged.get(name) if value is None else value
            if value is not None:
                fields[name] = whole_number(name, value) if name in {"version", "manifest_size"} else value
        for name in ("version", "manifest_path"):
            if name not in fields:
                raise AirflowFailException(f"There is no `{name}` to create a version from.")
        answer: dict[str, Any] = {}
        failure: AirflowException | None = None
        skips = False
        try:
            answer = self.hook.call("create_table_version", {"id": table_id, **fields})
        except WireError as error:
            failure = task_error(error)
            skips = self.if_exists != "fail" and error.conflict
        if failure is not None:
            # A number beyond the next one is a conflict too, and there is no such version.
            at = {"id": table_id, "branch": fields.get("branch")}
            newest = self.answer("describe_table", {**at, **WITH_VERSION}).get("version") if skips else None
            if newest is None or int(newest) < fields["version"]:
                raise log_reason(self.log, failure)
            if self.if_exists == "skip_task":
                raise AirflowSkipException(f"Version {fields['version']} of {'$'.join(table_id)} is there already.")
            found = self.answer("describe_table_version", {**at, "version": fields["version"]}).get("version") or {}
            if not fields.get("e_tag") or found.get("e_tag") != fields["e_tag"]:
                failed = AirflowFailException(
                    f"{failure} Its manifest has e_tag {found.get('e_tag')}, this one {fields.get('e_tag')}: they are "
                    "not known to be the same. if_exists='skip_task' ends the task as skipped then."
                )
                raise log_reason(self.log, failed)
            self.log.info("Version %s is there already, with this manifest (if_exists=skip).", fields["version"])
            answer = {"version": found}
        created = answer.get("version")
        described = created if isinstance(created, dict) else {"version": created}
        result = {"table_id": table_id, **{key: value for key, value in described.items() if value is not None}}
        self.log.info("Created version %s of table %s.", result.get("version"), "$".join(table_id))
        self.publish(context, table_id, version=result.get("version"))
        return result


class LanceDropTableOperator(_TableOperator):
    """Drop a table and its data (``DropTable``).

    :param table_id: the table. (templated)
    :param if_missing: ``fail``, or ``skip`` the drop and succeed.
    :return: ``{"table_id", "dropped"}``.
    """

    def __init__(self, *, if_missing: Literal["fail", "skip"] = "fail", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        choice("if_missing", if_missing, "fail", "skip")
        self.if_missing = if_missing

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        answer = self.call("drop_table", {"id": table_id}, tolerate=(_NO_TABLE,) if self.if_missing == "skip" else ())
        done = "Dropped table %s." if answer is not None else "There is no table %s to drop (if_missing=skip)."
        self.log.info(done, "$".join(table_id))
        return {"table_id": table_id, "dropped": answer is not None}


def _arrow_type(field: Mapping[str, Any]) -> Any:
    """A described field's type; ``None`` where a server has a word of its own for it (pylance's says ``utf8``)."""
    from lance.schema import json_to_schema

    try:
        return json_to_schema({"fields": [{**field, "metadata": {}}]}).field(0).type
    except (TypeError, ValueError, OSError):
        return None


def _path(location: str | None) -> str:
    return (location or "").strip().removeprefix("file://").rstrip("/")


def _kept(answer: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: answer[name] for name in names if answer.get(name) is not None}
