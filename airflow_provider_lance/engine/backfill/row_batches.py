"""Batches of a fragment's rows as a rule gets and returns them, and how many rows a function gets at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.column_rules import ColumnRule
from airflow_provider_lance.storage.row_address import row_offsets

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_ROWS = 8192
SQL_BATCH_ROWS = 16_384  # functions get fewer, because what they allocate for each row is not known


@dataclass(frozen=True)
class ScannedRows:
    """Some live rows of a fragment: their physical row numbers in ascending order, and the columns that were read."""

    offsets: np.ndarray
    values: pa.RecordBatch

    @classmethod
    def from_addresses(cls, batch: pa.RecordBatch) -> ScannedRows:
        """Read a batch that was scanned with row addresses."""
        return cls(row_offsets(batch.column("_rowaddr").to_numpy()), batch.drop_columns(["_rowaddr"]))


@dataclass(frozen=True)
class ComputedRows:
    """New values of some rows of a fragment, in ascending order; ``failed`` are (physical row, message) pairs."""

    offsets: np.ndarray
    values: pa.RecordBatch
    failed: list[tuple[int, str]] = field(default_factory=list)


def null_rows(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of ``rows`` nulls in every column."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(rows, column.type) for column in schema], schema=schema)


class BatchSizer:
    """Chooses how many rows a function gets at once: as many as take about a second, so that work is saved in time.

    It begins with few rows, because nothing is known of the function yet, and serves all tasks of a worker.
    """

    FIRST, SECONDS = 64, 1.0

    def __init__(
        self, limit: int | None = None, seconds: float = SECONDS, most: int = BATCH_ROWS, least: int = 1
    ) -> None:
        self.limit = min(most, limit or most)
        self.least = min(least, self.limit)
        self.seconds = min(self.SECONDS, seconds)
        self.rows = min(max(self.FIRST, self.least), self.limit)

    def resize(self, batches: Iterable[ScannedRows]) -> Iterator[ScannedRows]:
        """The same rows in batches of at most the current size."""
        for batch in batches:
            if len(batch.offsets) <= self.rows:
                if len(batch.offsets):
                    yield batch
                continue
            position = 0
            while position < len(batch.offsets):
                size = self.rows
                yield ScannedRows(batch.offsets[position : position + size], batch.values.slice(position, size))
                position += size

    def learn(self, rows: int, seconds: float) -> None:
        """Adapt the size after a call with ``rows`` rows took ``seconds``."""
        if seconds < self.seconds / 4 and rows >= self.rows:
            self.rows = min(self.limit, self.rows * 4)
        elif seconds > self.seconds * 2:
            self.rows = max(self.least, self.rows // 2)


_batch_sizers: dict[tuple[str, int | None, float, int, int], BatchSizer] = {}


def batch_sizer_for(rule: ColumnRule, limit: int | None, seconds: float) -> BatchSizer:
    """The batch sizer of this worker for a rule, with what earlier tasks taught it."""
    most, least = BATCH_ROWS if rule.expression is None else SQL_BATCH_ROWS, 1
    if rule.envelope is not None and rule.envelope.batch_rows is not None:
        most = least = rule.envelope.batch_rows
    elif rule.envelope is not None and rule.envelope.max_concurrency is not None:
        least = 4 * rule.envelope.max_concurrency  # few calls would run at once near the end of a smaller batch
    key = (rule.fingerprint, limit, seconds, most, least)
    return _batch_sizers.setdefault(key, BatchSizer(limit, seconds, most, least))
