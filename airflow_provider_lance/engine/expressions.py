"""Field paths and SQL expressions over a schema: their spelling, type, inputs, and what may not be in them.

Lance's own planner answers every question, on an empty table in memory; it is imported only when one is asked.
Used by the server at declaration and by the engine, so nothing here may import Spark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.refusals import invalid, no_column

if TYPE_CHECKING:
    import pyarrow as pa

# LanceDB refuses these, pylance does not: a value that differs between two runs can never be called fresh.
_UNSTABLE_FUNCTIONS = ("random", "rand", "uuid", "now", "today", "current_date", "current_time", "current_timestamp")
_UNSTABLE_WORDS = ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp")
_ROW_WORDS = re.compile(r"\b(_rowid|_rowaddr|_rowoffset|_row_created_at_version|_row_last_updated_at_version)\b", re.I)
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`")
_PATH_SEGMENT = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


def parse_path(path: str) -> list[str]:
    """Split a Lance field path: dots separate, backticks quote, doubled backticks stand for one."""
    segments, position = [], 0
    while True:
        found = _PATH_SEGMENT.match(path, position)
        if not found:
            raise invalid(f"{path!r} is not a field path; quote names with special characters in backticks")
        segments.append(found[1].replace("``", "`") if found[1] else found[2])
        position = found.end()
        if position == len(path):
            return segments
        if path[position] != ".":
            raise invalid(f"{path!r} is not a field path: unexpected {path[position]!r}")
        position += 1


def format_path(segments: Sequence[str]) -> str:
    """The canonical spelling of a field path, safe to use inside an SQL expression."""
    plain = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
    return ".".join(name if plain.fullmatch(name) else "`" + name.replace("`", "``") + "`" for name in segments)


def find_field(schema: pa.Schema, path: str) -> pa.Field:
    """The field a path names; ``TableColumnNotFoundError`` says what is there instead."""
    segments = parse_path(path)
    fields = {field.name: field for field in schema}
    found = None
    for depth, name in enumerate(segments):
        if name not in fields:
            where = f" in {format_path(segments[:depth])}" if depth else ""
            there = ", ".join(sorted(fields)) or "nothing"
            raise no_column(f"There is no column {path!r}: {name!r} is not{where}, which has {there}")
        found = fields[name]
        kind = found.type
        fields = {kind.field(i).name: kind.field(i) for i in range(kind.num_fields)} if _is_struct(kind) else {}
    assert found is not None
    return found


def _is_struct(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind))


def check_expression(schema: pa.Schema, expression: str) -> None:
    """Refuse what has no stable value: clocks, dice and row addresses."""
    bare = _QUOTED.sub(" ", expression)
    columns = {field.name.lower() for field in schema}
    for name in _UNSTABLE_FUNCTIONS:
        if re.search(rf"\b{name}\s*\(", bare, re.I):
            raise invalid(f"{name}() gives another value on every run; a computed column cannot use it")
    for name in _UNSTABLE_WORDS:
        if name not in columns and re.search(rf"\b{name}\b", bare, re.I):
            raise invalid(f"{name} gives another value on every run; a computed column cannot use it")
    row = _ROW_WORDS.search(_unquote_backticks(expression))
    if row:
        raise invalid(f"{row[1]} changes when rows move; a computed column cannot use it")


def _unquote_backticks(expression: str) -> str:
    return re.sub(r"'(?:[^']|'')*'", " ", expression)


def expression_type(schema: pa.Schema, expression: str) -> pa.DataType:
    """The Arrow type of an SQL expression over ``schema``; planning errors become ``InvalidInputError``."""
    return _storable(_planned(schema, expression).field("x").type)


def expression_inputs(schema: pa.Schema, expression: str) -> tuple[str, ...]:
    """The leaf columns an expression reads: those without which it cannot be planned."""
    _planned(schema, expression)
    words = expression.lower()
    found = []
    for path in _leaves(schema):
        if path[-1].lower() not in words and path[0].lower() not in words:
            continue
        try:
            _plan(_without(schema, path), expression)
        except _NotPlanned:
            found.append(format_path(path))
    return tuple(found)


def check_filter(schema: pa.Schema, where: str) -> tuple[str, ...]:
    """The leaf columns a ``where`` reads; refuses what is not a boolean expression."""
    import pyarrow as pa

    try:
        kind = _plan(schema, where).field("x").type
    except _NotPlanned as error:
        raise invalid(f"The where clause {where!r} cannot be planned: {error}") from None
    if not pa.types.is_boolean(kind):
        raise invalid(f"The where clause {where!r} is of type {kind}, not boolean")
    return expression_inputs(schema, where)


def _planned(schema: pa.Schema, expression: str) -> pa.Schema:
    try:
        return _plan(schema, expression)
    except _NotPlanned as error:
        raise invalid(str(error)) from None


class _NotPlanned(Exception):
    """Lance cannot plan an expression over a schema."""


def _plan(schema: pa.Schema, expression: str) -> pa.Schema:
    try:
        return _empty(schema).scanner(columns={"x": expression}, with_row_id=True).projected_schema
    except (ValueError, OSError, TypeError) as error:
        # Lance appends the place in its own source; a person who wrote the expression has no use for it.
        reason = re.sub(r", /\S+\.rs:\d+:\d+$", "", str(error)).removeprefix("Invalid user input: ")
        raise _NotPlanned(f"{expression!r}: {reason}") from None


@functools.lru_cache(maxsize=64)
def _empty(schema: pa.Schema) -> Any:
    import lance
    import pyarrow as pa

    # Metadata off: encodings such as blobs need storage options that an empty table in memory does not have.
    bare = pa.schema([field.remove_metadata() for field in schema])
    return lance.write_dataset(bare.empty_table(), "memory://")


def _leaves(schema: pa.Schema) -> list[tuple[str, ...]]:
    def walk(field: pa.Field, above: tuple[str, ...]) -> list[tuple[str, ...]]:
        here = (*above, field.name)
        if _is_struct(field.type) and field.type.num_fields:
            return [leaf for i in range(field.type.num_fields) for leaf in walk(field.type.field(i), here)]
        return [here]

    return [leaf for field in schema for leaf in walk(field, ())]


def _without(schema: pa.Schema, path: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    def drop(fields: Sequence[pa.Field], rest: tuple[str, ...]) -> list[pa.Field]:
        kept = []
        for field in fields:
            if field.name != rest[0]:
                kept.append(field)
            elif len(rest) > 1:
                children = drop([field.type.field(i) for i in range(field.type.num_fields)], rest[1:])
                kept.append(pa.field(field.name, pa.struct(children)))
        return kept

    return pa.schema(drop(list(schema), path))


def _storable(kind: pa.DataType) -> pa.DataType:
    """Lance's planner answers with view types for some functions (``md5``); tables store the plain ones."""
    import pyarrow as pa

    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return kind
