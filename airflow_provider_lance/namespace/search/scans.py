"""A query of the wire as a scan of a Lance dataset.

The scans are made here, because pylance's namespace searches main whatever branch a request names, drops
``order_by``, and returns ``k - offset`` neighbours where a vector search has an offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.expressions import find_field, format_path
from airflow_provider_lance.namespace.search.full_text import full_text_query

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.dataset import ColumnOrdering
    from lance.query import FullTextQuery

    from airflow_provider_lance.api.models import AnalyzeTableQueryPlanRequest, QueryTableRequest

_QUERY_INDEX = "query_index"


@dataclass(frozen=True)
class Scan:
    """A scanner, and what is cut of its result: the first rows of each query of a search with several vectors."""

    scanner: lance.LanceScanner
    skipped_per_query: int = 0

    def ipc_file(self) -> bytes:
        """The rows as an Arrow IPC file."""
        import pyarrow as pa

        reader = self.scanner.to_reader()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, reader.schema) as writer:
            if self.skipped_per_query:
                writer.write_table(_cut(reader.read_all(), self.skipped_per_query))
            else:
                for batch in reader:
                    writer.write_batch(batch)
        return sink.getvalue().to_pybytes()


def make_scan(dataset: lance.LanceDataset, query: QueryTableRequest | AnalyzeTableQueryPlanRequest) -> Scan:
    """The scan of a query whose SQL was parsed."""
    rows, skipped = query.k, query.offset or 0
    several = bool(query.vector.multi_vector) and not _is_multivector(dataset, query)
    columns: list[str] | dict[str, str] | None = None
    if query.columns is not None:
        columns = query.columns.column_aliases or query.columns.column_names or None
    ordering = _ordering(dataset, query)
    nearest = _nearest(dataset, query)
    text = _text(dataset, query)
    # A search with several vectors has ``rows`` for each of them, so neither limit nor offset are those of the result.
    scanner = dataset.scanner(
        columns=columns,
        filter=query.filter or None,
        limit=None if several else rows,
        offset=None if several else skipped or None,
        nearest=nearest,
        full_text_query=text,
        # Lance searches and filters afterwards unless it is told otherwise, and the spec's default is the same.
        prefilter=bool(query.prefilter),
        with_row_id=bool(query.with_row_id),
        fast_search=bool(query.fast_search),
        order_by=ordering or None,
    )
    return Scan(scanner, skipped if several else 0)


def _nearest(
    dataset: lance.LanceDataset, query: QueryTableRequest | AnalyzeTableQueryPlanRequest
) -> dict[str, object] | None:
    vector = query.vector.single_vector or query.vector.multi_vector
    if not vector:
        return None
    column = query.vector_column or vector_column(dataset, _dimension(vector))
    found: dict[str, object] = {
        "column": column,
        "q": vector,
        # The offset skips neighbours, so that many more are needed.
        "k": query.k + (query.offset or 0),
        "metric": query.distance_type.lower() if query.distance_type else None,
        "minimum_nprobes": query.minimum_nprobes,
        "maximum_nprobes": query.maximum_nprobes,
        "refine_factor": query.refine_factor,
        "use_index": not query.bypass_vector_index,
        "ef": query.ef,
    }
    if query.minimum_nprobes is None and query.maximum_nprobes is None and query.nprobes:
        found["nprobes"] = query.nprobes
    if query.lower_bound is not None or query.upper_bound is not None:
        found["distance_range"] = (query.lower_bound, query.upper_bound)
    return found


def _text(
    dataset: lance.LanceDataset, query: QueryTableRequest | AnalyzeTableQueryPlanRequest
) -> dict[str, object] | FullTextQuery | None:
    wanted = query.full_text_query
    if wanted is None:
        return None
    if wanted.structured_query is not None:
        return full_text_query(wanted.structured_query.query, _text_columns(dataset))
    if wanted.string_query is None:
        raise InvalidInputError("full_text_query has neither a string_query nor a structured_query.")
    return {"query": wanted.string_query.query, "columns": wanted.string_query.columns or None}


def _text_columns(dataset: lance.LanceDataset) -> list[str]:
    """The columns with a full-text index, which a query searches that names none."""
    return [
        name for index in dataset.describe_indices() if index.index_type == "Inverted" for name in index.field_names
    ]


def _ordering(
    dataset: lance.LanceDataset, query: QueryTableRequest | AnalyzeTableQueryPlanRequest
) -> list[ColumnOrdering | str]:
    from lance.dataset import ColumnOrdering

    for entry in query.order_by or []:
        find_field(dataset.schema, entry.column_name)
    return [ColumnOrdering(entry.column_name, entry.ascending, entry.nulls_first) for entry in query.order_by or []]


def vector_column(dataset: lance.LanceDataset, dimension: int) -> str:
    """The only vector column of that dimension; ``InvalidInputError`` where there is none or a choice."""
    found = [format_path([field.name]) for field in dataset.schema if vector_size(field.type) == dimension]
    if len(found) != 1:
        which = f"these fit: {', '.join(found)}" if found else "the table has none that fits"
        raise InvalidInputError(f"Name the vector_column of a search with {dimension} dimensions; {which}.")
    return found[0]


def _dimension(vector: Sequence[float] | Sequence[Sequence[float]]) -> int:
    first = vector[0]
    return len(first) if isinstance(first, Sequence) else len(vector)


def vector_size(kind: pa.DataType) -> int:
    """The length of a column's vectors, or 0. A row of a multivector column has several of them."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        kind = kind.value_type
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else 0


def _is_multivector(dataset: lance.LanceDataset, query: QueryTableRequest | AnalyzeTableQueryPlanRequest) -> bool:
    """Whether the searched column has several vectors in a row, so that several vectors are one query."""
    import pyarrow as pa

    column = query.vector_column or vector_column(dataset, _dimension(query.vector.multi_vector or [[]]))
    return pa.types.is_list(find_field(dataset.schema, column).type)


def _cut(found: pa.Table, skipped: int) -> pa.Table:
    """The rows without the first ones of each query."""
    import pyarrow as pa

    seen: dict[int | None, int] = {}
    kept = []
    for number in found[_QUERY_INDEX].to_pylist():
        seen[number] = seen.get(number, 0) + 1
        kept.append(seen[number] > skipped)
    return found.filter(pa.array(kept, pa.bool_()))
