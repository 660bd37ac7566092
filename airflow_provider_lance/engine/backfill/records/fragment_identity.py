"""The identity of a fragment's inputs: the data files that hold them.

Row versions are too coarse for this, because replacing any column changes the version of every row of the fragment.
The data file that holds an input identifies it exactly, because Lance never writes the same file twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

_REMEMBERED_VERSIONS = 2  # the one a plan was made for, and the newest


@dataclass(frozen=True)
class FragmentIdentity:
    """The files that hold a fragment's inputs and targets, and its length."""

    fragment_id: int
    rows: int
    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    def key(self, *parts: object) -> str:
        """A name for the values that the rule and the selection in ``parts`` give for this fragment.

        Deletions are not part of it: values are stored by physical row, and those of deleted rows are not used.
        """
        content = json.dumps([self.fragment_id, self.rows, self.inputs, *parts])
        return hashlib.sha256(content.encode()).hexdigest()[:32]


def identify(fragment: FragmentMetadata, inputs: Collection[int], targets: Collection[int]) -> FragmentIdentity:
    """The identity of a fragment, from its metadata in the manifest or in a transaction."""
    holding = [(file, set(file.fields)) for file in fragment.files]
    found = {file.path for file, fields in holding if not fields.isdisjoint(inputs)}
    filled = {file.path for file, fields in holding if not fields.isdisjoint(targets)}
    covered: set[int] = set().union(*(fields for _, fields in holding)) if holding else set()
    if not inputs or not covered.issuperset(inputs):
        # An input without a file reads as null and has no file to identify it, so all other files do.
        found |= {file.path for file, fields in holding if not fields <= set(targets)}
    return FragmentIdentity(
        fragment_id=fragment.id,
        rows=fragment.physical_rows,
        inputs=tuple(sorted(str(path) for path in found)),
        targets=tuple(sorted(str(path) for path in filled)),
    )


class FragmentIdentities:
    """The identities of all fragments of a table for the same inputs and targets, computed once for each version."""

    def __init__(self, inputs: Collection[int], targets: Collection[int]) -> None:
        self.inputs = inputs
        self.targets = targets
        self._known: dict[int, dict[int, FragmentIdentity]] = {}

    def at(self, dataset: LanceDataset) -> dict[int, FragmentIdentity]:
        """The identities at the version of ``dataset`` by fragment id, in the table's order."""
        found = self._known.pop(dataset.version, None)
        if found is None:
            found = {
                fragment.fragment_id: identify(fragment.metadata, self.inputs, self.targets)
                for fragment in dataset.get_fragments()
            }
        self._known[dataset.version] = found
        while len(self._known) > _REMEMBERED_VERSIONS:
            del self._known[next(iter(self._known))]
        return found
