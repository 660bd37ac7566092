"""Which names a new column may have. Lance accepts some names that make a table unreadable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.expressions import OWN_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


def check_column_name(name: str) -> str:
    """Return the name of a new column; ``InvalidInputError`` says why it cannot be one."""
    if not name.strip() or "." in name or "`" in name or not name.isprintable():
        raise InvalidInputError(
            f"{name[:60]!r} cannot be a column's name: it is empty, has a dot, a backtick or control characters."
        )
    _refuse_reserved(name)
    return name


def check_columns(schema: pa.Schema) -> None:
    """Check the names of a new table's columns. Here every name is allowed that Lance can read again."""
    for name in schema.names:
        _refuse_reserved(name)
        if "`" in name:
            raise InvalidInputError(f"{name[:60]!r} cannot be a column's name: it has a backtick.")


def _refuse_reserved(name: str) -> None:
    if name in OWN_COLUMNS:  # A stored column of such a name makes Lance's readers panic.
        raise InvalidInputError(f"{name!r} is a column of Lance's own, of every table; choose another name.")
