"""Files of dead attempts, removed by name once nobody can commit them any more.

Never a sweep: only files that a journal or a part's own name ties to this column are looked at, and each is removed
only when a commit of it would be refused: its fragment is gone, or was filled again since the version it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.checkpoint import Journal, Remains, read_remains
from airflow_provider_lance.engine.commit import read_transactions

if TYPE_CHECKING:
    from lance import LanceDataset

    from airflow_provider_lance.engine.table import TableFiles, TableRef


class History:
    """Since a version: when each fragment's targets were last replaced, and which files were committed for them."""

    def __init__(self, table: TableRef, head: LanceDataset, since: int, target_ids: frozenset[int]) -> None:
        from lance import LanceOperation

        self.replaced: dict[int, int] = {}
        self.committed: set[str] = set()
        self.complete = True
        self.fragments = {fragment.fragment_id for fragment in head.get_fragments()}
        for version, transaction in read_transactions(table, head, since):
            if transaction is None:
                self.complete = False
            elif isinstance(transaction.operation, LanceOperation.DataReplacement):
                for group in transaction.operation.replacements:
                    if not target_ids.isdisjoint(group.new_file.fields):
                        self.replaced[group.fragment_id] = version
                        self.committed.add(str(group.new_file.path))

    def is_past(self, fragment_id: int, version: int) -> bool:
        """Whether a column file made at ``version`` for this fragment can no longer be committed."""
        return fragment_id not in self.fragments or self.replaced.get(fragment_id, 0) > version


def remove_orphans(
    table: TableRef, files: TableFiles, folder: str, head: LanceDataset, target_ids: frozenset[int]
) -> list[str]:
    """Remove what is past; returns the paths. What may still be committed or resumed stays, with its journal."""
    remains = read_remains(files, folder)
    removed: list[str] = []
    versions = [journal.read_version for journal in remains.journals] + [part.read_version for part in remains.parts]
    history = History(table, head, min(versions), target_ids) if versions else None
    # Without the whole history a file that a cleaned-up version committed cannot be told from an orphan.
    if history is not None and history.complete:
        for journal in remains.journals:
            removed += _delete(files, _past_files(journal, history))
            # The journal goes last: should this process die here, its successor still knows the names.
            if all(
                name in history.committed or history.is_past(fragment_id, journal.read_version)
                for name, fragment_id in journal.files.items()
            ):
                removed += _delete(files, [journal.path(folder)])
        past = [part.path for part in remains.parts if history.is_past(part.fragment_id, part.read_version)]
        removed += _delete(files, past)
    removed += _delete(files, _unneeded(remains, head, removed))
    # Notes of jobs: at most one job of a column lives, and it ends here.
    return removed + _delete(files, remains.markers)


def _unneeded(remains: Remains, head: LanceDataset, removed: list[str]) -> list[str]:
    """Lists of failed rows whose column file the table no longer has, and which no attempt will commit."""
    if not remains.failed:
        return []
    held = {str(file.path) for fragment in head.get_fragments() for file in fragment.data_files()}
    for journal in remains.journals:
        held |= {name for name in journal.files if f"data/{name}" not in removed}
    return [path for column_file, path in remains.failed.items() if column_file not in held]


def _past_files(journal: Journal, history: History) -> list[str]:
    return [
        f"data/{name}"
        for name, fragment_id in journal.files.items()
        if name not in history.committed and history.is_past(fragment_id, journal.read_version)
    ]


def _delete(files: TableFiles, paths: Iterable[str]) -> list[str]:
    deleted = []
    for path in paths:
        files.delete(path)
        deleted.append(path)
    return deleted
