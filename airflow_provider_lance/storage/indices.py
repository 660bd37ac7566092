"""Whether the scalar indices of a table may decide what a request reads or writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lance


def has_current_indices(dataset: lance.LanceDataset) -> bool:
    """Whether every scalar index of a table has only entries of values that are there.

    After a column's values were replaced in place, a segment of its index keeps the old entries. Lance leaves them out
    until another segment covers the same rows: then they count again. An inverted index carries them along when its
    segments are merged. An index of one segment of any other kind is right.
    """
    indices = dataset.list_indices()
    names = {index["name"] for index in indices}
    return len(names) == len(indices) and not any(index["type"] == "Inverted" for index in indices)
