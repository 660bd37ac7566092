"""Arrow types, schemas and metadata as text: the notation of operators and ``UdfColumn``, and the wire's base64.

pyarrow is imported when a function is called.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    import pyarrow as pa

_VECTOR = re.compile(r"(?P<item>.+?)\[(?P<size>\d*)\]")
_PARAMETRIC = re.compile(r"(?P<name>list|large_list|timestamp|decimal128)[<(](?P<rest>.+)[>)]")

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_SQL_TYPES = {
    "bool": "Boolean",
    "halffloat": "Float16",
    "float": "Float32",
    "double": "Float64",
    "string": "Utf8",
    "large_string": "LargeUtf8",
    "binary": "Binary",
    "large_binary": "LargeBinary",
    "date32[day]": "Date32",
    "date64[ms]": "Date64",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """``{"id": "int64 not null", "tags": "list<string>", "vector": "float32[384]"}`` as an Arrow schema."""
    import pyarrow as pa

    fields = []
    for name, text in columns.items():
        words = text.strip()
        nullable = not words.lower().endswith("not null")
        fields.append(
            pa.field(name, _type(words if nullable else words[: -len("not null")].strip(), name), nullable=nullable)
        )
    return pa.schema(fields)


def _type(text: str, column: str) -> pa.DataType:
    import pyarrow as pa

    if (vector := _VECTOR.fullmatch(text)) is not None:
        item = _type(vector["item"].strip(), column)
        return pa.list_(item, int(vector["size"])) if vector["size"] else pa.list_(item)
    if (parametric := _PARAMETRIC.fullmatch(text)) is not None:
        name, rest = parametric["name"], parametric["rest"].strip()
        if name in {"list", "large_list"}:
            return (pa.list_ if name == "list" else pa.large_list)(_type(rest, column))
        arguments = [part.strip().strip("'\"") for part in rest.split(",")]
        if name == "timestamp":
            unit = cast("Literal['s', 'ms', 'us', 'ns']", arguments[0])  # Arrow refuses other units
            return pa.timestamp(unit, *arguments[1:])
        return pa.decimal128(*(int(part) for part in arguments))
    try:
        found: pa.DataType = pa.type_for_alias(text)  # type: ignore[call-overload]  # the stubs list each name
        return found
    except ValueError:
        raise ValueError(
            f"Column {column!r} has the type {text!r}, which Arrow does not know. Types are Arrow's names, such as "
            "int64, float32, string, binary, timestamp(us, UTC), list<string>, or float32[384] for a vector."
        ) from None


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch with these columns and no rows. pylance's server takes a stream without any batch for missing data."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def null_expression(kind: pa.DataType) -> str:
    """An SQL expression of Lance that is null and of this type; ValueError for a type that its SQL has no word for."""
    return f"arrow_cast(NULL, '{_sql_type(kind)}')"


def _sql_type(kind: pa.DataType) -> str:
    import pyarrow as pa

    if isinstance(kind, pa.FixedSizeListType):
        return f"FixedSizeList({kind.list_size}, {_sql_type(kind.value_type)})"
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return f"{'List' if isinstance(kind, pa.ListType) else 'LargeList'}({_sql_type(kind.value_type)})"
    if isinstance(kind, pa.TimestampType):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"Timestamp({_UNITS[kind.unit]}, {zone})"
    if isinstance(kind, pa.Decimal128Type):
        return f"Decimal128({kind.precision}, {kind.scale})"
    if str(kind) not in _SQL_TYPES:
        raise ValueError(f"Lance's SQL has no word for the type {kind}: load rows that have the column.")
    return _SQL_TYPES[str(kind)]


def encode_schema(schema: pa.Schema) -> str:
    """A schema as the text that requests carry: base64 of its Arrow IPC message.

    :param schema: The columns of a view, for the ``output_schema`` of its request.
    """
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """The schema of :func:`encode_schema`; ValueError for any other text."""
    import pyarrow as pa

    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        raise ValueError("not a base64-encoded Arrow IPC schema") from error


def text_metadata(metadata: Mapping[str, str] | Mapping[bytes, bytes] | None) -> dict[str, str]:
    """The metadata of a schema or a field as text. Arrow has bytes, Lance's answers have text."""
    return {_text(key): _text(value) for key, value in (metadata or {}).items()}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
