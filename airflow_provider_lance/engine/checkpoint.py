"""What survives a dead job: journals of finished fragments and parts of unfinished ones, in ``_backfill/``.

Everything is keyed by content (inputs' files, rule, selection), not by job: whoever needs the same values finds them.
A journal also names, before they exist, the data files its task may write, so a successor can remove by name what
nobody committed.
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

from airflow_provider_lance.engine.failed_rows import column_file_of, decode_rows, encode_rows
from airflow_provider_lance.engine.functions import Chunk, split_offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_lance.engine.table import TableFiles, TableRef

FOLDER = "_backfill"
OFFSET = "__offset"
SAMPLES = 10  # failed rows told apart, per fragment
_PART = re.compile(r"part-([0-9a-f]{32})-(\d+)-(\d+)-(\d+)-(\d+)-[0-9a-f]{8}(?:-([0-9a-f]{16}))?\.lance$")


def column_folder(field_id: int) -> str:
    return f"{FOLDER}/{field_id}"


def job_name(job_id: str) -> str:
    """A job's id as part of a file's name."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:16]


@dataclass
class Tally:
    """What happened to the rows of a stretch. ``failed_offsets`` is None where an earlier release did not keep them."""

    rows: int = 0
    failed: int = 0
    failed_offsets: list[int] | None = field(default_factory=list)
    samples: list[tuple[int, str]] = field(default_factory=list)

    def add(self, rows: int, failed: Iterable[tuple[int, str]]) -> None:
        failures = list(failed)
        self.rows += rows
        self.failed += len(failures)
        if self.failed_offsets is not None:
            self.failed_offsets.extend(offset for offset, _ in failures)
        self.samples.extend(failures[: SAMPLES - len(self.samples)])

    def merge(self, other: Tally) -> None:
        self.rows += other.rows
        self.failed += other.failed
        if self.failed_offsets is None or other.failed_offsets is None:
            self.failed_offsets = None
        else:
            self.failed_offsets = self.failed_offsets + other.failed_offsets
        self.samples = (self.samples + other.samples)[:SAMPLES]

    def to_dict(self) -> dict[str, Any]:
        document = asdict(self)
        if self.failed_offsets is not None:
            document["failed_offsets"] = encode_rows(sorted(self.failed_offsets))
        return document

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        """What :meth:`to_dict` made, or an earlier release, which listed the rows."""
        offsets = data["failed_offsets"]
        if isinstance(offsets, str):
            offsets = decode_rows(offsets).tolist()
        return cls(data["rows"], data["failed"], offsets, [(offset, message) for offset, message in data["samples"]])


@dataclass(frozen=True)
class FilledFragment:
    """A finished column file, ready to be committed. ``file`` holds the fields of Lance's ``DataFile``.

    ``failed_rows`` is how many rows the file beside it names as failed, now or in an earlier job.
    """

    fragment_id: int
    key: str
    rows: int
    file: dict[str, Any]
    tally: Tally
    covered: bool
    samples: tuple[dict[str, Any], ...] = ()
    failed_rows: int = 0

    @property
    def path(self) -> str:
        return str(self.file["path"])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tally": self.tally.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FilledFragment:
        tally = Tally.from_dict(data["tally"])
        # An earlier release kept no file with the failed rows: the fragment is not known to be fresh then.
        covered = data["covered"] and ("failed_rows" in data or not tally.failed)
        return cls(**{**data, "tally": tally, "covered": covered, "samples": tuple(data["samples"])})


@dataclass
class Journal:
    """One task's record. ``files`` maps every data file it may write to its fragment's id."""

    job_id: str
    read_version: int
    files: dict[str, int] = field(default_factory=dict)
    finished: dict[str, FilledFragment] = field(default_factory=dict)
    name: str = ""

    def path(self, folder: str) -> str:
        return f"{folder}/journal-{self.name}.json"

    def save(self, files: TableFiles, folder: str) -> None:
        self.name = self.name or uuid.uuid4().hex
        document = {
            "format": 1,
            "job_id": self.job_id,
            "read_version": self.read_version,
            "files": self.files,
            "finished": {key: filled.to_dict() for key, filled in self.finished.items()},
        }
        files.write_json(self.path(folder), document)


@dataclass(frozen=True)
class Part:
    """A durable stretch of one fragment's values, in a file named after what it holds.

    ``failed_in`` names the job in which the rule failed on some of its rows: another job tries them itself.
    """

    key: str
    fragment_id: int
    read_version: int
    start: int
    stop: int
    path: str
    failed_in: str | None = None

    @classmethod
    def parse(cls, path: str) -> Part | None:
        found = _PART.search(path)
        if not found:
            return None
        fragment_id, read_version, start, stop = (int(number) for number in found.groups()[1:5])
        return cls(found[1], fragment_id, read_version, start, stop, path, found[6])


