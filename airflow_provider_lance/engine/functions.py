"""A Python function applied to scanned batches: its calling convention, its pace, and what becomes of rows it fails on.

Runs in Spark workers. Knows nothing of files.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.columns import ColumnRule
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.exact import exact_array
from airflow_provider_lance.engine.udf import ErrorPolicy, UdfError, load
from airflow_provider_lance.engine.user_code import user_traceback

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_ROWS = 8192
SQL_BATCH_ROWS = 16_384  # functions get fewer: what they need for each row is their own affair
_RETRY_SECONDS = 0.1


@dataclass
class Chunk:
    """Values of some rows of a fragment in ascending order; ``failed`` are (physical row, message) pairs."""

    offsets: np.ndarray
    values: pa.RecordBatch
    failed: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Scanned:
    """Some live rows of a fragment as they were read: which physical rows they are, and the columns asked for."""

    offsets: np.ndarray
    values: pa.RecordBatch


def split(batch: pa.RecordBatch | pa.Table) -> tuple[np.ndarray, pa.RecordBatch | pa.Table]:
    """A batch that was read with row addresses as physical rows and the columns that were asked for."""
    import numpy as np

    index = batch.schema.get_field_index("_rowaddr")
    addresses = batch.column(index).to_numpy()
    return (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64), batch.drop_columns(["_rowaddr"])


def split_offsets(batch: pa.RecordBatch, name: str) -> Chunk:
    """A stored batch whose column ``name`` holds the physical rows."""
    import pyarrow as pa

    values = batch.drop_columns([name])
    return Chunk(batch.column(name).to_numpy(), pa.RecordBatch.from_arrays(values.columns, schema=values.schema))


class Pace:
    """How many rows a function gets at once: as many as take about a second, so that work becomes durable in time.

    Begins small, because nothing is known of the function yet, and is kept for all tasks of a worker.
    """

    FIRST, SECONDS = 64, 1.0

    def __init__(self, limit: int | None = None, seconds: float = SECONDS, most: int = BATCH_ROWS) -> None:
        self.limit = min(most, limit or most)
        self.seconds = min(self.SECONDS, seconds)
        self.rows = min(self.FIRST, self.limit)

    def slices(self, batches: Iterable[Scanned]) -> Iterator[Scanned]:
        for batch in batches:
            if len(batch.offsets) <= self.rows:
                if len(batch.offsets):
                    yield batch
                continue
            position = 0
            while position < len(batch.offsets):
                size = self.rows
                yield Scanned(batch.offsets[position : position + size], batch.values.slice(position, size))
                position += size

    def learn(self, rows: int, seconds: float) -> None:
        if seconds < self.seconds / 4 and rows >= self.rows:
            self.rows = min(self.limit, self.rows * 4)
        elif seconds > self.seconds * 2:
            self.rows = max(1, self.rows // 2)


_paces: dict[tuple[str, int | None, float], Pace] = {}


def pace_for(rule: ColumnRule, limit: int | None, seconds: float) -> Pace:
    """This worker's pace for a rule, with what earlier tasks taught it."""
    most = BATCH_ROWS if rule.expression is None else SQL_BATCH_ROWS
    return _paces.setdefault((rule.fingerprint, limit, seconds), Pace(limit, seconds, most))


