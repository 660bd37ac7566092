"""A table's history: the commit behind each version, what it did, and what it says about itself.

This is the one reader of Lance's transactions. A version that was cleaned up has none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import lance

#: Commits after which a table has the same rows with the same columns: an index, a compaction, metadata.
KEEPS_ROWS = frozenset({"CreateIndex", "Rewrite", "UpdateConfig"})
#: Commits after which every column that is left has the values it had. Project also drops and renames columns, which
#: matters to the table itself but not to whoever computes from the columns that are left.
KEEPS_VALUES = KEEPS_ROWS | {"Project"}
#: pylance 14 has no class for some operations, such as the reservation of fragment ids before a compaction.
UNNAMED = "BaseOperation"

_T = TypeVar("_T")
_VERSIONS_PER_READER = 8
_MOST_READERS = 16


@dataclass(frozen=True)
class Commit:
    """What made a version. ``operation`` is Lance's name for it: Append, Update, Rewrite, Restore, …

    ``replaced`` has the ids of the fields whose files a DataReplacement replaced, as a backfill does.
    """

    operation: str
    properties: Mapping[str, str] = field(default_factory=dict)
    replaced: frozenset[int] = frozenset()


def read_transaction(dataset: lance.LanceDataset, version: int) -> lance.Transaction | None:
    """The transaction behind ``version``; None where it was cleaned up or cannot be read."""
    _let_rewritten_indices_be_read()
    try:
        return dataset.read_transaction(version)
    except (OSError, ValueError, NotImplementedError, TypeError):
        return None


@functools.cache
def _let_rewritten_indices_be_read() -> None:
    """Make the transaction of a compaction readable if it also rewrote an index.

    pylance 14 builds ``RewrittenIndex`` from two of its five fields and fails with a TypeError. The other three
    describe the new index file; nothing here reads them, so they get defaults.
    """
    from lance import LanceOperation

    constructor = vars(LanceOperation.RewrittenIndex)["__init__"]
    if constructor.__defaults__ is None:
        constructor.__defaults__ = ("", b"", 0)


def read_commit(dataset: lance.LanceDataset, version: int) -> Commit | None:
    """The commit behind ``version``; None where it was cleaned up or cannot be read."""
    transaction = read_transaction(dataset, version)
    if transaction is None:
        return None
    from lance import LanceOperation

    operation = transaction.operation
    groups = operation.replacements if isinstance(operation, LanceOperation.DataReplacement) else []
    replaced = frozenset(number for group in groups for number in group.new_file.fields)
    return Commit(type(operation).__name__, transaction.transaction_properties or {}, replaced)


def read_transactions(dataset: lance.LanceDataset, after: int) -> Iterator[tuple[int, lance.Transaction | None]]:
    """The transactions after the version ``after`` up to the version of ``dataset``, in order."""
    return read_each(dataset, range(after + 1, dataset.version + 1), read_transaction)


def read_each(
    dataset: lance.LanceDataset, versions: Sequence[int], read: Callable[[lance.LanceDataset, int], _T]
) -> Iterator[tuple[int, _T]]:
    """What ``read`` finds of every version, in the order of ``versions``.

    Each version is one small file and costs a round trip on an object store, so threads share many versions.
    """
    readers = min(_MOST_READERS, len(versions) // _VERSIONS_PER_READER)
    if readers < 2:
        for version in versions:
            yield version, read(dataset, version)
        return
    # A dataset object reads one transaction at a time ("Already borrowed"), so each thread has its own.
    own = threading.local()

    def read_in_thread(version: int) -> _T:
        if not hasattr(own, "dataset"):
            own.dataset = dataset.checkout_version(dataset.version)
        return read(own.dataset, version)

    with ThreadPoolExecutor(readers) as pool:
        yield from zip(versions, pool.map(read_in_thread, versions), strict=True)


def keeps_files(dataset: lance.LanceDataset, version: int) -> bool:
    """Whether a version has the fields, the data files and the deletions of the one before it, and so the same rows."""
    try:
        before, after = (dataset.checkout_version(number) for number in (version - 1, version))
    except (OSError, ValueError):
        return False
    return _fields(before) == _fields(after) and _files(before) == _files(after)


def _fields(dataset: lance.LanceDataset) -> list[tuple[int, str]]:
    """The ids and names of all fields. A column that was dropped and added again has another id."""
    found: list[tuple[int, str]] = []
    fields = list(dataset.lance_schema.fields())
    while fields:
        top = fields.pop(0)
        found.append((top.id(), top.name()))
        fields.extend(top.children())
    return found


def _files(dataset: lance.LanceDataset) -> list[tuple[int, list[str], int]]:
    return [
        (fragment.fragment_id, [file.path for file in fragment.data_files()], fragment.num_deletions)
        for fragment in dataset.get_fragments()
    ]
