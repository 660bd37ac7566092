"""Chunker views: each source row becomes any number of view rows, by a Python function, for changed rows only.

The function gets the values of one row, or a batch of rows (``udtf_spec.batch``), and says which view rows come of it.
Runs in Spark's workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.sql_text import SimpleSelect
from airflow_provider_lance.engine.changes import Changes, NotComparable
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.exact import exact_table
from airflow_provider_lance.engine.expressions import parse_path
from airflow_provider_lance.engine.progress import TaskFigures
from airflow_provider_lance.engine.resources import slots
from airflow_provider_lance.engine.row_view import Computed, QueryView, Work, both
from airflow_provider_lance.engine.scan_tasks import Producer, Scan, ScanTask, Written
from airflow_provider_lance.engine.table_function import (
    Environment,
    TableFunction,
    failed,
    function_inputs,
    load_function,
    open_function,
    rows_table,
)
from airflow_provider_lance.engine.view_definition import SOURCE_ROW_ID, ViewDefinition
from airflow_provider_lance.engine.view_rows import cut_fragments

if TYPE_CHECKING:
    import pyarrow as pa

INPUT_ROW = "__input_row"
# A source row's number in its batch, and what the function made of it.
Rows = tuple[int, list[Any]]
# Rows a function sees at once, bounded by bytes: a page of text is small, a film is not.
BATCH_ROWS = 1024
BATCH_BYTES = 32 << 20
_RETRY_SECONDS = 0.5


def chunker_select(definition: ViewDefinition) -> SimpleSelect:
    """The source query without the columns the function does not read: changes in those are none of its business."""
    assert definition.select is not None
    assert definition.udtf is not None
    wanted = {parse_path(path)[0] for path in definition.udtf.input_columns or ()}
    return replace(definition.select, items=tuple(item for item in definition.select.items if item.name in wanted))


@dataclass(frozen=True)
class ChunkProducer:
    """Calls the function for every source row of a task and lines its rows up with the row they came from."""

    scan: Scan
    columns: Mapping[str, str]
    paths: tuple[str, ...]
    function: TableFunction
    environment: Environment
    batch: bool
    output: pa.Schema

    def __call__(self, task: ScanTask, figures: TaskFigures) -> Iterable[pa.RecordBatch]:
        expand = load_function(self.function, self.environment)
        batches = self.scan.batches(
            task, dict(self.columns), batch_size=BATCH_ROWS, batch_size_bytes=BATCH_BYTES, batch_readahead=2
        )
        for batch in batches:
            figures.bytes_read += batch.nbytes
            inputs = function_inputs(batch, self.paths)
            row_ids = batch.column(SOURCE_ROW_ID)
            chunks = self._batch if self.batch else self._rows
            yield from chunks(expand, inputs, row_ids, figures)

    def _rows(
        self, expand: Callable[..., Any], inputs: pa.RecordBatch, row_ids: pa.Array, figures: TaskFigures
    ) -> list[pa.RecordBatch]:
        columns = [column.to_pylist() for column in inputs.columns]
        found: list[Rows] = []
        for number, values in enumerate(zip(*columns, strict=True)):
            rows = self._guarded(partial(_expand, expand, values), figures, 1)
            if rows:
                found.append((number, rows))
        try:
            chunks = _table(found, self.output)
        except ValueError:
            # One value of another type spoils the whole conversion: find its row, and treat it as failed.
            chunks = _table([rows for rows in found if self._converts(rows, figures)], self.output)
        return _with_row_ids(chunks, row_ids, self.output)

    def _batch(
        self, expand: Callable[..., Any], inputs: pa.RecordBatch, row_ids: pa.Array, figures: TaskFigures
    ) -> list[pa.RecordBatch]:
        def call() -> list[pa.RecordBatch]:
            return _with_row_ids(_batch_result(expand(inputs), len(inputs), self.output), row_ids, self.output)

        return self._guarded(call, figures, len(inputs)) or []

    def _converts(self, rows: Rows, figures: TaskFigures) -> bool:
        try:
            _table([rows], self.output)
        except ValueError as error:
            self._fail(error, figures, 1)
            return False
        return True

    def _guarded(self, call: Callable[[], Any], figures: TaskFigures, rows: int) -> Any:
        """The function's own error policy: try again, then fail the job or leave the row (or batch) out."""
        policy = self.function.envelope.policy
        for attempt in range(policy.retries + 1):
            try:
                return call()
            except Exception as error:
                if attempt == policy.retries:
                    self._fail(error, figures, rows)
                    return None
                time.sleep(_RETRY_SECONDS * 2**attempt)
        return None

    def _fail(self, error: Exception, figures: TaskFigures, rows: int) -> None:
        if self.function.envelope.policy.on_error == "fail":
            raise failed("the view's function failed", error) from error
        figures.failed += rows


