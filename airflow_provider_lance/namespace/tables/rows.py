"""Rows: count, insert, merge, update and delete them, on any branch.

pylance's namespace accepts ``branch`` in these requests and works on main, so a request that names a branch is carried
out here on the branch's dataset. Each method is an operation of the wire by name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lance_namespace import (
    CountTableRowsRequest,
    CountTableRowsResponse,
    DeleteFromTableRequest,
    InsertIntoTableRequest,
    InsertIntoTableResponse,
    LanceNamespace,
    MergeInsertIntoTableRequest,
    MergeInsertIntoTableResponse,
    UpdateTableRequest,
    UpdateTableResponse,
)
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError

from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY, JobType
from airflow_provider_lance.api.models import (
    DeleteFromTableResponse,
    ListJobsRequest,
    WriteTableRequest,
    WriteTableResponse,
)
from airflow_provider_lance.definitions.expressions import find_field, one_expression
from airflow_provider_lance.definitions.write_request import WriteRequest
from airflow_provider_lance.namespace.requests.column_names import check_columns
from airflow_provider_lance.namespace.requests.sql_texts import read_condition, read_value
from airflow_provider_lance.namespace.requests.values import id_of, read_word
from airflow_provider_lance.namespace.submission import read_idempotency_key
from airflow_provider_lance.namespace.tables.catalog import Catalog, names_branch
from airflow_provider_lance.namespace.tables.job_requests import JobRequests, job_fields
from airflow_provider_lance.namespace.tables.table_writer import TableWriter
from airflow_provider_lance.namespace.tables.tables import read_stream
from airflow_provider_lance.storage.commits import Committer
from airflow_provider_lance.storage.indices import has_current_indices
from airflow_provider_lance.storage.input_files import NoRowsError, file_kind
from airflow_provider_lance.storage.writes import Rows as NewRows
from airflow_provider_lance.storage.writes import RowsDoNotFitError, append_rows, find_write, replace_table

if TYPE_CHECKING:
    import lance

# A request that is sent again with its key comes soon after the first: its commit is among the newest versions.
_VERSIONS_SEARCHED = 1000


class Rows:
    """The rows of tables."""

    def __init__(self, catalog: Catalog, jobs: JobRequests) -> None:
        self._catalog = catalog
        self._writer = TableWriter(catalog)
        self._jobs = jobs

    def write_table(self, request: WriteTableRequest) -> WriteTableResponse:
        """Check every field of a request to load files, declare a table that is not there, and submit the job."""
        table_id, fields = id_of(request), job_fields(request)
        write = WriteRequest.parse(fields)
        try:
            file_kind(write.path, write.file_format)
        except NoRowsError as error:
            raise InvalidInputError(str(error)) from None
        if "://" not in write.path and not write.path.startswith("/"):
            raise InvalidInputError(f"The path {write.path[:200]!r} must be absolute, or a URI: a job has no folder.")
        self._jobs.service.check(request.cluster, None)
        self._jobs.service.check_input(request.cluster, write.path)
        place = self._catalog.find(table_id)
        if place is None:
            place = self._writer.declare(table_id)
        dataset = None if place.only_declared else self._catalog.open(table_id, branch=write.branch, place=place)
        key = read_idempotency_key(request.context or {}) or ""
        # A job that comes again with its key looks for its commit from where the first one began.
        earlier = self._jobs.find_jobs(ListJobsRequest(idempotency_key=key)) if key else []
        after = 0 if dataset is None else int(dataset.version)
        if dataset is not None:
            if write.mode == "create" and not earlier:
                raise TableAlreadyExistsError(f"Table {place.name} is there already, at version {dataset.version}.")
            missing = [name for name in write.on if name not in dataset.schema.names]
            if missing:
                raise InvalidInputError(
                    f"`on` names {missing[0]!r}, and the table has {', '.join(dataset.schema.names)}."
                )
        job_id = self._jobs.submit(
            JobType.WRITE,
            place,
            fields,
            # Appends may run side by side. What looks at the rows that are there may not.
            locks=() if write.mode == "append" else (f"{place.name}|{write.branch or 'main'}|rows",),
            context=request.context,
            write_key=key,
            write_after=int(earlier[-1].spec.get("write_after") or 0) if earlier else after,
            user_code="",
        )
        return WriteTableResponse(job_id=job_id)

    def count_table_rows(self, request: CountTableRowsRequest) -> CountTableRowsResponse:
        if request.predicate:
            request.predicate = read_condition(self._catalog, request, request.predicate, request.version)
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
            request.predicate = read_condition(self._catalog, request, request.predicate)
        request.updates = [[path, read_value(self._catalog, request, text)] for path, text in request.updates]
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
        predicate = read_condition(self._catalog, request, request.predicate)
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
