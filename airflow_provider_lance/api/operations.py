"""The one table of operations: a row for each route of the Lance namespace wire.

The clients' methods, the server's routes, its OpenAPI document and the namespace's methods are derived from these rows:
a fact about an operation is a field of its row. Models are named by strings, so that this module imports none of them.
"""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import MappingProxyType

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.plain_data import Fields


class Body(enum.Enum):
    """How a request travels."""

    JSON = "json"
    NONE = "none"  # every field goes to the path or the query string
    ARROW = "arrow"  # an Arrow IPC stream; the request's fields go to the query string
    METADATA = "metadata"  # the bare map of the field ``metadata``


class Answer(enum.Enum):
    """What an answer with a status of success holds."""

    JSON = "json"
    NOTHING = "nothing"
    COUNT = "count"  # a bare integer
    TEXT = "text"  # a bare string
    METADATA = "metadata"  # the bare map of the field ``metadata``
    ARROW_FILE = "arrow_file"
    ARROW_STREAM = "arrow_stream"


class LanceDBAnswer(enum.Enum):
    """How LanceDB's client reads an answer where it does not read the spec's."""

    TAGS = enum.auto()  # the bare map of the tags
    ROOT_TABLES = enum.auto()  # it lists one database, the root, and takes a joined id for an invalid name
    ROWS_UPDATED = enum.auto()  # it reads the count from ``rows_updated``


class Scope(enum.Enum):
    """What a caller must be allowed to do. The API keys of our server have these."""

    READ = "read"
    WRITE = "write"
    JOBS = "jobs"


class Access(enum.Enum):
    """How a caller of our server proves that it may run an operation."""

    KEY = enum.auto()  # an API key with the operation's scope
    KEY_OR_CLAIM = enum.auto()  # or the claim on a job, for the table that the job writes
    KEY_OR_LAUNCH_TOKEN = enum.auto()  # or the launch token of the job, in the body
    CLAIM_TOKEN = enum.auto()  # the token of the claim on a job, in the body


