"""A column's rule applied to some physical rows of one fragment, inside a Spark worker.

Lance evaluates SQL while it scans; functions get Arrow batches. Rows on which the rule fails become nulls with a
message, or end the job, as the error policy says. This module knows nothing of the files that are written, of
checkpoints or of commits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.column_rules import ColumnRule
from airflow_provider_lance.definitions.expressions import format_path, parse_path
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy
from airflow_provider_lance.definitions.lance_errors import plain_reason
from airflow_provider_lance.engine.backfill.apply_function import FunctionApplier, RowFailure, opened_function
from airflow_provider_lance.engine.backfill.row_batches import (
    BATCH_ROWS,
    BatchSizer,
    ComputedRows,
    ScannedRows,
    null_rows,
)
from airflow_provider_lance.engine.functions.async_function import AsyncFunction
from airflow_provider_lance.storage.row_address import row_address, row_offsets
from airflow_provider_lance.storage.table import TableRef, field_ids

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceFragment, LanceScanner
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
_SELECTED_ROWS = 5000  # chosen by number in one scan; Lance parses a text with all their addresses
_OFFSETS = 1 << 17  # numbered at once where all rows are read, because numbering each small batch costs more


@dataclass(frozen=True)
class RowSelection:
    """The live rows among the physical rows ``start`` to ``stop`` that are computed.

    They are those that ``where`` selects, or those that ``numbers`` names, or all of them.
    """

    start: int
    stop: int
    where: str | None = None
    numbers: np.ndarray | None = None


def evaluate_rule(
    table: TableRef,
    fragment: LanceFragment,
    rule: ColumnRule,
    schema: pa.Schema,
    policy: ErrorPolicy,
    rows: RowSelection,
    *,
    batch_sizer: BatchSizer,
    threads: int = 1,
) -> Iterator[ComputedRows]:
    """The values of the selected rows, in the order of the rows.

    ``schema`` has the target columns in the rule's order. No batch has more rows than ``batch_sizer`` allows.
    """
    scanner = _FragmentScanner(table, fragment, rows.where, rows.numbers, reads_columns=bool(rule.inputs))
    if rule.expression is not None:
        yield from _evaluate_sql(scanner, rule, schema, policy, rows, batch_sizer.limit, threads)
        return
    assert rule.envelope is not None
    size = batch_rows(table, fragment, rule.inputs)
    if rule.envelope.batch_rows is not None:  # whole batches of the user's, and at least one
        size = max(size // batch_sizer.rows, 1) * batch_sizer.rows
    batches = scanner.scan(_input_columns(rule), rows.start, rows.stop, rows=size, readahead=2)
    with opened_function(rule.envelope) as function:
        if isinstance(function, AsyncFunction) and rule.envelope.call != "scalar":
            threads = max(threads, function.max_concurrency)  # each of them awaits one batch
        apply = FunctionApplier(function, rule, schema, policy, fragment.fragment_id, batch_sizer)
        yield from map_in_order(apply, batch_sizer.resize(batches), threads)


def read_inputs(
    table: TableRef, fragment: LanceFragment, rule: ColumnRule, rows: RowSelection
) -> dict[int, dict[str, Any]]:
    """The values of a rule's inputs by physical row, for few rows."""
    if not rule.inputs:
        return {}
    scanner = _FragmentScanner(table, fragment, rows.where, rows.numbers, reads_columns=True)
    return {
        offset: values
        for batch in scanner.scan(_input_columns(rule), rows.start, rows.stop)
        for offset, values in zip(batch.offsets.tolist(), batch.values.to_pylist(), strict=True)
    }


def batch_rows(table: TableRef, fragment: LanceFragment, columns: tuple[str, ...], most: int = BATCH_ROWS) -> int:
    """How many rows of these columns are about :data:`BATCH_BYTES` at once, and not more than ``most``."""
    rows = max(1, fragment.physical_rows)
    # The size of whole files is an upper bound that needs no read of their footers, and mostly it is small enough.
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
    """The data files that hold some of these columns, each with the positions of these columns in it."""
    wanted = field_ids(fragment._ds, paths)
    found = []
    for file in fragment.data_files():
        named = zip(file.fields, file.column_indices, strict=False)
        places = [index for name, index in named if name in wanted and index >= 0]
        if places:
            found.append((file, places))
    return found


