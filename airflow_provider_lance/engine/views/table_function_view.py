"""Views by a batch table function: it gets the rows of a partition and yields any number of rows.

Each task finds the rows of its partitions by reading one column of the source, so nothing is shuffled and no data
passes through the JVM. A partition must fit into a worker's memory, because the function gets it whole.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.expressions import format_path
from airflow_provider_lance.definitions.functions.table_function import TableFunction
from airflow_provider_lance.definitions.functions.table_function_spec import ErrorHandling
from airflow_provider_lance.definitions.sql.text import SimpleSelect
from airflow_provider_lance.definitions.view_binding import (
    check_same_columns,
    check_table_function,
    ivf_index,
    output_schema,
)
from airflow_provider_lance.engine.functions.exact_arrays import exact_table
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.job.progress import TaskFigures
from airflow_provider_lance.engine.spark.task_resources import slots
from airflow_provider_lance.engine.views.kinds import AlwaysRebuilt, Computed, Refresh
from airflow_provider_lance.engine.views.scan_tasks import TASKS_PER_CORE, ScanTask, run_on_spark
from airflow_provider_lance.engine.views.view_function import (
    FunctionEnvironment,
    UserFunction,
    function_failure,
    function_inputs,
    open_function,
    open_in_worker,
    rows_table,
)
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa
    from lance.dataset import VectorIndexReader
    from numpy.typing import NDArray

    Keys = pa.ChunkedArray[pa.Scalar[pa.DataType]]

_KEY, _ROW_ID = "__key", "__row_id"
# Rows of a partition that are fetched at once.
TAKE_ROWS = 16_384


@dataclass(frozen=True)
class Partitioning:
    """How rows are partitioned: by a value of the query, by the lists of an IVF index, or all into one partition."""

    expression: str | None = None
    index: str | None = None

    def find(
        self, dataset: lance.LanceDataset, select: SimpleSelect, bucket: int, buckets: int
    ) -> Iterator[NDArray[np.uint64]]:
        """The row ids of every partition of ``bucket``, in a stable order.

        A row whose vector is null is in no list of an index. These rows are the last partition.
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
            # The keys are encoded chunk by chunk, because together they may be more text than one Arrow array holds.
            encoded = keys.dictionary_encode(null_encoding="encode").chunks  # they share one dictionary
            chunks = [chunk for chunk in encoded if isinstance(chunk, pa.DictionaryArray)]
            codes = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
            order = np.argsort(codes, kind="stable")
            codes, row_ids = codes[order], row_ids[order]
            groups = np.split(row_ids, np.flatnonzero(np.diff(codes)) + 1)
            values = chunks[0].dictionary.take(pa.array(np.unique(codes))).to_pylist()
            for value, rows in zip(values, groups, strict=True):
                # hash() differs from process to process, and every partition must belong to exactly one task.
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

    def _scan(self, dataset: lance.LanceDataset, select: SimpleSelect) -> tuple[Keys, NDArray[np.uint64]]:
        """The key and the id of every selected row; the others may have no key (``10 / x`` WHERE ``x <> 0``)."""
        columns = {_ROW_ID: "_rowid"}
        if self.expression is not None:
            columns[_KEY] = self.expression
        scanner = dataset.scanner(
            columns=columns,
            filter=select.filter,
            limit=select.limit,
            scan_in_order=True,
            use_scalar_index=False,  # an index may be stale, and wrong rows would be stored in the view
        )
        table = scanner.to_table()
        row_ids = table[_ROW_ID]
        return row_ids if self.expression is None else equal_keys(table[_KEY]), row_ids.to_numpy()


def equal_keys(keys: Keys) -> Keys:
    """Keys with one representation of each value: in SQL 0.0 equals -0.0, and all NaNs are one group."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(keys.type):
        return keys
    zero, nan = pa.scalar(0.0), pa.scalar(float("nan"))
    keys = keys.cast(pa.float64())
    keys = pc.if_else(pc.equal(keys, zero), zero, keys)
    keys = pc.if_else(pc.is_nan(keys), nan, keys)
    return keys


@dataclass(frozen=True)
class UdtfProducer:
    """Runs the function over the partitions of one bucket, with the view's error handling."""

    source: TableRef
    version: int
    select: SimpleSelect
    paths: tuple[str, ...]
    partitioning: Partitioning
    buckets: int
    function: TableFunction
    environment: FunctionEnvironment
    errors: ErrorHandling

    def __call__(self, task: ScanTask, figures: TaskFigures) -> Iterable[pa.RecordBatch]:
        dataset = self.source.open(self.version)
        columns = {item.name: item.expression for item in self.select.items}
        with open_in_worker(self.function, self.environment) as call:
            for rows in self.partitioning.find(dataset, self.select, task.index, self.buckets):
                data = take_rows(dataset, rows, columns)
                figures.bytes_read += data.nbytes
                yield from self._run(call, table_inputs(data, self.paths), figures)

    def _run(self, call: UserFunction, inputs: pa.Table, figures: TaskFigures) -> list[pa.RecordBatch]:
        for attempt in range(1, self.errors.max_attempts + 1):
            try:
                # All rows are collected before the first one is written, so a partition that fails leaves nothing.
                return [batch for part in call(inputs) for batch in _batches(part, self.function.output)]
            except Exception as error:
                if self.errors.mode == "retry" and attempt < self.errors.max_attempts:
                    time.sleep(self.errors.delay(attempt))
                    continue
                if self.errors.mode != "skip":
                    raise function_failure("the view's function failed on a partition", error) from error
                figures.failed += inputs.num_rows
                return []
        return []


