"""Tasks that turn rows of a source table into fragments of a view, in the driver or on Spark.

A *producer* yields the batches of one :class:`ScanTask`; the rest is the same for every kind of view: cut the source
into tasks, run them, write fragments and count. Only fragment metadata comes back to the driver. Spark's workers import
this module, so it imports Lance only inside a task.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec
from airflow_provider_lance.engine.job.context import JobContext, JobError
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.progress import ProgressAddress, ProgressMeter, ProgressSender, TaskFigures
from airflow_provider_lance.engine.spark.driver_wait import run_action
from airflow_provider_lance.engine.spark.python_worker import prepare_python_worker
from airflow_provider_lance.engine.spark.session import default_parallelism
from airflow_provider_lance.engine.spark.task_resources import with_resources
from airflow_provider_lance.storage.shares import contiguous_shares
from airflow_provider_lance.storage.table import TableRef, fragments_of

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

DEFAULT_ROWS_PER_FILE = 1024 * 1024
# Starting a task costs tens of milliseconds, so it should run for seconds. A few tasks per core even out their times.
ROWS_PER_SPARK_TASK = 2_500_000
TASKS_PER_CORE = 4


@dataclass(frozen=True)
class ScanTask:
    """Some live rows of the source: whole fragments, or the ``offset``/``limit`` part of a single one."""

    index: int
    fragments: tuple[int, ...]
    rows: int
    offset: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Scan:
    """What every task of a run reads: one version of the source, and which of its rows."""

    source: TableRef
    version: int
    filter: str | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def batches(
        self,
        task: ScanTask,
        columns: Mapping[str, str],
        *,
        batch_size: int | None = None,
        batch_size_bytes: int | None = None,
        batch_readahead: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        dataset = self._open()
        scanner = dataset.scanner(
            columns=dict(columns),
            filter=self.filter,
            fragments=fragments_of(dataset, task.fragments),
            offset=task.offset,
            limit=task.limit,
            scan_in_order=True,
            blob_handling="all_binary",
            use_scalar_index=False,  # an index may be stale, and wrong rows would be stored in the view
            batch_size=batch_size,
            batch_size_bytes=batch_size_bytes,
            batch_readahead=batch_readahead,
        )
        yield from scanner.to_batches()

    def _open(self) -> lance.LanceDataset:
        if self.run not in _opened:
            _opened.clear()
            _opened[self.run] = self.source.open(self.version)
        return _opened[self.run]


# A Spark worker runs many tasks of one scan and opens its version only once; only the newest dataset is kept.
_opened: dict[str, lance.LanceDataset] = {}


@dataclass(frozen=True)
class WriteTarget:
    """Where a task's rows go: the view, the schema of its rows, and how large its fragments may grow."""

    view: TableRef
    schema: pa.Schema
    rows_per_file: int = DEFAULT_ROWS_PER_FILE
    storage_version: str | None = None
    new_schema: bool = False


@dataclass(frozen=True)
class WrittenFragments:
    """What one task wrote: fragment metadata as JSON, and how many rows they hold."""

    index: int
    fragments: tuple[str, ...]
    rows: int
    skipped: int = 0

    def metadata(self) -> list[FragmentMetadata]:
        from lance.fragment import FragmentMetadata

        return [FragmentMetadata.from_json(text) for text in self.fragments]


class FunctionFailedError(Exception):
    """A view's own function failed, or cannot be loaded: trying the task again would not help."""


Producer = Callable[[ScanTask, TaskFigures], Iterable["pa.RecordBatch"]]


@dataclass(frozen=True)
class QueryProducer:
    """Rows of a single-table query, evaluated by Lance."""

    scan: Scan
    columns: Mapping[str, str]

    def __call__(self, task: ScanTask, figures: TaskFigures) -> Iterable[pa.RecordBatch]:
        for batch in self.scan.batches(task, self.columns):
            figures.bytes_read += batch.nbytes
            yield batch


