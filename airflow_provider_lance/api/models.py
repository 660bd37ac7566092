"""Request and response models that the package generated from the spec lacks, and all models by their names.

They are those of ``create-empty`` (which left the spec), of the jobs API, of the views API of LanceDB's client, and of
the dialects for which the generated models are too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import lance_namespace as spec
import lance_namespace_urllib3_client.models as generated
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry as GeneratedAddColumnsEntry
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from airflow_provider_lance.api.plain_data import JsonObject


class _Model(BaseModel):
    """A model that keeps unknown fields, so that a newer server's answer can be read."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    def to_dict(self) -> JsonObject:
        return self.model_dump(by_alias=True, exclude_none=True)

    @classmethod
    def from_dict(cls, obj: JsonObject | None) -> Self:
        return cls.model_validate(obj)


class _Request(_Model):
    identity: dict[str, str] | None = None
    context: dict[str, str] | None = None


class _Response(_Model):
    context: dict[str, str] | None = None


class CreateEmptyTableRequest(_Request):
    id: list[str] | None = None
    location: str | None = None
    properties: dict[str, str] | None = None


class CreateEmptyTableResponse(_Response, spec.CreateTableResponse):
    """What ``LanceNamespace`` says that this operation returns, although it creates no version."""

    transaction_id: str | None = None
    location: str | None = None
    properties: dict[str, str] | None = None
    storage_options: dict[str, str] | None = None


class DeleteFromTableResponse(_Response, spec.DeleteFromTableResponse):
    """The spec's response, and the number of deleted rows, which LanceDB's client reports."""

    transaction_id: str | None = None
    version: int | None = None
    num_deleted_rows: int | None = None


class ColumnOrder(_Model):
    column_name: str
    ascending: bool = True
    nulls_first: bool = False


class QueryTableRequest(_Model, spec.QueryTableRequest):
    """The spec's request, and the order of the rows, which LanceDB's client asks for."""

    order_by: list[ColumnOrder] | None = None


class ExplainTableQueryPlanRequest(_Model, spec.ExplainTableQueryPlanRequest):
    query: QueryTableRequest


class AnalyzeTableQueryPlanRequest(_Model, spec.AnalyzeTableQueryPlanRequest):
    order_by: list[ColumnOrder] | None = None


class CreateTableIndexRequest(_Model, spec.CreateTableIndexRequest):
    """The spec's request, and what LanceDB's client says about a full-text index beyond it."""

    metric_type: str | None = Field(default=None, description="LanceDB's name of distance_type")
    min_ngram_length: StrictInt | None = Field(default=None, ge=1)
    max_ngram_length: StrictInt | None = Field(default=None, ge=1)
    prefix_only: StrictBool | None = None
    custom_stop_words: list[str] | None = None
    lance_tokenizer: str | None = None
    block_size: StrictInt | None = Field(default=None, ge=1)
    split_identifiers: StrictBool | None = None
    split_on_numerics: StrictBool | None = None
    preserve_original: StrictBool | None = None
    index_operators: StrictBool | None = None


class AddColumnsEntry(_Model, GeneratedAddColumnsEntry):
    """The spec's entry. ``all_null`` marks a column that a function of the request fills."""

    all_null: StrictBool | None = None


class AlterTableAddColumnsRequest(_Model, spec.AlterTableAddColumnsRequest):
    """The spec's request, and columns without values or rule, which LanceDB's client sends as an Arrow schema."""

    new_columns: list[AddColumnsEntry] = Field(default_factory=list)  # type: ignore[assignment]
    arrow_schema: str | None = Field(default=None, description="Empty columns: base64 of an Arrow IPC schema")
    function: JsonObject | None = Field(default=None, description="The function that fills columns marked all_null")


class PrewarmTableIndexRequest(_Request):
    id: list[str] | None = None
    branch: str | None = None
    index_name: str | None = None


class PrewarmTableIndexResponse(_Response):
    pass


class PrewarmTableDataRequest(_Request):
    id: list[str] | None = None
    branch: str | None = None
    columns: list[str] | None = None


class PrewarmTableDataResponse(_Response):
    pass


class CreateMaterializedViewQueryRequest(_Request):
    """LanceDB's dialect of CreateMaterializedView: the query's SQL instead of ``kind`` and ``source_query``."""

    id: list[str] | None = None
    query: str
    with_no_data: bool | None = None
    auto_refresh: bool | None = None
    refresh_policy: str | None = None


