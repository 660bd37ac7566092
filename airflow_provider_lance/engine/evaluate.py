"""The rule applied to a stretch of one fragment, inside a Spark worker: rows in, values by physical row out.

SQL is evaluated by Lance while it scans; functions get Arrow batches. Rows on which the rule fails become nulls with a
message, or end the job, as the error policy says. Knows nothing of files that are written, checkpoints or commits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.columns import ColumnRule
from airflow_provider_lance.engine.expressions import format_path, parse_path
from airflow_provider_lance.engine.functions import BATCH_ROWS, Chunk, Function, Pace, RowFailure, Scanned, split
from airflow_provider_lance.engine.table import TableRef, field_ids
from airflow_provider_lance.engine.udf import ErrorPolicy

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceFragment
    from lance.fragment import DataFile

# Decoded input of one batch. Lance's own batch_size_bytes decodes far ahead of it (2.6 GB for rows of 1 MB), so the
# number of rows is chosen from the width of the columns on disk instead.
BATCH_BYTES = 8 << 20
_ISOLATE_ROWS = 1024
_EVALUATION = re.compile(
    r"(?:LanceError\(Arrow\)|Query Execution error: Execution error"
    r"|Error applying filter expression to batch: \w+ error): (?!.*LanceError\(IO\))(.*)",
    re.DOTALL,
)
_SELECTED_ROWS = 5000  # of a selection by number, in one scan: Lance reads a text with their addresses
_OFFSETS = 1 << 17  # numbered at once, where all rows are read: batches are too small to number one by one


def chunks(
    table: TableRef,
    fragment: LanceFragment,
    rule: ColumnRule,
    schema: pa.Schema,
    policy: ErrorPolicy,
    *,
    where: str | None,
    selected: np.ndarray | None = None,
    start: int,
    stop: int,
    pace: Pace,
    threads: int = 1,
) -> Iterator[Chunk]:
    """The values of the live rows among the physical rows ``start`` to ``stop`` of a fragment that ``where`` selects,
    or ``selected`` by their numbers.

    ``schema`` has the target columns in the rule's order. No chunk has more rows than ``pace`` allows.
    """
    stretch = _Stretch(table, fragment, where, selected, reads_columns=bool(rule.inputs))
    if rule.expression is not None:
        yield from _sql(stretch, rule, schema, policy, start, stop, pace.limit, threads)
        return
    batches = stretch.scan(_inputs(rule), start, stop, rows=batch_rows(table, fragment, rule.inputs), readahead=2)
    function = Function(rule, schema, policy, fragment.fragment_id, pace)
    yield from ordered(function, pace.slices(batches), threads)


def batch_rows(table: TableRef, fragment: LanceFragment, columns: tuple[str, ...], most: int = BATCH_ROWS) -> int:
    """How many rows of these columns are about :data:`BATCH_BYTES` at once, and not more than ``most``."""
    rows = max(1, fragment.physical_rows)
    # Whole files are an upper bound that needs no look into them; mostly it settles the question.
    for bound in (fragment.data_files, lambda: [file for file, _ in _holding(fragment, columns)]):
        if sum(file.file_size_bytes or 0 for file in bound()) / rows * most <= BATCH_BYTES:
            return most
    size = max(1, column_bytes(table, fragment, columns))
    return max(1, min(most, int(BATCH_BYTES * rows / size)))


def column_bytes(table: TableRef, fragment: LanceFragment, paths: tuple[str, ...]) -> int:
    """The size on disk of some columns of a fragment, from the footers of the files that hold them."""
    from lance.file import LanceFileReader

    dataset = fragment._ds
    total = 0
    for file, places in _holding(fragment, paths):
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


def _holding(fragment: LanceFragment, paths: tuple[str, ...]) -> list[tuple[DataFile, list[int]]]:
    """The data files that hold some of these columns, and at which places."""
    wanted = field_ids(fragment._ds, paths)
    found = []
    for file in fragment.data_files():
        named = zip(file.fields, file.column_indices, strict=False)
        places = [index for name, index in named if name in wanted and index >= 0]
        if places:
            found.append((file, places))
    return found


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

    def __init__(
        self,
        table: TableRef,
        fragment: LanceFragment,
        where: str | None,
        selected: np.ndarray | None,
        *,
        reads_columns: bool,
    ) -> None:
        # Where every physical row is read, in order, Lance need not say which ones they are.
        self._every = reads_columns and where is None and selected is None and not fragment.num_deletions
        self.table = table
        self.fragment = fragment
        self.where = where
        self.selected = selected
        self._base = fragment.fragment_id << 32
        self._live: np.ndarray | None = None

    def scan(
        self, columns: list[str] | dict[str, str], start: int, stop: int, *, rows: int = BATCH_ROWS, readahead: int = 8
    ) -> Iterator[Scanned]:
        import numpy as np

        if self.selected is not None:
            yield from self._scan_selected(self.selected, columns, start, stop, rows, readahead)
            return
        options: dict[str, Any] = {"filter": self.where}
        if (start, stop) != (0, self.fragment.physical_rows):
            if self.where is None:
                # Pushed down by Lance, unlike a filter; but it counts live rows only.
                first, last = self._live_index(start), self._live_index(stop)
                if first == last:
                    return
                options = {"offset": first, "limit": last - first}
            else:
                low, high = self._base + start, self._base + stop
                options = {"filter": f"({self.where}) AND _rowaddr >= {low} AND _rowaddr < {high}"}
        scanner = self._scanner(columns, rows, readahead, **options)
        if not self._every:
            yield from (Scanned(*split(batch)) for batch in scanner.to_batches())
            return
        offsets = np.arange(0)
        for batch in scanner.to_batches():
            count = batch.num_rows
            if len(offsets) < count:
                offsets = np.arange(start, start + max(count, _OFFSETS))
            yield Scanned(offsets[:count], batch)
            offsets, start = offsets[count:], start + count

    def _scan_selected(
        self,
        selected: np.ndarray,
        columns: list[str] | dict[str, str],
        start: int,
        stop: int,
        rows: int,
        readahead: int,
    ) -> Iterator[Scanned]:
        low, high = selected.searchsorted(start), selected.searchsorted(stop)
        for first in range(low, high, _SELECTED_ROWS):
            addresses = self._base + selected[first : min(high, first + _SELECTED_ROWS)]
            chosen = f"_rowaddr IN ({', '.join(map(str, addresses.tolist()))})"
            batches = self._scanner(columns, rows, readahead, filter=chosen).to_batches()
            yield from (Scanned(*split(batch)) for batch in batches)

    def _scanner(self, columns: list[str] | dict[str, str], rows: int, readahead: int, **options: Any) -> Any:
        # A scalar index may be stale; it must not decide which rows get a value.
        return self.fragment.scanner(
            columns=columns,
            with_row_address=not self._every,
            batch_size=rows,
            batch_readahead=readahead,
            blob_handling="all_binary",
            use_scalar_index=False,
            **options,
        )

    def _live_index(self, row: int) -> int:
        """How many live rows come before a physical row."""
        if not self.fragment.num_deletions:
            return row
        if self._live is None:
            self._live = matching_rows(self.fragment)
        return int(self._live.searchsorted(row))


def matching_rows(fragment: LanceFragment, where: str | None = None) -> np.ndarray:
    """The physical rows of a fragment that are live and that a clause selects, read without scalar indices."""
    scanner = fragment.scanner(columns=[], filter=where, with_row_address=True, use_scalar_index=False)
    return split(scanner.to_table())[0]


def _inputs(rule: ColumnRule) -> list[str] | dict[str, str]:
    segments = [parse_path(path) for path in rule.inputs]
    if all(len(parts) == 1 for parts in segments):
        return [parts[0] for parts in segments]
    return {path: format_path(parts) for path, parts in zip(rule.inputs, segments, strict=True)}


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
    rows = batch_rows(stretch.table, stretch.fragment, rule.inputs, limit)
    position = start
    while position < stop:
        try:
            for batch in stretch.scan(columns, position, stop, rows=rows, readahead=max(8, threads)):
                if len(batch.offsets):
                    yield Chunk(batch.offsets, _typed(batch.values, schema))
                    position = int(batch.offsets[-1]) + 1
            return
        except ValueError as error:
            if evaluation_failure(error) is None:
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
        for batch in list(stretch.scan(columns, start, stop)):
            if len(batch.offsets):
                yield Chunk(batch.offsets, _typed(batch.values, schema))
        return
    except ValueError as error:
        reason = evaluation_failure(error)
        if reason is None:
            raise
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _isolate(stretch, columns, schema, policy, start, middle)
            yield from _isolate(stretch, columns, schema, policy, middle, stop)
            return
        if policy.on_error == "fail":
            place = f"row {start} of fragment {stretch.fragment.fragment_id}"
            raise RowFailure(f"{columns[schema.names[0]]!r} failed on {place}: {reason}") from error
        import numpy as np

        nulls = pa.RecordBatch.from_arrays([pa.nulls(1, part.type) for part in schema], schema=schema)
        yield Chunk(np.array([start], dtype=np.int64), nulls, [(start, reason)])


def evaluation_failure(error: Exception) -> str | None:
    """Why an expression has no value for some row (division by zero, casts); None where that is not what went wrong.

    Lance marks what Arrow's kernels and its own functions refuse; storage errors look different.
    """
    found = _EVALUATION.search(re.sub(r", /\S+\.rs:\d+:\d+$", "", str(error)))
    return found[1] if found else None


def _typed(values: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(values.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