class ChunkerView(QueryView):
    """``1:N`` rows by a function. Follows its source like a query; ``output_limit`` cuts what comes out."""

    driver_rows = 0  # foreign code runs where the deployment put its packages: in the workers

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        definition = work.state.definition
        assert definition.udtf is not None
        self.udtf = definition.udtf
        self.select = chunker_select(definition)
        self.function = open_function(definition.udtf)
        self.limit = work.request.get("output_limit")
        self._check_output()

    def producer(self, extra: str | None) -> Producer:
        work = self.work
        environment = Environment.of(self.udtf, work.request.get("manifest"))
        environment.ship(work.context.spark.sparkContext)
        scan = Scan(work.source_table, work.source.version, both(self.select.filter, extra))
        columns = {item.name: item.expression for item in self.select.items} | {SOURCE_ROW_ID: "_rowid"}
        paths = tuple(self.udtf.input_columns or ())
        output = work.target.schema
        return ChunkProducer(scan, columns, paths, self.function, environment, bool(self.udtf.batch), output)

    def rows(self, fragments: tuple[int, ...] | None, extra: str | None, limit: int | None) -> list[Written]:
        context = self.work.context.spark.sparkContext
        asked = self.work.request.get("concurrency")
        at_once = slots(context, self.udtf)
        request = {**self.work.request, "concurrency": min(asked or at_once, at_once)}
        self.work = replace(self.work, request=request)
        return super().rows(fragments, extra, limit)

    def rebuild(self) -> Computed:
        return self._cut(super().rebuild(), 0)

    def follow(self, changes: Changes) -> Computed:
        state = self.work.state
        if state.trimmed_to is not None:
            raise NotComparable(f"the last refresh was cut to {state.trimmed_to} rows by output_limit")
        computed = super().follow(changes)
        return self._cut(computed, state.dataset.count_rows() - computed.rows_deleted)

    def _cut(self, computed: Computed, kept: int) -> Computed:
        if self.limit is None or kept + computed.rows_written <= self.limit:
            return computed
        if kept > self.limit:
            raise NotComparable(f"the view holds {kept} rows, more than output_limit {self.limit}")
        room = self.limit - kept
        new = cut_fragments(computed.changes.new, room, self.work.target)
        changes = replace(computed.changes, new=new)
        return replace(computed, changes=changes, rows_written=room, trimmed_to=self.limit)

    def _check_output(self) -> None:
        stored = [(f.name, f.type) for f in self.work.state.schema if f.name != SOURCE_ROW_ID]
        yields = [(f.name, f.type) for f in self.function.output]
        if stored != yields:
            raise JobError("plan", f"the view stores {stored}, but its function yields {yields}")


def _expand(expand: Callable[..., Any], values: tuple[Any, ...]) -> list[Any]:
    """The function may be a generator: its errors come while it is read."""
    return list(expand(*values))


def _batch_result(result: Any, rows: int, output: pa.Schema) -> pa.Table:
    """A batched function answers with Arrow rows that carry ``__input_row``, or with one list of rows per input row."""
    import pyarrow as pa

    if isinstance(result, pa.RecordBatch | pa.Table):
        table = pa.table(result) if isinstance(result, pa.Table) else pa.Table.from_batches([result])
        if INPUT_ROW not in table.column_names:
            raise ValueError(f"a batched chunker's Arrow result needs the column {INPUT_ROW}: whose row is it?")
        missing = sorted(set(output.names[:-1]) - set(table.column_names))
        if missing or table[INPUT_ROW].null_count:
            raise ValueError(f"a batched chunker's Arrow result lacks {', '.join(missing) or f'some {INPUT_ROW}'}")
        return table
    lists = list(result)
    if len(lists) != rows:
        raise ValueError(f"a batched chunker got {rows} rows and answered for {len(lists)}")
    return _table([(number, list(many or ())) for number, many in enumerate(lists)], output)


def _table(found: Sequence[Rows], output: pa.Schema) -> pa.Table:
    import pyarrow as pa

    rows = [row for _, many in found for row in many]
    numbers = pa.array([number for number, many in found for _ in many], pa.int64())
    return rows_table(rows, output.remove(output.get_field_index(SOURCE_ROW_ID))).append_column(INPUT_ROW, numbers)


def _with_row_ids(chunks: pa.Table, row_ids: pa.Array, output: pa.Schema) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if not chunks.num_rows:
        return []
    ids = pa.chunked_array([row_ids]).take(chunks[INPUT_ROW])
    at = output.get_field_index(SOURCE_ROW_ID)
    return exact_table(chunks, output.remove(at)).add_column(at, output.field(at), ids).cast(output).to_batches()
