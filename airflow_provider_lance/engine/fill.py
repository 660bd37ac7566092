"""A Spark task: fill the target columns of some fragments and write one column file for each.

Runs in Python workers. Reads live rows, writes nothing but the new columns' files (and durable parts on the way), and
returns metadata only. Commits are the driver's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine import faults
from airflow_provider_lance.engine.checkpoint import (
    FilledFragment,
    Journal,
    Part,
    Tally,
    disjoint,
    gaps,
    read_chunks,
    read_tally,
    write_part,
)
from airflow_provider_lance.engine.columns import ColumnRule
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.evaluate import batch_rows, chunks
from airflow_provider_lance.engine.failed_rows import decode_rows, write_failed
from airflow_provider_lance.engine.functions import BATCH_ROWS, Chunk, Pace, pace_for
from airflow_provider_lance.engine.progress import ProgressAddress, ProgressSender, TaskFigures
from airflow_provider_lance.engine.scatter import dense
from airflow_provider_lance.engine.table import TableRef, field_ids
from airflow_provider_lance.engine.udf import ErrorPolicy, UdfError
from airflow_provider_lance.engine.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset, LanceFragment

    from airflow_provider_lance.engine.table import TableFiles

# Values kept in memory before they go to a part: with Lance's imports a worker stays below 500 MB.
SPILL_BYTES = 48 << 20


@dataclass(frozen=True)
class FlushPolicy:
    """When finished values become durable: every ``seconds``, or every ``size`` rows.

    Where bounds are given the size adapts between them, so that a part takes about ``seconds``; a size without bounds
    is kept as it is.
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
        """No batch may be larger, or a part could not be cut to size."""
        return min((size for size in (self.size, self.low, self.high) if size), default=None)

    def first(self) -> int | None:
        return self.size or self.low or self.high

    def next(self, rows: int, seconds: float) -> int | None:
        """The size of the next part, after one of ``rows`` took ``seconds``."""
        if not self.adaptive:
            return self.size
        wanted = int(rows * self.seconds / max(seconds, 1e-3))
        return max(self.low or 1, min(self.high or wanted, wanted))


@dataclass(frozen=True)
class Order:
    """What is the same for all tasks of a job at one version."""

    table: TableRef
    version: int
    rule: ColumnRule
    policy: ErrorPolicy
    folder: str
    job_id: str
    flush: FlushPolicy
    threads: int = 1
    address: ProgressAddress | None = None


