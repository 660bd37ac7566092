"""What changed in a source table between two versions, as far as a view that reads some of its columns cares.

Answers with row ids and fragments, at a cost that follows the change; or with the reason why the two versions cannot be
compared and the view must be rebuilt. Knows nothing of views, queries or commits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.expressions import format_path
from airflow_provider_lance.engine.history import read_commit
from airflow_provider_lance.engine.table import field_ids

if TYPE_CHECKING:
    import lance
    import numpy as np

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

    @property
    def written(self) -> str:
        """A filter for the rows of ``fragments`` that were inserted or updated."""
        return f"_row_last_updated_at_version > {self.since}"

    @property
    def updated(self) -> str:
        """A filter for the rows of ``fragments`` that were there before and hold new values now."""
        return f"{self.written} AND _row_created_at_version <= {self.since}"


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
    _check_history(source, since.version)
    wanted: set[int] = set()
    there_before = set(before.schema.names)
    for column in columns:
        ids = field_ids(source, [format_path([column])])
        if column not in there_before or field_ids(before, [format_path([column])]) != ids:
            raise NotComparable(f"column {column} of the source was replaced by another one")
        wanted |= ids
    old = {fragment.fragment_id: _files(fragment, wanted) for fragment in before.get_fragments()}
    changed = tuple(
        fragment.fragment_id
        for fragment in source.get_fragments()
        if old.get(fragment.fragment_id) != _files(fragment, wanted)
    )
    deleted = source.delta(begin_version=since.version, end_version=source.version).get_deleted_row_ids().read_all()
    return Changes(since.version, changed, deleted.column(0).to_numpy())


def version_timestamp(dataset: lance.LanceDataset) -> int:
    """When the checked-out version was committed, in nanoseconds since 1970, exactly as its manifest says.

    pylance rounds to microseconds, and LanceDB continues a view only from the exact figure.
    """
    return _manifest_timestamp(_read_manifest(dataset))


def _check_history(source: lance.LanceDataset, since: int) -> None:
    """Refuse a history with a version after which row versions say nothing about the rows."""
    versions = range(since + 1, source.version + 1)
    readers = min(16, max(1, len(versions) // 8))
    # One small file per version, a round trip each on object stores. A dataset handle reads one at a time.
    handles = [source.checkout_version(source.version) for _ in range(readers)]

    def reasons(reader: int) -> Iterator[str]:
        for version in versions[reader::readers]:
            commit = read_commit(handles[reader], version)
            if commit is None:
                yield f"the history of the source between versions {since} and {source.version} was cleaned up"
                return
            sentence = _BREAKING.get(commit.operation)
            if sentence:
                yield sentence.format(version=version)
                return

    with ThreadPoolExecutor(max_workers=readers) as pool:
        found = list(pool.map(lambda reader: next(reasons(reader), None), range(readers)))
    reason = next(filter(None, found), None)
    if reason is not None:
        raise NotComparable(reason)


def _files(fragment: lance.LanceFragment, fields: set[int]) -> frozenset[str]:
    return frozenset(file.path for file in fragment.data_files() if fields.intersection(file.fields))


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
