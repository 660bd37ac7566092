"""Indices: create, list, describe and drop them, on any branch. Each method is an operation of the wire.

pylance's namespace builds an index with its own ``num_sub_vectors``, takes none of the parameters of its training, and
works on main whatever branch a request names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lance_namespace import (
    CreateTableIndexResponse,
    CreateTableScalarIndexResponse,
    DescribeTableIndexStatsRequest,
    DescribeTableIndexStatsResponse,
    DropTableIndexRequest,
    DropTableIndexResponse,
    ListTableIndicesRequest,
    ListTableIndicesResponse,
)
from lance_namespace.errors import InvalidInputError, TableIndexNotFoundError
from lance_namespace_urllib3_client.models.index_content import IndexContent

from airflow_provider_lance.api.models import (
    CreateTableIndexRequest,
    PrewarmTableDataRequest,
    PrewarmTableDataResponse,
    PrewarmTableIndexRequest,
    PrewarmTableIndexResponse,
)
from airflow_provider_lance.definitions.expressions import find_field
from airflow_provider_lance.definitions.lance_errors import plain_reason
from airflow_provider_lance.namespace.requests.values import cut_page, id_of
from airflow_provider_lance.namespace.search.scans import vector_size
from airflow_provider_lance.namespace.tables.catalog import Catalog

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.lance.indices import IndexDescription

_VECTOR = ("IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ")
_SCALAR = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "RTREE", "FM")
_FULL_TEXT = "INVERTED"
_OTHER_NAMES = {"FTS": _FULL_TEXT, "HNSW_SQ": "IVF_HNSW_SQ", "HNSW_PQ": "IVF_HNSW_PQ", "HNSW_FLAT": "IVF_HNSW_FLAT"}
_METRICS = ("l2", "cosine", "dot", "hamming")
_FULL_TEXT_FIELDS = (
    "with_position",
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "ascii_folding",
    "min_ngram_length",
    "max_ngram_length",
    "prefix_only",
    "custom_stop_words",
    "lance_tokenizer",
    "block_size",
    "split_identifiers",
    "split_on_numerics",
    "preserve_original",
    "index_operators",
)
# The fields of a vector index that every kind takes, and those of some kinds, by the words in the kind's name.
_TRAINING_FIELDS = {"num_partitions": "", "target_partition_size": "", "sample_rate": "", "max_iterations": ""}
_KIND_FIELDS = {"num_sub_vectors": "PQ", "num_bits": "PQ SQ RQ", "m": "HNSW", "ef_construction": "HNSW"}


class Indices:
    """The indices of tables."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create_table_index(self, request: CreateTableIndexRequest) -> CreateTableIndexResponse:
        """Build an index. One with the same name and column is replaced, as LanceDB's contract has it."""
        self._create(request)
        return CreateTableIndexResponse()

    def create_table_scalar_index(self, request: CreateTableIndexRequest) -> CreateTableScalarIndexResponse:
        self._create(request)
        return CreateTableScalarIndexResponse()

    def list_table_indices(self, request: ListTableIndicesRequest) -> ListTableIndicesResponse:
        dataset = self._catalog.open(id_of(request), version=request.version, branch=request.branch)
        rows = dataset.count_rows()
        found = {index.name: _content(index, rows) for index in dataset.describe_indices()}
        page, token = cut_page(sorted(found), request.page_token, request.limit)
        return ListTableIndicesResponse(indexes=[found[name] for name in page], page_token=token)

    def describe_table_index_stats(self, request: DescribeTableIndexStatsRequest) -> DescribeTableIndexStatsResponse:
        dataset = self._catalog.open(id_of(request), version=request.version, branch=request.branch)
        index = _find(dataset, request.index_name)
        details = index.details if isinstance(index.details, dict) else {}
        metric = details.get("metric_type")
        return DescribeTableIndexStatsResponse(
            distance_type=str(metric).lower() if metric else None,
            index_type=index.index_type,
            num_indexed_rows=index.num_rows_indexed,
            num_unindexed_rows=max(dataset.count_rows() - index.num_rows_indexed, 0),
            num_indices=len(index.segments),
        )

    def drop_table_index(self, request: DropTableIndexRequest) -> DropTableIndexResponse:
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        dataset.drop_index(_find(dataset, request.index_name).name)
        return DropTableIndexResponse()

    def prewarm_table_index(self, request: PrewarmTableIndexRequest) -> PrewarmTableIndexResponse:
        """Load an index into the cache that the requests of this process share."""
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        dataset.prewarm_index(_find(dataset, request.index_name).name)
        return PrewarmTableIndexResponse()

    def prewarm_table_data(self, request: PrewarmTableDataRequest) -> PrewarmTableDataResponse:
        """Check that the columns exist. There is no cache of pages here that could be filled."""
        schema = self._catalog.open(id_of(request), branch=request.branch).schema
        missing = sorted(set(request.columns or []) - set(schema.names))
        if missing:  # LanceDB's client shows a 404 of this route as a missing table.
            raise InvalidInputError(f"There is no column {', '.join(map(repr, missing))}.")
        return PrewarmTableDataResponse()

    def _create(self, request: CreateTableIndexRequest) -> None:
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        column = find_field(dataset.schema, request.column)
        wanted = request.index_type.upper()
        kind = _OTHER_NAMES.get(wanted, wanted)
        _refuse_name_of_another(dataset, request)
        if kind in _VECTOR:
            _build(dataset.create_index, kind, request, _vector_parameters(kind, column.type, request))
        elif kind in _SCALAR or kind == _FULL_TEXT:
            given = {name: getattr(request, name) for name in _FULL_TEXT_FIELDS} if kind == _FULL_TEXT else {}
            parameters = {name: value for name, value in given.items() if value is not None}
            _build(dataset.create_scalar_index, kind, request, parameters)
        else:
            known = ", ".join((*_VECTOR, *_SCALAR, "FTS"))
            raise InvalidInputError(f"There is no index type {request.index_type!r}; it is one of {known}.")