@dataclass
class Remains:
    """What earlier attempts left in a column's folder. ``markers`` are the paths of jobs' own notes.

    ``failed`` maps the column files that have failed rows to the paths of the files that name these rows.
    """

    markers: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    journals: list[Journal] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def finished_for(self, job_id: str) -> dict[str, FilledFragment]:
        """What a job may commit: everything finished, except where the rule failed on rows in another job.

        That job may have allowed failures that this one does not, and what it failed for may be over.
        """
        return {
            key: filled
            for journal in self.journals
            for key, filled in journal.finished.items()
            if not filled.tally.failed or journal.job_id == job_id
        }

    def parts_for(self, job_id: str) -> dict[str, list[Part]]:
        """The parts a job may continue from, by key; as in :meth:`finished_for`."""
        found: dict[str, list[Part]] = {}
        for part in self.parts:
            if part.failed_in in (None, job_name(job_id)):
                found.setdefault(part.key, []).append(part)
        return found


def read_remains(files: TableFiles, folder: str) -> Remains:
    remains = Remains()
    for path in files.names(folder):
        part, column_file = Part.parse(path), column_file_of(path)
        if part is not None:
            remains.parts.append(part)
        elif column_file is not None:
            remains.failed[column_file] = path
        elif "/job-" in path:
            remains.markers.append(path)
        elif "/journal-" in path:
            journal = _read_journal(files, path)
            if journal is not None:
                remains.journals.append(journal)
    return remains


def _read_journal(files: TableFiles, path: str) -> Journal | None:
    document = files.read_json(path)
    if not isinstance(document, dict) or document.get("format") != 1:
        return None
    return Journal(
        job_id=document["job_id"],
        read_version=document["read_version"],
        files=document["files"],
        finished={key: FilledFragment.from_dict(value) for key, value in document["finished"].items()},
        name=path.rpartition("journal-")[2].removesuffix(".json"),
    )


def whole_files(
    table: TableRef, finished: Mapping[str, FilledFragment], types: Sequence[pa.DataType]
) -> dict[str, FilledFragment]:
    """Those finished fragments whose file is there, whole and of the target columns' types."""
    import pyarrow as pa
    from lance.file import LanceFileReader

    def fits(found: list[pa.DataType]) -> bool:
        # A file does not know of Arrow's extension types.
        return len(found) == len(types) and all(
            kind == wanted or isinstance(wanted, pa.BaseExtensionType)
            for kind, wanted in zip(found, types, strict=True)
        )

    whole = {}
    for key, filled in finished.items():
        with contextlib.suppress(OSError, ValueError):
            reader = LanceFileReader(table.data_path(filled.path), storage_options=table.storage_options or None)
            if reader.num_rows() == filled.rows and fits(reader.metadata().schema.types):
                whole[key] = filled
    return whole


def disjoint(parts: Iterable[Part]) -> list[Part]:
    """Parts in order without overlaps: attempts cut a fragment at different places, the longer stretch wins."""
    chosen: list[Part] = []
    for part in sorted(parts, key=lambda part: (part.start, -part.stop)):
        if not chosen or part.start >= chosen[-1].stop:
            chosen.append(part)
    return chosen


def gaps(start: int, stop: int, parts: Iterable[Part]) -> list[tuple[int, int]]:
    """The stretches between ``start`` and ``stop`` that no part covers."""
    missing, position = [], start
    for part in parts:
        if part.stop <= start or part.start >= stop:
            continue
        if part.start > position:
            missing.append((position, part.start))
        position = max(position, part.stop)
    if position < stop:
        missing.append((position, stop))
    return missing


def write_part(
    table: TableRef, folder: str, part: Part, chunks: list[Chunk], schema: pa.Schema, tally: Tally, job_id: str
) -> Part:
    """Make a stretch durable; returns the part with its path. The file appears only when it is complete."""
    import pyarrow as pa
    from lance.file import LanceFileWriter

    numbers = f"{part.fragment_id}-{part.read_version}-{part.start}-{part.stop}"
    failed_in = job_name(job_id) if tally.failed else None
    suffix = f"-{failed_in}" if failed_in else ""
    path = f"{folder}/part-{part.key}-{numbers}-{uuid.uuid4().hex[:8]}{suffix}.lance"
    stored = pa.schema([pa.field(OFFSET, pa.int64()), *schema])
    with LanceFileWriter(f"{table.base}/{path}", stored, storage_options=table.storage_options or None) as writer:
        writer.add_schema_metadata("tally", json.dumps(tally.to_dict()))
        for chunk in chunks:
            arrays = [pa.array(chunk.offsets), *chunk.values.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=stored))
    return replace(part, path=path, failed_in=failed_in)


def read_tally(table: TableRef, part: Part) -> Tally:
    """What a part says of its rows, without reading them."""
    metadata = _reader(table, part).metadata().schema.metadata or {}
    return Tally.from_dict(json.loads(metadata[b"tally"]))


def read_chunks(table: TableRef, part: Part, batch_rows: int) -> Iterator[Chunk]:
    reader = _reader(table, part)
    if reader.num_rows():
        for batch in reader.read_all(batch_size=batch_rows).to_batches():
            yield split_offsets(batch, OFFSET)


def _reader(table: TableRef, part: Part) -> Any:
    from lance.file import LanceFileReader

    return LanceFileReader(f"{table.base}/{part.path}", storage_options=table.storage_options or None)