def plan_tasks(
    dataset: lance.LanceDataset,
    fragments: Iterable[int] | None,
    *,
    rows_per_task: int,
    exact: bool,
    filter: str | None = None,
) -> list[ScanTask]:
    """Cut fragments, in their order, into tasks of about ``rows_per_task`` rows.

    ``exact`` makes it an upper bound: rows are then counted under ``filter`` and large fragments are split.
    """
    tasks: list[ScanTask] = []
    group: list[int] = []
    rows = 0

    def flush() -> None:
        nonlocal group, rows
        if group:
            tasks.append(ScanTask(len(tasks), tuple(group), rows))
        group, rows = [], 0

    for fragment in fragments_of(dataset, fragments):
        count = fragment.count_rows(filter) if exact and filter else fragment.count_rows()
        if not count:
            continue
        if rows and rows + count > rows_per_task:
            flush()
        if exact and count > rows_per_task:
            for offset in range(0, count, rows_per_task):
                size = min(rows_per_task, count - offset)
                tasks.append(ScanTask(len(tasks), (fragment.fragment_id,), size, offset, size))
            continue
        group.append(fragment.fragment_id)
        rows += count
    flush()
    return tasks


def count_rows(dataset: lance.LanceDataset, fragments: tuple[int, ...] | None, filter: str | None) -> int:
    """How many rows a scan of these fragments (None: of all) reads.

    ``filter`` selects rows by their versions and is cheap to evaluate; it counts only with ``fragments``.
    """
    if fragments is None:
        return dataset.count_rows()
    if not fragments:
        return 0
    chosen = fragments_of(dataset, fragments)
    scanner = dataset.scanner(columns=[], filter=filter, fragments=chosen, with_row_id=True, use_scalar_index=False)
    return scanner.count_rows()


def run_in_driver(
    context: JobContext, tasks: Sequence[ScanTask], producer: Producer, target: WriteTarget, meter: ProgressMeter
) -> list[WrittenFragments]:
    """Run tasks one after the other in this process, for work that is not worth a Spark session."""
    done = []
    for task in tasks:
        context.reporter.check()
        figures = TaskFigures()
        done.append(write_task(task, producer, target, figures))
        meter.task_done(f"driver-{task.index}", replace(figures, fragments=len(task.fragments)))
    return done


def run_on_spark(
    context: JobContext,
    tasks: Sequence[ScanTask],
    producer: Producer,
    target: WriteTarget,
    meter: ProgressMeter,
    *,
    concurrency: int | None = None,
    threads: int | None = None,
    udtf: UdtfSpec | None = None,
) -> list[WrittenFragments]:
    """Run tasks in Spark's Python workers, ``concurrency`` at once with ``threads`` each; results in task order."""
    spark = context.spark.sparkContext
    count = min(len(tasks), concurrency or default_parallelism(spark) * TASKS_PER_CORE)
    # Neighbouring tasks stay together, so that the view keeps its source's order.
    slices = contiguous_shares(tasks, [task.rows for task in tasks], count)
    worker = _Worker(producer, target, threads or 1, meter.address)
    rdd = spark.parallelize(slices, len(slices))
    if udtf is not None:
        rdd = with_resources(rdd, spark, udtf)
    done: list[WrittenFragments] = []
    for number, figures, written in run_action(context, rdd.mapPartitionsWithIndex(worker).collect):
        meter.task_done(f"task-{number}", figures)
        if isinstance(written, str):
            raise JobError("compute", written)
        done += written
    return sorted(done, key=lambda one: one.index)


@dataclass(frozen=True)
class _Worker:
    """What runs inside a Spark task: its share of the tasks, one after the other or in a few threads."""

    producer: Producer
    target: WriteTarget
    threads: int
    address: ProgressAddress

    def __call__(
        self, number: int, partition: Iterable[list[ScanTask]]
    ) -> Iterator[tuple[int, TaskFigures, list[WrittenFragments] | str]]:
        prepare_python_worker()
        tasks = [task for group in partition for task in group]
        sender = ProgressSender(self.address, f"task-{number}")

        def run(task: ScanTask) -> WrittenFragments:
            written = write_task(task, self.producer, self.target, sender.figures)
            sender.figures.fragments += len(task.fragments)
            sender.tick()
            return written

        try:
            if self.threads == 1 or len(tasks) == 1:
                done = [run(task) for task in tasks]
            else:
                with ThreadPoolExecutor(max_workers=self.threads) as pool:
                    done = list(pool.map(run, tasks))
        except FunctionFailedError as error:
            # The error is returned, not raised: Spark would run the function on the same rows three more times.
            yield number, sender.figures, str(error)
            return
        finally:
            sender.close()
        yield number, sender.figures, done


