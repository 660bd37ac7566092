"""Rows: count, query, insert, merge, update and delete them, on any branch.

pylance's namespace accepts ``branch`` in these requests and works on main, so a request that names a branch is carried
out here on the branch's dataset. Every SQL text of a client is parsed as one expression first, because Lance silently
drops what follows the first one. Each method is an operation of the wire by name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    CountTableRowsRequest,
    CountTableRowsResponse,
    DeleteFromTableRequest,
    ExplainTableQueryPlanRequest,
    InsertIntoTableRequest,
    InsertIntoTableResponse,
    LanceNamespace,
    MergeInsertIntoTableRequest,
    MergeInsertIntoTableResponse,
    QueryTableRequest,
    QueryTableResponse,
    UpdateTableRequest,
    UpdateTableResponse,
)
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError

from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY
from airflow_provider_lance.api.models import DeleteFromTableResponse
from airflow_provider_lance.definitions.expressions import (
    check_filter,
    expression_type,
    find_field,
    format_path,
    one_expression,
)
from airflow_provider_lance.namespace.tables.catalog import Catalog, names_branch
from airflow_provider_lance.namespace.tables.column_names import check_columns
from airflow_provider_lance.namespace.tables.request_values import RequestWithBranch, id_of, read_word
from airflow_provider_lance.namespace.tables.table_writer import TableWriter
from airflow_provider_lance.namespace.tables.tables import read_stream
from airflow_provider_lance.storage.commits import Committer
from airflow_provider_lance.storage.indices import has_current_indices
from airflow_provider_lance.storage.writes import Rows as NewRows
from airflow_provider_lance.storage.writes import RowsDoNotFitError, append_rows, find_write, replace_table

if TYPE_CHECKING:
    import lance

# A request that is sent again with its key comes soon after the first: its commit is among the newest versions.
_VERSIONS_SEARCHED = 1000


class Rows:
    """The rows of tables."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._writer = TableWriter(catalog)

    def count_table_rows(self, request: CountTableRowsRequest) -> CountTableRowsResponse:
        if request.predicate:
            request.predicate = self._condition(request, request.predicate, request.version)
        if not names_branch(request.branch):
            return self._catalog.run(LanceNamespace.count_table_rows, request)
        dataset = self._catalog.open(id_of(request), branch=request.branch, version=request.version)
        return CountTableRowsResponse(count=dataset.count_rows(request.predicate))

    def insert_into_table(self, request: InsertIntoTableRequest, data: bytes) -> InsertIntoTableResponse:
        import lance

        mode = read_word("mode", request.mode, ("append", "overwrite"))
        reader = read_stream(data)
        if mode == "overwrite":
            check_columns(reader.schema)
        key = (request.context or {}).get(IDEMPOTENCY_KEY)
        place = self._catalog.find(id_of(request))
        if key and place is not None and not place.only_declared:
            return self._insert_once(request, mode, data, key)
        if names_branch(request.branch):
            dataset = self._catalog.open(id_of(request), branch=request.branch)
            before = 0 if mode == "overwrite" else dataset.count_rows()
            after = lance.write_dataset(reader, dataset, mode=mode)
            return InsertIntoTableResponse(version=after.version, num_inserted_rows=max(after.count_rows() - before, 0))
        if place is not None and place.only_declared:
            # pylance would write the first rows of a declared table without stable row ids.
            with contextlib.suppress(TableAlreadyExistsError):  # Another request wrote the first rows.
                version = self._writer.write_first_version(place, reader)
                rows = self._catalog.open(id_of(request), version=version, place=place).count_rows()
                return InsertIntoTableResponse(version=version, num_inserted_rows=rows)
        with_mode = request.model_copy(update={"mode": mode})
        return self._catalog.run_with_data(LanceNamespace.insert_into_table, with_mode, data)

    def _insert_once(
        self, request: InsertIntoTableRequest, mode: str, data: bytes, key: str
    ) -> InsertIntoTableResponse:
        """Insert rows with a key; a request that comes again with its key gets the answer of the first."""
        committer = Committer(self._catalog.table(id_of(request), request.branch))
        head = committer.table.open()
        done = find_write(head, key, max(0, head.version - _VERSIONS_SEARCHED))
        if done is None:
            write = append_rows if mode == "append" else replace_table
            try:
                done = write(committer, NewRows(lambda: read_stream(data)), key)
            except RowsDoNotFitError as error:
                raise InvalidInputError(str(error)) from error
        return InsertIntoTableResponse(version=done.version, num_inserted_rows=done.inserted)

    def update_table(self, request: UpdateTableRequest) -> UpdateTableResponse:
        if request.predicate:
            request.predicate = self._condition(request, request.predicate)
        request.updates = [[path, self._value(request, text)] for path, text in request.updates]
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        if has_current_indices(dataset) and not names_branch(request.branch):
            return self._catalog.run(LanceNamespace.update_table, request)
        for path, _ in request.updates:
            find_field(dataset.schema, path)
        where = decided_by_values(dataset, request.predicate) if request.predicate else request.predicate
        updates = {update[0]: update[1] for update in request.updates}
        changed = dataset.update(updates, where=where)
        return UpdateTableResponse(version=dataset.version, updated_rows=changed["num_rows_updated"])

    def delete_from_table(self, request: DeleteFromTableRequest) -> DeleteFromTableResponse:
        predicate = self._condition(request, request.predicate)
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        done = dataset.delete(decided_by_values(dataset, predicate))
        return DeleteFromTableResponse(version=dataset.version, num_deleted_rows=done["num_deleted_rows"])

    def merge_insert_into_table(
        self, request: MergeInsertIntoTableRequest, data: bytes
    ) -> MergeInsertIntoTableResponse:
        _parse_merge_filters(request)
        reader = read_stream(data)
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        current = has_current_indices(dataset)
        if current and not names_branch(request.branch):
            return self._catalog.run_with_data(LanceNamespace.merge_insert_into_table, request, data)
        merge = dataset.merge_insert(request.on).use_index(current)
        if request.when_matched_update_all:
            merge = merge.when_matched_update_all(request.when_matched_update_all_filt)
        if request.when_not_matched_insert_all:
            merge = merge.when_not_matched_insert_all()
        if request.when_not_matched_by_source_delete:
            merge = merge.when_not_matched_by_source_delete(request.when_not_matched_by_source_delete_filt)
        done = merge.execute(reader)
        return MergeInsertIntoTableResponse(
            version=self._catalog.open(id_of(request), branch=request.branch).version,
            num_updated_rows=done["num_updated_rows"],
            num_inserted_rows=done["num_inserted_rows"],
            num_deleted_rows=done["num_deleted_rows"],
        )

    def query_table(self, request: QueryTableRequest) -> QueryTableResponse:
        self._prepare(request, request)
        return self._catalog.run(LanceNamespace.query_table, request)

    def explain_table_query_plan(self, request: ExplainTableQueryPlanRequest) -> str:
        self._prepare(request, request.query)
        return self._catalog.run(LanceNamespace.explain_table_query_plan, request)

    def analyze_table_query_plan(self, request: AnalyzeTableQueryPlanRequest) -> str:
        self._prepare(request, request)
        return self._catalog.run(LanceNamespace.analyze_table_query_plan, request)

    def _prepare(self, request: RequestWithBranch, query: QueryTableRequest | AnalyzeTableQueryPlanRequest) -> None:
        """Parse the SQL of a query, and name the vector column, which pylance does not find by itself."""
        if query.filter:
            query.filter = self._condition(request, query.filter, query.version)
        if query.columns and query.columns.column_aliases:
            aliases = query.columns.column_aliases
            query.columns.column_aliases = {name: self._value(request, text) for name, text in aliases.items()}
        dimension = len(query.vector.single_vector or (query.vector.multi_vector or [[]])[0])
        if dimension and not query.vector_column:
            dataset = self._catalog.open(id_of(request), version=query.version)
            query.vector_column = vector_column(dataset, dimension)

    def _condition(self, request: RequestWithBranch, sql: str, version: int | None = None) -> str:
        """A condition as one expression; where the parser is in doubt, Lance's planner decides."""
        if not sql.strip():
            return sql
        read = one_expression(sql, "predicate")
        if read.doubt is not None:
            dataset = self._catalog.open(id_of(request), branch=request.branch, version=version)
            check_filter(dataset.schema, sql, "predicate")
        return read.text

    def _value(self, request: RequestWithBranch, sql: str) -> str:
        """The SQL of a value as one expression."""
        read = one_expression(sql)
        if read.doubt is not None:
            expression_type(self._catalog.open(id_of(request), branch=request.branch).schema, sql)
        return read.text


