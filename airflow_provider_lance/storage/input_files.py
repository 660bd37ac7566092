"""Files that are loaded into a table: found by a path or pattern, read as Arrow batches, and cut into shares.

A worker reads all of them; the tasks of Spark read a share each. Imports pyarrow when files are opened.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from airflow_provider_lance.storage.shares import contiguous_shares
from airflow_provider_lance.storage.table import fragments_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import FileFormat, FileSystemDataset
    from pyarrow.dataset import Fragment as FileFragment
    from pyarrow.fs import FileInfo, FileSystem

FORMATS = ("parquet", "csv", "json", "arrow", "feather", "lance")
#: The characters that make a path a pattern.
PATTERN = frozenset("*?[")
_BY_ENDING = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".lance": "lance",
}
# The footers of so many Parquet files are read for their numbers of rows, which takes a second or two from a bucket.
_COUNTED_FILES = 256


class NoRowsError(ValueError):
    """Rows cannot be read from what was given; the message says why."""


@runtime_checkable
class ObjectPath(Protocol):
    """Airflow's ``ObjectStoragePath``: a path that brings its own file system, with an Airflow connection's secrets."""

    @property
    def path(self) -> str: ...

    @property
    def fs(self) -> object: ...


class Share(Protocol):
    """A part of the input that one process reads. It can be pickled.

    ``name`` tells which rows it holds: it is the same for the same parts of files that were not changed.
    """

    @property
    def name(self) -> str: ...

    def open(self) -> pa.RecordBatchReader: ...


class Input(Protocol):
    """All rows of a path. ``rows`` is None where counting them would mean to read them."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def files(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def rows(self) -> int | None: ...

    def open(self) -> pa.RecordBatchReader:
        """A reader of all rows."""

    def cut(self, count: int) -> list[Share]:
        """About ``count`` shares, in the order of the rows; fewer where files cannot be cut."""


def file_kind(path: object, file_format: str | None = None) -> str:
    """The format that a path is read as: the given one, or that of its ending, or Parquet."""
    name = str(path).rstrip("/")
    kind = file_format or _BY_ENDING.get(PurePosixPath(name.rstrip("*?[]!")).suffix.lower(), "parquet")
    if kind not in FORMATS:
        raise NoRowsError(f"file_format is one of {', '.join(FORMATS)}, not {kind!r}.")
    return kind


def find_input(path: str | ObjectPath, file_format: str | None = None) -> Input:
    """What is at a file, a folder or a pattern; NoRowsError where nothing is, or nothing that can be read."""
    import pyarrow as pa

    kind = file_kind(path, file_format)
    name = str(path).rstrip("/")
    try:
        return _LanceInput(name) if kind == "lance" else _FileInput(path, kind)
    except FileNotFoundError:
        raise NoRowsError(f"There is no file at {name}.") from None
    except (OSError, pa.ArrowException) as error:
        raise NoRowsError(f"{name} cannot be read as {kind}: {error}") from error


class _FileInput:
    """Parquet, CSV, JSON or Arrow files."""

    def __init__(self, path: str | ObjectPath, kind: str) -> None:
        import pyarrow.dataset as ds

        file_system, place = _locate(path)
        found = _find(file_system, place) if PATTERN & set(place) else place
        dataset: FileSystemDataset = ds.dataset(
            found, filesystem=file_system, format=_file_format(kind), partitioning="hive"
        )
        self._dataset = dataset
        self._file_system = file_system
        self._kind = kind
        self.schema: pa.Schema = dataset.schema
        self.files = len(dataset.files)

    @property
    def bytes(self) -> int:
        return sum(info.size or 0 for info in self._infos())

    @property
    def rows(self) -> int | None:
        if self._kind != "parquet" or self.files > _COUNTED_FILES:
            return None
        return int(self._dataset.count_rows())

    def open(self) -> pa.RecordBatchReader:
        return _scan(self._dataset)

    def cut(self, count: int) -> list[Share]:
        files = self._infos()
        most = max(1, math.ceil(sum(info.size or 0 for info in files) / max(1, count)))
        parts: list[_FilePart] = []
        for fragment, info in zip(self._dataset.get_fragments(), files, strict=True):
            whole = _FilePart(fragment, info.size or 0, f"{info.path} {info.size} {info.mtime_ns}")
            parts.extend(_row_groups(whole, most) if self._kind == "parquet" else [whole])
        shares = contiguous_shares(parts, [part.bytes for part in parts], count)
        return [
            _FileShare(
                [part.fragment for part in share], self.schema, self._kind, "\n".join(part.name for part in share)
            )
            for share in shares
        ]

    def _infos(self) -> list[FileInfo]:
        return list(self._file_system.get_file_info(self._dataset.files))


@dataclass(frozen=True)
class _FilePart:
    """A file, or some row groups of a Parquet file."""

    fragment: FileFragment
    bytes: int
    name: str


