"""Chunker views: a Python function makes any number of view rows of each source row.

The function gets the values of one row, or a batch of rows (``udtf_spec.batch``). It runs in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_lance.definitions.expressions import parse_path
from airflow_provider_lance.definitions.functions.table_function import TableFunction
from airflow_provider_lance.definitions.sql.text import SimpleSelect
from airflow_provider_lance.definitions.view_binding import check_same_columns, output_schema
from airflow_provider_lance.definitions.view_definition import SOURCE_ROW_ID, ViewDefinition
from airflow_provider_lance.engine.functions.exact_arrays import exact_table
from airflow_provider_lance.engine.functions.guarded_call import call_with_retries
from airflow_provider_lance.engine.job.progress import TaskFigures
from airflow_provider_lance.engine.spark.task_resources import slots
from airflow_provider_lance.engine.views.delete_rows import cut_fragments
from airflow_provider_lance.engine.views.kinds import Computed, Refresh
from airflow_provider_lance.engine.views.query_view import QueryView
from airflow_provider_lance.engine.views.scan_tasks import Producer, Scan, ScanTask
from airflow_provider_lance.engine.views.source_changes import Changes, NotComparable
from airflow_provider_lance.engine.views.view_function import (
    FunctionEnvironment,
    UserFunction,
    function_failure,
    function_inputs,
    open_function,
    open_in_worker,
    rows_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

    RowIds = pa.Array[pa.UInt64Scalar]
    BatchResult = pa.RecordBatch | pa.Table | Iterable[Iterable[object] | None]

_T = TypeVar("_T")
INPUT_ROW = "__input_row"
# A source row's number in its batch, and the rows that the function made of it.
Rows = tuple[int, list[object]]
# A function gets at most this many rows at once, and at most this many bytes.
BATCH_ROWS = 1024
BATCH_BYTES = 32 << 20


def chunker_select(definition: ViewDefinition) -> SimpleSelect:
    """The source query without the columns that the function does not read, whose changes do not matter."""
    assert definition.select is not None
    assert definition.udtf is not None
    wanted = {parse_path(path)[0] for path in definition.udtf.input_columns or ()}
    return replace(definition.select, items=tuple(item for item in definition.select.items if item.name in wanted))


@dataclass(frozen=True)
class ChunkProducer:
    """Calls the function for every source row of a task, and gives each result the id of its source row."""

    scan: Scan
    columns: Mapping[str, str]
    paths: tuple[str, ...]
    function: TableFunction
    environment: FunctionEnvironment
    batch: bool
    output: pa.Schema

    def __call__(self, task: ScanTask, figures: TaskFigures) -> Iterable[pa.RecordBatch]:
        size = self.function.envelope.batch_rows or BATCH_ROWS
        batches = self.scan.batches(
            task, self.columns, batch_size=size, batch_size_bytes=BATCH_BYTES, batch_readahead=2
        )
        with open_in_worker(self.function, self.environment) as expand:
            for batch in batches:
                figures.bytes_read += batch.nbytes
                inputs = function_inputs(batch, self.paths)
                row_ids = batch.column(SOURCE_ROW_ID)
                chunks = self._batch if self.batch else self._rows
                yield from chunks(expand, inputs, row_ids, figures)

    def _rows(
        self,
        expand: UserFunction,
        inputs: pa.RecordBatch,
        row_ids: RowIds,
        figures: TaskFigures,
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
            # One value of a wrong type fails the conversion of the batch, so each row is converted by itself.
            chunks = _table([rows for rows in found if self._converts(rows, figures)], self.output)
        return _with_row_ids(chunks, row_ids, self.output)

    def _batch(
        self,
        expand: UserFunction,
        inputs: pa.RecordBatch,
        row_ids: RowIds,
        figures: TaskFigures,
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

    def _guarded(self, call: Callable[[], list[_T]], figures: TaskFigures, rows: int) -> list[_T] | None:
        """Call with the function's own error policy: try again, then fail the job or leave the row (or batch) out."""
        try:
            return call_with_retries(self.function.envelope.policy, call)
        except Exception as error:
            self._fail(error, figures, rows)
            return None

    def _fail(self, error: Exception, figures: TaskFigures, rows: int) -> None:
        policy = self.function.envelope.policy
        if policy.decide(error, policy.retries) == "fail":
            raise function_failure("the view's function failed", error) from error
        figures.failed += rows


class ChunkerView(QueryView):
    """Any number of view rows from one source row, by a function. ``output_limit`` limits the rows of the view."""

    runs_in_driver = False  # users' functions run in Spark's workers, where the deployment installed their packages

    def __init__(self, refresh: Refresh) -> None:
        super().__init__(refresh)
        udtf = refresh.definition.udtf
        assert udtf is not None
        self.udtf = udtf
        self.select = chunker_select(refresh.definition)
        self.function = open_function(udtf)
        self.limit = refresh.request.output_limit
        stored = refresh.state.schema
        columns = stored.remove(stored.get_field_index(SOURCE_ROW_ID))
        check_same_columns(columns, self.function.output, "the view", "its function")

    def check_definition(self) -> None:
        output_schema(self.select, self.refresh.source.dataset.schema)

    def producer(self, extra: str | None) -> Producer:
        refresh = self.refresh
        environment = FunctionEnvironment.of(self.udtf, refresh.request.manifest)
        environment.ship(refresh.context.spark.sparkContext)
        return ChunkProducer(
            self.scan(extra),
            self.columns(),
            tuple(self.udtf.input_columns or ()),
            self.function,
            environment,
            bool(self.udtf.batch),
            refresh.target.schema,
        )

    def concurrency(self) -> int:
        """As many tasks at once as the request asks for and the cluster has resources for."""
        at_once = slots(self.refresh.context.spark.sparkContext, self.udtf)
        return min(self.refresh.request.concurrency or at_once, at_once)

    def rebuild(self) -> Computed:
        return self._cut(super().rebuild(), 0)

    def follow(self, changes: Changes) -> Computed:
        state = self.refresh.state
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
        new = cut_fragments(computed.changes.new, room, self.refresh.target)
        changes = replace(computed.changes, new=new)
        return replace(computed, changes=changes, rows_written=room, trimmed_to=self.limit)


def _expand(expand: UserFunction, values: tuple[object, ...]) -> list[object]:
    """The rows of one source row. The function may be a generator, whose errors are raised while it is read."""
    return list(expand(*values))


def _batch_result(result: BatchResult, rows: int, output: pa.Schema) -> pa.Table:
    """The rows of a batch: Arrow rows with the column ``__input_row``, or one list of rows for each input row."""
    import pyarrow as pa

    if isinstance(result, pa.RecordBatch | pa.Table):
        table = result if isinstance(result, pa.Table) else pa.Table.from_batches([result])
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


def _with_row_ids(chunks: pa.Table, row_ids: RowIds, output: pa.Schema) -> list[pa.RecordBatch]:
    import pyarrow as pa

    if not chunks.num_rows:
        return []
    ids = pa.chunked_array([row_ids]).take(chunks[INPUT_ROW])
    at = output.get_field_index(SOURCE_ROW_ID)
    return exact_table(chunks, output.remove(at)).add_column(at, output.field(at), ids).cast(output).to_batches()