def _parse_merge_filters(request: MergeInsertIntoTableRequest) -> None:
    """Parse the filters of a merge. They name columns of both sides, so only Lance's merge can plan them."""
    if request.when_matched_update_all_filt:
        name = "when_matched_update_all_filt"
        request.when_matched_update_all_filt = one_expression(request.when_matched_update_all_filt, name).text
    if request.when_not_matched_by_source_delete_filt:
        name = "when_not_matched_by_source_delete_filt"
        request.when_not_matched_by_source_delete_filt = one_expression(
            request.when_not_matched_by_source_delete_filt, name
        ).text


def decided_by_values(dataset: lance.LanceDataset, predicate: str) -> str:
    """A predicate that selects the same rows, by their values where an index may be out of date.

    pylance's ``delete`` and ``update`` have no option to ignore indices. Lance uses no index for an argument of
    ``nullif``, which keeps true and turns false into null, and neither false nor null selects a row.
    """
    if not predicate or has_current_indices(dataset):
        return predicate
    return f"nullif(({predicate}), false)"


def vector_column(dataset: lance.LanceDataset, dimension: int) -> str:
    """The only vector column of that dimension; ``InvalidInputError`` where there is none or a choice."""
    import pyarrow as pa

    found = [
        format_path([field.name])
        for field in dataset.schema
        if pa.types.is_fixed_size_list(field.type) and field.type.list_size == dimension
    ]
    if len(found) != 1:
        which = f"these fit: {', '.join(found)}" if found else "the table has none that fits"
        raise InvalidInputError(f"Name the vector_column of a search with {dimension} dimensions; {which}.")
    return found[0]
