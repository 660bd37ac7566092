"""Views by a batch table function: N rows in, M rows out, partition by partition, always from scratch.

A task finds the rows of its partitions by itself, from one column of the source: nothing is shuffled and no data
crosses the JVM. A partition must fit into a worker's memory, because the function sees it whole.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.sql_text import SimpleSelect
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.exact import exact_table
from airflow_provider_lance.engine.expressions import format_path
from airflow_provider_lance.engine.progress import TaskFigures
from airflow_provider_lance.engine.resources import slots
from airflow_provider_lance.engine.row_view import Computed, Work, replaced
from airflow_provider_lance.engine.scan_tasks import TASKS_PER_CORE, ScanTask, run_on_spark
from airflow_provider_lance.engine.table import TableRef
from airflow_provider_lance.engine.table_function import (
    Environment,
    TableFunction,
    failed,
    function_inputs,
    load_function,
    open_function,
    rows_table,
)
from airflow_provider_lance.engine.udtf_spec import ErrorHandling
from airflow_provider_lance.engine.view_binding import check_same, check_table_function, ivf_index, output_schema
from airflow_provider_lance.engine.view_table import check_partition_key

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa

_KEY, _ROW_ID = "__key", "__row_id"
# Rows of a partition that are fetched at once.
TAKE_ROWS = 16_384


@dataclass(frozen=True)
class Partitioning:
    """How rows fall into partitions: by a value of the query, by the lists of an IVF index, or all into one."""

    expression: str | None = None
    index: str | None = None

    def find(
        self, dataset: lance.LanceDataset, select: SimpleSelect, bucket: int, buckets: int
    ) -> Iterator[np.ndarray]:
        """The ids of the rows of every partition that falls to ``bucket``, in a stable order.

        Rows that no list of an index has, because their vector is null, are a partition of their own: the last one.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, row_ids = self._scan(dataset, select)
        if self.index is not None:
            reader = _index_reader(dataset, self.index)
            lists = reader.num_partitions()
            for number in range(bucket, lists + 1, buckets):
                chosen = range(lists) if number == lists else [number]
                members = pc.is_in(keys, value_set=_listed_rows(reader, chosen)).to_numpy()
                found = row_ids[~members if number == lists else members]
                if len(found):
                    yield found
        elif self.expression is None:
            if len(row_ids):
                yield row_ids
        elif len(row_ids):
            # Chunk by chunk: the keys together may be more text than one Arrow array holds.
            encoded = keys.dictionary_encode(null_encoding="encode")  # with one dictionary for all chunks
            codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
            order = np.argsort(codes, kind="stable")
            codes, row_ids = codes[order], row_ids[order]
            groups = np.split(row_ids, np.flatnonzero(np.diff(codes)) + 1)
            values = encoded.chunk(0).dictionary.take(pa.array(np.unique(codes))).to_pylist()
            for value, rows in zip(values, groups, strict=True):
                # Not hash(): it differs from process to process, and every partition must fall to exactly one task.
                if zlib.crc32(repr(value).encode()) % buckets == bucket:
                    yield rows

    def count(self, dataset: lance.LanceDataset, select: SimpleSelect) -> int:
        """How many partitions there are, so that no more tasks are made than can have work."""
        import pyarrow.compute as pc

        if self.index is not None:
            return int(_index_reader(dataset, self.index).num_partitions()) + 1
        if self.expression is None:
            return 1
        return max(1, int(pc.count_distinct(self._scan(dataset, select)[0], mode="all").as_py()))

    def _scan(self, dataset: lance.LanceDataset, select: SimpleSelect) -> tuple[pa.ChunkedArray, np.ndarray]:
        """The key and the id of every selected row; the others may have no key (``10 / x`` WHERE ``x <> 0``)."""
        columns = {_ROW_ID: "_rowid"}
        if self.expression is not None:
            columns[_KEY] = self.expression
        scanner = dataset.scanner(
            columns=columns,
            filter=select.filter,
            limit=select.limit,
            scan_in_order=True,
            use_scalar_index=False,  # what is read is written, and an index may be stale
        )
        table = scanner.to_table()
        row_ids = table[_ROW_ID]
        return row_ids if self.expression is None else equal_keys(table[_KEY]), row_ids.to_numpy()


