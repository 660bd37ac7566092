"""A table as commands show it, read from the answer of ``describe_table`` of any server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.versions import version_of

if TYPE_CHECKING:
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.cli.connection import Connection

# A description is a request or a read of a manifest; eight at once keep neither a server nor a bucket busy.
_AT_ONCE = 8


@dataclass(frozen=True)
class Column:
    """A column: its name, its type in Lance's words, and its rule, if it has one."""

    name: str
    type: str
    nullable: bool
    rule: JsonObject | None

    def to_json(self) -> JsonObject:
        fields = {"name": self.name, "type": self.type, "nullable": self.nullable}
        return fields if self.rule is None else {**fields, "rule": self.rule}

    @property
    def rule_text(self) -> str:
        """The rule in one line."""
        rule = self.rule
        if rule is None:
            return ""
        if rule["kind"] == "sql":
            return str(rule["expression"])
        if rule["kind"] != "function":
            return f"computed by {rule['kind']}"
        parts = [f"{rule['name']}({', '.join(rule['inputs'])})"]
        parts += [f"version {rule['version']}"] if rule.get("version") else []
        parts += [f"from {rule['path']}"] if rule.get("path") else []
        parts += ["null on error"] if rule.get("on_error") == "null" else []
        return ", ".join(parts)


@dataclass(frozen=True)
class TableDescription:
    """A table or view. What a server does not tell is ``None``; a table that was only declared has no version.

    ``problem`` says why a table could not be described; then only its name is known.
    """

    id: list[str]
    columns: list[Column]
    metadata: Mapping[str, str]
    version: int | None = None
    rows: int | None = None
    deleted_rows: int | None = None
    fragments: int | None = None
    bytes: int | None = None
    location: str | None = None
    properties: Mapping[str, str] | None = None
    stable_row_ids: bool | None = None
    problem: str | None = None

    @property
    def name(self) -> str:
        return join_id(self.id)

    @property
    def kind(self) -> str:
        """``view`` for a table whose schema has the definition of a view; ``declared`` for one without data."""
        if self.problem is not None:
            return "unreadable"
        if self.version is None:
            return "declared"
        from airflow_provider_lance.definitions.view_definition import DEFINITION_KEY

        return "view" if DEFINITION_KEY in self.metadata else "table"

    def to_json(self) -> JsonObject:
        """What a listing of tables has of this one."""
        known = {"rows": self.rows, "version": self.version, "columns": len(self.columns), "bytes": self.bytes}
        return {"name": self.name, "kind": self.kind, **known, **({"problem": self.problem} if self.problem else {})}


def describe_table(connection: Connection, table_id: list[str], version: int | None = None) -> TableDescription:
    """The table at its newest or a named version."""
    answer = connection.call("describe_table", id=table_id, version=version, load_detailed_metadata=True)
    schema = answer.get("schema") or {}
    about = answer.get("metadata") or {}
    stats = answer.get("stats") or {}
    rows = _number(about.get("total_rows"))
    current = version_of(answer)
    if rows is None and current is not None:
        rows = _number(connection.call("count_table_rows", id=table_id, version=version).get("count"))
    return TableDescription(
        id=table_id,
        columns=[_column(field) for field in schema.get("fields") or []],
        metadata=schema.get("metadata") or {},
        version=current,
        rows=rows,
        deleted_rows=_number(stats.get("num_deleted_rows")),
        fragments=_number(stats.get("num_fragments", about.get("total_fragments"))),
        bytes=_number(about.get("total_files_size")),
        location=answer.get("location"),
        properties=answer.get("properties"),
        stable_row_ids={"true": True, "false": False}.get(str(about.get("stable_row_ids"))),
    )


def describe_tables(connection: Connection, table_ids: Iterable[list[str]]) -> list[TableDescription]:
    """Several tables at once. One that was dropped meanwhile or cannot be read is described by its problem."""

    from airflow_provider_lance.cli.connection import concerns_one

    def describe(table_id: list[str]) -> TableDescription:
        try:
            return describe_table(connection, table_id)
        except WireError as error:
            if not concerns_one(error):
                raise
            return TableDescription(table_id, [], {}, problem=error.reason)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(describe, table_ids))


def _column(field: JsonObject) -> Column:
    metadata = field.get("metadata") or {}
    name = type_name(field.get("type") or {})
    if metadata.get("lance-encoding:blob") == "true":
        name = f"{name} (blob)"
    return Column(str(field["name"]), name, bool(field.get("nullable", True)), _rule(metadata))


def type_name(type_: JsonObject) -> str:
    """A type of the wire in one word: ``fixed_size_list<float>[768]``, ``struct<a: int64>``, ``timestamp:us``."""
    word = str(type_.get("type") or "unknown").removesuffix(":-")
    fields = type_.get("fields") or []
    if word == "struct":
        inside = ", ".join(f"{field['name']}: {type_name(field['type'])}" for field in fields)
        return f"struct<{inside}>"
    if fields:
        word = f"{word}<{', '.join(type_name(field['type']) for field in fields)}>"
    return f"{word}[{type_['length']}]" if type_.get("length") else word


def _rule(metadata: Mapping[str, str]) -> JsonObject | None:
    """How a column's values come about, from its field's metadata; ``None`` for a plain column."""
    from airflow_provider_lance.definitions import column_rules as rules

    if metadata.get(rules.COMPUTED) == "true":
        expression = {"expression": metadata.get(rules.COMPUTED_EXPRESSION, "")}
        return {
            "kind": metadata.get(rules.COMPUTED_KIND, "sql"),
            **expression,
            "inputs": _decoded(metadata.get(rules.COMPUTED_INPUTS)) or [],
        }
    if metadata.get(rules.VIRTUAL) == "true":
        return _function(_decoded(metadata.get(rules.VIRTUAL_DEFINITION)))
    return None


def _function(definition: object) -> JsonObject:
    from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope
    from airflow_provider_lance.definitions.functions.failure_policy import UdfError

    if not isinstance(definition, dict):
        return {"kind": "function", "name": "a function that cannot be read", "inputs": []}
    rule: JsonObject = {
        "kind": "function",
        "name": definition.get("udf_name") or "a function",
        "version": definition.get("udf_version"),
        "inputs": definition.get("input_columns") or [],
        "outputs": [output.get("column") for output in definition.get("outputs") or []],
        "backend": definition.get("udf_backend"),
        "environment": definition.get("image") or definition.get("manifest"),
    }
    try:
        envelope = UdfEnvelope.decode(definition.get("udf_backend"), str(definition.get("udf") or ""))
    except UdfError:  # of another system, which alone can read it
        return {name: value for name, value in rule.items() if value}
    rule |= {"path": envelope.path, "sha256": envelope.sha256, "call": envelope.call}
    rule |= {"on_error": envelope.policy.on_error, "retries": envelope.policy.retries}
    return {name: value for name, value in rule.items() if value}


def _decoded(text: str | None) -> object:
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else None
