"""What kind of commit made a version of a table, and what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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


def read_commit(dataset: lance.LanceDataset, version: int) -> Commit | None:
    """The commit behind ``version``; None where it was cleaned up or cannot be read."""
    try:
        transaction = dataset.read_transaction(version)
    except (OSError, ValueError, NotImplementedError):
        return None
    except TypeError as error:
        # pylance 14 cannot build the object for a compaction that also rewrote an index; that is what it was.
        return Commit("Rewrite") if "RewrittenIndex" in str(error) else None
    if transaction is None:
        return None
    groups = getattr(transaction.operation, "replacements", ())
    replaced = frozenset(number for group in groups for number in group.new_file.fields)
    return Commit(type(transaction.operation).__name__, transaction.transaction_properties or {}, replaced)
