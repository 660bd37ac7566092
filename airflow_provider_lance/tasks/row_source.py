"""Where the rows of a task come from: files, a function, or a value of another task. All of it becomes Arrow batches.

Imports pyarrow when rows are opened. Nothing larger than a batch is held in memory, unless the rows are there already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.storage.input_files import NoRowsError, ObjectPath, find_input

if TYPE_CHECKING:
    import pyarrow as pa

    _Rows = pa.Table | pa.RecordBatch | pa.RecordBatchReader


@dataclass(frozen=True)
class RowSource:
    """Rows that can be opened again and again.

    ``data``: Arrow, pandas or polars data, a list of dicts, or a function that returns one of these. ``path``: a file,
    a folder or a pattern such as ``s3://bucket/day=*/part-*.parquet``.
    """

    data: object = None
    path: str | ObjectPath | None = None
    file_format: str | None = None

    def open(self) -> pa.RecordBatchReader:
        """A reader of all rows; NoRowsError where there are none to be read."""
        import pyarrow as pa

        rows = self.read()
        return rows.to_reader() if isinstance(rows, pa.Table) else rows

    def read(self) -> pa.Table | pa.RecordBatchReader:
        """Rows that are in memory as a table, which a request can send twice; all others as a reader."""
        if self.path is not None:
            return find_input(self.path, self.file_format).open()
        return as_arrow(self.data() if callable(self.data) else self.data)


def as_arrow(data: object) -> pa.Table | pa.RecordBatchReader:
    """Rows of any kind that a task may be given, as Arrow data."""
    import pyarrow as pa

    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    library = type(data).__module__.partition(".")[0]
    if library == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)  # its own Arrow stream has the index in it
    if library == "polars":
        return _plain_strings(data.to_arrow())  # type: ignore[attr-defined]
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _dicts(data)
    raise NoRowsError(
        f"Rows are Arrow, pandas or polars data, a list of dicts, or a function that returns one of these; this is a "
        f"{type(data).__name__}."
    )


def _dicts(rows: Sequence[object]) -> pa.Table:
    import pyarrow as pa

    odd = next((row for row in rows if not isinstance(row, Mapping)), None)
    if odd is not None:
        raise NoRowsError(f"The rows are a list with a {type(odd).__name__} in it; each of them must be a dict.")
    if not rows:
        raise NoRowsError("The list of rows is empty, so it does not tell the columns. Give Arrow data with a schema.")
    # Every key of any row is a column; from_pylist alone takes those of the first row.
    names = list(dict.fromkeys(str(name) for row in rows if isinstance(row, Mapping) for name in row))
    columns = {name: [row.get(name) for row in rows if isinstance(row, Mapping)] for name in names}
    try:
        return pa.table(columns)
    except pa.ArrowException as error:
        raise NoRowsError(f"The dicts do not make a table: {error}") from None


def _plain_strings(table: pa.Table) -> pa.Table:
    """Polars gives views of strings, which Lance does not store."""
    import pyarrow as pa

    plain: dict[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return table.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in table.schema]))


class RowCount:
    """Counts the rows that are sent. The count of a reader is known once it has been read to its end."""

    def __init__(self) -> None:
        self.rows: int | None = None

    def counted(self, data: _Rows) -> _Rows | pa.RecordBatchReader:
        """The data, or a reader of the same batches that counts their rows."""
        import pyarrow as pa

        if isinstance(data, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(data.schema, self._count(data))
        self.rows = data.num_rows
        return data

    def _count(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in reader:
            rows += batch.num_rows
            yield batch
        self.rows = rows