class Subject(enum.Enum):
    """What an operation is about: the second segment of its path."""

    NAMESPACE = "namespace"
    TABLE = "table"
    VIEW = "materialized_view"
    TRANSACTION = "transaction"
    FUNCTION = "function"
    SECRET = "secret"  # noqa: S105 - a segment of paths
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route.

    The names of its method and its models follow from its id, as in the package that is generated from the spec, unless
    a row gives others.

    ``replayable``: sending the request twice has the effect of sending it once, and the second answer is as good as the
    first. Only such a request is sent again after its answer was lost.
    ``optional``: some real servers lack this route, so a 404 without a code means that the route is missing, and not
    that the object is.
    ``replaced_by``: the operation with the same effect that servers have which lack this one.
    ``items``: the field of a paginated answer that holds its rows.
    ``missing`` and ``taken``: the Lance error codes behind a 404 and a 409 that give no code.
    ``submits_job``: it starts a job, and its answer has a ``job_id``.
    ``answers_version``: the answer to a submit also has the table's ``version``.
    ``lancedb_request``: the model of the same request in LanceDB's dialect, which has the field ``query``.
    ``lancedb_answer``: LanceDB's client reads another answer than the spec's.
    ``holds_query``: the request is a query, or holds one under ``query``, which clients write in several dialects.
    ``sql_fields``: the fields whose SQL Lance executes during the request.
    ``opens_table``: a caller reads the table's rows with it, or learns where they are.
    ``main_only``: pylance takes a ``branch`` in the request and works on main nevertheless, so our server refuses it.
    ``schema_field``: the field of the request that an Arrow schema fills which is sent as the body instead of JSON.
    ``pylance_takes_dict``: pylance's binding takes and returns a dict here, and models everywhere else.
    """

    id: str
    path: str
    summary: str
    name: str = field(init=False)
    _: KW_ONLY
    request: str = ""
    response: str | None = ""
    method: str = "POST"
    statuses: tuple[int, ...] = (200,)
    body: Body = Body.JSON
    answer: Answer = Answer.JSON
    query: tuple[str, ...] = ()
    scope: Scope = Scope.WRITE
    access: Access = Access.KEY
    replayable: bool = False
    optional: bool = False
    replaced_by: str | None = None
    items: str | None = None
    missing: ErrorCode = ErrorCode.TABLE_NOT_FOUND
    taken: ErrorCode = ErrorCode.CONCURRENT_MODIFICATION
    submits_job: bool = False
    answers_version: bool = False
    lancedb_request: str | None = None
    lancedb_answer: LanceDBAnswer | None = None
    holds_query: bool = False
    sql_fields: tuple[str, ...] = ()
    opens_table: bool = False
    main_only: bool = False
    schema_field: str | None = None
    pylance_takes_dict: bool = False

    def __post_init__(self) -> None:
        words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.id)
        object.__setattr__(self, "name", words.lstrip("_"))
        object.__setattr__(self, "request", self.request or f"{self.id}Request")
        if self.response == "":
            object.__setattr__(self, "response", f"{self.id}Response")

    @property
    def subject(self) -> Subject:
        return Subject(self.path.split("/")[2])

    @property
    def takes_id(self) -> bool:
        return "{id}" in self.path

    @property
    def jobs_api(self) -> bool:
        """Whether the jobs service answers it from the registry alone.

        The server runs such a request in the threads of the registry, so that jobs are answered while storage is slow,
        and tables while the registry is away.
        """
        return self.subject in {Subject.JOBS, Subject.FUNCTION, Subject.SECRET}

    @property
    def about_jobs(self) -> bool:
        """Whether it starts a job, follows one, or is about what only jobs fill."""
        return self.submits_job or self.subject in {Subject.JOBS, Subject.VIEW}

    def in_lancedb_dialect(self, fields: Fields) -> bool:
        """Whether a request has these fields of LanceDB's dialect instead of the spec's."""
        return self.lancedb_request is not None and "query" in fields


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


_QUERY_SQL = ("filter", "columns")

_read = partial(Operation, scope=Scope.READ, replayable=True)
_listing = partial(_read, method="GET", body=Body.NONE, missing=ErrorCode.NAMESPACE_NOT_FOUND)
_named = partial(Operation, optional=True, missing=ErrorCode.TRANSACTION_NOT_FOUND)
_job = partial(Operation, scope=Scope.JOBS, replayable=True, optional=True, missing=ErrorCode.TRANSACTION_NOT_FOUND)

_ROWS = (
    # Namespaces
    Operation(
        "CreateNamespace",
        "/v1/namespace/{id}/create",
        "Create a namespace",
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
        taken=ErrorCode.NAMESPACE_ALREADY_EXISTS,
    ),
    _listing("ListNamespaces", "/v1/namespace/{id}/list", "List child namespaces", items="namespaces", query=_PAGE),
    _read(
        "DescribeNamespace",
        "/v1/namespace/{id}/describe",
        "Describe a namespace",
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
    ),
    Operation(
        "DropNamespace",
        "/v1/namespace/{id}/drop",
        "Drop a namespace",
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
        taken=ErrorCode.NAMESPACE_NOT_EMPTY,
    ),
    _read(
        "NamespaceExists",
        "/v1/namespace/{id}/exists",
        "Check a namespace exists",
        answer=Answer.NOTHING,
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
    ),
    _listing("ListTables", "/v1/namespace/{id}/table/list", "List tables of a namespace", items="tables", query=_LIST),
    # Tables
    _listing(
        "ListAllTables",
        "/v1/table",
        "List all tables",
        items="tables",
        query=_LIST,
        request="ListTablesRequest",
        response="ListTablesResponse",
        lancedb_answer=LanceDBAnswer.ROOT_TABLES,
    ),
    Operation(
        "RegisterTable",
        "/v1/table/{id}/register",
        "Register an existing table",
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
        taken=ErrorCode.TABLE_ALREADY_EXISTS,
    ),
    _read(
        "DescribeTable",
        "/v1/table/{id}/describe",
        "Describe a table",
        query=("with_table_uri", "load_detailed_metadata", "check_declared"),
        access=Access.KEY_OR_CLAIM,
        opens_table=True,
    ),
    _read("TableExists", "/v1/table/{id}/exists", "Check a table exists", answer=Answer.NOTHING),
    Operation("DropTable", "/v1/table/{id}/drop", "Drop a table", body=Body.NONE),
    Operation("DeregisterTable", "/v1/table/{id}/deregister", "Deregister a table and keep its data"),
    Operation(
        "RestoreTable",
        "/v1/table/{id}/restore",
        "Restore a table to a version",
        missing=ErrorCode.TABLE_VERSION_NOT_FOUND,
    ),
    Operation("RenameTable", "/v1/table/{id}/rename", "Rename a table", taken=ErrorCode.TABLE_ALREADY_EXISTS),
    Operation(
        "UpdateTableSchemaMetadata",
        "/v1/table/{id}/schema_metadata/update",
        "Set schema metadata",
        body=Body.METADATA,
        answer=Answer.METADATA,
        query=("branch",),
        replayable=True,
        main_only=True,
    ),
    _read(
        "ListTableVersions",
        "/v1/table/{id}/version/list",
        "List table versions",
        items="versions",
        body=Body.NONE,
        query=("branch", *_PAGE, "descending"),
        access=Access.KEY_OR_CLAIM,
    ),
    Operation(
        "CreateTableVersion",
        "/v1/table/{id}/version/create",
        "Create a table version from a staged manifest",
        access=Access.KEY_OR_CLAIM,
        pylance_takes_dict=True,
    ),
    _read(
        "DescribeTableVersion",
        "/v1/table/{id}/version/describe",
        "Describe a table version",
        missing=ErrorCode.TABLE_VERSION_NOT_FOUND,
        access=Access.KEY_OR_CLAIM,
        pylance_takes_dict=True,
    ),
    Operation(
        "BatchDeleteTableVersions",
        "/v1/table/{id}/version/delete",
        "Delete ranges of versions",
        replayable=True,
        pylance_takes_dict=True,
    ),
    Operation(
        "BatchCreateTableVersions", "/v1/table/version/batch-create", "Create versions of several tables at once"
    ),
    Operation("BatchCommitTables", "/v1/table/batch-commit", "Commit several table operations at once"),
    Operation(
        "AlterTableAlterColumns",
        "/v1/table/{id}/alter_columns",
        "Alter columns",
        missing=ErrorCode.TABLE_COLUMN_NOT_FOUND,
    ),
    Operation(
        "UpdateFieldMetadata",
        "/v1/table/{id}/update_field_metadata",
        "Set field metadata",
        missing=ErrorCode.TABLE_COLUMN_NOT_FOUND,
    ),
    Operation(
        "AlterTableDropColumns", "/v1/table/{id}/drop_columns", "Drop columns", missing=ErrorCode.TABLE_COLUMN_NOT_FOUND
    ),
    _read("GetTableStats", "/v1/table/{id}/stats", "Table statistics"),
    Operation(
        "InsertIntoTable", "/v1/table/{id}/insert", "Insert Arrow data", body=Body.ARROW, query=("branch", "mode")
    ),
    Operation(
        "MergeInsertIntoTable",
        "/v1/table/{id}/merge_insert",
        "Upsert Arrow data",
        body=Body.ARROW,
        query=_MERGE,
        sql_fields=("when_matched_update_all_filt", "when_not_matched_by_source_delete_filt"),
    ),
    Operation(
        "UpdateTable",
        "/v1/table/{id}/update",
        "Update rows",
        sql_fields=("predicate", "updates"),
        lancedb_answer=LanceDBAnswer.ROWS_UPDATED,
    ),
    Operation("DeleteFromTable", "/v1/table/{id}/delete", "Delete rows", sql_fields=("predicate",)),
    _read(
        "QueryTable",
        "/v1/table/{id}/query",
        "Query a table",
        answer=Answer.ARROW_FILE,
        holds_query=True,
        sql_fields=_QUERY_SQL,
        opens_table=True,
    ),
    _read(
        "CountTableRows",
        "/v1/table/{id}/count_rows",
        "Count rows",
        answer=Answer.COUNT,
        sql_fields=("predicate",),
        opens_table=True,
    ),
    Operation(
        "CreateTable",
        "/v1/table/{id}/create",
        "Create a table from Arrow data",
        body=Body.ARROW,
        query=("mode", "properties", "storage_options"),
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
        taken=ErrorCode.TABLE_ALREADY_EXISTS,
    ),
    _read(
        "ExplainTableQueryPlan",
        "/v1/table/{id}/explain_plan",
        "Explain a query",
        answer=Answer.TEXT,
        holds_query=True,
        sql_fields=_QUERY_SQL,
    ),
    _read(
        "AnalyzeTableQueryPlan",
        "/v1/table/{id}/analyze_plan",
        "Run and analyse a query",
        answer=Answer.TEXT,
        holds_query=True,
        sql_fields=_QUERY_SQL,
    ),
    Operation(
        "AlterTableAddColumns",
        "/v1/table/{id}/add_columns",
        "Add columns",
        query=("branch",),
        sql_fields=("new_columns",),
        schema_field="arrow_schema",
    ),
    Operation(
        "CreateTableIndex",
        "/v1/table/{id}/create_index",
        "Create a vector or full-text index",
        taken=ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
        missing=ErrorCode.TABLE_COLUMN_NOT_FOUND,
    ),
    Operation(
        "CreateTableScalarIndex",
        "/v1/table/{id}/create_scalar_index",
        "Create a scalar index",
        request="CreateTableIndexRequest",
        taken=ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
        missing=ErrorCode.TABLE_COLUMN_NOT_FOUND,
    ),
    _read("ListTableIndices", "/v1/table/{id}/index/list", "List indices", items="indexes"),
    _read(
        "DescribeTableIndexStats",
        "/v1/table/{id}/index/{index_name}/stats",
        "Index statistics",
        missing=ErrorCode.TABLE_INDEX_NOT_FOUND,
    ),
    Operation(
        "DropTableIndex",
        "/v1/table/{id}/index/{index_name}/drop",
        "Drop an index",
        body=Body.NONE,
        query=("branch",),
        missing=ErrorCode.TABLE_INDEX_NOT_FOUND,
    ),
    # Caches, which LanceDB's client asks to fill
    _read(
        "PrewarmTableIndex",
        "/v1/table/{id}/index/{index_name}/prewarm",
        "Load an index into memory",
        optional=True,
        missing=ErrorCode.TABLE_INDEX_NOT_FOUND,
    ),
    _read("PrewarmTableData", "/v1/table/{id}/page_cache/prewarm", "Load columns into a cache", optional=True),
    _read(
        "ListTableTags",
        "/v1/table/{id}/tags/list",
        "List tags",
        items="tags",
        body=Body.NONE,
        query=_PAGE,
        lancedb_answer=LanceDBAnswer.TAGS,
    ),
    _read(
        "GetTableTagVersion",
        "/v1/table/{id}/tags/version",
        "The version a tag points to",
        missing=ErrorCode.TABLE_TAG_NOT_FOUND,
    ),
    Operation("CreateTableTag", "/v1/table/{id}/tags/create", "Create a tag", taken=ErrorCode.TABLE_TAG_ALREADY_EXISTS),
    Operation("DeleteTableTag", "/v1/table/{id}/tags/delete", "Delete a tag", missing=ErrorCode.TABLE_TAG_NOT_FOUND),
    Operation(
        "UpdateTableTag",
        "/v1/table/{id}/tags/update",
        "Move a tag to a version",
        replayable=True,
        missing=ErrorCode.TABLE_TAG_NOT_FOUND,
    ),
    Operation(
        "DeclareTable",
        "/v1/table/{id}/declare",
        "Declare a table without data",
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
        taken=ErrorCode.TABLE_ALREADY_EXISTS,
    ),
    Operation(
        "CreateEmptyTable",
        "/v1/table/{id}/create-empty",
        "Create an empty table (the older name of declare)",
        missing=ErrorCode.NAMESPACE_NOT_FOUND,
        taken=ErrorCode.TABLE_ALREADY_EXISTS,
        optional=True,
        replaced_by="declare_table",
    ),
    _read(
        "ListTableBranches",
        "/v1/table/{id}/branches/list",
        "List branches",
        items="branches",
        body=Body.NONE,
        query=_PAGE,
    ),
    Operation(
        "CreateTableBranch",
        "/v1/table/{id}/branches/create",
        "Create a branch",
        taken=ErrorCode.TABLE_BRANCH_ALREADY_EXISTS,
    ),
    Operation(
        "DeleteTableBranch",
        "/v1/table/{id}/branches/delete",
        "Delete a branch",
        missing=ErrorCode.TABLE_BRANCH_NOT_FOUND,
    ),
    _read(
        "DescribeTransaction",
        "/v1/transaction/{id}/describe",
        "Describe a transaction",
        missing=ErrorCode.TRANSACTION_NOT_FOUND,
        optional=True,
    ),
    Operation(
        "AlterTransaction",
        "/v1/transaction/{id}/alter",
        "Alter a transaction",
        scope=Scope.JOBS,  # only a job's state can be altered, which is what CancelJob does
        missing=ErrorCode.TRANSACTION_NOT_FOUND,
        optional=True,
    ),
    # Jobs that the spec starts
    Operation(
        "AlterTableBackfillColumns",
        "/v1/table/{id}/backfill_column",
        "Start a column backfill",
        statuses=(202, 200),
        scope=Scope.JOBS,
        submits_job=True,
        optional=True,
    ),
    Operation(
        "CreateMaterializedView",
        "/v1/materialized_view/{id}/create",
        "Create a materialized view",
        statuses=(201, 202, 200),
        submits_job=True,
        optional=True,
        taken=ErrorCode.TABLE_ALREADY_EXISTS,
        answers_version=True,
        lancedb_request="CreateMaterializedViewQueryRequest",
    ),
    Operation(
        "RefreshMaterializedView",
        "/v1/materialized_view/{id}/refresh",
        "Start a view refresh",
        statuses=(202, 200),
        scope=Scope.JOBS,
        submits_job=True,
        optional=True,
    ),
    # A job of our own
    Operation(
        "WriteTable",
        "/v1/table/{id}/write",
        "Start loading files into a table",
        statuses=(202, 200),
        submits_job=True,
        optional=True,
        taken=ErrorCode.TABLE_ALREADY_EXISTS,
    ),
    # Views, as LanceDB's client asks for them
    _read(
        "DescribeMaterializedView", "/v1/materialized_view/{id}/describe", "Describe a view's definition", optional=True
    ),
    Operation("DropMaterializedView", "/v1/materialized_view/{id}/drop", "Drop a view", optional=True),
    _listing(
        "ListMaterializedViews",
        "/v1/namespace/{id}/materialized_view/list",
        "List materialized views",
        items="views",
        query=_PAGE,
        optional=True,
    ),
    # Functions, secrets and the errors of functions, as LanceDB's client asks for them
    _named("CreateFunction", "/v1/function/{id}/create", "Register a function", statuses=(202,), replayable=True),
    _named(
        "DescribeFunction",
        "/v1/function/{id}/describe",
        "Describe a version of a function",
        scope=Scope.READ,
        replayable=True,
    ),
    _named("DropFunction", "/v1/function/{id}/drop", "Drop a version of a function", replayable=True),
    _listing(
        "ListFunctions",
        "/v1/namespace/{id}/function/list",
        "List functions",
        items="functions",
        query=("include_definition", *_PAGE),
        optional=True,
    ),
    _named("CreateSecret", "/v1/secret/{id}/create", "Store a secret"),
    _named("AlterSecret", "/v1/secret/{id}/alter", "Replace the value of a secret", replayable=True),
    _named("DescribeSecret", "/v1/secret/{id}/describe", "When a secret was set", scope=Scope.READ, replayable=True),
    _named("DropSecret", "/v1/secret/{id}/drop", "Delete a secret"),
    _listing(
        "ListSecrets",
        "/v1/namespace/{id}/secret/list",
        "List the names of secrets",
        items="secrets",
        query=_PAGE,
        optional=True,
    ),
    _read("ListTableErrors", "/v1/table/{id}/errors", "Rows on which functions failed", optional=True),
    # The jobs API of LanceDB's client
    _job("ListJobs", "/v1/jobs/list", "List jobs", items="jobs", scope=Scope.READ),
    _job("DescribeJob", "/v1/jobs/describe", "Describe a job", scope=Scope.READ),
    _job("CancelJob", "/v1/jobs/cancel", "Cancel a job"),
    _job(
        "QueryJobEvents",
        "/v1/jobs/query_events",
        "A job's history",
        answer=Answer.ARROW_STREAM,
        response=None,
        scope=Scope.READ,
    ),
    _job("PauseJob", "/v1/jobs/pause", "Pause a job"),
    _job("ResumeJob", "/v1/jobs/resume", "Resume a job"),
    # The protocol of our drivers, which claim a job and then report
    _job("ClaimJob", "/v1/jobs/claim", "Claim a job", access=Access.KEY_OR_LAUNCH_TOKEN),
    _job("ReportJob", "/v1/jobs/report", "Heartbeat, progress and result", access=Access.CLAIM_TOKEN),
)

#: Every operation by its method name.
OPERATIONS: MappingProxyType[str, Operation] = MappingProxyType({row.name: row for row in _ROWS})


def unknown_operation(operation: str) -> str:
    """A sentence with near names."""
    import difflib

    near = difflib.get_close_matches(operation, OPERATIONS, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"There is no operation {operation!r} in the Lance namespace API.{hint}"