class RefreshMaterializedViewRequest(_Request):
    """The spec's request, with ``full`` and ``refresh_policy``: whether the changes or all rows are computed."""

    id: list[str] | None = None
    src_version: StrictInt | None = Field(default=None, description="Version of the source; its newest by default")
    full: StrictBool | None = Field(default=None, description="Compute everything instead of the changes")
    refresh_policy: str | None = Field(
        default=None, description="auto, incremental, incremental_strict or full; the view's own by default"
    )
    max_rows_per_fragment: StrictInt | None = None
    concurrency: StrictInt | None = None
    intra_applier_concurrency: StrictInt | None = None
    source_task_size: StrictInt | None = None
    output_limit: StrictInt | None = None
    cluster: str | None = None
    manifest: str | None = None


class WriteTableRequest(_Request):
    """Our own request to load files into a table, as a job."""

    # Our server refuses unknown fields of the requests that do not allow them.
    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    id: list[str] | None = None
    path: str = Field(description="A file, a folder or a pattern that the job can read")
    file_format: str | None = Field(
        default=None, description="parquet, csv, json, arrow or lance; by the path's ending"
    )
    mode: str | None = Field(default=None, description="append, overwrite, upsert or create")
    on: str | list[str] | None = Field(default=None, description="The key columns of an upsert")
    replace_schema: StrictBool | None = None
    branch: str | None = None
    max_rows_per_file: StrictInt | None = None
    concurrency: StrictInt | None = None
    cluster: str | None = None


class WriteTableResponse(_Response):
    job_id: str | None = None


class ViewRequest(_Request):
    """A request that creates or refreshes a view, in any dialect. Its fields are checked where views are defined."""

    id: list[str] | None = None


class DescribeMaterializedViewRequest(_Request):
    id: list[str] | None = None


class ViewProjection(_Model):
    output_column: str
    expression: str


class ViewSource(_Model):
    """A table that a view reads: its name in the query, its id, and the version the view was last refreshed from.

    ``table_id`` is missing after the table was dropped, and ``version`` before the first refresh.
    """

    name: str
    table_id: list[str] | None = None
    version: int | None = None


class DescribeMaterializedViewResponse(_Response):
    """LanceDB's response, which has ``source_table`` for a view of one table, and ``sources`` for any view."""

    source_table: str | None = None
    sources: list[ViewSource] | None = None
    projections: list[ViewProjection] | None = None
    filter: str | None = None
    limit: int | None = None
    query: str | None = None


class DropMaterializedViewRequest(_Request):
    id: list[str] | None = None


class DropMaterializedViewResponse(_Response):
    transaction_id: str | None = None


class ListMaterializedViewsRequest(_Request):
    id: list[str] | None = None
    page_token: str | None = None
    limit: int | None = None


class ListMaterializedViewsResponse(_Response):
    views: Sequence[object] = Field(default_factory=list)
    page_token: str | None = None


class CreateFunctionRequest(_Request):
    """A function as LanceDB's client registers it; ``definitions/functions/source_function.py`` reads its parts."""

    id: list[str] | None = None
    artifact: JsonObject
    signature: JsonObject
    runtime: JsonObject
    secret_bindings: list[JsonObject] | None = None


class CreateFunctionResponse(_Response):
    job_id: str | None = None


class DescribeFunctionRequest(_Request):
    id: list[str] | None = None
    version: str | None = Field(default=None, description="The newest version by default")


class DescribeFunctionResponse(_Response):
    """LanceDB's FunctionVersion."""

    name: str
    namespace_path: list[str] | None = None
    object_id: str
    location: str
    version: str
    image: JsonObject
    signature: JsonObject
    secret_bindings: list[JsonObject] | None = None
    created_at: str
    metadata: JsonObject = Field(default_factory=dict)
    disabled: bool = False


class DropFunctionRequest(_Request):
    id: list[str] | None = None
    version: str


class DropFunctionResponse(_Response):
    dropped: bool | None = None


class ListFunctionsRequest(_Request):
    id: list[str] | None = None
    include_definition: bool | None = None
    page_token: str | None = None
    limit: int | None = None


class ListFunctionsResponse(_Response):
    functions: list[JsonObject] = Field(default_factory=list)
    page_token: str | None = None


class CreateSecretRequest(_Request):
    id: list[str] | None = None
    value: str = Field(repr=False)


class CreateSecretResponse(_Response):
    pass