class RowFailure(JobError):
    """The rule failed on a row and the policy says that this fails the job."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__("compute", message, traceback=traceback)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFailure, (str(self), self.traceback)


class Function:
    """A loaded function with its calling convention and error policy, applied to scanned batches."""

    def __init__(self, rule: ColumnRule, schema: pa.Schema, policy: ErrorPolicy, fragment_id: int, pace: Pace) -> None:
        assert rule.envelope is not None
        try:
            self.function = load(rule.envelope)
        except UdfError:
            raise
        except Exception as error:
            # Spark would try the same again and call it a lost worker.
            message = f"the function cannot be set up where Spark's Python workers run: {_describe(error)}"
            raise JobError("load", message, traceback=user_traceback(error)) from error
        self.call = rule.envelope.call
        self.parts = rule.struct_fields if rule.places else ()
        self.places = rule.places
        self.names = (*rule.targets, *rule.struct_fields)
        self.schema = schema
        self.types = schema.types
        self.policy = policy
        self.fragment_id = fragment_id
        self.pace = pace

    def __call__(self, scanned: Scanned) -> Chunk:
        offsets, inputs = scanned.offsets, scanned.values
        started = time.monotonic()
        chunk = self._batches(offsets, inputs) if self.call == "batch" else self._rows(offsets, inputs)
        self.pace.learn(len(offsets), time.monotonic() - started)
        return chunk

    def _rows(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> Chunk:
        columns = [column.to_pylist() for column in inputs.columns]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(offsets))
        results: list[Any] = []
        failed: list[tuple[int, str]] = []
        function, retries = self.function, self.policy.retries
        for arguments in rows:
            try:
                # The one loop in which Python's own cost shows: nothing here that a row does not need.
                results.append(self._attempt(partial(function, *arguments)) if retries else function(*arguments))
            except Exception as error:
                failed.append(self._fail(int(offsets[len(results)]), error))
                results.append(None)
        return Chunk(offsets, self._array(offsets, results, failed), failed)

    def _array(self, offsets: np.ndarray, results: list[Any], failed: list[tuple[int, str]]) -> pa.RecordBatch:
        import pyarrow as pa

        def build(rows: list[Any]) -> list[pa.Array]:
            if not self.parts:
                return [exact_array(rows, self.types[0])]
            return [
                exact_array([None if row is None else _part(row, name, at) for row in rows], kind)
                for name, at, kind in zip(self.parts, self.places, self.types, strict=True)
            ]

        try:
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)
        except Exception:
            # One value of another type spoils the whole conversion: find it, and treat it as a failed row.
            for index, result in enumerate(results):
                try:
                    build([result])
                except Exception as error:
                    failed.append(self._fail(int(offsets[index]), error))
                    results[index] = None
            failed.sort()
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)

    def _batches(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> Chunk:

        try:
            columns = self._attempt(lambda: self._columns(self.function(inputs), inputs.num_rows))
        except Exception as error:
            if self.policy.on_error == "fail":
                place = f"rows {offsets[0]} to {offsets[-1]} of fragment {self.fragment_id}"
                message = f"the function failed on a batch, {place}: {_describe(error)}"
                raise RowFailure(message, user_traceback(error)) from error
            if len(offsets) == 1:
                return Chunk(offsets, self._nulls(1), [(int(offsets[0]), _describe(error))])
        else:
            failed: list[tuple[int, str]] = []
            batches = list(self._fitting(offsets, columns, failed))
            return Chunk(offsets, _joined(batches), failed)
        middle = len(offsets) // 2
        left = self._batches(offsets[:middle], inputs.slice(0, middle))
        right = self._batches(offsets[middle:], inputs.slice(middle))
        return Chunk(offsets, _joined([left.values, right.values]), left.failed + right.failed)

    def _fitting(
        self, offsets: np.ndarray, columns: list[Any], failed: list[tuple[int, str]]
    ) -> Iterator[pa.RecordBatch]:
        """What the function returned as batches of the target columns, with nulls for the rows that do not fit.

        Those rows are looked for in the result. The function is not called again for them.
        """
        import pyarrow as pa

        try:
            arrays = [exact_array(column, kind) for column, kind in zip(columns, self.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            return
        except Exception as error:
            if len(offsets) == 1:
                failed.append(self._fail(int(offsets[0]), error))
                yield self._nulls(1)
                return
        middle = len(offsets) // 2
        yield from self._fitting(offsets[:middle], [_cut(column, 0, middle) for column in columns], failed)
        yield from self._fitting(offsets[middle:], [_cut(column, middle, len(offsets)) for column in columns], failed)

    def _nulls(self, rows: int) -> pa.RecordBatch:
        import pyarrow as pa

        return pa.RecordBatch.from_arrays([pa.nulls(rows, part.type) for part in self.schema], schema=self.schema)

    def _columns(self, result: Any, rows: int) -> list[Any]:
        """Whatever a batch function may return, as one sequence of values for each target column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(result, str | bytes | set):
            raise TypeError(f"the function returned a {type(result).__name__}, not a sequence of {rows} values")
        if hasattr(result, "iloc") and result.ndim == 2:
            result = pa.Table.from_pandas(result, preserve_index=False)
        if isinstance(result, pa.ChunkedArray | pa.Table):
            result = result.combine_chunks()
        if self.parts and isinstance(result, pa.StructArray):
            # Not result.field(): that has values where the struct itself is null.
            columns = [pc.struct_field(result, name) for name in self.parts]
        elif self.parts:
            columns = [result[name] for name in self.parts]
        elif isinstance(result, pa.RecordBatch | pa.Table):
            columns = [self._only_column(result, result.schema.names)]
        elif isinstance(result, Mapping):
            columns = [self._only_column(result, list(result))]
        else:
            columns = [result if hasattr(result, "__len__") else list(result)]
        for column in columns:
            if len(column) != rows:
                raise ValueError(f"the function returned {len(column)} values for {rows} rows")
        return columns

    def _only_column(self, result: Any, names: list[str]) -> Any:
        """Of a function with one output: the column named as its target or as the part of the result it declared."""
        chosen = names if len(names) == 1 else [name for name in self.names if name in names]
        if not chosen:
            raise ValueError(f"the function returned columns {names}, none of them named {self.names[0]!r}")
        return result[chosen[0]]

    def _attempt(self, call: Callable[[], Any]) -> Any:
        for attempt in range(self.policy.retries + 1):
            try:
                return call()
            except Exception:
                if attempt == self.policy.retries:
                    raise
                time.sleep(_RETRY_SECONDS * 2**attempt)
        raise AssertionError("unreachable")

    def _fail(self, offset: int, error: Exception) -> tuple[int, str]:
        if self.policy.on_error == "fail":
            place = f"row {offset} of fragment {self.fragment_id}"
            raise RowFailure(f"the function failed on {place}: {_describe(error)}", user_traceback(error)) from error
        return offset, _describe(error)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(column: Any, start: int, stop: int) -> Any:
    """Some values by position; a pandas Series counts by its index otherwise."""
    return column.iloc[start:stop] if hasattr(column, "iloc") else column[start:stop]


def _part(row: Any, name: str, at: int) -> Any:
    if not isinstance(row, tuple | list):
        return row[name]
    if at >= len(row):
        raise ValueError(f"the function returned {len(row)} values, too few for its output {name!r}")
    return row[at]


def _describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 500 else text[:497] + "..."
