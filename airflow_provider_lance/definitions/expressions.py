"""Field paths and SQL expressions over a schema: how they are written, their type, their inputs, and what is refused.

The parser of ``lance_sql.py`` finds the columns that an expression may read, and Lance's own planner decides, over an
empty table in memory. Both are imported when a function is called.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.errors import invalid, no_column
from airflow_provider_lance.definitions.lance_errors import plain_reason

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from airflow_provider_lance.definitions.sql.lance_sql import Expression

# LanceDB refuses these functions and pylance does not. A value that differs between two runs is never up to date.
_UNSTABLE_FUNCTIONS = ("random", "rand", "uuid", "now", "today", "current_date", "current_time", "current_timestamp")
_UNSTABLE_WORDS = ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp")
#: Columns that Lance itself has in every table.
OWN_COLUMNS = ("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version")
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


def find_field(schema: pa.Schema, path: str) -> pa.Field[pa.DataType]:
    """The field that a path names; ``TableColumnNotFoundError`` lists the fields that there are."""
    segments = parse_path(path)
    fields = {field.name: field for field in schema}
    found = None
    for depth, name in enumerate(segments):
        if name not in fields:
            there = ", ".join(sorted(fields)) or "none"
            if depth:
                raise no_column(f"There is no field {name!r} in {format_path(segments[:depth])}, which has {there}.")
            raise no_column(f"There is no column {name!r}; the table has {there}.")
        found = fields[name]
        kind = found.type
        fields = {kind.field(i).name: kind.field(i) for i in range(kind.num_fields)} if _is_struct(kind) else {}
    assert found is not None
    return found


def _is_struct(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind))


def one_expression(sql: str, what: str = "expression") -> Expression:
    """Read ``sql`` as one expression; InvalidInputError names the place where it is none, or more than one."""
    from airflow_provider_lance.definitions.sql.lance_sql import read_expression
    from airflow_provider_lance.definitions.sql.text import SqlError

    try:
        return read_expression(sql)
    except SqlError as error:
        raise invalid(f"The {what} {sql!r} cannot be planned: {error}") from None


def check_expression(schema: pa.Schema, expression: str) -> None:
    """Refuse an expression whose value may differ between two runs: it reads a clock, chance or a row address."""
    read = one_expression(expression)
    columns = {field.name.lower() for field in schema}
    for name in _UNSTABLE_FUNCTIONS:
        if name in read.calls:
            raise invalid(f"{name}() gives another value on every run; a computed column cannot use it")
    for name in _UNSTABLE_WORDS:
        if name not in columns and name in read.names:
            raise invalid(f"{name} gives another value on every run; a computed column cannot use it")
    for name in OWN_COLUMNS:
        if name in read.names:
            raise invalid(f"{name} changes when rows move; a computed column cannot use it")


def expression_type(schema: pa.Schema, expression: str) -> pa.DataType:
    """The Arrow type of an SQL expression over ``schema``; planning errors become ``InvalidInputError``."""
    return _storable(_planned(schema, expression).field("x"))


def expression_inputs(schema: pa.Schema, expression: str) -> tuple[str, ...]:
    """The columns that an expression reads: it can be planned over exactly these, and not over fewer.

    They are leaf fields, or a struct where the expression reads it as a whole (``s IS NULL``).
    """
    _planned(schema, expression)
    return _inputs(_serialized(schema), expression)


@functools.lru_cache(maxsize=64)
def _inputs(serialized: bytes, expression: str) -> tuple[str, ...]:
    schema = _deserialized(serialized)
    proposed = one_expression(expression).paths
    if proposed is not None:
        found = _outermost([path for names in proposed for path in _find_paths(schema, names)])
        found = [path for path in found if not _can_plan(_without(schema, path), expression)]
        if _can_plan(_only(schema, found), expression):
            return tuple(format_path(path) for path in sorted(found, key=lambda path: _order(schema, path)))
    # The parser cannot read the expression, or reads it in another way than Lance. The planner finds whole columns.
    needed = [name for name in schema.names if not _can_plan(_without(schema, (name,)), expression)]
    return tuple(format_path([name]) for name in needed)


def _find_paths(schema: pa.Schema, names: Sequence[str]) -> list[tuple[str, ...]]:
    """The fields that a path may mean. Lance ignores the case of names and prefers an exact match."""
    exact = [field for field in schema if field.name == names[0]]
    tops = exact or [field for field in schema if field.name.lower() == names[0].lower()]
    return [_descend(field, names[1:]) for field in tops]


def _descend(field: pa.Field[pa.DataType], names: Sequence[str]) -> tuple[str, ...]:
    """The path that follows ``names`` into a struct as far as they are names of fields."""
    inner = next((child for child in _children(field) if names and child.name == names[0]), None)
    return (field.name,) if inner is None else (field.name, *_descend(inner, names[1:]))


def _outermost(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Each path once, without paths that are inside another path."""
    unique = list(dict.fromkeys(paths))
    return [path for path in unique if not any(path[: len(other)] == other for other in unique if other != path)]


