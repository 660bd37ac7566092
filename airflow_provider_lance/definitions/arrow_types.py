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
