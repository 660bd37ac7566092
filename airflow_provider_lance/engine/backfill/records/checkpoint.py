"""What survives a dead job, in the table's folder ``_backfill/``: journals of finished fragments, and checkpoints.

Everything is keyed by content (the inputs' files, the rule, the selected rows) and not by job, so any job that needs
the same values finds them. A journal names the data files its task may write before they exist, so that a later job
can remove by name the files that nobody committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.backfill.records.failed_rows import (
    FailedRow,
    column_file_of,
    decode_rows,
    encode_rows,
)
from airflow_provider_lance.engine.backfill.row_batches import ComputedRows

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.file import LanceFileReader
    from lance.fragment import DataFile

    from airflow_provider_lance.storage.table import TableFiles, TableRef

FOLDER = "_backfill"
OFFSET = "__offset"
SAMPLES = 10  # failed rows whose messages are kept, per fragment
_COUNTS = "tally"  # the key of RowCounts in journals and checkpoints
_CHECKPOINT = re.compile(r"part-([0-9a-f]{32})-(\d+)-(\d+)-(\d+)-(\d+)-[0-9a-f]{8}(?:-([0-9a-f]{16}))?\.lance$")
# The beginning of the name under which Lance writes a file of a local disk until it is complete.
_UNFINISHED = ".tmp"


def column_folder(field_id: int) -> str:
    return f"{FOLDER}/{field_id}"


def job_name(job_id: str) -> str:
    """A job's id as part of a file's name."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:16]


@dataclass
class RowCounts:
    """How many rows were computed and how many failed.

    ``failed_offsets`` is None where an earlier release did not keep them.
    """

    rows: int = 0
    failed: int = 0
    failed_offsets: list[int] | None = field(default_factory=list)
    samples: list[tuple[int, str]] = field(default_factory=list)

    def add(self, rows: int, failures: Sequence[tuple[int, str]]) -> None:
        self.rows += rows
        self.failed += len(failures)
        if self.failed_offsets is not None:
            self.failed_offsets.extend(offset for offset, _ in failures)
        self.samples.extend(failures[: SAMPLES - len(self.samples)])

    def merge(self, other: RowCounts) -> None:
        self.rows += other.rows
        self.failed += other.failed
        if self.failed_offsets is None or other.failed_offsets is None:
            self.failed_offsets = None
        else:
            self.failed_offsets = self.failed_offsets + other.failed_offsets
        self.samples = (self.samples + other.samples)[:SAMPLES]

    def to_dict(self) -> dict[str, object]:
        document = asdict(self)
        if self.failed_offsets is not None:
            document["failed_offsets"] = encode_rows(sorted(self.failed_offsets))
        return document

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RowCounts:
        """Read what :meth:`to_dict` made, or what an earlier release made, which listed the failed rows."""
        offsets = data["failed_offsets"]
        if isinstance(offsets, str):
            offsets = decode_rows(offsets).tolist()
        return cls(data["rows"], data["failed"], offsets, [(offset, message) for offset, message in data["samples"]])


