"""Files of dead attempts, removed by name once nobody can commit them any more.

Never a sweep: only files that a journal or a part's own name ties to this column are looked at, and each is removed
only when a commit of it would be refused: its fragment is gone, or was filled again since the version it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.checkpoint import read_remains
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
    parts = remains.parts
    versions = [journal.read_version for journal in remains.journals] + [part.read_version for part in parts]
    if not versions:
        return []
    history = History(table, head, min(versions), target_ids)
    if not history.complete:
        return []  # a file that a cleaned-up version committed cannot be told from an orphan
    removed: list[str] = []
    for journal in remains.journals:
        past = {
            name for name, fragment_id in journal.files.items() if history.is_past(fragment_id, journal.read_version)
        }
        orphans = sorted(f"data/{name}" for name in past - history.committed)
        # The journal goes last: should this process die here, its successor still knows the names.
        removed += _delete(files, orphans)
        if past | (history.committed & journal.files.keys()) == journal.files.keys():
            removed += _delete(files, [journal.path(folder)])
    removed += _delete(files, [part.path for part in parts if history.is_past(part.fragment_id, part.read_version)])
    return removed


def _delete(files: TableFiles, paths: Iterable[str]) -> list[str]:
    deleted = []
    for path in paths:
        files.delete(path)
        deleted.append(path)
    return deleted