class AlterSecretRequest(_Request):
    id: list[str] | None = None
    value: str = Field(repr=False)


class AlterSecretResponse(_Response):
    pass


class DescribeSecretRequest(_Request):
    id: list[str] | None = None


class DescribeSecretResponse(_Response):
    """When a secret was set. Its value is never answered."""

    name: str
    created_at_millis: int
    updated_at_millis: int


class DropSecretRequest(_Request):
    id: list[str] | None = None


class DropSecretResponse(_Response):
    pass


class ListSecretsRequest(_Request):
    id: list[str] | None = None
    page_token: str | None = None
    limit: int | None = None


class ListSecretsResponse(_Response):
    secrets: list[JsonObject] = Field(default_factory=list)
    page_token: str | None = None


class ListTableErrorsRequest(_Request):
    id: list[str] | None = None
    branch: str | None = None
    job_id: str | None = None
    column: str | None = None
    limit: int | None = Field(default=None, ge=1, le=100_000)


class ListTableErrorsResponse(_Response):
    records: list[JsonObject] = Field(default_factory=list)
    fragments: list[JsonObject] | None = None
    truncated: bool | None = None


class ListJobsRequest(_Request):
    page_token: str | None = None
    limit: int | None = Field(default=None, ge=1, le=1000)
    job_ids: list[str] | None = Field(default=None, max_length=1000)
    idempotency_key: str | None = None
    state: str | list[str] | None = None
    table: str | None = None
    since: int | None = Field(default=None, ge=0, description="created at or after, in milliseconds")


class ListJobsResponse(_Response):
    jobs: list[JsonObject] = Field(default_factory=list)
    page_token: str | None = None
    filtered: bool | None = None


class _JobRequest(_Request):
    job_id: str


class DescribeJobRequest(_JobRequest):
    pass


class DescribeJobResponse(_Response):
    job_id: str | None = None
    job_type: str | None = None
    job_state: str | None = None
    creation_ms: int | None = None
    spec: object = None
    result: JsonObject | None = None
    failure: JsonObject | None = None
    progress: JsonObject | None = None
    paused: bool | None = None
    requester: JsonObject | None = Field(default=None, description="The Airflow task that asked for the job")
    start_path: str | None = Field(default=None, description="How its driver began: cold, standby or reused")
    launched_ms: int | None = Field(default=None, description="When its driver was launched or chosen")
    claimed_ms: int | None = Field(default=None, description="When its driver claimed it")


class CancelJobRequest(_JobRequest):
    pass


class CancelJobResponse(_Response):
    job_id: str | None = None


class PauseJobRequest(_JobRequest):
    pass


class PauseJobResponse(_Response):
    """LanceDB's client reads ``paused``: false where the job was paused already."""

    job_id: str | None = None
    paused: bool | None = None


class ResumeJobRequest(_JobRequest):
    pass


class ResumeJobResponse(_Response):
    """LanceDB's client reads ``resumed``, and ``still_pausing`` where the driver has not stopped yet."""

    job_id: str | None = None
    resumed: bool | None = None
    still_pausing: bool | None = None


class QueryJobEventsRequest(_Request):
    job_id: str | None = None
    limit: int | None = Field(default=None, ge=0)
    filter: str | None = None


class ClaimJobRequest(_JobRequest):
    attempt: int = Field(ge=1)
    launch_token: str | None = Field(default=None, repr=False)


class ClaimJobResponse(_Response):
    claim_token: str = Field(repr=False)
    lease_seconds: float
    heartbeat_seconds: float
    spec: JsonObject
    storage_options: dict[str, str] | None = Field(default=None, repr=False)
    expires_at: float | None = None
    secrets: dict[str, str] | None = Field(default=None, repr=False)


class ReportJobRequest(_JobRequest):
    claim_token: str = Field(repr=False)
    seq: int = Field(ge=0)
    progress: JsonObject | None = None
    events: list[JsonObject] | None = None
    terminal: JsonObject | None = None


class ReportJobResponse(_Response):
    lease_until: float | None = None
    cancel: bool | None = None
    storage_options: dict[str, str] | None = Field(default=None, repr=False)


@cache
def model(name: str) -> type[Any]:
    """The model class of that name, from this module or from the generated package."""
    own = globals().get(name)
    if isinstance(own, type) and issubclass(own, BaseModel):
        return own
    kind: type[Any] = getattr(generated, name)
    return kind