@dataclass(frozen=True)
class FilledFragment:
    """A finished column file, ready to be committed.

    ``covered`` tells that every live row of the fragment is fresh or listed as failed once the file is committed;
    ``failed_rows`` is how many rows the file beside it lists as failed, now or in an earlier job.
    """

    fragment_id: int
    key: str
    rows: int
    file: DataFile
    counts: RowCounts
    covered: bool
    samples: tuple[FailedRow, ...] = ()
    failed_rows: int = 0

    def to_dict(self) -> dict[str, object]:
        document = asdict(self)
        del document["counts"]
        document["file"]["path"] = str(document["file"].pop("_path"))
        return {**document, _COUNTS: self.counts.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FilledFragment:
        from lance.fragment import DataFile

        values = dict(data)
        counts = RowCounts.from_dict(values.pop(_COUNTS))
        # An earlier release kept no file with the failed rows, so the fragment is not known to be fresh then.
        covered = data["covered"] and ("failed_rows" in data or not counts.failed)
        file, samples = DataFile(**data["file"]), tuple(data["samples"])
        return cls(**{**values, "file": file, "counts": counts, "covered": covered, "samples": samples})


@dataclass
class Journal:
    """The record of one task. ``files`` maps every data file it may write to the id of its fragment."""

    name: str
    job_id: str
    read_version: int
    files: dict[str, int] = field(default_factory=dict)
    finished: dict[str, FilledFragment] = field(default_factory=dict)

    def path(self, folder: str) -> str:
        return f"{folder}/journal-{self.name}.json"

    def save(self, files: TableFiles, folder: str) -> None:
        document = {
            "format": 1,
            "job_id": self.job_id,
            "read_version": self.read_version,
            "files": self.files,
            "finished": {key: filled.to_dict() for key, filled in self.finished.items()},
        }
        files.write_json(self.path(folder), document)


@dataclass(frozen=True)
class Checkpoint:
    """Saved values of the physical rows ``start`` to ``stop`` of one fragment, in a file whose name says so.

    ``failed_in`` names the job in which the rule failed on some of the rows: another job computes them again.
    """

    key: str
    fragment_id: int
    read_version: int
    start: int
    stop: int
    path: str
    failed_in: str | None = None

    @classmethod
    def parse(cls, path: str) -> Checkpoint | None:
        found = _CHECKPOINT.search(path)
        if not found:
            return None
        fragment_id, read_version, start, stop = (int(number) for number in found.groups()[1:5])
        return cls(found[1], fragment_id, read_version, start, stop, path, found[6])


@dataclass(frozen=True)
class SavedWork:
    """What earlier attempts left in a column's folder. ``markers`` are the paths of the jobs' start markers.

    ``failed_lists`` maps the column files that have failed rows to the paths of the files that list these rows.
    ``unfinished`` are files that a killed process was still writing: Lance renames them once they are complete.
    """

    unfinished: list[str] = field(default_factory=list)
    markers: list[str] = field(default_factory=list)
    failed_lists: dict[str, str] = field(default_factory=dict)
    journals: list[Journal] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def has_leftovers(self) -> bool:
        """Whether there are files that a finished job removes."""
        return bool(self.journals or self.checkpoints or self.markers or self.unfinished)

    def finished_for(self, job_id: str) -> dict[str, FilledFragment]:
        """What a job may commit: everything finished, except where the rule failed on rows in another job.

        That other job may have allowed failures that this one does not allow, and their cause may be gone.
        """
        return {
            key: filled
            for journal in self.journals
            for key, filled in journal.finished.items()
            if not filled.counts.failed or journal.job_id == job_id
        }

    def checkpoints_for(self, job_id: str) -> dict[str, list[Checkpoint]]:
        """The checkpoints a job may continue from, by key, with the same exception as :meth:`finished_for`."""
        found: dict[str, list[Checkpoint]] = {}
        for checkpoint in self.checkpoints:
            if checkpoint.failed_in in (None, job_name(job_id)):
                found.setdefault(checkpoint.key, []).append(checkpoint)
        return found


def read_saved_work(files: TableFiles, folder: str) -> SavedWork:
    saved = SavedWork()
    for path in files.names(folder):
        checkpoint, column_file = Checkpoint.parse(path), column_file_of(path)
        if checkpoint is not None:
            saved.checkpoints.append(checkpoint)
        elif column_file is not None:
            saved.failed_lists[column_file] = path
        elif "/job-" in path:
            saved.markers.append(path)
        elif path.rpartition("/")[2].startswith(_UNFINISHED):
            saved.unfinished.append(path)
        elif "/journal-" in path:
            journal = _read_journal(files, path)
            if journal is not None:
                saved.journals.append(journal)
    return saved


def _read_journal(files: TableFiles, path: str) -> Journal | None:
    document = files.read_json(path)
    if not isinstance(document, dict) or document.get("format") != 1:
        return None
    return Journal(
        name=path.rpartition("journal-")[2].removesuffix(".json"),
        job_id=document["job_id"],
        read_version=document["read_version"],
        files=document["files"],
        finished={key: FilledFragment.from_dict(value) for key, value in document["finished"].items()},
    )


def usable_fragments(
    table: TableRef, finished: Mapping[str, FilledFragment], types: Sequence[pa.DataType]
) -> dict[str, FilledFragment]:
    """Those finished fragments whose file exists, is complete and has the target columns' types."""
    import pyarrow as pa
    from lance.file import LanceFileReader

    def fits(found: list[pa.DataType]) -> bool:
        # A Lance file does not store Arrow's extension types.
        return len(found) == len(types) and all(
            kind == wanted or isinstance(wanted, pa.BaseExtensionType)
            for kind, wanted in zip(found, types, strict=True)
        )

    usable = {}
    for key, filled in finished.items():
        with contextlib.suppress(OSError, ValueError):
            reader = LanceFileReader(table.data_path(filled.file.path), storage_options=table.storage_options or None)
            if reader.num_rows() == filled.rows and fits(reader.metadata().schema.types):
                usable[key] = filled
    return usable


def without_overlaps(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Checkpoints in order; of those that begin at the same row, the longest is kept.

    They may overlap because each attempt cuts a fragment at other places.
    """
    chosen: list[Checkpoint] = []
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: (checkpoint.start, -checkpoint.stop)):
        if not chosen or checkpoint.start >= chosen[-1].stop:
            chosen.append(checkpoint)
    return chosen


def missing_ranges(start: int, stop: int, checkpoints: Iterable[Checkpoint]) -> list[tuple[int, int]]:
    """The ranges of rows between ``start`` and ``stop`` that no checkpoint covers."""
    missing, position = [], start
    for checkpoint in checkpoints:
        if checkpoint.stop <= start or checkpoint.start >= stop:
            continue
        if checkpoint.start > position:
            missing.append((position, checkpoint.start))
        position = max(position, checkpoint.stop)
    if position < stop:
        missing.append((position, stop))
    return missing


def write_checkpoint(
    table: TableRef,
    folder: str,
    checkpoint: Checkpoint,
    computed: Iterable[ComputedRows],
    schema: pa.Schema,
    counts: RowCounts,
    job_id: str,
) -> Checkpoint:
    """Save the values of a range of rows and return the checkpoint with its path.

    The file appears only when it is complete.
    """
    import pyarrow as pa
    from lance.file import LanceFileWriter

    numbers = f"{checkpoint.fragment_id}-{checkpoint.read_version}-{checkpoint.start}-{checkpoint.stop}"
    failed_in = job_name(job_id) if counts.failed else None
    suffix = f"-{failed_in}" if failed_in else ""
    path = f"{folder}/part-{checkpoint.key}-{numbers}-{uuid.uuid4().hex[:8]}{suffix}.lance"
    stored = pa.schema([pa.field(OFFSET, pa.int64()), *schema])
    with LanceFileWriter(f"{table.base}/{path}", stored, storage_options=table.storage_options or None) as writer:
        writer.add_schema_metadata(_COUNTS, json.dumps(counts.to_dict()))
        for rows in computed:
            arrays = [pa.array(rows.offsets), *rows.values.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=stored))
    return replace(checkpoint, path=path, failed_in=failed_in)


def read_counts(table: TableRef, checkpoint: Checkpoint) -> RowCounts:
    """The row counts of a checkpoint, without reading its rows."""
    metadata = _reader(table, checkpoint).metadata().schema.metadata or {}
    return RowCounts.from_dict(json.loads(metadata[_COUNTS.encode()]))


def read_computed(table: TableRef, checkpoint: Checkpoint, batch_rows: int) -> Iterator[ComputedRows]:
    """The saved values of a checkpoint, in batches."""
    import pyarrow as pa

    reader = _reader(table, checkpoint)
    if reader.num_rows():
        for batch in reader.read_all(batch_size=batch_rows).to_batches():
            values = batch.drop_columns([OFFSET])
            yield ComputedRows(
                batch.column(OFFSET).to_numpy(), pa.RecordBatch.from_arrays(values.columns, schema=values.schema)
            )


def _reader(table: TableRef, checkpoint: Checkpoint) -> LanceFileReader:
    from lance.file import LanceFileReader

    return LanceFileReader(f"{table.base}/{checkpoint.path}", storage_options=table.storage_options or None)
