"""A whole column of a fragment: new values where there are some, old values or nulls for the other physical rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.backfill.evaluate import BATCH_BYTES
from airflow_provider_lance.engine.backfill.row_batches import BATCH_ROWS, ComputedRows, null_rows
from airflow_provider_lance.engine.job.context import JobError

if TYPE_CHECKING:
    import pyarrow as pa


# The first and last physical row of some output rows, and their old values.
_Window = tuple[int, int, "pa.RecordBatch | None"]


def whole_column(
    computed: Iterable[ComputedRows], rows: int, schema: pa.Schema, old: Iterator[pa.RecordBatch] | None
) -> Iterator[pa.RecordBatch]:
    """All ``rows`` physical rows of a fragment, in order and in batches of bounded size.

    Rows without a new value keep their ``old`` one, or are null.
    """
    source = (batch for batch in computed if len(batch.offsets))
    first = next(source, None)
    pending = [] if first is None else [first]
    windows = _even_windows(rows, _window_rows(first)) if old is None else _old_windows(rows, old)
    for start, stop, kept in windows:
        while not pending or int(pending[-1].offsets[-1]) < stop:
            following = next(source, None)
            if following is None:
                break
            pending.append(following)
        picked, pending = _take_until(pending, stop)
        yield _merge(picked, start, stop, schema, kept)


def _even_windows(rows: int, size: int) -> Iterator[_Window]:
    for start in range(0, rows, size):
        yield start, min(rows, start + size), None


def _old_windows(rows: int, old: Iterator[pa.RecordBatch]) -> Iterator[_Window]:
    position = 0
    for batch in old:
        yield position, position + batch.num_rows, batch
        position += batch.num_rows
    if position != rows:
        raise JobError("compute", f"The old column has {position} rows of {rows}", retryable=True)


def _window_rows(first: ComputedRows | None) -> int:
    """Rows per window, from the width of the first values."""
    if first is None:
        return BATCH_ROWS
    width = max(1, first.values.nbytes // len(first.offsets))
    return max(1, min(8 * BATCH_ROWS, 2 * BATCH_BYTES // width))


def _take_until(pending: list[ComputedRows], stop: int) -> tuple[list[ComputedRows], list[ComputedRows]]:
    picked, rest = [], []
    for batch in pending:
        at = int(batch.offsets.searchsorted(stop))
        if at == len(batch.offsets):
            picked.append(batch)
        elif at == 0:
            rest.append(batch)
        else:
            picked.append(ComputedRows(batch.offsets[:at], batch.values.slice(0, at)))
            rest.append(ComputedRows(batch.offsets[at:], batch.values.slice(at)))
    return picked, rest


def _merge(
    picked: list[ComputedRows], start: int, stop: int, schema: pa.Schema, kept: pa.RecordBatch | None
) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    size = stop - start
    if not picked:
        return kept or null_rows(size, schema)
    columns = [[batch.values.column(at) for batch in picked] for at in range(len(schema))]
    if sum(len(batch.offsets) for batch in picked) == size:
        arrays = [pa.concat_arrays(column) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    offsets = np.concatenate([batch.offsets for batch in picked]) - start
    if kept is None:
        places = np.zeros(size, dtype=np.int64)
        absent = np.ones(size, dtype=bool)
        places[offsets] = np.arange(len(offsets))
        absent[offsets] = False
        indices = pa.array(places, pa.int64(), mask=absent)
        arrays = [pa.concat_arrays(column).take(indices) for column in columns]
    else:
        places = np.arange(size, dtype=np.int64)
        places[offsets] = size + np.arange(len(offsets))
        indices = pa.array(places, pa.int64())
        arrays = [pa.concat_arrays([kept.column(at), *column]).take(indices) for at, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
