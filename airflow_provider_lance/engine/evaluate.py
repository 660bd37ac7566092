"""The rule applied to a stretch of one fragment, inside a Spark worker: rows in, values by physical row out.

SQL is evaluated by Lance while it scans; functions get Arrow batches. Rows on which the rule fails become nulls with a
message, or end the job, as the error policy says. Knows nothing of files that are written, checkpoints or commits.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.columns import ColumnRule
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.expressions import format_path, parse_path
from airflow_provider_lance.engine.table import TableRef, field_ids
from airflow_provider_lance.engine.udf import ErrorPolicy, load

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceFragment

BATCH_ROWS = 8192
# Decoded input of one batch. Lance's own batch_size_bytes decodes far ahead of it (2.6 GB for rows of 1 MB), so the
# number of rows is chosen from the width of the columns on disk instead.
BATCH_BYTES = 8 << 20
_ISOLATE_ROWS = 1024
_RETRY_SECONDS = 0.1


@dataclass
class Chunk:
    """Values of some rows of a fragment in ascending order; ``failed`` are (physical row, message) pairs."""

    offsets: np.ndarray
    values: pa.RecordBatch
    failed: list[tuple[int, str]] = field(default_factory=list)


class Pace:
    """How many rows a function gets at once: as many as take about a second, so that work becomes durable in time.

    Kept for all fragments of a task: the first slices are small, because nothing is known of the function yet.
    """

    FIRST, SECONDS = 64, 1.0

    def __init__(self, limit: int | None = None, seconds: float = SECONDS) -> None:
        self.limit = min(BATCH_ROWS, limit or BATCH_ROWS)
        self.seconds = min(self.SECONDS, seconds)
        self.rows = min(self.FIRST, self.limit)

    def slices(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            position = 0
            while position < batch.num_rows:
                size = self.rows
                yield batch.slice(position, size)
                position += size

    def learn(self, rows: int, seconds: float) -> None:
        if seconds < self.seconds / 4 and rows >= self.rows:
            self.rows = min(self.limit, self.rows * 4)
        elif seconds > self.seconds * 2:
            self.rows = max(1, self.rows // 2)


class RowFailure(JobError):
    """The rule failed on a row and the policy says that this fails the job."""

    def __init__(self, message: str) -> None:
        super().__init__("compute", message)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFailure, (str(self),)


def chunks(
    table: TableRef,
    fragment: LanceFragment,
    rule: ColumnRule,
    schema: pa.Schema,
    policy: ErrorPolicy,
    *,
    where: str | None,
    start: int,
    stop: int,
    pace: Pace,
    threads: int = 1,
) -> Iterator[Chunk]:
    """The values of the selected live rows among the physical rows ``start`` to ``stop`` of a fragment.

    ``schema`` has the target columns in the rule's order. No chunk has more rows than ``pace`` allows.
    """
    stretch = _Stretch(table, fragment, where)
    if rule.expression is not None:
        yield from _sql(stretch, rule, schema, policy, start, stop, pace.limit, threads)
        return
    batches = stretch.scan(_inputs(rule), start, stop, rows=batch_rows(table, fragment, rule.inputs), readahead=2)
    function = _Function(rule, schema, policy, fragment.fragment_id, pace)
    yield from ordered(function, pace.slices(batches), threads)


def batch_rows(table: TableRef, fragment: LanceFragment, columns: tuple[str, ...]) -> int:
    """How many rows of these columns are about :data:`BATCH_BYTES` at once."""
    rows = max(1, fragment.physical_rows)
    # The whole files are an upper bound that needs no look into them; mostly it settles the question.
    if fragment_bytes(fragment) / rows * BATCH_ROWS <= BATCH_BYTES:
        return BATCH_ROWS
    size = max(1, column_bytes(table, fragment, columns))
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES * rows / size)))


def fragment_bytes(fragment: LanceFragment) -> int:
    return sum(file.file_size_bytes or 0 for file in fragment.data_files())


def column_bytes(table: TableRef, fragment: LanceFragment, paths: tuple[str, ...]) -> int:
    """The size on disk of some columns of a fragment, from the footers of the files that hold them."""
    from lance.file import LanceFileReader

    dataset = fragment._ds
    wanted = field_ids(dataset, paths)
    total = 0
    for file in fragment.data_files():
        places = [
            index
            for name, index in zip(file.fields, file.column_indices, strict=False)
            if name in wanted and index >= 0
        ]
        if not places:
            continue
        base = table.base if file.base_id is None else dataset.base_paths()[file.base_id].path
        try:
            reader = LanceFileReader(
                f"{base.rstrip('/')}/data/{file.path}", storage_options=table.storage_options or None
            )
            sizes = [column.size_bytes for column in reader.file_statistics().columns]
            total += sum(sizes[index] for index in places)
        except (OSError, ValueError, IndexError):
            total += file.file_size_bytes or 0
    return total


def ordered(function: Callable[[Any], Chunk], batches: Iterable[Any], threads: int) -> Iterator[Chunk]:
    """Map in order with ``threads`` at work and no more batches in memory than that."""
    if threads <= 1:
        yield from map(function, batches)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Chunk]] = deque()
        for batch in batches:
            waiting.append(pool.submit(function, batch))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Stretch:
    """Scans parts of a fragment by physical row."""

    def __init__(self, table: TableRef, fragment: LanceFragment, where: str | None) -> None:
        self.table = table
        self.fragment = fragment
        self.where = where
        self._base = fragment.fragment_id << 32
        self._live: np.ndarray | None = None

    def scan(
        self, columns: list[str] | dict[str, str], start: int, stop: int, *, rows: int = BATCH_ROWS, readahead: int = 8
    ) -> Iterator[pa.RecordBatch]:
        options: dict[str, Any] = {"filter": self.where}
        if (start, stop) != (0, self.fragment.physical_rows):
            if self.where is None:
                # Pushed down by Lance, unlike a filter; but it counts live rows only.
                first, last = self._live_index(start), self._live_index(stop)
                if first == last:
                    return iter(())
                options = {"offset": first, "limit": last - first}
            else:
                low, high = self._base + start, self._base + stop
                options = {"filter": f"({self.where}) AND _rowaddr >= {low} AND _rowaddr < {high}"}
        scanner = self.fragment.scanner(
            columns=columns,
            with_row_address=True,
            batch_size=rows,
            batch_readahead=readahead,
            blob_handling="all_binary",
            **options,
        )
        return iter(scanner.to_batches())

    def _live_index(self, row: int) -> int:
        """How many live rows come before a physical row."""
        if not self.fragment.num_deletions:
            return row
        if self._live is None:
            self._live = split(self.fragment.scanner(columns=[], with_row_address=True).to_table())[0]
        return int(self._live.searchsorted(row))


def split(batch: pa.RecordBatch | pa.Table) -> tuple[np.ndarray, pa.RecordBatch | pa.Table]:
    """A scanned batch as physical rows and the columns that were asked for."""
    import numpy as np

    index = batch.schema.get_field_index("_rowaddr")
    addresses = batch.column(index).to_numpy()
    return (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64), batch.drop_columns(["_rowaddr"])


def split_offsets(batch: pa.RecordBatch, name: str) -> Chunk:
    """A stored batch whose column ``name`` holds the physical rows."""
    import pyarrow as pa

    values = batch.drop_columns([name])
    return Chunk(batch.column(name).to_numpy(), pa.RecordBatch.from_arrays(values.columns, schema=values.schema))


def _inputs(rule: ColumnRule) -> list[str] | dict[str, str]:
    segments = [parse_path(path) for path in rule.inputs]
    if all(len(parts) == 1 for parts in segments):
        return [parts[0] for parts in segments]
    return {path: format_path(parts) for path, parts in zip(rule.inputs, segments, strict=True)}


# --- SQL -------------------------------------------------------------------------------------------------------------


def _sql(
    stretch: _Stretch,
    rule: ColumnRule,
    schema: pa.Schema,
    policy: ErrorPolicy,
    start: int,
    stop: int,
    limit: int,
    threads: int,
) -> Iterator[Chunk]:
    assert rule.expression is not None
    columns = {schema.names[0]: rule.expression}
    rows = min(limit, batch_rows(stretch.table, stretch.fragment, rule.inputs))
    position = start
    while position < stop:
        try:
            for batch in stretch.scan(columns, position, stop, rows=rows, readahead=max(8, threads)):
                offsets, values = split(batch)
                if len(offsets):
                    yield Chunk(offsets, _typed(values, schema))
                    position = int(offsets[-1]) + 1
            return
        except ValueError as error:
            if not _is_evaluation_error(error):
                raise
            # A scan stops at the first bad row of a batch; the rows around it are evaluated in ever smaller pieces.
            end = min(stop, position + _ISOLATE_ROWS)
            yield from _isolate(stretch, columns, schema, policy, position, end)
            position = end


def _isolate(
    stretch: _Stretch, columns: dict[str, str], schema: pa.Schema, policy: ErrorPolicy, start: int, stop: int
) -> Iterator[Chunk]:
    import pyarrow as pa

    try:
        batches = [split(batch) for batch in stretch.scan(columns, start, stop)]
        for offsets, values in batches:
            if len(offsets):
                yield Chunk(offsets, _typed(values, schema))
        return
    except ValueError as error:
        if not _is_evaluation_error(error):
            raise
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _isolate(stretch, columns, schema, policy, start, middle)
            yield from _isolate(stretch, columns, schema, policy, middle, stop)
            return
        reason = _reason(error)
        if policy.on_error == "fail":
            place = f"row {start} of fragment {stretch.fragment.fragment_id}"
            raise RowFailure(f"{columns[schema.names[0]]!r} failed on {place}: {reason}") from error
        import numpy as np

        nulls = pa.RecordBatch.from_arrays([pa.nulls(1, part.type) for part in schema], schema=schema)
        yield Chunk(np.array([start], dtype=np.int64), nulls, [(start, reason)])


def _is_evaluation_error(error: Exception) -> bool:
    """Lance marks what Arrow's kernels refuse (division by zero, casts); storage errors look different."""
    return "LanceError(Arrow)" in str(error)