def map_in_order(
    function: Callable[[ScannedRows], ComputedRows], batches: Iterable[ScannedRows], threads: int
) -> Iterator[ComputedRows]:
    """Apply ``function`` in ``threads`` threads; results keep the order, and few batches are in memory at once."""
    if threads <= 1:
        yield from map(function, batches)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[ComputedRows]] = deque()
        for batch in batches:
            waiting.append(pool.submit(function, batch))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _FragmentScanner:
    """Reads ranges of a fragment's physical rows."""

    def __init__(
        self,
        table: TableRef,
        fragment: LanceFragment,
        where: str | None,
        selected: np.ndarray | None,
        *,
        reads_columns: bool,
    ) -> None:
        # Where every physical row is read in order, their addresses need not be read.
        self._reads_every_row = reads_columns and where is None and selected is None and not fragment.num_deletions
        self.table = table
        self.fragment = fragment
        self.where = where
        self.selected = selected

    def scan(
        self, columns: list[str] | dict[str, str], start: int, stop: int, *, rows: int = BATCH_ROWS, readahead: int = 8
    ) -> Iterator[ScannedRows]:
        import numpy as np

        if self.selected is not None:
            yield from self._scan_selected(self.selected, columns, start, stop, rows, readahead)
            return
        where, offset, limit = self.where, None, None
        if (start, stop) != (0, self.fragment.physical_rows):
            if where is None:
                # Lance pushes offset and limit down, unlike a filter; they count live rows only.
                offset = self._live_rows_before(start)
                limit = self._live_rows_before(stop) - offset
                if not limit:
                    return
            else:
                where = f"({where}) AND _rowaddr >= {self._address(start)} AND _rowaddr < {self._address(stop)}"
        scanner = self._scanner(columns, rows, readahead, where=where, offset=offset, limit=limit)
        if not self._reads_every_row:
            yield from map(ScannedRows.from_addresses, scanner.to_batches())
            return
        offsets = np.arange(0)
        for batch in scanner.to_batches():
            count = batch.num_rows
            if len(offsets) < count:
                offsets = np.arange(start, start + max(count, _OFFSETS))
            yield ScannedRows(offsets[:count], batch)
            offsets, start = offsets[count:], start + count

    def _scan_selected(
        self,
        selected: np.ndarray,
        columns: list[str] | dict[str, str],
        start: int,
        stop: int,
        rows: int,
        readahead: int,
    ) -> Iterator[ScannedRows]:
        low, high = selected.searchsorted(start), selected.searchsorted(stop)
        for first in range(low, high, _SELECTED_ROWS):
            numbers = selected[first : min(high, first + _SELECTED_ROWS)].tolist()
            chosen = f"_rowaddr IN ({', '.join(str(self._address(number)) for number in numbers)})"
            yield from map(
                ScannedRows.from_addresses, self._scanner(columns, rows, readahead, where=chosen).to_batches()
            )

    def _scanner(
        self,
        columns: list[str] | dict[str, str],
        rows: int,
        readahead: int,
        *,
        where: str | None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> LanceScanner:
        return self.fragment.scanner(
            columns=columns,
            filter=where,
            offset=offset,
            limit=limit,
            with_row_address=not self._reads_every_row,
            batch_size=rows,
            batch_readahead=readahead,
            blob_handling="all_binary",
            # A scalar index may be stale; it must not decide which rows get a value.
            use_scalar_index=False,
        )

    def _address(self, row: int) -> int:
        return row_address(self.fragment.fragment_id, row)

    def _live_rows_before(self, row: int) -> int:
        """How many live rows come before a physical row."""
        return int(self._live_rows.searchsorted(row)) if self.fragment.num_deletions else row

    @cached_property
    def _live_rows(self) -> np.ndarray:
        return matching_rows(self.fragment)


def matching_rows(fragment: LanceFragment, where: str | None = None) -> np.ndarray:
    """The physical rows of a fragment that are live and that a clause selects, read without scalar indices."""
    scanner = fragment.scanner(columns=[], filter=where, with_row_address=True, use_scalar_index=False)
    return row_offsets(scanner.to_table().column("_rowaddr").to_numpy())


def _input_columns(rule: ColumnRule) -> list[str] | dict[str, str]:
    segments = [parse_path(path) for path in rule.inputs]
    if all(len(parts) == 1 for parts in segments):
        return [parts[0] for parts in segments]
    return {path: format_path(parts) for path, parts in zip(rule.inputs, segments, strict=True)}


def _evaluate_sql(
    scanner: _FragmentScanner,
    rule: ColumnRule,
    schema: pa.Schema,
    policy: ErrorPolicy,
    rows: RowSelection,
    limit: int,
    threads: int,
) -> Iterator[ComputedRows]:
    assert rule.expression is not None
    columns = {schema.names[0]: rule.expression}
    size = batch_rows(scanner.table, scanner.fragment, rule.inputs, limit)
    position = rows.start
    while position < rows.stop:
        try:
            for batch in scanner.scan(columns, position, rows.stop, rows=size, readahead=max(8, threads)):
                if len(batch.offsets):
                    yield ComputedRows(batch.offsets, _cast(batch.values, schema))
                    position = int(batch.offsets[-1]) + 1
            return
        except ValueError as error:
            if evaluation_failure(error) is None:
                raise
            # A scan stops at the first failing row of a batch, so the rows around it are evaluated in smaller pieces.
            end = min(rows.stop, position + _ISOLATE_ROWS)
            yield from _isolate_failures(scanner, columns, schema, policy, position, end)
            position = end


def _isolate_failures(
    scanner: _FragmentScanner, columns: dict[str, str], schema: pa.Schema, policy: ErrorPolicy, start: int, stop: int
) -> Iterator[ComputedRows]:
    """Evaluate rows some of which fail, by halving the range until a failing row is alone."""
    import numpy as np

    try:
        for batch in list(scanner.scan(columns, start, stop)):
            if len(batch.offsets):
                yield ComputedRows(batch.offsets, _cast(batch.values, schema))
        return
    except ValueError as error:
        reason = evaluation_failure(error)
        if reason is None:
            raise
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from _isolate_failures(scanner, columns, schema, policy, start, middle)
            yield from _isolate_failures(scanner, columns, schema, policy, middle, stop)
            return
        if policy.decide(error, policy.retries) == "fail":
            place = f"row {start} of fragment {scanner.fragment.fragment_id}"
            raise RowFailure(f"{columns[schema.names[0]]!r} failed on {place}: {reason}") from error
        yield ComputedRows(np.array([start], dtype=np.int64), null_rows(1, schema), [(start, reason)])


def evaluation_failure(error: Exception) -> str | None:
    """Why an expression has no value for some row (division by zero, casts); None for any other error.

    Lance marks what Arrow's kernels and its own functions refuse; storage errors look different.
    """
    found = _EVALUATION.search(plain_reason(str(error)))
    return found[1] if found else None


def _cast(values: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(values.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
