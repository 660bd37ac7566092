"""What changed in a source table between two versions, as far as a view that reads some of its columns cares.

Answers with row ids and fragments, at a cost that follows the change; or with the reason why the two versions cannot be
compared and the view must be rebuilt. Knows nothing of views, queries or commits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_lance.engine.expressions import format_path
from airflow_provider_lance.engine.history import read_commit
from airflow_provider_lance.engine.table import field_ids

if TYPE_CHECKING:
    import lance
    import numpy as np

_T = TypeVar("_T")

# These keep row ids but not what they mean: rows of before and after cannot be told apart by their versions.
_BREAKING = {
    "Overwrite": "the source was overwritten at version {version}",
    "Restore": "the source was restored to an older version at version {version}",
}


@dataclass(frozen=True)
class SourcePoint:
    """A version of a source. The timestamp (nanoseconds) tells a table from another one made later at its place."""

    version: int
    timestamp: int


@dataclass(frozen=True)
class Changes:
    """What happened after ``since``: which fragments hold rows written since, and which rows are no longer there."""

    since: int
    fragments: tuple[int, ...] = ()
    deleted: np.ndarray | None = field(default=None, compare=False)
    # Those of ``fragments`` whose row versions do not tell which rows got new values: all of theirs count.
    unversioned: tuple[int, ...] = ()

    @property
    def written(self) -> str:
        """A filter for the rows of ``fragments`` that were inserted or updated."""
        newer = f"_row_last_updated_at_version > {self.since}"
        return " OR ".join([newer, *(f"(_rowaddr >= {low} AND _rowaddr < {high})" for low, high in self._addresses())])

    @property
    def updated(self) -> str:
        """A filter for the rows of ``fragments`` that were there before and hold new values now."""
        return f"({self.written}) AND _row_created_at_version <= {self.since}"

    def _addresses(self) -> Iterator[tuple[int, int]]:
        """The row addresses of ``unversioned``; neighbours make one range, so that the filter stays short."""
        numbers = sorted(self.unversioned)
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            fragments = [number for _, number in run]
            yield fragments[0] << 32, (fragments[-1] + 1) << 32


class NotComparable(Exception):
    """The two versions cannot be compared row by row; the message is the reason a rebuild reports."""


def find_changes(source: lance.LanceDataset, since: SourcePoint, columns: Iterable[str]) -> Changes:
    """Compare ``source`` (checked out at the wanted version) with what it was at ``since``.

    ``columns`` are the top-level columns the view reads: new data in other columns is no change. Raises
    :class:`NotComparable` with the reason when only a rebuild is right.
    """
    if not source.has_stable_row_ids:
        raise NotComparable("the source has no stable row ids, so its rows cannot be followed from version to version")
    if since.version > source.version:
        raise NotComparable(f"the view is at source version {since.version}, which is past version {source.version}")
    try:
        before = source.checkout_version(since.version)
    except (OSError, ValueError) as error:
        raise NotComparable(f"source version {since.version} is no longer there: it was cleaned up") from error
    if version_timestamp(before) != since.timestamp:
        raise NotComparable("the source was dropped and created again")
    operations = _check_history(source, since.version)
    wanted: set[int] = set()
    there_before = set(before.schema.names)
    for column in columns:
        ids = field_ids(source, [format_path([column])])
        if column not in there_before or field_ids(before, [format_path([column])]) != ids:
            raise NotComparable(f"column {column} of the source was replaced by another one")
        wanted |= ids
    old = {fragment.fragment_id: _files(fragment.data_files(), wanted) for fragment in before.get_fragments()}
    now = {fragment.fragment_id: _files(fragment.data_files(), wanted) for fragment in source.get_fragments()}
    changed = tuple(number for number, files in now.items() if old.get(number) != files)
    unversioned: tuple[int, ...] = ()
    # An update or an append makes new fragments: only what was written in place, or moved after that, is asked about.
    if not old.keys().isdisjoint(changed) or "Rewrite" in operations.values():
        unversioned = _unversioned(source, operations, old, now, wanted)
    deleted = source.delta(begin_version=since.version, end_version=source.version).get_deleted_row_ids().read_all()
    return Changes(since.version, changed, deleted.column(0).to_numpy(), unversioned)


def version_timestamp(dataset: lance.LanceDataset) -> int:
    """When the checked-out version was committed, in nanoseconds since 1970, exactly as its manifest says.

    pylance rounds to microseconds, and LanceDB continues a view only from the exact figure.
    """
    return _manifest_timestamp(_read_manifest(dataset))


def _check_history(source: lance.LanceDataset, since: int) -> dict[int, str]:
    """The operation behind every version; refuses a history after which row versions say nothing about the rows."""

    def operation(handle: lance.LanceDataset, version: int) -> str:
        commit = read_commit(handle, version)
        if commit is None:
            raise NotComparable(
                f"the history of the source between versions {since} and {source.version} was cleaned up"
            )
        if commit.operation in _BREAKING:
            raise NotComparable(_BREAKING[commit.operation].format(version=version))
        return commit.operation

    return _each_version(source, range(since + 1, source.version + 1), operation)


def _unversioned(
    source: lance.LanceDataset,
    operations: Mapping[int, str],
    old: Mapping[int, frozenset[str]],
    now: Mapping[int, frozenset[str]],
    wanted: set[int],
) -> tuple[int, ...]:
    """Fragments whose values were updated in place by a commit that did not say which rows it touched.

    Lance then leaves the versions of all their rows as they were. ``update_columns`` without offsets does that.
    """
    updates = [version for version, operation in operations.items() if operation == "Update"]
    commits = _each_version(source, updates, lambda handle, version: handle.read_transaction(version).operation)
    known, found = dict(old), set()
    for version in updates:
        update = commits[version]
        said = update.updated_fragment_offsets or {}
        for fragment in update.updated_fragments:
            files = _files(fragment.files, wanted)
            # A compaction after ``old`` makes fragments whose files are not known before they are updated.
            before = known.get(fragment.id, frozenset() if wanted.intersection(update.fields_modified) else files)
            known[fragment.id] = files
            if files == before or fragment.id in said:
                continue
            if fragment.id in now:
                found.add(fragment.id)
            elif any(later > version and operations[later] == "Rewrite" for later in operations):
                raise NotComparable(
                    f"version {version} of the source updated rows without saying which, and they were moved since"
                )
    return tuple(sorted(found))


def _each_version(
    source: lance.LanceDataset, versions: Sequence[int], read: Callable[[lance.LanceDataset, int], _T]
) -> dict[int, _T]:
    """What ``read`` finds of every version: one small file each, a round trip each on object stores."""
    readers = min(16, max(1, len(versions) // 8))
    # A dataset handle reads one at a time.
    handles = [source.checkout_version(source.version) for _ in range(readers)]

    def some(reader: int) -> list[tuple[int, _T]]:
        return [(version, read(handles[reader], version)) for version in versions[reader::readers]]

    with ThreadPoolExecutor(max_workers=readers) as pool:
        return dict(sorted(pair for pairs in pool.map(some, range(readers)) for pair in pairs))


def _files(files: Iterable[Any], fields: set[int]) -> frozenset[str]:
    """The paths of those data files that hold one of ``fields``."""
    return frozenset(file.path for file in files if fields.intersection(file.fields))


def _read_manifest(dataset: lance.LanceDataset) -> bytes:
    from lance.file import LanceFileSession

    version = dataset.version
    session = LanceFileSession(f"{dataset.uri}/_versions", storage_options=_storage_options(dataset))
    # The newer naming counts down, so that listing a bucket yields the newest version first.
    names = (f"{2**64 - 1 - version:020d}.manifest", f"{version}.manifest")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            local = Path(folder, "manifest")
            try:
                session.download_file(name, local)
            except OSError:
                continue
            return local.read_bytes()
    raise FileNotFoundError(f"the manifest of version {version} of {dataset.uri} is not there")


def _storage_options(dataset: lance.LanceDataset) -> dict[str, str] | None:
    options: Mapping[str, str] | None = dataset.latest_storage_options()
    return dict(options) if options else None


def _manifest_timestamp(data: bytes) -> int:
    """Field 7 of the manifest's protobuf, a google.protobuf.Timestamp. Layout: … | length | message | … | footer."""
    if data[-4:] != b"LANC":
        raise ValueError("not a Lance manifest")
    start = int.from_bytes(data[-16:-8], "little")
    length = int.from_bytes(data[start : start + 4], "little")
    stamp = _protobuf_field(data[start + 4 : start + 4 + length], 7)
    if not isinstance(stamp, bytes):
        raise ValueError("the manifest carries no timestamp")
    seconds, nanos = _protobuf_field(stamp, 1), _protobuf_field(stamp, 2)
    return int(seconds or 0) * 1_000_000_000 + int(nanos or 0)


def _protobuf_field(message: bytes, number: int) -> int | bytes | None:
    """The last value of a varint or length-delimited field in a protobuf message."""
    found: int | bytes | None = None
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value = varint()
        elif kind == 2:
            size = varint()
            value = message[position : position + size]
            position += size
        else:
            size = {1: 8, 5: 4}[kind]
            value = message[position : position + size]
            position += size
        if key >> 3 == number:
            found = value
    return found
