"""Values of keys, compared as Spark compares them.

-0.0 equals 0.0, NaN equals NaN, and NULL equals NULL. A column is brought to one representation of every value, so that
equal bytes mean equal values. Rows are deleted and inserted by the same comparison: if the two differed, rows would be
lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.views.spark_source import spark_type

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Column = pa.ChunkedArray[Any]


def comparable(column: Column) -> Column:
    """The column in a representation in which equal values are the same; raises for types that are no keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    column = column.cast(spark_type(column.type))
    kind = column.type
    if types.is_integer(kind):
        return column.cast(pa.int64())
    if types.is_floating(kind):
        return _float_bits(column)
    if types.is_decimal(kind):
        return column.cast(pa.decimal128(38, kind.scale)) if kind.precision <= 38 else column
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return column.cast(pa.large_string())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return column.cast(pa.large_binary())
    if types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if types.is_boolean(kind):
        return pc.cast(column, pa.int64())
    raise TypeError(f"values of type {kind} are not compared")


def same_comparison(stored: pa.DataType, yielded: pa.DataType) -> bool:
    """Whether a column of the view, as it is stored, can be compared with what its query yields without a loss."""
    import pyarrow as pa

    if pa.types.is_floating(yielded) and stored != yielded:
        return False  # a float of fewer bits has lost the value that the query yielded
    try:
        kinds = {comparable(pa.table([pa.array([], kind)], names=["c"])["c"]).type for kind in (stored, yielded)}
    except (TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return len(kinds) == 1


def _float_bits(column: Column) -> Column:
    """Floats as the bits of their canonical values, with NULL left as it is."""
    import numpy as np
    import pyarrow as pa

    chunks = []
    for chunk in column.cast(pa.float64()).chunks:
        nulls = np.asarray(chunk.is_null())
        values = chunk.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
        values[values == 0] = 0.0
        values[np.isnan(values)] = np.nan
        chunks.append(pa.array(values.view(np.int64), mask=nulls))
    return pa.chunked_array(chunks, pa.int64())


@dataclass(frozen=True)
class KeySet:
    """Distinct tuples of comparable values, one column for each part of the tuple."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> KeySet:
        """The distinct rows of some columns of the same length."""
        return cls(tuple(distinct_rows(columns).columns))

    @classmethod
    def union(cls, sets: Sequence[KeySet]) -> KeySet:
        import pyarrow as pa

        parts = zip(*(one.columns for one in sets), strict=True)
        return cls.of(
            [pa.chunked_array([chunk for one in part for chunk in one.chunks], part[0].type) for part in parts]
        )

    def __len__(self) -> int:
        return len(self.columns[0])

    def part(self, positions: Sequence[int]) -> KeySet:
        """The distinct tuples of some of the columns."""
        return KeySet.of([self.columns[at] for at in positions])

    def mask(self, columns: Sequence[Column]) -> NDArray[np.bool_]:
        """Which rows of ``columns``, which are comparable, are in the set."""
        import numpy as np
        import pyarrow.compute as pc

        rows = len(columns[0])
        if not len(self) or not rows:
            return np.zeros(rows, dtype=bool)
        if len(columns) == 1:
            return np.asarray(pc.is_in(columns[0], value_set=self.columns[0].combine_chunks()))
        ours, theirs = np.zeros(len(self), dtype=np.int64), np.zeros(rows, dtype=np.int64)
        found = np.ones(rows, dtype=bool)
        for mine, other in zip(self.columns, columns, strict=True):
            values: Any = mine.unique()
            here, there = (_codes(column, values) for column in (mine, other))
            found &= there >= 0
            # The codes so far are made dense, so that the product cannot pass 64 bits.
            dense = np.unique(ours * len(values) + here)
            ours = np.searchsorted(dense, ours * len(values) + here)
            combined = theirs * len(values) + np.maximum(there, 0)
            at = np.minimum(np.searchsorted(dense, combined), len(dense) - 1)
            found &= dense[at] == combined
            theirs = at
        return found


def _codes(column: Column, values: pa.Array[Any]) -> NDArray[np.int64]:
    """The position of each value in ``values``, or -1."""
    import numpy as np
    import pyarrow.compute as pc

    found: Any = pc.index_in(column, value_set=values)
    return np.asarray(found.fill_null(-1)).astype(np.int64)


def distinct_rows(columns: Sequence[Column]) -> pa.Table:
    """The distinct rows of comparable columns, as a table with the columns ``c0``, ``c1``, …"""
    import pyarrow as pa

    names = [f"c{at}" for at in range(len(columns))]
    table = pa.table(dict(zip(names, columns, strict=True)))
    if len(columns) == 1:
        return pa.table([columns[0].unique()], names=names)
    return table.group_by(names, use_threads=False).aggregate([])