def take_rows(dataset: lance.LanceDataset, row_ids: NDArray[np.uint64], columns: Mapping[str, str]) -> pa.Table:
    """The rows with these ids, in their order, read in pieces: a batch of Lance holds 2 GiB of text at most."""
    import pyarrow as pa

    pieces = [
        # Rows are taken by id, because dataset.take(positions) takes minutes on a table with deleted rows.
        dataset._take_rows(pa.array(row_ids[start : start + TAKE_ROWS]), columns=dict(columns))
        for start in range(0, len(row_ids), TAKE_ROWS)
    ]
    table = pa.concat_tables(pieces)
    if table.num_rows != len(row_ids):
        raise RuntimeError(f"Lance found {table.num_rows} of the {len(row_ids)} rows of a partition")
    return table


def table_inputs(table: pa.Table, paths: tuple[str, ...]) -> pa.Table:
    """The input of the function for a partition, with one chunk per column where Arrow can hold it in one."""
    import pyarrow as pa

    return pa.Table.from_batches([function_inputs(batch, paths) for batch in table.to_batches()]).combine_chunks()


class UdtfView(AlwaysRebuilt):
    """A view of kind ``udtf``: any change of its source may change any of its rows."""

    rebuild_reason = "its table function sees all rows together"

    def __init__(self, refresh: Refresh) -> None:
        super().__init__(refresh)
        definition, source = refresh.definition, refresh.source.dataset
        assert definition.select is not None
        assert definition.udtf is not None
        self.select, self.udtf = definition.select, definition.udtf
        inputs = output_schema(self.select, source.schema)
        check_table_function(definition, inputs, source)
        self.paths = self.udtf.input_columns or tuple(format_path([name]) for name in inputs.names)
        self.function = open_function(self.udtf)
        check_same_columns(refresh.state.schema, self.function.output, "the view", "its function")

    def rebuild(self) -> Computed:
        refresh = self.refresh
        spark = refresh.context.spark.sparkContext
        environment = FunctionEnvironment.of(self.udtf, refresh.request.manifest)
        environment.ship(spark)
        at_once = slots(spark, self.udtf)
        partitioning = self._partitioning()
        refresh.meter.phase("partition")
        buckets = min(partitioning.count(refresh.source.dataset, self.select), at_once * TASKS_PER_CORE)
        producer = UdtfProducer(
            refresh.source.table,
            refresh.source.dataset.version,
            self.select,
            self.paths,
            partitioning,
            buckets,
            self.function,
            environment,
            self.udtf.errors,
        )
        refresh.meter.phase("compute", fragments_total=buckets)
        written = run_on_spark(
            refresh.context,
            [ScanTask(number, (), 1) for number in range(buckets)],
            producer,
            refresh.target,
            refresh.meter,
            concurrency=min(refresh.request.concurrency or at_once, at_once),
            udtf=self.udtf,
        )
        return self.replace_all_rows(written)

    def _partitioning(self) -> Partitioning:
        if self.udtf.partition_by_indexed_column is not None:
            source = self.refresh.source.dataset
            name = ivf_index(source, self.udtf.partition_by_indexed_column)
            assert name is not None
            stats = source.stats.index_stats(name)
            left = stats["num_unindexed_rows"]
            if left:
                raise JobError(
                    "plan",
                    f"{left} rows of the source are not in the index {name} yet, so they belong to no partition: "
                    "optimize the index, then refresh.",
                )
            if stats["num_indices"] > 1 and _lists_rows_twice(source, name):
                raise JobError(
                    "plan",
                    f"the index {name} has rows in two of its lists, because their vectors were replaced after it was "
                    "built, so they belong to two partitions: create the index anew, then refresh.",
                )
            return Partitioning(index=name)
        return Partitioning(expression=self.refresh.definition.partition_key)


def _index_reader(dataset: lance.LanceDataset, name: str) -> VectorIndexReader:
    from lance.dataset import VectorIndexReader

    return VectorIndexReader(dataset, name)


def _listed_rows(reader: VectorIndexReader, lists: Iterable[int]) -> pa.Array[pa.UInt64Scalar]:
    import pyarrow as pa

    chunks = [chunk for number in lists for chunk in reader.read_partition(number)["_rowid"].chunks]
    return pa.chunked_array(chunks, pa.uint64()).combine_chunks()


def _lists_rows_twice(dataset: lance.LanceDataset, name: str) -> bool:
    """Whether an index has a row in two lists: Lance keeps replaced vectors in the older parts of an index."""
    reader = _index_reader(dataset, name)
    rows = _listed_rows(reader, range(reader.num_partitions()))
    return len(rows.unique()) != len(rows)


def _batches(part: object, output: pa.Schema) -> list[pa.RecordBatch]:
    """A part that a function yielded: an Arrow batch or table, or one row as a dictionary."""
    import pyarrow as pa

    if isinstance(part, Mapping):
        table = rows_table([part], output)
    elif isinstance(part, pa.RecordBatch):
        table = pa.Table.from_batches([part])
    elif isinstance(part, pa.Table):
        table = part
    else:
        raise TypeError(f"the function yielded a {type(part).__name__}, not a batch, a table or a dictionary")
    return exact_table(table, output).to_batches()
