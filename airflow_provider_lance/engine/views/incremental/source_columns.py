"""The key columns of the sources in the driver's memory: the values of terms, and the rows that have given values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.incremental.key_values import KeySet, comparable
from airflow_provider_lance.engine.views.incremental.lineage import ColumnTerm, ExpressionTerm, Term
from airflow_provider_lance.engine.views.source_changes import NotComparable

if TYPE_CHECKING:
    import lance
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from airflow_provider_lance.engine.views.incremental.key_values import Column

#: Key columns of larger tables are not read into the driver: the view is rebuilt.
MOST_ROWS = 50_000_000
MOST_BYTES = 2 << 30
#: An expression is evaluated for at most so many distinct inputs.
MOST_INPUTS = 2_000_000


@dataclass
class TermReader:
    """Values of terms over rows that are at hand. Spark evaluates the expressions, once for each distinct input."""

    session: SparkSession

    def values(self, term: Term, rows: pa.Table) -> Column:
        """The values of ``term``, comparable, for every row of ``rows``."""
        return comparable(self._plain(term, rows))

    def _plain(self, term: Term, rows: pa.Table) -> Column:
        if isinstance(term, ColumnTerm):
            return rows[term.name]
        assert isinstance(term, ExpressionTerm)
        inputs = [self._plain(one, rows) for one in term.inputs]
        return self._evaluated(term, inputs)

    def _evaluated(self, term: ExpressionTerm, inputs: Sequence[Column]) -> Column:
        import numpy as np
        import pyarrow as pa

        if not len(inputs[0]):
            return self._spark(term, [one.slice(0, 0) for one in inputs])
        codes = np.zeros(len(inputs[0]), dtype=np.int64)
        for one in inputs:
            encoded = comparable(one).combine_chunks().dictionary_encode(null_encoding="encode")
            assert isinstance(encoded, pa.DictionaryArray)
            own = encoded.indices.to_numpy().astype(np.int64)
            codes = np.unique(codes * (int(own.max()) + 1) + own, return_inverse=True)[1]
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        if len(first) > MOST_INPUTS:
            raise NotComparable(f"{term} has {len(first)} distinct inputs, which are too many to evaluate beforehand")
        chosen = pa.array(first, pa.int64())
        distinct = self._spark(term, [one.take(chosen) for one in inputs])
        return distinct.take(pa.array(inverse, pa.int64()))

    def _spark(self, term: ExpressionTerm, inputs: Sequence[Column]) -> Column:
        import pyarrow as pa

        from airflow_provider_lance.engine.views.spark_source import spark_type

        columns = {f"c{at}": one.cast(spark_type(one.type)) for at, one in enumerate(inputs)}
        return term.expression.evaluate(self.session, pa.table(columns))


@dataclass
class SourceColumns:
    """One source at the version that is read: its columns, loaded when they are needed, all in the same order."""

    dataset: lance.LanceDataset
    reader: TermReader
    _columns: dict[str, Column] = field(default_factory=dict)
    _values: dict[Term, Column] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.dataset.count_rows()

    @property
    def values_read(self) -> int:
        return sum(map(len, self._columns.values()))

    def values(self, term: Term) -> Column:
        """The values of ``term`` in every row."""
        if term not in self._values:
            self._load(term.columns)
            self._values[term] = self.reader.values(term, _table(self._columns, term.columns))
        return self._values[term]

    def mask(self, terms: Sequence[Term], keys: KeySet) -> NDArray[np.bool_]:
        """Which rows have values that are in ``keys``."""
        return keys.mask([self.values(term) for term in terms])

    def keys(self, terms: Sequence[Term], chosen: NDArray[np.bool_] | None) -> KeySet:
        """The distinct values of the chosen rows; None is every row."""
        import pyarrow as pa

        columns = [self.values(term) for term in terms]
        if chosen is not None:
            mask = pa.array(chosen)
            columns = [column.filter(mask) for column in columns]
        return KeySet.of(columns)

    def row_ids(self, chosen: NDArray[np.bool_]) -> NDArray[np.uint64]:
        self._load(["_rowid"])
        return self._columns["_rowid"].to_numpy()[chosen]

    def _load(self, names: Sequence[str] | frozenset[str]) -> None:
        missing = [name for name in sorted(names) if name not in self._columns]
        if not missing:
            return
        if self.rows > MOST_ROWS:
            raise NotComparable(f"a source has {self.rows} rows, more than the {MOST_ROWS} whose keys a driver reads")
        scanner = self.dataset.scanner(
            columns=missing,
            scan_in_order=True,
            use_scalar_index=False,  # an index may be stale
        )
        table = scanner.to_table()
        if table.nbytes > MOST_BYTES:
            raise NotComparable(f"the key columns {', '.join(missing)} take more than {MOST_BYTES >> 30} GiB")
        self._columns.update({name: table[name] for name in missing})


def _table(columns: Mapping[str, Column], names: frozenset[str]) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: columns[name] for name in sorted(names)})