def _order(schema: pa.Schema, path: tuple[str, ...]) -> list[int]:
    """The position of a field in its schema, level by level."""
    places, fields = [], list(schema)
    for name in path:
        place = next(index for index, field in enumerate(fields) if field.name == name)
        places.append(place)
        fields = _children(fields[place])
    return places


def _can_plan(schema: pa.Schema, expression: str) -> bool:
    try:
        _plan(schema, expression)
    except _NotPlanned:
        return False
    return True


def check_filter(schema: pa.Schema, where: str, what: str = "where clause") -> tuple[str, ...]:
    """The leaf columns that a filter reads. A text that is not one boolean expression is refused; ``what`` names it."""
    import pyarrow as pa

    one_expression(where, what)
    try:
        kind = _plan(schema, where).field("x").type
    except _NotPlanned as error:
        raise invalid(f"The {what} {where!r} cannot be planned: {error}") from None
    if not pa.types.is_boolean(kind):
        raise invalid(f"The {what} {where!r} is of type {kind}, not boolean")
    return expression_inputs(schema, where)


def _planned(schema: pa.Schema, expression: str) -> pa.Schema:
    try:
        return _plan(schema, expression)
    except _NotPlanned as error:
        raise invalid(str(error)) from None


class _NotPlanned(Exception):
    """Lance cannot plan an expression over a schema."""


#: Called with a serialized schema and an expression before Lance plans them. Planning evaluates constants and recurses,
#: so an expression can end the process. The server sets this function to try the expression in another process first.
before_planning: Callable[[bytes, str], None] | None = None


def plan_serialized(schema: bytes, expression: str) -> pa.Schema:
    """The schema of the one column ``x`` that an expression over a serialized schema makes."""
    return _empty(schema).scanner(columns={"x": expression}, with_row_id=True).projected_schema


def _plan(schema: pa.Schema, expression: str) -> pa.Schema:
    read = one_expression(expression)
    serialized = _serialized(schema)
    if before_planning is not None:
        before_planning(serialized, read.text)
    try:
        return plan_serialized(serialized, read.text)
    except BaseException as error:
        # Lance's planner panics on some literals.
        if not isinstance(error, ValueError | OSError | TypeError) and type(error).__name__ != "PanicException":
            raise
        raise _NotPlanned(f"{expression!r}: {read.doubt or plain_reason(str(error))}") from None


def _serialized(schema: pa.Schema) -> bytes:
    """A schema as the key of a cache: some of Lance's own types cannot be hashed."""
    import pyarrow as pa

    # Without metadata, because encodings such as blobs need options that an empty table in memory does not have.
    return pa.schema([field.remove_metadata() for field in schema]).serialize().to_pybytes()


def _deserialized(serialized: bytes) -> pa.Schema:
    import lance  # noqa: F401  (registers its own types)
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(serialized))


@functools.lru_cache(maxsize=64)
def _empty(serialized: bytes) -> lance.LanceDataset:
    import lance

    return lance.write_dataset(_deserialized(serialized).empty_table(), "memory://")


def _children(field: pa.Field[pa.DataType]) -> list[pa.Field[pa.DataType]]:
    return [field.type.field(i) for i in range(field.type.num_fields)] if _is_struct(field.type) else []


def _without(schema: pa.Schema, path: tuple[str, ...]) -> pa.Schema:
    """The schema without a field and without fields whose names differ from it by case only."""
    import pyarrow as pa

    def drop(fields: Sequence[pa.Field[pa.DataType]], rest: tuple[str, ...]) -> list[pa.Field[pa.DataType]]:
        kept = []
        for field in fields:
            if field.name.lower() != rest[0].lower():
                kept.append(field)
            elif len(rest) > 1:
                kept.append(pa.field(field.name, pa.struct(drop(_children(field), rest[1:]))))
        return kept

    return pa.schema(drop(list(schema), path))


def _only(schema: pa.Schema, paths: Sequence[tuple[str, ...]]) -> pa.Schema:
    """The schema with only ``paths``."""
    import pyarrow as pa

    def keep(fields: Sequence[pa.Field[pa.DataType]], wanted: Sequence[tuple[str, ...]]) -> list[pa.Field[pa.DataType]]:
        kept: list[pa.Field[pa.DataType]] = []
        for field in fields:
            inside = [path[1:] for path in wanted if path[0] == field.name]
            if inside and all(inside):
                kept.append(pa.field(field.name, pa.struct(keep(_children(field), inside))))
            elif inside:
                kept.append(field)
        return kept

    return pa.schema(keep(list(schema), paths))


def _storable(field: pa.Field[pa.DataType]) -> pa.DataType:
    """The type in which a table stores the values of a planned field.

    Lance's planner gives some functions (``md5``) a view type, and a blob the type of its place in the file. Tables
    store the plain types, and reading a blob gives its bytes.
    """
    import pyarrow as pa

    if pa.types.is_string_view(field.type):
        return pa.string()
    if pa.types.is_binary_view(field.type):
        return pa.binary()
    if (field.metadata or {}).get(b"lance-encoding:blob") == b"true":
        return pa.large_binary()
    return field.type