def _row_groups(whole: _FilePart, most: int) -> list[_FilePart]:
    """A Parquet file in parts of about ``most`` bytes, which are whole row groups."""
    from pyarrow.dataset import ParquetFileFragment

    fragment, size = whole.fragment, whole.bytes
    assert isinstance(fragment, ParquetFileFragment)
    if size <= most or fragment.num_row_groups < 2:
        return [whole]
    groups = fragment.row_groups
    total = sum(group.total_byte_size for group in groups) or 1
    cut = contiguous_shares(groups, [group.total_byte_size for group in groups], math.ceil(size / most))
    return [
        _FilePart(
            # The stubs say that this gives a file format.
            cast("FileFragment", fragment.subset(row_group_ids=[group.id for group in part])),
            size * sum(group.total_byte_size for group in part) // total,
            f"{whole.name} {[group.id for group in part]}",
        )
        for part in cut
    ]


@dataclass(frozen=True)
class _FileShare:
    """Files and parts of files, with the schema of all of them."""

    fragments: list[FileFragment]
    schema: pa.Schema
    kind: str
    name: str

    def open(self) -> pa.RecordBatchReader:
        from pyarrow.dataset import FileSystemDataset

        return _scan(FileSystemDataset(self.fragments, self.schema, _file_format(self.kind), None))


def _scan(files: FileSystemDataset) -> pa.RecordBatchReader:
    # By default sixteen batches and four files are read ahead: gigabytes where rows are images.
    reader: pa.RecordBatchReader = files.scanner(batch_readahead=2, fragment_readahead=2).to_reader()
    return reader


class _LanceInput:
    """A Lance table, at the version that it has when it is found."""

    def __init__(self, location: str) -> None:
        import lance

        try:
            self._dataset = lance.dataset(location)
        except ValueError as error:
            raise NoRowsError(f"{location} cannot be read as lance: {error}") from None
        self._location = location
        self.schema: pa.Schema = self._dataset.schema
        self.files = len(self._dataset.get_fragments())

    @property
    def bytes(self) -> int:
        return sum(
            file.file_size_bytes or 0 for fragment in self._dataset.get_fragments() for file in fragment.data_files()
        )

    @property
    def rows(self) -> int | None:
        return int(self._dataset.count_rows())

    def open(self) -> pa.RecordBatchReader:
        return self._dataset.scanner().to_reader()

    def cut(self, count: int) -> list[Share]:
        fragments = [(fragment.fragment_id, fragment.count_rows()) for fragment in self._dataset.get_fragments()]
        shares = contiguous_shares([number for number, _ in fragments], [rows for _, rows in fragments], count)
        return [_LanceShare(self._location, self._dataset.version, tuple(share)) for share in shares]


@dataclass(frozen=True)
class _LanceShare:
    location: str
    version: int
    fragments: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.location} {self.version} {self.fragments}"

    def open(self) -> pa.RecordBatchReader:
        import lance

        dataset = lance.dataset(self.location, version=self.version)
        return dataset.scanner(fragments=fragments_of(dataset, self.fragments), scan_in_order=True).to_reader()


def _file_format(kind: str) -> FileFormat:
    import pyarrow.dataset as ds

    if kind == "parquet":
        return ds.ParquetFileFormat()
    if kind == "csv":
        return ds.CsvFileFormat()
    return ds.JsonFileFormat() if kind == "json" else ds.IpcFileFormat()


def stable_part(path: str) -> str:
    """The folder before the first character of a pattern; the whole path where it is none."""
    at = next((at for at, letter in enumerate(path) if letter in PATTERN), len(path))
    return path if at == len(path) else path[: path.rfind("/", 0, at) + 1]


def _locate(path: str | ObjectPath) -> tuple[FileSystem, str]:
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    if isinstance(path, ObjectPath):
        return PyFileSystem(FSSpecHandler(path.fs)), path.path  # type: ignore[abstract]  # the stubs lack its methods
    if "://" not in path:
        return LocalFileSystem(), path
    # A pattern is not a URI: only what stands before it is read as one.
    start = stable_part(path)
    file_system, place = FileSystem.from_uri(start)
    return file_system, place if start == path else f"{place.rstrip('/')}/{path[len(start) :]}"


def _find(file_system: FileSystem, pattern: str) -> list[str]:
    """The files that a pattern names; ``*`` stays inside one folder, ``**`` does not."""
    from pyarrow.fs import FileSelector, FileType

    start = stable_part(pattern)
    base = start.rstrip("/") or ("/" if start else ".")
    listed = file_system.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    wanted = pattern.removeprefix("./").split("/")
    files = sorted(
        info.path
        for info in listed
        if info.type == FileType.File and _matches(info.path.removeprefix("./").split("/"), wanted)
    )
    if not files:
        raise FileNotFoundError(pattern)
    return files


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
