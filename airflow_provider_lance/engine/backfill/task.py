"""A Spark task: fill the target columns of some fragments and write one column file for each.

This module runs in Spark's Python workers. A task reads live rows, writes the new columns' files (and checkpoints on
the way), and returns metadata only. The driver commits.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.column_rules import ColumnRule
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy, UdfError
from airflow_provider_lance.engine.backfill.evaluate import RowSelection, batch_rows, evaluate_rule
from airflow_provider_lance.engine.backfill.records.checkpoint import (
    Checkpoint,
    FilledFragment,
    Journal,
    RowCounts,
    missing_ranges,
    read_computed,
    read_counts,
    without_overlaps,
    write_checkpoint,
)
from airflow_provider_lance.engine.backfill.records.failed_rows import FailedRow, decode_rows, write_failed
from airflow_provider_lance.engine.backfill.row_batches import BATCH_ROWS, BatchSizer, ComputedRows, batch_sizer_for
from airflow_provider_lance.engine.backfill.whole_column import whole_column
from airflow_provider_lance.engine.functions.worker_variables import set_variables
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.progress import ProgressAddress, ProgressSender, TaskFigures
from airflow_provider_lance.engine.spark.python_worker import limit_threads, prepare_python_worker
from airflow_provider_lance.storage.row_address import row_address, row_offsets
from airflow_provider_lance.storage.table import TableRef, field_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset, LanceFragment

    from airflow_provider_lance.storage.table import TableFiles

# Values kept in memory before they are saved as a checkpoint; with Lance's imports a worker stays below 500 MB.
SPILL_BYTES = 48 << 20


@dataclass(frozen=True)
class FlushPolicy:
    """When finished values are saved as a checkpoint: every ``seconds``, or every ``size`` rows.

    Where bounds are given, the size adapts between them so that a checkpoint takes about ``seconds``; without bounds it
    stays as it is.
    """

    seconds: float
    size: int | None = None
    low: int | None = None
    high: int | None = None

    @property
    def adaptive(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def smallest(self) -> int | None:
        """The largest batch that is allowed, because a checkpoint holds whole batches."""
        return min((size for size in (self.size, self.low, self.high) if size), default=None)

    @property
    def first_size(self) -> int | None:
        return self.size or self.low or self.high

    def next_size(self, rows: int, seconds: float) -> int | None:
        """The size of the next checkpoint, after one of ``rows`` took ``seconds``."""
        if not self.adaptive:
            return self.size
        wanted = int(rows * self.seconds / max(seconds, 1e-3))
        return max(self.low or 1, min(self.high or wanted, wanted))


@dataclass(frozen=True)
class FillSettings:
    """What all tasks of a job have in common at one version."""

    table: TableRef
    version: int
    rule: ColumnRule
    policy: ErrorPolicy
    folder: str
    job_id: str
    flush: FlushPolicy
    threads: int = 1
    address: ProgressAddress | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class FragmentWork:
    """One fragment, or with ``assemble=False`` a range of its rows whose values are only saved as checkpoints.

    ``filter`` (a clause) or ``selected`` (encoded row numbers) choose the rows to compute; the others keep their value.
    ``whole`` tells that there are no others, or that they are fresh already. The fragment is fresh then when the chosen
    rows are, except for those of the others that had ``failed`` before (encoded row numbers too).
    """

    fragment_id: int
    key: str
    rows: int
    live: int
    start: int
    stop: int
    filter: str | None = None
    selected: str | None = None
    whole: bool = True
    assemble: bool = True
    checkpoints: tuple[Checkpoint, ...] = ()
    failed: str | None = None

    @property
    def partial(self) -> bool:
        return self.filter is not None or self.selected is not None


@dataclass(frozen=True)
class TaskResult:
    """What a task returns: finished fragments, and the checkpoints it wrote of unfinished ones."""

    task: str
    filled: tuple[FilledFragment, ...]
    checkpoints: tuple[Checkpoint, ...]
    figures: TaskFigures
    rows_computed: int


@dataclass(frozen=True)
class TaskFailure:
    """Why a task cannot succeed. It is returned and not raised, because Spark would run a raised task again."""

    phase: str
    message: str
    retryable: bool
    traceback: str = ""


def attempt_task(settings: FillSettings, works: list[FragmentWork]) -> TaskResult | TaskFailure:
    """What Spark runs: storage errors are raised and retried by Spark; failures of the rule are returned."""
    envelope = settings.rule.envelope
    if envelope is not None:
        limit_threads(envelope.num_cpus)
    prepare_python_worker()
    if settings.rule.envelope is not None and settings.rule.envelope.source is not None:
        set_variables(settings.rule.envelope.source.env, settings.secrets)
    try:
        return run_task(settings, works)
    except JobError as error:
        return TaskFailure(error.phase, str(error), error.retryable, error.traceback)
    except UdfError as error:
        return TaskFailure("load", str(error), retryable=False)


def run_task(settings: FillSettings, works: list[FragmentWork]) -> TaskResult:
    """Fill ``works`` one after the other."""
    failpoint("task-start")
    dataset = settings.table.open(settings.version)
    files = settings.table.files()
    journal = Journal(uuid.uuid4().hex, settings.job_id, settings.version)
    names = {work.key: f"{uuid.uuid4().hex}.lance" for work in works if work.assemble}
    for work in works:
        if work.assemble:
            journal.files[names[work.key]] = work.fragment_id
    if names:
        journal.save(files, settings.folder)
    # A retry has the same name, so that its figures replace those of the attempt that was lost.
    task = f"{works[0].key}-{works[0].start}-{works[0].assemble}"
    sender = ProgressSender(settings.address, task)
    batch_sizer = batch_sizer_for(settings.rule, settings.flush.smallest, settings.flush.seconds / 4)
    filled: list[FilledFragment] = []
    checkpoints: list[Checkpoint] = []
    computed = 0
    saved = time.monotonic()
    unsaved = 0
    for work in works:
        filler = _FragmentFiller(settings, dataset, files, work, sender, batch_sizer)
        checkpoints.extend(filler.compute())
        computed += filler.computed
        if work.assemble:
            finished = filler.assemble(names[work.key])
            filled.append(finished)
            journal.finished[work.key] = finished
            sender.figures.fragments += 1
            unsaved += finished.counts.rows
            due = settings.flush.first_size is not None and unsaved >= settings.flush.first_size
            if due or time.monotonic() - saved >= settings.flush.seconds:
                journal.save(files, settings.folder)
                failpoint("fragment-durable")
                saved, unsaved = time.monotonic(), 0
    sender.close()
    return TaskResult(task, tuple(filled), tuple(checkpoints), sender.figures, computed)


class _FragmentFiller:
    """Fills one fragment: some of its values are in memory, the others in checkpoints on storage."""

    def __init__(
        self,
        settings: FillSettings,
        dataset: LanceDataset,
        files: TableFiles,
        work: FragmentWork,
        sender: ProgressSender,
        batch_sizer: BatchSizer,
    ) -> None:
        import pyarrow as pa

        self.settings = settings
        self.dataset = dataset
        self.files = files
        self.work = work
        self.sender = sender
        self.batch_sizer = batch_sizer
        found = dataset.get_fragment(work.fragment_id)
        if found is None or found.physical_rows != work.rows:
            raise JobError("compute", f"Fragment {work.fragment_id} is not what was planned: {found}", retryable=True)
        self.fragment: LanceFragment = found
        self.schema = pa.schema([dataset.schema.field(name).remove_metadata() for name in settings.rule.targets])
        self.checkpoints = without_overlaps(work.checkpoints)
        self.memory: list[ComputedRows] = []
        self.counts = RowCounts()
        self.computed = 0
        self._bytes = 0
        self._checkpoint_rows = settings.flush.first_size
        self._last_flush = time.monotonic()

    def compute(self) -> list[Checkpoint]:
        """Evaluate the rule where no checkpoint has the values yet, and return the checkpoints written here."""
        written: list[Checkpoint] = []
        before = self._read_bytes()
        missing = missing_ranges(self.work.start, self.work.stop, self.checkpoints)
        for index, (start, stop) in enumerate(missing):
            position = start
            for computed in self._evaluate(start, stop):
                self._keep(computed)
                if self._checkpoint_due():
                    until = int(computed.offsets[-1]) + 1
                    written.append(self._flush(position, until))
                    position = until
            last = index == len(missing) - 1
            # The rest stays in memory only if the fragment's file is written right after.
            if (self.checkpoints or written or not last or not self.work.assemble) and position < stop:
                written.append(self._flush(position, stop))
        self.sender.figures.bytes_read += self._read_bytes() - before
        self.checkpoints = without_overlaps([*self.checkpoints, *written])
        return written

    def _evaluate(self, start: int, stop: int) -> Iterator[ComputedRows]:
        settings, work = self.settings, self.work
        selected = None if work.selected is None else decode_rows(work.selected)
        return evaluate_rule(
            settings.table,
            self.fragment,
            settings.rule,
            self.schema,
            settings.policy,
            RowSelection(start, stop, work.filter, selected),
            batch_sizer=self.batch_sizer,
            threads=settings.threads,
        )

    def _keep(self, computed: ComputedRows) -> None:
        rows, figures = len(computed.offsets), self.sender.figures
        self.memory.append(computed)
        self.counts.add(rows, computed.failed)
        self.computed += rows
        self._bytes += computed.values.nbytes
        figures.rows += rows
        figures.failed += len(computed.failed)
        if computed.failed and not figures.example:
            offset, message = computed.failed[0]
            figures.example = f"row {offset} of fragment {self.work.fragment_id}: {message}"[:300]
        self.sender.tick()

    def _checkpoint_due(self) -> bool:
        if self._bytes >= SPILL_BYTES or time.monotonic() - self._last_flush >= self.settings.flush.seconds:
            return True
        return self._checkpoint_rows is not None and self.counts.rows >= self._checkpoint_rows

    def _flush(self, start: int, stop: int) -> Checkpoint:
        settings, work = self.settings, self.work
        checkpoint = write_checkpoint(
            settings.table,
            settings.folder,
            Checkpoint(work.key, work.fragment_id, settings.version, start, stop, path=""),
            self.memory,
            self.schema,
            self.counts,
            settings.job_id,
        )
        failpoint("part-durable")
        now = time.monotonic()
        if self.counts.rows:
            self._checkpoint_rows = settings.flush.next_size(self.counts.rows, now - self._last_flush)
        self.sender.figures.bytes_written += self._bytes
        self.memory, self.counts, self._bytes, self._last_flush = [], RowCounts(), 0, now
        return checkpoint

    def assemble(self, name: str) -> FilledFragment:
        """Write one file of exactly the fragment's physical rows, and check it."""
        from lance.file import LanceFileWriter
        from lance.fragment import DataFile

        settings, work = self.settings, self.work
        counts = replace(self.counts)
        source: Iterable[ComputedRows] = self.memory
        if self.checkpoints:
            if missing_ranges(0, work.rows, self.checkpoints):
                raise JobError("compute", f"Fragment {work.fragment_id} has rows in no checkpoint", retryable=True)
            for checkpoint in self.checkpoints:
                counts.merge(read_counts(settings.table, checkpoint))
            source = (
                computed
                for checkpoint in self.checkpoints
                for computed in read_computed(settings.table, checkpoint, BATCH_ROWS)
            )
        path = settings.table.data_path(name)
        options = settings.table.storage_options or None
        failpoint("file-start")
        writer = LanceFileWriter(path, self.schema, version=self.dataset.data_storage_version, storage_options=options)
        for batch in whole_column(source, work.rows, self.schema, self._old_values() if work.partial else None):
            writer.write_batch(batch)
        written = writer.close()
        failpoint("file-written")
        # Lance would commit a short file, which then breaks every read of the table. DataFile.create checks by the
        # file itself that its columns are the table's.
        if written != work.rows:
            raise JobError(
                "compute",
                f"The column file of fragment {work.fragment_id} has {written} rows of {work.rows}: not committed.",
                retryable=True,
            )
        file = DataFile.create(self.dataset, name)
        self.sender.figures.bytes_written += file.file_size_bytes or 0
        self.memory = []
        covered = work.whole and counts.failed_offsets is not None
        failed = write_failed(self.files, settings.folder, name, self._all_failed(counts)) if covered else 0
        return FilledFragment(
            fragment_id=work.fragment_id,
            key=work.key,
            rows=work.rows,
            file=file,
            counts=replace(counts, failed_offsets=[]),
            covered=covered,
            samples=self._failed_samples(counts),
            failed_rows=failed,
        )

    def _all_failed(self, counts: RowCounts) -> list[int]:
        """The rows of the fragment that are null because the rule failed on them, now or in an earlier job."""
        earlier = decode_rows(self.work.failed).tolist() if self.work.failed is not None else []
        return [*(counts.failed_offsets or ()), *earlier]

    def _old_values(self) -> Iterator[pa.RecordBatch] | None:
        """The column as it is, deleted rows included, or None where the fragment never had it."""
        import pyarrow as pa

        paths = self.settings.rule.target_paths
        targets = field_ids(self.dataset, paths)
        if not any(not targets.isdisjoint(file.fields) for file in self.fragment.data_files()):
            return None
        scanner = self.fragment.scanner(
            columns=list(self.settings.rule.targets),
            include_deleted_rows=True,
            with_row_id=True,
            batch_size=batch_rows(self.settings.table, self.fragment, paths),
            batch_readahead=2,
        )
        return (
            pa.RecordBatch.from_arrays([batch.column(name) for name in self.schema.names], schema=self.schema)
            for batch in scanner.to_batches()
        )

    def _failed_samples(self, counts: RowCounts) -> tuple[FailedRow, ...]:
        """Some failed rows with the row id by which a person finds them; stable row ids differ from row addresses."""
        if not counts.samples:
            return ()
        addresses = {offset: row_address(self.work.fragment_id, offset) for offset, _ in counts.samples}
        ids = addresses
        if self.dataset.has_stable_row_ids:
            found = self.fragment.scanner(
                columns=[],
                filter=f"_rowaddr IN ({', '.join(map(str, addresses.values()))})",
                with_row_address=True,
                with_row_id=True,
                use_scalar_index=False,
            ).to_table()
            offsets = row_offsets(found["_rowaddr"].to_numpy()).tolist()
            ids = addresses | dict(zip(offsets, found["_rowid"].to_numpy().tolist(), strict=True))
        fragment_id = self.work.fragment_id
        return tuple(
            FailedRow(row_id=ids[offset], fragment_id=fragment_id, row_offset=offset, message=message)
            for offset, message in counts.samples
        )

    def _read_bytes(self) -> int:
        return int(self.dataset.io_stats_snapshot().read_bytes)
