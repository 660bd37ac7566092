"""Values by physical row, laid out over all rows of a fragment: new values, old values, nulls for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.evaluate import BATCH_BYTES
from airflow_provider_lance.engine.functions import BATCH_ROWS, Chunk

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


def dense(
    source: Iterable[Chunk], rows: int, schema: pa.Schema, old: Iterator[pa.RecordBatch] | None
) -> Iterator[pa.RecordBatch]:
    """Values scattered over ``rows`` physical rows, in order and in windows of bounded size.

    Rows without a new value get their ``old`` one, or null.
    """
    windows = _windows(rows, old)
    pending: list[Chunk] = []
    chunk_iterator = iter(source)
    for start, stop, kept in windows(_window_rows(pending, chunk_iterator)):
        while not pending or int(pending[-1].offsets[-1]) < stop:
            following = next(chunk_iterator, None)
            if following is None:
                break
            if len(following.offsets):
                pending.append(following)
        picked, pending = _take_until(pending, stop)
        yield _scatter(picked, start, stop, schema, kept)


def _windows(
    rows: int, old: Iterator[pa.RecordBatch] | None
) -> Callable[[int], Iterator[tuple[int, int, pa.RecordBatch | None]]]:
    def nulls(size: int) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
        for start in range(0, rows, size):
            yield start, min(rows, start + size), None

    def batches(_: int) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
        position = 0
        assert old is not None
        for batch in old:
            yield position, position + batch.num_rows, batch
            position += batch.num_rows
        if position != rows:
            raise JobError("compute", f"The old column has {position} rows of {rows}", retryable=True)

    return nulls if old is None else batches


def _window_rows(pending: list[Chunk], source: Iterator[Chunk]) -> int:
    """Rows per window, from the width of the first values."""
    first = next((chunk for chunk in source if len(chunk.offsets)), None)
    if first is None:
        return BATCH_ROWS
    pending.append(first)
    width = max(1, first.values.nbytes // len(first.offsets))
    return max(1, min(8 * BATCH_ROWS, 2 * BATCH_BYTES // width))


def _take_until(pending: list[Chunk], stop: int) -> tuple[list[Chunk], list[Chunk]]:
    picked, rest = [], []
    for chunk in pending:
        at = int(chunk.offsets.searchsorted(stop))
        if at == len(chunk.offsets):
            picked.append(chunk)
        elif at == 0:
            rest.append(chunk)
        else:
            picked.append(Chunk(chunk.offsets[:at], chunk.values.slice(0, at)))
            rest.append(Chunk(chunk.offsets[at:], chunk.values.slice(at)))
    return picked, rest


def _scatter(
    picked: list[Chunk], start: int, stop: int, schema: pa.Schema, kept: pa.RecordBatch | None
) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    size = stop - start
    if not picked:
        return kept or pa.RecordBatch.from_arrays([pa.nulls(size, part.type) for part in schema], schema=schema)
    columns = [[chunk.values.column(at) for chunk in picked] for at in range(len(schema))]
    if sum(len(chunk.offsets) for chunk in picked) == size:
        arrays = [pa.concat_arrays(column) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    offsets: np.ndarray = np.concatenate([chunk.offsets for chunk in picked]) - start
    if kept is None:
        places = np.zeros(size, dtype=np.int64)
        absent = np.ones(size, dtype=bool)
        places[offsets] = np.arange(len(offsets))
        absent[offsets] = False
        indices = pa.array(places, mask=absent)
        arrays = [pa.concat_arrays(column).take(indices) for column in columns]
    else:
        places = np.arange(size, dtype=np.int64)
        places[offsets] = size + np.arange(len(offsets))
        indices = pa.array(places)
        arrays = [pa.concat_arrays([kept.column(at), *column]).take(indices) for at, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
