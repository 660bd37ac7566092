"""The rows of a source that changed since the last refresh: their old and their new values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.views.source_changes import Changes, NotComparable
from airflow_provider_lance.storage.table import fragments_of

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

#: More changed rows than this are not compared one by one: the view is rebuilt.
MOST_CHANGED_ROWS = 5_000_000
_TAKE_ROWS = 65_536
_CREATED, _ROW_ID = "_row_created_at_version", "_rowid"
_COUNT = "__count"


@dataclass(frozen=True)
class ChangedRows:
    """Rows that were there (``old``) and rows that are there now (``new``). A row that kept its values is in neither.

    ``appended`` says that rows were added and no other row changed.
    """

    old: pa.Table
    new: pa.Table
    changes: Changes
    appended: bool

    def __len__(self) -> int:
        return len(self.old) + len(self.new)

    def both(self) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables([self.old, self.new])


def read_changed_rows(
    source: lance.LanceDataset, changes: Changes, read: Sequence[str], keys: Sequence[str]
) -> ChangedRows:
    """All changed rows, as they were at the version of ``changes`` and as they are at the version of ``source``.

    ``read`` are the columns that the query reads, and ``keys`` those of them whose values are needed. Where all columns
    that are read can be compared, rows that have kept their values are left out.
    """
    import numpy as np

    compared = all(is_flat(source.schema.field(name)) for name in read)
    columns = read if compared else keys
    new = _written(source, changes, columns)
    deleted = changes.deleted if changes.deleted is not None else np.empty(0, np.uint64)
    if len(new) + len(deleted) > MOST_CHANGED_ROWS:
        raise NotComparable(f"{len(new) + len(deleted)} rows of the source changed")
    there_before = new[_CREATED].to_numpy() <= changes.since
    ids = np.concatenate([deleted, new[_ROW_ID].to_numpy()[there_before]])
    old = take_by_id(source.checkout_version(changes.since), ids, columns)
    changed = ChangedRows(old, new.select(list(columns) or [_ROW_ID]), changes, appended=not len(ids))
    return _without_equal_rows(changed) if compared else changed


def is_flat(field: pa.Field[pa.DataType]) -> bool:
    """Whether a column has one plain value in a row: no list, no struct, and no blob that Lance only describes."""
    import pyarrow as pa

    is_blob = any(key.startswith(b"lance-encoding:blob") for key in field.metadata or {})
    return not pa.types.is_nested(field.type) and not is_blob


def _written(source: lance.LanceDataset, changes: Changes, columns: Sequence[str]) -> pa.Table:
    """Inserted and updated rows, with their ids and the version that they were created in."""
    scanner = source.scanner(
        columns=[*columns, _ROW_ID, _CREATED],
        filter=changes.written,
        fragments=fragments_of(source, changes.fragments) if changes.fragments else fragments_of(source, None)[:1],
        limit=None if changes.fragments else 0,
        use_scalar_index=False,  # an index may be stale
    )
    return scanner.to_table()


def take_by_id(dataset: lance.LanceDataset, ids: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
    """The rows with these stable ids; raises NotComparable where one of them is missing."""
    import pyarrow as pa

    names = list(columns) or [_ROW_ID]
    pieces = [
        dataset._take_rows(pa.array(ids[start : start + _TAKE_ROWS]), columns=names)
        for start in range(0, max(1, len(ids)), _TAKE_ROWS)
    ]
    table = pa.concat_tables(pieces)
    if len(table) != len(ids):
        raise NotComparable(f"only {len(table)} of {len(ids)} changed rows are found in version {dataset.version}")
    return table.select(list(columns)) if columns else table


def _without_equal_rows(changed: ChangedRows) -> ChangedRows:
    """Leave out what is in both tables: an update of another column, a rewrite, a row deleted and inserted again.

    A query sees a table as a multiset of rows. Values are compared bit by bit, because -0.0 is another text than 0.0.
    """
    import pyarrow as pa

    names = changed.new.column_names
    if not len(changed.old) or not len(changed.new) or not names:
        return changed
    try:
        both = pa.concat_tables([changed.old, changed.new])
        bits = pa.table({f"c{at}": _bits(both.column(at)) for at in range(len(names))})
        rows = bits.append_column("at", pa.array(range(len(both)), pa.int64()))
        signs = pa.concat_arrays([pa.repeat(-1, len(changed.old)), pa.repeat(1, len(changed.new))])
        groups = (
            rows.append_column(_COUNT, signs).group_by(bits.column_names).aggregate([(_COUNT, "sum"), ("at", "min")])
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return changed  # columns of a type that cannot be grouped
    balance = groups[f"{_COUNT}_sum"].to_numpy()
    differing = groups.filter(pa.array(balance != 0))
    # One row of each kind is enough: how often it is there does not matter for the keys that it affects.
    kept = both.take(differing["at_min"].combine_chunks())
    more = balance[balance != 0] > 0
    return replace(changed, old=kept.filter(pa.array(~more)), new=kept.filter(pa.array(more)))


def _bits(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    import pyarrow as pa

    widths: dict[pa.DataType, Any] = {pa.float32(): pa.int32(), pa.float64(): pa.int64(), pa.float16(): pa.int16()}
    if column.type not in widths:
        return column
    chunks = [chunk.view(widths[column.type]) for chunk in column.chunks]
    return pa.chunked_array(chunks, widths[column.type])
