"""Arrow data for an operator: a schema written as text, or a file the worker can read. Imports pyarrow when called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_VECTOR = re.compile(r"(?P<item>.+?)\[(?P<size>\d*)\]")
_PARAMETRIC = re.compile(r"(?P<name>list|large_list|timestamp|decimal128)[<(](?P<rest>.+)[>)]")
_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "arrow",
    ".feather": "feather",
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


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class RowCount:
    """How many rows were sent, where that can be told: known at once for a table, at the end for a reader."""

    def __init__(self) -> None:
        self.rows: int | None = None

    def of(self, data: Any) -> Any:
        """The data itself, or a reader that counts on the way."""
        import pyarrow as pa

        if isinstance(data, pa.Table | pa.RecordBatch):
            self.rows = data.num_rows
        elif isinstance(data, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(data.schema, self._count(data))
        return data

    def _count(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in reader:
            rows += batch.num_rows
            yield batch
        self.rows = rows


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
            return pa.timestamp(*arguments)
        return pa.decimal128(*(int(part) for part in arguments))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise ValueError(
            f"Column {column!r} has the type {text!r}, which Arrow does not know. Types are Arrow's names, such as "
            "int64, float32, string, binary, timestamp(us, UTC), list<string>, or float32[384] for a vector."
        ) from None


def read_path(path: str, file_format: str | None = None) -> Any:
    """A file or folder as a reader of batches, so that nothing larger than a batch is held in memory."""
    ending = PurePosixPath(path.rstrip("/")).suffix.lower()
    kind = file_format or ("lance" if ending == ".lance" else _FORMATS.get(ending, "parquet"))
    if kind == "lance":
        import lance

        return lance.dataset(path).scanner().to_reader()
    import pyarrow.dataset as ds

    return ds.dataset(path, format=kind).scanner().to_reader()
