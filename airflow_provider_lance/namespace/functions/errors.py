"""The rows on which the functions of a table's columns failed, as LanceDB's client asks for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_states import JobType
from airflow_provider_lance.api.models import ListJobsRequest, ListTableErrorsRequest, ListTableErrorsResponse
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.definitions.arrow_types import text_metadata
from airflow_provider_lance.definitions.column_rules import VIRTUAL_DEFINITION
from airflow_provider_lance.namespace.requests.values import id_of
from airflow_provider_lance.namespace.tables.catalog import Catalog, other_branch
from airflow_provider_lance.namespace.tables.job_requests import JobRequests

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_lance.api.jobs import Job

_DEFAULT_LIMIT = 10_000
_MOST_JOBS = 1000


class FunctionErrors:
    """Reads the failed rows from the results and failures of the table's jobs, which keep examples of them."""

    def __init__(self, catalog: Catalog, jobs: JobRequests) -> None:
        self._catalog = catalog
        self._jobs = jobs

    def list_table_errors(self, request: ListTableErrorsRequest) -> ListTableErrorsResponse:
        schema = self._catalog.open(id_of(request), branch=request.branch).schema
        wanted = ListJobsRequest(table=join_id(id_of(request)), limit=_MOST_JOBS)
        jobs = [
            job
            for job in self._jobs.find_jobs(wanted)
            if job.job_type == JobType.BACKFILL.value
            and request.job_id in {None, job.job_id}
            and request.column in {None, job.spec.get("request", {}).get("column")}
            and other_branch(job.spec.get("request", {}).get("branch")) == other_branch(request.branch)
        ]
        records: list[JsonObject] = []
        truncated = False
        for job in jobs:
            failed, examples = _failed(job)
            records.extend(_record(schema, job, example) for example in examples)
            truncated = truncated or failed > len(examples)
        limit = request.limit or _DEFAULT_LIMIT
        return ListTableErrorsResponse(records=records[:limit], truncated=truncated or len(records) > limit)


def _failed(job: Job) -> tuple[int, list[JsonObject]]:
    """How many rows of a job failed, and the examples that it keeps."""
    if job.failure is not None:
        return job.failure.rows_failed, list(job.failure.failed_rows)
    result = job.result or {}
    return int(result.get("rows_failed") or 0), list(result.get("failed_rows") or [])


def _record(schema: pa.Schema, job: Job, example: JsonObject) -> JsonObject:
    column = str(job.spec.get("request", {}).get("column"))
    function = _function(schema, column)
    kind, _, message = str(example.get("message") or "").partition(": ")
    record = {
        "job_id": job.job_id,
        "fragment_id": int(example.get("fragment_id") or 0),
        "column": column,
        "function": str(function.get("udf_name") or ""),
        "function_version": str(function.get("udf_version") or ""),
        "table_version": int((job.result or {}).get("source_version") or 0),
        "error_type": kind,
        "error_message": message or kind,
        "created_at_millis": job.created_ms or 0,
    }
    return record | ({"row_offset": example["row_offset"]} if "row_offset" in example else {})


def _function(schema: pa.Schema, column: str) -> JsonObject:
    """What a column's declaration says about its function; nothing for a column that is gone or computed by SQL."""
    if column not in schema.names:
        return {}
    found: JsonObject = json.loads(text_metadata(schema.field(column).metadata).get(VIRTUAL_DEFINITION) or "{}")
    return found