def write_task(task: ScanTask, producer: Producer, target: WriteTarget, figures: TaskFigures) -> WrittenFragments:
    """Write what ``producer`` yields for ``task`` as fragments of the view, one batch in memory at a time."""
    import pyarrow as pa
    from lance.fragment import write_fragments

    failpoint("view-task")
    failed_before = figures.failed

    failure: list[Exception] = []
    decimals = _decimal_columns(target.schema)

    def counted() -> Iterator[pa.RecordBatch]:
        try:
            for batch in producer(task, figures):
                figures.rows += batch.num_rows
                figures.bytes_written += batch.nbytes
                if batch.num_rows:
                    whole = batch if batch.schema.equals(target.schema) else _conform(batch, target.schema)
                    yield _aligned(whole, decimals) if decimals else whole
        except Exception as error:
            failure.append(error)
            raise

    try:
        fragments = write_fragments(
            pa.RecordBatchReader.from_batches(target.schema, counted()),
            target.view.location,
            schema=target.schema,
            mode="overwrite" if target.new_schema else "append",
            max_rows_per_file=target.rows_per_file,
            data_storage_version=target.storage_version,
            enable_stable_row_ids=True,
            storage_options=target.view.storage_options or None,
        )
    except (OSError, ValueError, RuntimeError):
        # Lance passes a producer's error through Rust, which loses its type and its cause.
        if failure:
            raise failure[0] from None
        raise
    kept = [fragment for fragment in fragments if fragment.physical_rows]
    return WrittenFragments(
        task.index,
        tuple(json.dumps(fragment.to_json()) for fragment in kept),
        sum(fragment.physical_rows for fragment in kept),
        figures.failed - failed_before,
    )


class FragmentWriter:
    """Writes the rows of a Spark partition as fragments and yields one row of JSON (for ``DataFrame.mapInArrow``).

    ``keep`` leaves rows of a batch out before they are written.
    """

    def __init__(self, target: WriteTarget, keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None) -> None:
        self.target = target
        self.keep = keep

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        prepare_python_worker()
        written = self.write(batches)
        line = json.dumps({"fragments": written.fragments, "rows": written.rows})
        yield pa.RecordBatch.from_pydict({"written": [line]})

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenFragments:
        """Write batches in this process."""
        rows = batches if self.keep is None else map(self.keep, batches)
        return write_task(ScanTask(0, (), 0), lambda _task, _figures: rows, self.target, TaskFigures())

    @staticmethod
    def read(index: int, line: str) -> WrittenFragments:
        return WrittenFragments(index, **json.loads(line))


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the view's columns and types. Lance yields view types for some functions, and nullable row ids."""
    import pyarrow as pa

    columns = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _decimal_columns(schema: pa.Schema) -> list[int]:
    """The positions of columns that hold decimals, also inside lists and structs."""
    import pyarrow as pa

    def holds(kind: pa.DataType) -> bool:
        return pa.types.is_decimal(kind) or any(holds(kind.field(at).type) for at in range(kind.num_fields))

    return [index for index, field in enumerate(schema) if holds(field.type)]


def _aligned(batch: pa.RecordBatch, decimals: Sequence[int]) -> pa.RecordBatch:
    """The batch with its decimals aligned to 16 bytes, as Lance needs them; the JVM aligns to 8."""
    import pyarrow as pa

    for index in decimals:
        column = batch.column(index)
        if any(buffer is not None and buffer.address % 16 for buffer in column.buffers()):
            batch = batch.set_column(index, batch.schema.field(index), pa.concat_arrays([column]))  # which copies
    return batch
