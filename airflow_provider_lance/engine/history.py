"""What kind of commit made a version of a table, and what it says about itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True)
class Commit:
    """``operation`` is Lance's name for it: Append, Update, Rewrite, Restore, …

    ``replaced``: the ids of the fields that got new files in place, by a backfill (DataReplacement).
    """

    operation: str
    properties: Mapping[str, str] = field(default_factory=dict)
    replaced: frozenset[int] = frozenset()


def read_transaction(dataset: lance.LanceDataset, version: int) -> Any | None:
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

    constructor: Any = LanceOperation.RewrittenIndex.__init__
    if constructor.__defaults__ is None:
        constructor.__defaults__ = ("", b"", 0)


def read_commit(dataset: lance.LanceDataset, version: int) -> Commit | None:
    """The commit behind ``version``; None where it was cleaned up or cannot be read."""
    transaction = read_transaction(dataset, version)
    if transaction is None:
        return None
    groups = getattr(transaction.operation, "replacements", ())
    replaced = frozenset(number for group in groups for number in group.new_file.fields)
    return Commit(type(transaction.operation).__name__, transaction.transaction_properties or {}, replaced)
