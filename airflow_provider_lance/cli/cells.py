"""Values of Arrow rows: whole, as JSON has them, and shortened, as a cell of a table has room for them."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

    Scalar: TypeAlias = pa.Scalar[Any]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_MOST_TEXT = 60
_MOST_ITEMS = 3


def json_rows(rows: pa.Table) -> Iterator[dict[str, Json]]:
    """Each row as a JSON object.

    Bytes become base64. Times, dates, durations and decimals become text. JSON has no NaN and no infinity: they become
    null.
    """
    for number in range(rows.num_rows):
        yield {name: _json(rows.column(place)[number]) for place, name in enumerate(rows.column_names)}


def short_rows(rows: pa.Table) -> Iterator[list[str]]:
    """Each row as the texts of its cells."""
    for number in range(rows.num_rows):
        yield [_short(column[number]) for column in rows.columns]


def _json(scalar: Scalar) -> Json:
    import pyarrow as pa

    scalar = _stored(scalar)
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {field.name: _json(scalar[field.name]) for field in scalar.type}
    if isinstance(scalar, pa.ListScalar):
        items = _items(scalar)
        if pa.types.is_floating(items.type):  # a vector: one call for all of its numbers
            return [_finite(number) for number in items.to_pylist()]
        return [_json(item) for item in items]
    if pa.types.is_floating(scalar.type):
        return _finite(scalar.as_py())
    if pa.types.is_boolean(scalar.type):
        return bool(scalar.as_py())
    if pa.types.is_integer(scalar.type):
        return int(scalar.as_py())
    if isinstance(scalar, pa.BinaryScalar) and not isinstance(scalar, pa.StringScalar):
        return base64.b64encode(scalar.as_py() or b"").decode()
    return _text(scalar)


def _short(scalar: Scalar) -> str:
    import pyarrow as pa

    scalar = _stored(scalar)
    if not scalar.is_valid:
        return "null"
    if isinstance(scalar, pa.StructScalar):
        return "{" + ", ".join(f"{field.name}: {_short(scalar[field.name])}" for field in scalar.type) + "}"
    if isinstance(scalar, pa.ListScalar):
        items = _items(scalar)
        shown = [_short(item) for item in items[:_MOST_ITEMS]]
        more = [f"… {len(items):,} items"] if len(items) > _MOST_ITEMS else []
        return f"[{', '.join([*shown, *more])}]"
    if pa.types.is_floating(scalar.type):
        return f"{float(scalar.as_py()):.6g}"
    if pa.types.is_boolean(scalar.type):
        return "true" if scalar.as_py() else "false"
    if isinstance(scalar, pa.BinaryScalar) and not isinstance(scalar, pa.StringScalar):
        return f"{len(scalar.as_py() or b''):,} bytes"
    text = _text(scalar)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _stored(scalar: Scalar) -> Scalar:
    """The value itself of a dictionary's entry or of an extension type."""
    import pyarrow as pa

    if isinstance(scalar, pa.DictionaryScalar) and scalar.is_valid:
        return _stored(scalar.dictionary[scalar.index.as_py()])
    if isinstance(scalar, pa.ExtensionScalar) and scalar.value is not None:
        return _stored(scalar.value)
    return scalar


def _items(scalar: pa.ListScalar[Any]) -> pa.Array[Scalar]:
    values = scalar.values
    assert values is not None
    return values


def _finite(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None


def _text(scalar: Scalar) -> str:
    """A scalar's text. ``as_py`` drops the nanoseconds of times, and fails for years beyond 9999."""
    import pyarrow as pa

    if pa.types.is_duration(scalar.type):
        return f"{scalar.cast(pa.int64()).as_py()} {scalar.type.unit}"
    return str(scalar.cast(pa.string()).as_py() if pa.types.is_temporal(scalar.type) else scalar.as_py())
