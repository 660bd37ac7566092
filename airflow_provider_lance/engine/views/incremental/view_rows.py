"""The rows of a view that have given keys: left out of it, and kept of what its query yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.delete_rows import delete_offsets
from airflow_provider_lance.engine.views.incremental.key_values import KeySet, comparable
from airflow_provider_lance.storage.row_address import row_offsets
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from numpy.typing import NDArray

_ADDRESS = "_rowaddr"


@dataclass(frozen=True)
class KeepKeys:
    """Keeps the rows of a batch that have one of ``keys`` in the columns ``names``.

    Spark may yield others: a table that is read at two places has the rows of both.
    """

    names: Sequence[str]
    keys: KeySet

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        return batch.filter(pa.array(self.mask(pa.Table.from_batches([batch]))))

    def mask(self, rows: pa.Table) -> NDArray[np.bool_]:
        return self.keys.mask([comparable(rows[name]) for name in self.names])


def delete_keys(
    table: TableRef, view: lance.LanceDataset, chosen: KeepKeys
) -> tuple[list[FragmentMetadata], list[int], int]:
    """Fragments of the view without the rows of ``chosen``, as :func:`delete_offsets` returns them."""

    def offsets(fragment: lance.LanceFragment) -> NDArray[np.int64]:
        rows = fragment.scanner(columns=list(chosen.names), with_row_address=True).to_table()
        return row_offsets(rows[_ADDRESS].to_numpy()[chosen.mask(rows)])

    return delete_offsets(table, view, offsets)
