"""Request and response models: the spec's generated ones by name, and ours where it has none.

Ours are ``create-empty`` (which left the spec), the jobs API, the views API of LanceDB's client, and the dialects the
generated models are too narrow for. Nothing here is imported before a model is needed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt


class _Model(BaseModel):
    """Unknown fields are kept: a newer server's answer parses."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        return cls.model_validate(data)


class _Request(_Model):
    identity: dict[str, str] | None = None
    context: dict[str, str] | None = None


class _Response(_Model):
    context: dict[str, str] | None = None


class CreateEmptyTableRequest(_Request):
    id: list[str] | None = None
    location: str | None = None
    properties: dict[str, str] | None = None


class CreateEmptyTableResponse(_Response):
    transaction_id: str | None = None
    location: str | None = None
    properties: dict[str, str] | None = None
    storage_options: dict[str, str] | None = None


class DeleteFromTableResponse(_Response):
    """The spec's, and how many rows went, which LanceDB's client reports."""

    transaction_id: str | None = None
    version: int | None = None
    num_deleted_rows: int | None = None


class CreateMaterializedViewQueryRequest(_Request):
    """LanceDB's dialect of CreateMaterializedView: the query's SQL instead of ``kind`` and ``source_query``."""

    id: list[str] | None = None
    query: str
    with_no_data: bool | None = None
    auto_refresh: bool | None = None


class RefreshMaterializedViewRequest(_Request):
    """The spec's, and ``full``: compute everything instead of the changes."""

    id: list[str] | None = None
    src_version: StrictInt | None = Field(default=None, description="Version of the source; its newest by default")
    full: StrictBool | None = Field(default=None, description="Compute everything instead of the changes")
    max_rows_per_fragment: StrictInt | None = None
    concurrency: StrictInt | None = None
    intra_applier_concurrency: StrictInt | None = None
    source_task_size: StrictInt | None = None
    output_limit: StrictInt | None = None
    cluster: str | None = None
    manifest: str | None = None


class ViewRequest(_Request):
    """A create or refresh of a view in any dialect; its fields are checked by whoever knows what a view is."""

    id: list[str] | None = None


class DescribeMaterializedViewRequest(_Request):
    id: list[str] | None = None


class ViewProjection(_Model):
    output_column: str
    expression: str


class ViewSource(_Model):
    """A table a view reads: its name in the query, what that stands for, and the version the view was refreshed from.

    ``table_id`` is missing where there is no such table any longer, ``version`` before the first refresh.
    """

    name: str
    table_id: list[str] | None = None
    version: int | None = None


class DescribeMaterializedViewResponse(_Response):
    """LanceDB's, where ``source_table`` is the one table of a simple view; ``sources`` are those of any view."""

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
    views: list[Any] = Field(default_factory=list)
    page_token: str | None = None


class ListJobsRequest(_Request):
    page_token: str | None = None
    limit: int | None = Field(default=None, ge=1, le=1000)
    job_ids: list[str] | None = Field(default=None, max_length=1000)
    idempotency_key: str | None = None
    state: str | list[str] | None = None
    table: str | None = None
    since: int | None = Field(default=None, ge=0, description="created at or after, in milliseconds")


class ListJobsResponse(_Response):
    jobs: list[dict[str, Any]] = Field(default_factory=list)
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
    spec: Any = None
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None


class CancelJobRequest(_JobRequest):
    pass


class CancelJobResponse(_Response):
    job_id: str | None = None


class PauseJobRequest(_JobRequest):
    pass


class PauseJobResponse(_Response):
    status: str | None = None


class ResumeJobRequest(_JobRequest):
    pass


class ResumeJobResponse(_Response):
    status: str | None = None


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
    spec: dict[str, Any]
    storage_options: dict[str, str] | None = Field(default=None, repr=False)
    expires_at: float | None = None


class ReportJobRequest(_JobRequest):
    claim_token: str = Field(repr=False)
    seq: int = Field(ge=0)
    progress: dict[str, Any] | None = None
    events: list[dict[str, Any]] | None = None
    terminal: dict[str, Any] | None = None


class ReportJobResponse(_Response):
    lease_until: float | None = None
    cancel: bool | None = None
    storage_options: dict[str, str] | None = Field(default=None, repr=False)


@cache
def model(name: str) -> type[Any]:
    """The model class of that name, ours or the generated package's."""
    own = globals().get(name)
    if isinstance(own, type) and issubclass(own, BaseModel):
        return own
    import lance_namespace_urllib3_client.models as generated

    return getattr(generated, name)