def equal_keys(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Keys with one spelling of each value: SQL calls 0.0 and -0.0 equal, and groups all NaNs together."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(keys.type):
        return keys
    keys = keys.cast(pa.float64())
    keys = pc.if_else(pc.equal(keys, 0.0), 0.0, keys)
    return pc.if_else(pc.is_nan(keys), float("nan"), keys)


@dataclass(frozen=True)
class UdtfProducer:
    """Runs the function over the partitions of one bucket, under the view's error handling."""

    source: TableRef
    version: int
    select: SimpleSelect
    paths: tuple[str, ...]
    partitioning: Partitioning
    buckets: int
    function: TableFunction
    environment: Environment
    errors: ErrorHandling

    def __call__(self, task: ScanTask, figures: TaskFigures) -> Iterable[pa.RecordBatch]:
        call = load_function(self.function, self.environment)
        dataset = self.source.open(self.version)
        columns = {item.name: item.expression for item in self.select.items}
        for rows in self.partitioning.find(dataset, self.select, task.index, self.buckets):
            data = take_rows(dataset, rows, columns)
            figures.bytes_read += data.nbytes
            yield from self._run(call, table_inputs(data, self.paths), figures)

    def _run(self, call: Any, inputs: pa.Table, figures: TaskFigures) -> list[pa.RecordBatch]:
        for attempt in range(1, self.errors.max_attempts + 1):
            try:
                # Collected before the first row is passed on: a partition that fails half way leaves nothing behind.
                return [batch for part in call(inputs) for batch in _batches(part, self.function.output)]
            except Exception as error:
                if self.errors.mode == "retry" and attempt < self.errors.max_attempts:
                    time.sleep(self.errors.delay(attempt))
                    continue
                if self.errors.mode != "skip":
                    raise failed("the view's function failed on a partition", error) from error
                figures.failed += inputs.num_rows
                return []
        return []


def take_rows(dataset: lance.LanceDataset, row_ids: np.ndarray, columns: Mapping[str, str]) -> pa.Table:
    """The rows of these ids, in their order. A piece at a time: a batch of Lance holds 2 GiB of text at most."""
    import pyarrow as pa

    pieces = [
        # By id: dataset.take(positions) takes minutes on a table with deleted rows.
        dataset._take_rows(pa.array(row_ids[start : start + TAKE_ROWS]), columns=dict(columns))
        for start in range(0, len(row_ids), TAKE_ROWS)
    ]
    table = pa.concat_tables(pieces)
    if table.num_rows != len(row_ids):
        raise RuntimeError(f"Lance found {table.num_rows} of the {len(row_ids)} rows of a partition")
    return table


def table_inputs(table: pa.Table, paths: tuple[str, ...]) -> pa.Table:
    """What the function sees of a partition, in one chunk per column where Arrow can hold it in one."""
    import pyarrow as pa

    return pa.Table.from_batches([function_inputs(batch, paths) for batch in table.to_batches()]).combine_chunks()


class UdtfView:
    """A view of kind ``udtf``. Has nothing to follow: any change of its source may change any of its rows."""

    def __init__(self, work: Work) -> None:
        definition = work.state.definition
        assert definition.select is not None
        assert definition.udtf is not None
        self.work, self.select, self.udtf = work, definition.select, definition.udtf
        inputs = output_schema(self.select, work.source.schema)
        check_table_function(self.udtf, inputs, work.source)
        check_partition_key(definition, work.source.schema)
        self.paths = self.udtf.input_columns or tuple(format_path([name]) for name in inputs.names)
        self.function = open_function(self.udtf)
        check_same(work.state.schema, self.function.output, "the view", "its function")

    def rebuild(self) -> Computed:
        work = self.work
        spark = work.context.spark.sparkContext
        environment = Environment.of(self.udtf, work.request.get("manifest"))
        environment.ship(spark)
        at_once = slots(spark, self.udtf)
        partitioning = self._partitioning()
        work.meter.phase("partition")
        count = partitioning.count(work.source, self.select)
        buckets = min(count, at_once * TASKS_PER_CORE)
        producer = UdtfProducer(
            work.source_table,
            work.source.version,
            self.select,
            self.paths,
            partitioning,
            buckets,
            self.function,
            environment,
            self.udtf.errors,
        )
        work.meter.phase("compute", fragments_total=buckets)
        written = run_on_spark(
            work.context,
            [ScanTask(number, (), 1) for number in range(buckets)],
            producer,
            work.target,
            work.meter,
            concurrency=min(work.request.get("concurrency") or at_once, at_once),
            udtf=self.udtf,
        )
        return replaced(work.state, written)

    def _partitioning(self) -> Partitioning:
        if self.udtf.partition_by_indexed_column is not None:
            name = ivf_index(self.work.source, self.udtf.partition_by_indexed_column)
            assert name is not None
            stats = self.work.source.stats.index_stats(name)
            left = stats["num_unindexed_rows"]
            if left:
                raise JobError(
                    "plan",
                    f"{left} rows of the source are not in the index {name} yet, so they belong to no partition: "
                    "optimize the index, then refresh.",
                )
            if stats["num_indices"] > 1 and _lists_rows_twice(self.work.source, name):
                raise JobError(
                    "plan",
                    f"the index {name} has rows in two of its lists, because their vectors were replaced after it was "
                    "built, so they belong to two partitions: create the index anew, then refresh.",
                )
            return Partitioning(index=name)
        return Partitioning(expression=self.work.state.definition.partition_key)


def _index_reader(dataset: lance.LanceDataset, name: str) -> Any:
    from lance.dataset import VectorIndexReader

    return VectorIndexReader(dataset, name)


def _listed_rows(reader: Any, lists: Iterable[int]) -> pa.Array:
    import pyarrow as pa

    chunks = [chunk for number in lists for chunk in reader.read_partition(number)["_rowid"].chunks]
    return pa.chunked_array(chunks, pa.uint64()).combine_chunks()


def _lists_rows_twice(dataset: lance.LanceDataset, name: str) -> bool:
    """Lance leaves replaced vectors in the older parts of an index; its own searches leave them out."""
    reader = _index_reader(dataset, name)
    rows = _listed_rows(reader, range(reader.num_partitions()))
    return len(rows.unique()) != len(rows)


def _batches(part: Any, output: pa.Schema) -> list[pa.RecordBatch]:
    """What a function may yield: Arrow batches and tables, or rows as dictionaries."""
    import pyarrow as pa

    if isinstance(part, Mapping):
        part = rows_table([part], output)
    table = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
    return exact_table(table, output).to_batches()
