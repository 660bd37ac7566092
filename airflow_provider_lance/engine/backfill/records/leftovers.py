"""Files of dead attempts, removed by name once they can no longer be committed.

Only files that a journal or a checkpoint's own name ties to this column are considered. Each is removed only when a
commit of it would be refused: its fragment is gone, or was filled again since the version the file was made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.backfill.records.checkpoint import Journal, SavedWork, read_saved_work
from airflow_provider_lance.storage.history import read_transactions

if TYPE_CHECKING:
    from lance import LanceDataset

    from airflow_provider_lance.storage.table import TableFiles


class _ReplacementHistory:
    """When each fragment's targets were last replaced since a version, and which files were committed for them."""

    def __init__(self, head: LanceDataset, since: int, target_ids: frozenset[int]) -> None:
        from lance import LanceOperation

        self.replaced: dict[int, int] = {}
        self.committed: set[str] = set()
        self.complete = True
        self.fragments = {fragment.fragment_id for fragment in head.get_fragments()}
        for version, transaction in read_transactions(head, since):
            if transaction is None:
                self.complete = False
            elif isinstance(transaction.operation, LanceOperation.DataReplacement):
                for group in transaction.operation.replacements:
                    if not target_ids.isdisjoint(group.new_file.fields):
                        self.replaced[group.fragment_id] = version
                        self.committed.add(str(group.new_file.path))

    def is_obsolete(self, fragment_id: int, version: int) -> bool:
        """Whether a column file made at ``version`` for this fragment can no longer be committed."""
        return fragment_id not in self.fragments or self.replaced.get(fragment_id, 0) > version


def remove_leftovers(files: TableFiles, folder: str, head: LanceDataset, target_ids: frozenset[int]) -> list[str]:
    """Remove obsolete files and return their paths.

    Files that may still be committed or continued from stay, with their journal.
    """
    saved = read_saved_work(files, folder)
    removed: list[str] = []
    versions = [journal.read_version for journal in saved.journals] + [part.read_version for part in saved.checkpoints]
    history = _ReplacementHistory(head, min(versions), target_ids) if versions else None
    # Without the whole history, a file that a cleaned-up version committed looks like one that nobody committed.
    if history is not None and history.complete:
        for journal in saved.journals:
            removed += _delete(files, _obsolete_files(journal, history))
            # The journal is removed last, so that the names are still known if this process dies here.
            if all(
                name in history.committed or history.is_obsolete(fragment_id, journal.read_version)
                for name, fragment_id in journal.files.items()
            ):
                removed += _delete(files, [journal.path(folder)])
        obsolete = [part for part in saved.checkpoints if history.is_obsolete(part.fragment_id, part.read_version)]
        removed += _delete(files, [part.path for part in obsolete])
    removed += _delete(files, _unused_failed_lists(saved, head, removed))
    # At most one job of a column runs at a time, and it ends here, so no start marker is needed any more and nobody
    # completes a file that was begun.
    return removed + _delete(files, [*saved.unfinished, *saved.markers])


def _unused_failed_lists(saved: SavedWork, head: LanceDataset, removed: list[str]) -> list[str]:
    """Lists of failed rows whose column file is neither in the table nor in a journal that is kept."""
    if not saved.failed_lists:
        return []
    held = {str(file.path) for fragment in head.get_fragments() for file in fragment.data_files()}
    for journal in saved.journals:
        held |= {name for name in journal.files if f"data/{name}" not in removed}
    return [path for column_file, path in saved.failed_lists.items() if column_file not in held]


def _obsolete_files(journal: Journal, history: _ReplacementHistory) -> list[str]:
    return [
        f"data/{name}"
        for name, fragment_id in journal.files.items()
        if name not in history.committed and history.is_obsolete(fragment_id, journal.read_version)
    ]


def _delete(files: TableFiles, paths: Iterable[str]) -> list[str]:
    deleted = []
    for path in paths:
        files.delete(path)
        deleted.append(path)
    return deleted