def _build(
    build: Callable[..., object], kind: str, request: CreateTableIndexRequest, parameters: Mapping[str, object]
) -> None:
    """Build an index. pylance checks columns and parameters in Python, and says what is wrong with them."""
    try:
        build(request.column, kind, request.name, replace=True, **parameters)
    except (TypeError, ValueError) as error:
        reason = plain_reason(" ".join(str(part) for part in error.args))
        raise InvalidInputError(
            f"A {request.index_type} index cannot be built on {request.column!r}: {reason}"
        ) from error


def _vector_parameters(kind: str, column: pa.DataType, request: CreateTableIndexRequest) -> dict[str, object]:
    """What pylance takes for a vector index of this kind. A parameter of another kind is refused."""
    size = vector_size(column)
    if not size:
        raise InvalidInputError(
            f"A {kind} index needs a column of vectors, and {request.column!r} is {column}. Write vectors as a "
            "fixed-size list of floats."
        )
    metric = (request.distance_type or request.metric_type or "l2").lower()
    if metric not in _METRICS:
        raise InvalidInputError(f"There is no distance type {metric!r}; it is one of {', '.join(_METRICS)}.")
    given = {name: getattr(request, name) for name in (*_TRAINING_FIELDS, *_KIND_FIELDS)}
    parameters: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    for name, words in _KIND_FIELDS.items():
        if name in parameters and not any(word in kind for word in words.split()):
            raise InvalidInputError(f"A {kind} index has no parameter {name}.")
    if "PQ" in kind:
        parameters.setdefault("num_sub_vectors", _sub_vectors(size))
    if "max_iterations" in parameters:
        parameters["max_iters"] = parameters.pop("max_iterations")
    return {"metric": metric, **parameters}


def _sub_vectors(size: int) -> int:
    """The number of parts of a quantized vector where a request names none, which is LanceDB's own choice."""
    return next((size // part for part in (16, 8) if size % part == 0), 1)


def _refuse_name_of_another(dataset: lance.LanceDataset, request: CreateTableIndexRequest) -> None:
    for index in dataset.describe_indices():
        if index.name == request.name and index.field_names != [request.column]:
            raise InvalidInputError(
                f"The index {index.name!r} is on {', '.join(index.field_names)}. Choose another name, or drop it first."
            )


def _find(dataset: lance.LanceDataset, name: str | None) -> IndexDescription:
    indices = {index.name: index for index in dataset.describe_indices()}
    if name not in indices:
        there = ", ".join(sorted(indices)) or "none"
        raise TableIndexNotFoundError(f"There is no index {name!r}; the table has {there}.")
    return indices[name]


def _content(index: IndexDescription, rows: int) -> IndexContent:
    first = index.segments[0]
    return IndexContent(
        index_name=index.name,
        index_uuid=str(first.uuid),
        columns=list(index.field_names),
        status="SUCCEEDED",
        index_type=index.index_type,
        type_url=index.type_url,
        num_indexed_rows=index.num_rows_indexed,
        num_unindexed_rows=max(rows - index.num_rows_indexed, 0),
        size_bytes=index.total_size_bytes,
        num_segments=len(index.segments),
        created_at=first.created_at,
        index_version=first.index_version,
        index_details=json.dumps(index.details),
    )
