"""Rows: count, query, insert, merge, update and delete them, on any branch.

pylance's namespace takes ``branch`` in these requests and works on main all the same, so whatever names a branch is
done on the branch's dataset here. Every SQL text of a client is read as one expression first: Lance drops what follows
it without a word. Methods are operations of the wire by name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError

from airflow_provider_lance.api.models import model
from airflow_provider_lance.engine.expressions import (
    check_filter,
    expression_type,
    find_field,
    format_path,
    one_expression,
)
from airflow_provider_lance.namespace.catalog import Catalog, names_branch
from airflow_provider_lance.namespace.column_names import check_columns
from airflow_provider_lance.namespace.tables import Tables, read_stream
from airflow_provider_lance.namespace.tree import read_word

if TYPE_CHECKING:
    import lance


class Rows:
    """What is in tables."""

    def __init__(self, catalog: Catalog, tables: Tables) -> None:
        self._catalog = catalog
        self._tables = tables

    def count_table_rows(self, request: Any) -> Any:
        request.predicate = self._filter(request, request.predicate, request.version)
        dataset = self._branch(request, request.version)
        if dataset is None:
            return self._catalog.call("count_table_rows", request)
        return model("CountTableRowsResponse")(count=dataset.count_rows(request.predicate))

    def insert_into_table(self, request: Any, data: bytes) -> Any:
        import lance

        mode = read_word("mode", request.mode, ("append", "overwrite"))
        reader = read_stream(data)
        if mode == "overwrite":
            check_columns(reader.schema)
        dataset = self._branch(request)
        if dataset is not None:
            before = 0 if mode == "overwrite" else dataset.count_rows()
            after = lance.write_dataset(reader, dataset, mode=mode)
            return model("InsertIntoTableResponse")(
                version=after.version, num_inserted_rows=max(after.count_rows() - before, 0)
            )
        place = self._catalog.find(request.id)
        if place is not None and place.only_declared:
            # The first rows of a declared table make it; pylance would make it without stable row ids.
            with contextlib.suppress(TableAlreadyExistsError):  # others have made it: these rows come after theirs
                version = self._tables.begin(place, reader)
                rows = self._catalog.open(request.id, version=version, place=place).count_rows()
                return model("InsertIntoTableResponse")(version=version, num_inserted_rows=rows)
        return self._catalog.call("insert_into_table", request.model_copy(update={"mode": mode}), data)

    def update_table(self, request: Any) -> Any:
        request.predicate = self._filter(request, request.predicate)
        request.updates = [[path, self._value(request, text)] for path, text in request.updates]
        dataset = self._catalog.open(request.id, branch=request.branch)
        if has_current_indices(dataset) and not names_branch(request.branch):
            return self._catalog.call("update_table", request)
        for path, _ in request.updates:
            find_field(dataset.schema, path)
        changed = dataset.update(dict(request.updates), where=decided_by_values(dataset, request.predicate))
        return model("UpdateTableResponse")(version=dataset.version, updated_rows=changed["num_rows_updated"])

    def delete_from_table(self, request: Any) -> Any:
        request.predicate = self._filter(request, request.predicate)
        dataset = self._catalog.open(request.id, branch=request.branch)
        done = dataset.delete(decided_by_values(dataset, request.predicate))
        return model("DeleteFromTableResponse")(version=dataset.version, num_deleted_rows=done["num_deleted_rows"])

    def merge_insert_into_table(self, request: Any, data: bytes) -> Any:
        for name in ("when_matched_update_all_filt", "when_not_matched_by_source_delete_filt"):
            if getattr(request, name):
                # Lance plans it over the two sides of the merge.
                setattr(request, name, one_expression(getattr(request, name), name).text)
        reader = read_stream(data)
        dataset = self._catalog.open(request.id, branch=request.branch)
        current = has_current_indices(dataset)
        if current and not names_branch(request.branch):
            return self._catalog.call("merge_insert_into_table", request, data)
        merge = dataset.merge_insert(request.on).use_index(current)
        if request.when_matched_update_all:
            merge = merge.when_matched_update_all(request.when_matched_update_all_filt)
        if request.when_not_matched_insert_all:
            merge = merge.when_not_matched_insert_all()
        if request.when_not_matched_by_source_delete:
            merge = merge.when_not_matched_by_source_delete(request.when_not_matched_by_source_delete_filt)
        done = merge.execute(reader)
        return model("MergeInsertIntoTableResponse")(
            version=self._catalog.open(request.id, branch=request.branch).version,
            num_updated_rows=done["num_updated_rows"],
            num_inserted_rows=done["num_inserted_rows"],
            num_deleted_rows=done["num_deleted_rows"],
        )

    def query_table(self, request: Any) -> Any:
        return self._catalog.call("query_table", self._readable(request, request))

    def explain_table_query_plan(self, request: Any) -> Any:
        self._readable(request, request.query)
        return self._catalog.call("explain_table_query_plan", request)

    def analyze_table_query_plan(self, request: Any) -> Any:
        return self._catalog.call("analyze_table_query_plan", self._readable(request, request))

    def _readable(self, request: Any, query: Any) -> Any:
        """The query with what pylance does not work out itself: the table's one vector column."""
        query.filter = self._filter(request, query.filter, query.version)
        aliases = query.columns.column_aliases if query.columns else None
        if aliases:
            query.columns.column_aliases = {name: self._value(request, text) for name, text in aliases.items()}
        dimension = len(query.vector.single_vector or (query.vector.multi_vector or [[]])[0])
        if dimension and not query.vector_column:
            dataset = self._catalog.open(request.id, version=query.version)
            query.vector_column = vector_column(dataset, dimension)
        return query

    def _filter(self, request: Any, sql: str | None, version: int | None = None) -> str | None:
        """A condition as one expression; where the parser is in doubt, Lance's planner decides."""
        if not sql or not sql.strip():
            return sql
        read = one_expression(sql, "predicate")
        if read.doubt is not None:
            check_filter(
                self._catalog.open(request.id, branch=request.branch, version=version).schema, sql, "predicate"
            )
        return read.text

    def _value(self, request: Any, sql: str) -> str:
        """The SQL of a value as one expression."""
        read = one_expression(sql)
        if read.doubt is not None:
            expression_type(self._catalog.open(request.id, branch=request.branch).schema, sql)
        return read.text

    def _branch(self, request: Any, version: int | None = None) -> lance.LanceDataset | None:
        if not names_branch(request.branch):
            return None
        return self._catalog.open(request.id, branch=request.branch, version=version)


def has_current_indices(dataset: lance.LanceDataset) -> bool:
    """Whether every scalar index of a table has only entries of values that are there.

    After a column's values were replaced in place, a segment of its index keeps the old entries. Lance leaves them out
    until another segment covers the same rows: then they count again. An inverted index carries them along when its
    segments are merged. An index of one segment of any other kind is right.
    """
    indices = dataset.list_indices()
    names = {index["name"] for index in indices}
    return len(names) == len(indices) and not any(index["type"] == "Inverted" for index in indices)


def decided_by_values(dataset: lance.LanceDataset, predicate: str | None) -> str | None:
    """A predicate, one expression, that selects the same rows by their values where an index may be out of date.

    pylance's ``delete`` and ``update`` cannot be told to leave indices alone. Lance asks no index about an argument of
    ``nullif``, which keeps true and turns false into null: neither false nor null selects a row.
    """
    if not predicate or has_current_indices(dataset):
        return predicate
    return f"nullif(({predicate}), false)"


def vector_column(dataset: lance.LanceDataset, dimension: int) -> str:
    """The table's one vector column of that dimension; which of several is meant, the caller must say."""
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