@dataclass(frozen=True)
class FragmentWork:
    """One fragment, or with ``assemble=False`` a stretch of it whose values go to parts only.

    ``filter`` (a clause) or ``selected`` (encoded row numbers) are the rows to compute; the others keep what they have.
    ``whole`` tells that there are no others, or that they are fresh already: then the fragment is fresh when the chosen
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
    parts: tuple[Part, ...] = ()
    failed: str | None = None

    @property
    def partial(self) -> bool:
        return self.filter is not None or self.selected is not None


@dataclass(frozen=True)
class TaskResult:
    """What a task hands back: finished fragments, and the parts it wrote of unfinished ones."""

    task: str
    filled: tuple[FilledFragment, ...]
    parts: tuple[Part, ...]
    figures: TaskFigures
    rows_computed: int


@dataclass(frozen=True)
class TaskFailure:
    """Why a task cannot succeed. Returned, not raised: Spark would run the same rows into the same error again."""

    phase: str
    message: str
    retryable: bool
    traceback: str = ""


def attempt_task(order: Order, works: list[FragmentWork]) -> TaskResult | TaskFailure:
    """What Spark runs: storage errors are raised, and retried by Spark; what the rule says is an answer."""
    settle()
    try:
        return run_task(order, works)
    except JobError as error:
        return TaskFailure(error.phase, str(error), error.retryable, error.traceback)
    except UdfError as error:
        return TaskFailure("load", str(error), retryable=False)


def run_task(order: Order, works: list[FragmentWork]) -> TaskResult:
    """Fill ``works`` one after the other."""
    faults.reach("task-start")
    dataset = order.table.open(order.version)
    files = order.table.files()
    journal = Journal(order.job_id, order.version, name=uuid.uuid4().hex)
    names = {work.key: f"{uuid.uuid4().hex}.lance" for work in works if work.assemble}
    for work in works:
        if work.assemble:
            journal.files[names[work.key]] = work.fragment_id
    if names:
        journal.save(files, order.folder)
    # The same name on a retry: its figures take the place of those of the attempt that was lost.
    task = f"{works[0].key}-{works[0].start}-{works[0].assemble}"
    sender = ProgressSender(order.address, task)
    pace = pace_for(order.rule, order.flush.smallest, order.flush.seconds / 4)
    filled: list[FilledFragment] = []
    parts: list[Part] = []
    computed = 0
    saved = time.monotonic()
    unsaved = 0
    for work in works:
        filling = _FragmentTask(order, dataset, files, work, sender, pace)
        parts.extend(filling.compute())
        computed += filling.computed
        if work.assemble:
            finished = filling.assemble(names[work.key])
            filled.append(finished)
            journal.finished[work.key] = finished
            sender.figures.fragments += 1
            unsaved += finished.tally.rows
            if time.monotonic() - saved >= order.flush.seconds or unsaved >= (order.flush.first() or unsaved + 1):
                journal.save(files, order.folder)
                faults.reach("fragment-durable")
                saved, unsaved = time.monotonic(), 0
    sender.close()
    return TaskResult(task, tuple(filled), tuple(parts), sender.figures, computed)


class _FragmentTask:
    """The state of filling one fragment: values in memory, parts on storage."""

    def __init__(
        self,
        order: Order,
        dataset: LanceDataset,
        files: TableFiles,
        work: FragmentWork,
        sender: ProgressSender,
        pace: Pace,
    ) -> None:
        import pyarrow as pa

        self.order = order
        self.dataset = dataset
        self.files = files
        self.work = work
        self.sender = sender
        self.pace = pace
        found = dataset.get_fragment(work.fragment_id)
        if found is None or found.physical_rows != work.rows:
            raise JobError("compute", f"Fragment {work.fragment_id} is not what was planned: {found}", retryable=True)
        self.fragment: LanceFragment = found
        self.schema = pa.schema([dataset.schema.field(name).remove_metadata() for name in order.rule.targets])
        self.parts: list[Part] = disjoint(work.parts)
        self.memory: list[Chunk] = []
        self.tally = Tally()
        self.computed = 0
        self._bytes = 0
        self._size = order.flush.first()
        self._since = time.monotonic()

    def compute(self) -> list[Part]:
        """Evaluate the rule where no part has its values yet; returns the parts written here."""
        written: list[Part] = []
        before = self._read_bytes()
        missing = gaps(self.work.start, self.work.stop, self.parts)
        for index, (start, stop) in enumerate(missing):
            position = start
            for chunk in self._chunks(start, stop):
                self._keep(chunk)
                if self._due():
                    until = int(chunk.offsets[-1]) + 1
                    written.append(self._flush(position, until))
                    position = until
            last = index == len(missing) - 1
            # What is left stays in memory only if the fragment's file is written right after.
            if (self.parts or written or not last or not self.work.assemble) and position < stop:
                written.append(self._flush(position, stop))
        self.sender.figures.bytes_read += self._read_bytes() - before
        self.parts = disjoint([*self.parts, *written])
        return written

    def _chunks(self, start: int, stop: int) -> Iterator[Chunk]:
        order = self.order
        return chunks(
            order.table,
            self.fragment,
            order.rule,
            self.schema,
            order.policy,
            where=self.work.filter,
            selected=None if self.work.selected is None else decode_rows(self.work.selected),
            start=start,
            stop=stop,
            pace=self.pace,
            threads=order.threads,
        )

    def _keep(self, chunk: Chunk) -> None:
        self.memory.append(chunk)
        self.tally.add(len(chunk.offsets), chunk.failed)
        self.computed += len(chunk.offsets)
        self._bytes += chunk.values.nbytes
        self.sender.figures.rows += len(chunk.offsets)
        self.sender.figures.failed += len(chunk.failed)
        if chunk.failed and not self.sender.figures.example:
            offset, message = chunk.failed[0]
            self.sender.figures.example = f"row {offset} of fragment {self.work.fragment_id}: {message}"[:300]
        self.sender.tick()

    def _due(self) -> bool:
        if self._bytes >= SPILL_BYTES or time.monotonic() - self._since >= self.order.flush.seconds:
            return True
        return self._size is not None and self.tally.rows >= self._size

    def _flush(self, start: int, stop: int) -> Part:
        order = self.order
        part = Part(self.work.key, self.work.fragment_id, order.version, start, stop, path="")
        part = write_part(order.table, order.folder, part, self.memory, self.schema, self.tally, order.job_id)
        faults.reach("part-durable")
        now = time.monotonic()
        self._size = order.flush.next(self.tally.rows, now - self._since) if self.tally.rows else self._size
        self.sender.figures.bytes_written += self._bytes
        self.memory, self.tally, self._bytes, self._since = [], Tally(), 0, now
        return part

    def assemble(self, name: str) -> FilledFragment:
        """One file of exactly the fragment's physical rows, checked after it was written."""
        from lance.file import LanceFileWriter
        from lance.fragment import DataFile

        order, work = self.order, self.work
        tally = replace(self.tally)
        source: Iterable[Chunk] = self.memory
        if self.parts:
            if gaps(0, work.rows, self.parts):
                raise JobError("compute", f"Fragment {work.fragment_id} has gaps between its parts", retryable=True)
            for part in self.parts:
                tally.merge(read_tally(order.table, part))
            source = (chunk for part in self.parts for chunk in read_chunks(order.table, part, BATCH_ROWS))
        path = order.table.data_path(name)
        options = order.table.storage_options or None
        faults.reach("file-start")
        writer = LanceFileWriter(path, self.schema, version=self.dataset.data_storage_version, storage_options=options)
        for batch in dense(source, work.rows, self.schema, self._old_values() if work.partial else None):
            writer.write_batch(batch)
        written = writer.close()
        faults.reach("file-written")
        # Nobody checks later: a short file commits and then breaks every read of the table. That its columns are the
        # table's is what DataFile.create finds out, from the file itself.
        if written != work.rows:
            raise JobError(
                "compute",
                f"The column file of fragment {work.fragment_id} has {written} rows of {work.rows}: not committed.",
                retryable=True,
            )
        file = DataFile.create(self.dataset, name)
        self.sender.figures.bytes_written += file.file_size_bytes or 0
        self.memory = []
        known = tally.failed_offsets is not None
        failed_rows = write_failed(self.files, order.folder, name, self._failed(tally)) if work.whole and known else 0
        return FilledFragment(
            fragment_id=work.fragment_id,
            key=work.key,
            rows=work.rows,
            file={**_plain(file)},
            tally=replace(tally, failed_offsets=[]),
            covered=work.whole and known,
            samples=self._samples(tally),
            failed_rows=failed_rows,
        )

    def _failed(self, tally: Tally) -> list[int]:
        """The rows of the fragment that are null because the rule failed on them, now or in an earlier job."""
        left = decode_rows(self.work.failed).tolist() if self.work.failed is not None else []
        return [*(tally.failed_offsets or ()), *left]

    def _old_values(self) -> Iterator[pa.RecordBatch] | None:
        """The column as it is, deleted rows included, or None where the fragment never had it."""
        import pyarrow as pa

        paths = self.order.rule.target_paths
        targets = field_ids(self.dataset, paths)
        if not any(not targets.isdisjoint(file.fields) for file in self.fragment.data_files()):
            return None
        scanner = self.fragment.scanner(
            columns=list(self.order.rule.targets),
            include_deleted_rows=True,
            with_row_id=True,
            batch_size=batch_rows(self.order.table, self.fragment, paths),
            batch_readahead=2,
        )
        return (
            pa.RecordBatch.from_arrays([batch.column(name) for name in self.schema.names], schema=self.schema)
            for batch in scanner.to_batches()
        )

    def _samples(self, tally: Tally) -> tuple[dict[str, Any], ...]:
        """Failed rows with the row id a person can look up: with stable row ids it is not the address."""
        if not tally.samples:
            return ()
        base = self.work.fragment_id << 32
        ids = {offset: base + offset for offset, _ in tally.samples}
        if self.dataset.has_stable_row_ids:
            chosen = ", ".join(str(base + offset) for offset in ids)
            found = self.fragment.scanner(
                columns=[],
                filter=f"_rowaddr IN ({chosen})",
                with_row_address=True,
                with_row_id=True,
                use_scalar_index=False,
            ).to_table()
            addresses, row_ids = found["_rowaddr"].to_pylist(), found["_rowid"].to_pylist()
            ids |= {address - base: row_id for address, row_id in zip(addresses, row_ids, strict=True)}
        return tuple({"row_id": ids[offset], "message": message} for offset, message in tally.samples)

    def _read_bytes(self) -> int:
        return int(self.dataset.io_stats_snapshot().read_bytes)


def _plain(file: Any) -> dict[str, Any]:
    document = asdict(file)
    document["path"] = str(document.pop("_path"))
    return document
