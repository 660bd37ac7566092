"""The rows of a source that a refresh needs, read into the driver with the types that Spark has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.incremental.changed_rows import is_flat, take_by_id
from airflow_provider_lance.engine.views.incremental.replacement import Rows
from airflow_provider_lance.engine.views.incremental.source_columns import SourceColumns
from airflow_provider_lance.engine.views.spark_source import BATCH_ROWS, cast_batch, pick, spark_schema
from airflow_provider_lance.storage.table import fragments_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Up to this share of a table, reading rows by their ids is faster than scanning it.
_TAKE_SHARE = 0.005


def read_rows(source: SourceColumns, rows: Rows, columns: Sequence[str]) -> pa.Table:
    """The values of ``columns`` in the rows of ``rows``."""
    import pyarrow as pa

    wanted = spark_schema(pick(source.dataset.schema, columns))
    batches = [cast_batch(batch, wanted) for batch in _batches(source, rows, columns)]
    return pa.Table.from_batches(batches, wanted)


def _batches(source: SourceColumns, rows: Rows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    dataset = source.dataset
    flat = all(is_flat(dataset.schema.field(name)) for name in columns)
    if rows.mask is not None and flat and rows.count <= _TAKE_SHARE * len(rows.mask):
        yield from take_by_id(dataset, source.row_ids(rows.mask), columns).to_batches()
        return
    written = rows.written
    scanner = dataset.scanner(
        columns=list(columns),
        filter=None if written is None else written.written,
        fragments=None if written is None else fragments_of(dataset, written.fragments),
        batch_size=BATCH_ROWS,
        blob_handling="all_binary",
        scan_in_order=True,
        use_scalar_index=False,  # an index may be stale, and wrong rows would be stored in the view
    )
    start = 0
    for batch in scanner.to_batches():
        if rows.mask is None:
            yield batch
        else:
            chosen = rows.mask[start : start + len(batch)]
            start += len(batch)
            if chosen.any():
                yield batch.filter(pa.array(chosen))