def _reason(error: BaseException) -> str:
    text = re.sub(r", /\S+\.rs:\d+:\d+$", "", str(error))
    return text.removeprefix("External error: ").removeprefix("LanceError(Arrow): ") or type(error).__name__


def _typed(values: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    if [part.type for part in values.schema] == schema.types:
        return pa.RecordBatch.from_arrays(values.columns, schema=schema)
    arrays = [column.cast(part.type) for column, part in zip(values.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- functions -------------------------------------------------------------------------------------------------------


class _Function:
    """A loaded function with its calling convention and error policy, applied to scanned batches."""

    def __init__(self, rule: ColumnRule, schema: pa.Schema, policy: ErrorPolicy, fragment_id: int, pace: Pace) -> None:
        assert rule.envelope is not None
        self.function = load(rule.envelope)
        self.call = rule.envelope.call
        self.parts = rule.struct_fields
        self.schema = schema
        self.policy = policy
        self.fragment_id = fragment_id
        self.pace = pace

    def __call__(self, scanned: pa.RecordBatch) -> Chunk:
        offsets, inputs = split(scanned)
        started = time.monotonic()
        chunk = self._batches(offsets, inputs) if self.call == "batch" else self._rows(offsets, inputs)
        self.pace.learn(len(offsets), time.monotonic() - started)
        return chunk

    def _rows(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> Chunk:
        columns = [column.to_pylist() for column in inputs.columns]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(offsets))
        results: list[Any] = []
        failed: list[tuple[int, str]] = []
        for offset, arguments in zip(offsets, rows, strict=True):
            try:
                results.append(self._attempt(partial(self.function, *arguments)))
            except Exception as error:
                failed.append(self._fail(int(offset), error))
                results.append(None)
        return Chunk(offsets, self._array(offsets, results, failed), failed)

    def _array(self, offsets: np.ndarray, results: list[Any], failed: list[tuple[int, str]]) -> pa.RecordBatch:
        import pyarrow as pa

        def build(rows: list[Any]) -> list[pa.Array]:
            if not self.parts:
                return [pa.array(rows, type=self.schema.types[0])]
            return [
                pa.array([None if row is None else _part(row, name, at) for row in rows], type=part.type)
                for at, (name, part) in enumerate(zip(self.parts, self.schema, strict=True))
            ]

        try:
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)
        except (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError):
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
        import pyarrow as pa

        try:
            result = self._attempt(lambda: self._checked(self.function(inputs), inputs.num_rows))
            return Chunk(offsets, result)
        except Exception as error:
            if self.policy.on_error == "fail":
                place = f"rows {offsets[0]} to {offsets[-1]} of fragment {self.fragment_id}"
                raise RowFailure(f"The function failed on a batch, {place}: {_describe(error)}") from error
            if len(offsets) == 1:
                nulls = pa.RecordBatch.from_arrays([pa.nulls(1, part.type) for part in self.schema], schema=self.schema)
                return Chunk(offsets, nulls, [(int(offsets[0]), _describe(error))])
        middle = len(offsets) // 2
        left = self._batches(offsets[:middle], inputs.slice(0, middle))
        right = self._batches(offsets[middle:], inputs.slice(middle))
        arrays = [
            pa.concat_arrays([first, second])
            for first, second in zip(left.values.columns, right.values.columns, strict=True)
        ]
        values = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return Chunk(offsets, values, left.failed + right.failed)

    def _checked(self, result: Any, rows: int) -> pa.RecordBatch:
        """Whatever a batch function may return, as a batch of the target columns."""
        import pyarrow as pa

        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if self.parts and isinstance(result, pa.StructArray):
            columns = [result.field(name) for name in self.parts]
        elif self.parts:
            columns = [result[name] for name in self.parts]
        elif isinstance(result, pa.RecordBatch):
            columns = [result.column(0)]
        else:
            columns = [result]
        arrays = []
        for column, part in zip(columns, self.schema, strict=True):
            array = column if isinstance(column, pa.Array) else pa.array(column, type=part.type)
            if len(array) != rows:
                raise ValueError(f"the function returned {len(array)} values for {rows} rows")
            arrays.append(array if array.type == part.type else array.cast(part.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

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
            raise RowFailure(f"The function failed on {place}: {_describe(error)}") from error
        return offset, _describe(error)


def _part(row: Any, name: str, at: int) -> Any:
    return row[at] if isinstance(row, tuple) else row[name]


def _describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 500 else text[:497] + "..."
