"""What changed in some columns of a source table between two versions.

The answer has row ids and fragments, and its cost depends on the size of the change. Where two versions cannot be
compared, the reason is raised, and the view must be rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.expressions import format_path
from airflow_provider_lance.storage.history import read_commit, read_each, read_transaction
from airflow_provider_lance.storage.manifests import version_timestamp
from airflow_provider_lance.storage.row_address import row_address
from airflow_provider_lance.storage.table import TableRef, field_ids
from airflow_provider_lance.storage.view_state import RefreshDetails, SourcePoint

if TYPE_CHECKING:
    import lance
    import numpy as np
    from lance.fragment import DataFile
    from numpy.typing import NDArray


# After these operations a row id may mean another row, so rows cannot be compared by their versions.
_BREAKING = {
    "Overwrite": "the source was overwritten at version {version}",
    "Restore": "the source was restored to an older version at version {version}",
}


@dataclass(frozen=True)
class Changes:
    """What happened after the version ``since``: the fragments with rows written later, and the deleted rows."""

    since: int
    fragments: tuple[int, ...] = ()
    deleted: NDArray[np.uint64] | None = field(default=None, compare=False)
    # Those of ``fragments`` whose row versions do not tell which rows got new values: all their rows count as updated.
    unversioned: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.fragments and (self.deleted is None or not len(self.deleted))

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
            yield row_address(fragments[0]), row_address(fragments[-1] + 1)


class NotComparable(Exception):
    """The two versions cannot be compared row by row; the message is the reason a rebuild reports.

    ``details`` has the figures of what was found before.
    """

    def __init__(self, reason: str, details: RefreshDetails | None = None) -> None:
        super().__init__(reason)
        self.details = details or RefreshDetails()


def find_changes(table: TableRef, source: lance.LanceDataset, since: SourcePoint, columns: Iterable[str]) -> Changes:
    """Compare ``source``, a version of ``table``, with what it was at ``since``.

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
    if version_timestamp(table, since.version) != since.timestamp:
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
    # An update or an append makes new fragments. Only values that were written in place need the transactions.
    if not old.keys().isdisjoint(changed) or "Rewrite" in operations.values():
        unversioned = _unversioned(source, operations, old, now, wanted)
    deleted = source.delta(begin_version=since.version, end_version=source.version).get_deleted_row_ids().read_all()
    return Changes(since.version, changed, deleted.column(0).to_numpy(), unversioned)


def _check_history(source: lance.LanceDataset, since: int) -> dict[int, str]:
    """The operation behind every version; raises NotComparable where row versions say nothing about the rows."""

    def operation(handle: lance.LanceDataset, version: int) -> str:
        commit = read_commit(handle, version)
        if commit is None:
            raise NotComparable(
                f"the history of the source between versions {since} and {source.version} was cleaned up"
            )
        if commit.operation in _BREAKING:
            raise NotComparable(_BREAKING[commit.operation].format(version=version))
        return commit.operation

    return dict(read_each(source, range(since + 1, source.version + 1), operation))


def _unversioned(
    source: lance.LanceDataset,
    operations: Mapping[int, str],
    old: Mapping[int, frozenset[str]],
    now: Mapping[int, frozenset[str]],
    wanted: set[int],
) -> tuple[int, ...]:
    """Fragments whose values were updated in place by a commit that does not say which rows it touched.

    ``update_columns`` without offsets makes such a commit, and Lance keeps the versions of all rows.
    """
    from lance import LanceOperation

    updates = [version for version, operation in operations.items() if operation == "Update"]
    commits = dict(read_each(source, updates, read_transaction))
    known, found = dict(old), set()
    for version in updates:
        transaction = commits[version]
        assert transaction is not None  # _check_history refuses a history with a gap
        update = transaction.operation
        assert isinstance(update, LanceOperation.Update)
        said = update.updated_fragment_offsets or {}
        for fragment in update.updated_fragments:
            files = _files(fragment.files, wanted)
            # The files of a fragment that a compaction made after ``old`` are not known before its first update.
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


def _files(files: Iterable[DataFile], fields: set[int]) -> frozenset[str]:
    """The paths of those data files that hold one of ``fields``."""
    return frozenset(file.path for file in files if fields.intersection(file.fields))
