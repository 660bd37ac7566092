"""The one table of operations: a row per route of the Lance namespace wire.

The sync client, the async client and the server's routes are all derived from these rows; nobody
writes an endpoint twice. Models are named by string, so importing this module imports none of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType


class Body(enum.Enum):
    """How a request travels."""

    JSON = "json"
    NONE = "none"  # every field goes to the path or the query string
    ARROW = "arrow"  # an Arrow IPC stream; the request's fields go to the query string
    METADATA = "metadata"  # the bare map of the field ``metadata``


class Answer(enum.Enum):
    """What comes back on success."""

    JSON = "json"
    NOTHING = "nothing"  # the status says it all
    COUNT = "count"  # a bare integer
    TEXT = "text"  # a bare string
    METADATA = "metadata"  # the bare map of the field ``metadata``
    ARROW_FILE = "arrow_file"
    ARROW_STREAM = "arrow_stream"


class Scope(enum.Enum):
    """What a caller must be allowed to do; our server's keys carry these."""

    READ = "read"
    WRITE = "write"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route.

    ``replayable``: sending the request twice has the effect of sending it once, and the second
    answer is as good as the first; only then is it sent again after its answer was lost.
    ``optional``: real servers lack this route, so a bare 404 means "no such route" and not "no such object".
    ``items``: the field of a paginated answer that holds its rows.
    ``missing`` and ``taken``: the Lance error codes behind a 404 and a 409 that name no code themselves.
    """

    name: str
    id: str
    path: str
    request: str | None
    response: str | None
    method: str = "POST"
    statuses: tuple[int, ...] = (200,)
    body: Body = Body.JSON
    answer: Answer = Answer.JSON
    query: tuple[str, ...] = ()
    scope: Scope = Scope.WRITE
    replayable: bool = False
    optional: bool = False
    submits_job: bool = False
    missing: int = 4
    taken: int = 14
    items: str | None = None
    summary: str = ""

    @property
    def takes_id(self) -> bool:
        return "{id}" in self.path

    @property
    def about_jobs(self) -> bool:
        """Whether it starts a job, follows one, or is about what only jobs fill."""
        return self.submits_job or self.path.startswith(("/v1/jobs/", "/v1/materialized_view/"))


_PAGE = ("page_token", "limit")
_LIST = (*_PAGE, "include_declared")
_MERGE = (
    "branch",
    "on",
    "when_matched_update_all",
    "when_matched_update_all_filt",
    "when_not_matched_insert_all",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_delete_filt",
    "timeout",
    "use_index",
)


def _row(id: str, path: str, summary: str, *, name: str | None = None, **fields: object) -> Operation:
    """A row whose model names follow from its operation id, as in the generated package."""
    method_name = name or "".join(f"_{c.lower()}" if c.isupper() else c for c in id).lstrip("_")
    fields.setdefault("request", f"{id}Request")
    fields.setdefault("response", f"{id}Response")
    return Operation(name=method_name, id=id, path=path, summary=summary, **fields)  # type: ignore[arg-type]


def _read(id: str, path: str, summary: str, **fields: object) -> Operation:
    return _row(id, path, summary, scope=Scope.READ, replayable=True, **fields)  # type: ignore[arg-type]


_ROWS = (
    # Namespaces
    _row("CreateNamespace", "/v1/namespace/{id}/create", "Create a namespace", missing=1, taken=2),
    _read(
        "ListNamespaces",
        "/v1/namespace/{id}/list",
        "List child namespaces",
        items="namespaces",
        method="GET",
        body=Body.NONE,
        query=_PAGE,
        missing=1,
    ),
    _read("DescribeNamespace", "/v1/namespace/{id}/describe", "Describe a namespace", missing=1),
    _row("DropNamespace", "/v1/namespace/{id}/drop", "Drop a namespace", missing=1, taken=3),
    _read("NamespaceExists", "/v1/namespace/{id}/exists", "Check a namespace exists", answer=Answer.NOTHING, missing=1),
    _read(
        "ListTables",
        "/v1/namespace/{id}/table/list",
        "List tables of a namespace",
        items="tables",
        method="GET",
        body=Body.NONE,
        query=_LIST,
        missing=1,
    ),
    # Tables
    _read(
        "ListAllTables",
        "/v1/table",
        "List all tables",
        items="tables",
        method="GET",
        body=Body.NONE,
        query=_LIST,
        request="ListTablesRequest",
        response="ListTablesResponse",
        missing=1,
    ),
    _row("RegisterTable", "/v1/table/{id}/register", "Register an existing table", missing=1, taken=5),
    _read(
        "DescribeTable",
        "/v1/table/{id}/describe",
        "Describe a table",
        query=("with_table_uri", "load_detailed_metadata", "check_declared"),
    ),
    _read("TableExists", "/v1/table/{id}/exists", "Check a table exists", answer=Answer.NOTHING),
    _row("DropTable", "/v1/table/{id}/drop", "Drop a table", body=Body.NONE),
    _row("DeregisterTable", "/v1/table/{id}/deregister", "Forget a table, keep its data"),
    _row("RestoreTable", "/v1/table/{id}/restore", "Restore a table to a version", missing=11),
    _row("RenameTable", "/v1/table/{id}/rename", "Rename a table", taken=5),
    _row(
        "UpdateTableSchemaMetadata",
        "/v1/table/{id}/schema_metadata/update",
        "Set schema metadata",
        body=Body.METADATA,
        answer=Answer.METADATA,
        query=("branch",),
        replayable=True,
    ),
    _read(
        "ListTableVersions",
        "/v1/table/{id}/version/list",
        "List table versions",
        items="versions",
        body=Body.NONE,
        query=("branch", *_PAGE, "descending"),
    ),
    _row("CreateTableVersion", "/v1/table/{id}/version/create", "Create a table version from a staged manifest"),
    _read("DescribeTableVersion", "/v1/table/{id}/version/describe", "Describe a table version", missing=11),
    _row("BatchDeleteTableVersions", "/v1/table/{id}/version/delete", "Delete ranges of versions", replayable=True),
    _row("BatchCreateTableVersions", "/v1/table/version/batch-create", "Create versions of several tables at once"),
    _row("BatchCommitTables", "/v1/table/batch-commit", "Commit several table operations at once"),
    _row("AlterTableAlterColumns", "/v1/table/{id}/alter_columns", "Alter columns", missing=12),
    _row("UpdateFieldMetadata", "/v1/table/{id}/update_field_metadata", "Set field metadata", missing=12),
    _row("AlterTableDropColumns", "/v1/table/{id}/drop_columns", "Drop columns", missing=12),
    _read("GetTableStats", "/v1/table/{id}/stats", "Table statistics"),
    _row(
        "InsertIntoTable",
        "/v1/table/{id}/insert",
        "Insert Arrow data",
        body=Body.ARROW,
        query=("branch", "mode"),
    ),
    _row("MergeInsertIntoTable", "/v1/table/{id}/merge_insert", "Upsert Arrow data", body=Body.ARROW, query=_MERGE),
    _row("UpdateTable", "/v1/table/{id}/update", "Update rows"),
    _row("DeleteFromTable", "/v1/table/{id}/delete", "Delete rows"),
    _read("QueryTable", "/v1/table/{id}/query", "Query a table", answer=Answer.ARROW_FILE),
    _read("CountTableRows", "/v1/table/{id}/count_rows", "Count rows", answer=Answer.COUNT),
    _row(
        "CreateTable",
        "/v1/table/{id}/create",
        "Create a table from Arrow data",
        body=Body.ARROW,
        query=("mode", "properties", "storage_options"),
        missing=1,
        taken=5,
    ),
    _read("ExplainTableQueryPlan", "/v1/table/{id}/explain_plan", "Explain a query", answer=Answer.TEXT),
    _read("AnalyzeTableQueryPlan", "/v1/table/{id}/analyze_plan", "Run and analyse a query", answer=Answer.TEXT),
    _row("AlterTableAddColumns", "/v1/table/{id}/add_columns", "Add columns"),
    _row("CreateTableIndex", "/v1/table/{id}/create_index", "Create a vector or full-text index", taken=7, missing=12),
    _row(
        "CreateTableScalarIndex",
        "/v1/table/{id}/create_scalar_index",
        "Create a scalar index",
        request="CreateTableIndexRequest",
        taken=7,
        missing=12,
    ),
    _read("ListTableIndices", "/v1/table/{id}/index/list", "List indices", items="indexes"),
    _read("DescribeTableIndexStats", "/v1/table/{id}/index/{index_name}/stats", "Index statistics", missing=6),
    _row(
        "DropTableIndex",
        "/v1/table/{id}/index/{index_name}/drop",
        "Drop an index",
        body=Body.NONE,
        query=("branch",),
        missing=6,
    ),
    _read("ListTableTags", "/v1/table/{id}/tags/list", "List tags", items="tags", body=Body.NONE, query=_PAGE),
    _read("GetTableTagVersion", "/v1/table/{id}/tags/version", "The version a tag points to", missing=8),
    _row("CreateTableTag", "/v1/table/{id}/tags/create", "Create a tag", taken=9),
    _row("DeleteTableTag", "/v1/table/{id}/tags/delete", "Delete a tag", missing=8),
    _row("UpdateTableTag", "/v1/table/{id}/tags/update", "Move a tag to a version", replayable=True, missing=8),
    _row("DeclareTable", "/v1/table/{id}/declare", "Declare a table without data", missing=1, taken=5),
    _row(
        "CreateEmptyTable",
        "/v1/table/{id}/create-empty",
        "Create an empty table (the older name of declare)",
        missing=1,
        taken=5,
        optional=True,
    ),
    _read(
        "ListTableBranches",
        "/v1/table/{id}/branches/list",
        "List branches",
        items="branches",
        body=Body.NONE,
        query=_PAGE,
    ),
    _row("CreateTableBranch", "/v1/table/{id}/branches/create", "Create a branch", taken=23),
    _row("DeleteTableBranch", "/v1/table/{id}/branches/delete", "Delete a branch", missing=22),
    _read("DescribeTransaction", "/v1/transaction/{id}/describe", "Describe a transaction", missing=10, optional=True),
    _row(
        "AlterTransaction",
        "/v1/transaction/{id}/alter",
        "Alter a transaction",
        scope=Scope.JOBS,  # what can be altered is a job's state: the same act as CancelJob
        missing=10,
        optional=True,
    ),
    # Jobs that the spec starts
    _row(
        "AlterTableBackfillColumns",
        "/v1/table/{id}/backfill_column",
        "Start a column backfill",
        statuses=(202, 200),
        scope=Scope.JOBS,
        submits_job=True,
        optional=True,
    ),
    _row(
        "CreateMaterializedView",
        "/v1/materialized_view/{id}/create",
        "Create a materialized view",
        statuses=(201, 202, 200),
        submits_job=True,
        optional=True,
        taken=5,
    ),
    _row(
        "RefreshMaterializedView",
        "/v1/materialized_view/{id}/refresh",
        "Start a view refresh",
        statuses=(202, 200),
        scope=Scope.JOBS,
        submits_job=True,
        optional=True,
    ),
    # Views, as LanceDB's client asks for them
    _read(
        "DescribeMaterializedView", "/v1/materialized_view/{id}/describe", "Describe a view's definition", optional=True
    ),
    _row("DropMaterializedView", "/v1/materialized_view/{id}/drop", "Drop a view", optional=True),
    _read(
        "ListMaterializedViews",
        "/v1/namespace/{id}/materialized_view/list",
        "List materialized views",
        items="views",
        method="GET",
        body=Body.NONE,
        query=_PAGE,
        missing=1,
        optional=True,
    ),
    # The jobs API of LanceDB's client
    _read("ListJobs", "/v1/jobs/list", "List jobs", items="jobs", missing=10, optional=True),
    _read("DescribeJob", "/v1/jobs/describe", "Describe a job", missing=10, optional=True),
    _row("CancelJob", "/v1/jobs/cancel", "Cancel a job", scope=Scope.JOBS, replayable=True, missing=10, optional=True),
    _read(
        "QueryJobEvents",
        "/v1/jobs/query_events",
        "A job's history",
        answer=Answer.ARROW_STREAM,
        response=None,
        missing=10,
        optional=True,
    ),
    _row("PauseJob", "/v1/jobs/pause", "Pause a job", scope=Scope.JOBS, replayable=True, missing=10, optional=True),
    _row("ResumeJob", "/v1/jobs/resume", "Resume a job", scope=Scope.JOBS, replayable=True, missing=10, optional=True),
    # Our executor protocol: a driver claims its job, then reports
    _row("ClaimJob", "/v1/jobs/claim", "Claim a job", scope=Scope.JOBS, replayable=True, missing=10, optional=True),
    _row(
        "ReportJob",
        "/v1/jobs/report",
        "Heartbeat, progress and result",
        scope=Scope.JOBS,
        replayable=True,
        missing=10,
        optional=True,
    ),
)

#: Every operation by its method name.
OPERATIONS: MappingProxyType[str, Operation] = MappingProxyType({row.name: row for row in _ROWS})


def unknown_operation(operation: str) -> str:
    """A sentence with near names."""
    import difflib

    near = difflib.get_close_matches(operation, OPERATIONS, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"There is no operation {operation!r} in the Lance namespace API.{hint}"
