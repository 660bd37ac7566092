"""``SparkNamespace``: an open ``LanceNamespace`` with jobs, over pylance's directory namespace.

Every operation takes one path: the request is read and its identifiers are checked, its handler runs, and errors of
pylance are said in the spec's words. The handlers in ``tables/`` have what pylance lacks; the methods of the class
say which handler an operation has.
"""

from __future__ import annotations

import difflib
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import lance_namespace as spec
from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from pydantic import BaseModel

from airflow_provider_lance.api.client import Method, plain_fields, read_model
from airflow_provider_lance.api.models import (
    AlterTableAddColumnsRequest,
    AnalyzeTableQueryPlanRequest,
    CreateEmptyTableRequest,
    CreateTableIndexRequest,
    ExplainTableQueryPlanRequest,
    QueryTableRequest,
    ViewRequest,
    model,
)
from airflow_provider_lance.api.operations import Body, Operation, Scope, Subject
from airflow_provider_lance.api.plain_data import Fields
from airflow_provider_lance.namespace.functions.errors import FunctionErrors
from airflow_provider_lance.namespace.functions.functions import Functions
from airflow_provider_lance.namespace.functions.secrets import Secrets
from airflow_provider_lance.namespace.requests.identifiers import check_identifier, table_identifier
from airflow_provider_lance.namespace.search.dialects import read_query
from airflow_provider_lance.namespace.search.indices import Indices
from airflow_provider_lance.namespace.search.queries import Queries
from airflow_provider_lance.namespace.submission import Jobs
from airflow_provider_lance.namespace.tables.auto_refresh import Watcher, WatchSettings
from airflow_provider_lance.namespace.tables.catalog import Catalog, names_branch
from airflow_provider_lance.namespace.tables.columns import Columns
from airflow_provider_lance.namespace.tables.job_requests import JobRequests
from airflow_provider_lance.namespace.tables.namespaces import Namespaces
from airflow_provider_lance.namespace.tables.pylance_errors import translated
from airflow_provider_lance.namespace.tables.refs import Refs
from airflow_provider_lance.namespace.tables.rows import Rows
from airflow_provider_lance.namespace.tables.tables import Tables
from airflow_provider_lance.namespace.tables.versions import Versions
from airflow_provider_lance.namespace.tables.views import Views
from airflow_provider_lance.namespace.workers.costly_requests import is_costly
from airflow_provider_lance.namespace.workers.worker_main import operate
from airflow_provider_lance.namespace.workers.worker_pool import WorkerLostError, WorkerProcesses

_STORAGE = "storage."
_OWN = ("root", "jobs_url", "config", "watch.")
_PERHAPS_WRITTEN = "The table has a new version since then, which may be this request's: look before you send it again."

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Read = TypeVar("_Read", bound=BaseModel)


class _Handled(Method[_Request, _Response]):
    """The method of an operation, with the handler that a namespace has for it."""

    #: The model that the handler takes, if it is not the one of the operation's row.
    reads: type[BaseModel] | None = None
    handler: Callable[[SparkNamespace], Callable[..., _Response]]

    def __init__(
        self,
        handler: Callable[[SparkNamespace], Callable[[_Request], _Response] | Callable[[_Request, bytes], _Response]],
    ) -> None:
        self.handler = handler


class _HandledAs(_Handled[_Request, _Response]):
    """The method of an operation whose handler takes another model than ``LanceNamespace`` has for it."""

    def __init__(self, reads: type[_Read], handler: Callable[[SparkNamespace], Callable[[_Read], _Response]]) -> None:
        self.reads = reads
        self.handler = handler


def _pylance(method: Callable[[LanceNamespace, _Request], _Response]) -> _Handled[_Request, _Response]:
    """The method of an operation that pylance's own namespace handles."""
    return _Handled(lambda namespace: partial(namespace._catalog.call, method.__name__))


class SparkNamespace(LanceNamespace):
    """A Lance namespace under ``root`` whose backfills and view refreshes are jobs.

    >>> properties = {"root": "s3://bucket/tables", "storage.region": "eu-west-1"}
    >>> namespace = lance_namespace.connect("airflow_provider_lance.namespace.SparkNamespace", properties)

    Properties are strings: ``root`` (a path or URI), ``storage.*`` (Lance's storage options), ``credential_vendor.*``
    (pylance's), ``jobs_url`` (the SQL registry that jobs are submitted to; a server on it executes them) with
    ``config`` (the server's TOML file, for its cluster names), ``watch.*`` (see ``WatchSettings``).
    ``jobs`` is a jobs service instead of a ``jobs_url``. ``workers`` are processes for requests that may end the
    process they run in, which a server needs. Threads may share a namespace.
    """

    def __init__(self, jobs: Jobs | None = None, workers: WorkerProcesses | None = None, **properties: str) -> None:
        if not properties.get("root"):
            raise InvalidInputError("A SparkNamespace needs the property `root`: a directory or a URI.")
        storage = {
            key.removeprefix(_STORAGE): str(value) for key, value in properties.items() if key.startswith(_STORAGE)
        }
        passed_on = {key: str(value) for key, value in properties.items() if not key.startswith((_STORAGE, *_OWN))}
        with translated():
            self._catalog = Catalog(str(properties["root"]), storage, **passed_on)
        self._workers = workers
        self._worker_properties = tuple(
            (key, str(value)) for key, value in properties.items() if key == "root" or not key.startswith(_OWN)
        )
        self._jobs_url = properties.get("jobs_url")
        self._config = properties.get("config")
        self._jobs = jobs
        self._owns_jobs = False
        self._lock = threading.Lock()
        requests = JobRequests(self._catalog, self._jobs_service)
        self._job_requests = requests
        self._tables = Tables(self._catalog, requests.refuse_while_live)
        self._namespaces = Namespaces(self._catalog, requests.refuse_while_live)
        self._rows = Rows(self._catalog, requests)
        self._queries = Queries(self._catalog)
        self._indices = Indices(self._catalog)
        self._versions = Versions(self._catalog)
        self._refs = Refs(self._catalog)
        self._columns = Columns(self._catalog, requests)
        self._views = Views(self._catalog, requests)
        self._functions = Functions(requests)
        self._secrets = Secrets(requests)
        self._errors = FunctionErrors(self._catalog, requests)
        self._watch_settings = WatchSettings.from_properties(properties)
        self._watcher: Watcher | None = None

    create_namespace = _Handled(lambda self: self._namespaces.create_namespace)
    list_namespaces = _Handled(lambda self: self._namespaces.list_namespaces)
    describe_namespace = _pylance(LanceNamespace.describe_namespace)
    drop_namespace = _Handled(lambda self: self._namespaces.drop_namespace)
    namespace_exists = _pylance(LanceNamespace.namespace_exists)
    list_tables = _Handled(lambda self: self._namespaces.list_tables)
    list_all_tables = _Handled(lambda self: self._namespaces.list_all_tables)
    register_table = _Handled(lambda self: self._tables.register_table)
    describe_table = _Handled(lambda self: self._tables.describe_table)
    table_exists = _Handled(lambda self: self._tables.table_exists)
    drop_table = _Handled(lambda self: self._tables.drop_table)
    deregister_table = _Handled(lambda self: self._tables.deregister_table)
    restore_table = _Handled(lambda self: self._tables.restore_table)
    rename_table = _Handled(lambda self: self._tables.rename_table)
    update_table_schema_metadata = _pylance(LanceNamespace.update_table_schema_metadata)
    list_table_versions = _Handled(lambda self: self._versions.list_table_versions)
    create_table_version = _Handled(lambda self: self._versions.create_table_version)
    describe_table_version = _Handled(lambda self: self._versions.describe_table_version)
    batch_delete_table_versions = _Handled(lambda self: self._versions.batch_delete_table_versions)
    batch_create_table_versions = _Handled(lambda self: self._versions.batch_create_table_versions)
    batch_commit_tables = _Handled(lambda self: self._batch_commit_tables)
    alter_table_alter_columns = _Handled(lambda self: self._columns.alter_table_alter_columns)
    update_field_metadata = _Handled(lambda self: self._columns.update_field_metadata)
    alter_table_drop_columns = _Handled(lambda self: self._columns.alter_table_drop_columns)
    get_table_stats = _pylance(LanceNamespace.get_table_stats)
    insert_into_table = _Handled(lambda self: self._rows.insert_into_table)
    write_table = _Handled(lambda self: self._rows.write_table)
    merge_insert_into_table = _Handled(lambda self: self._rows.merge_insert_into_table)
    update_table = _Handled(lambda self: self._rows.update_table)
    delete_from_table = _Handled(lambda self: self._rows.delete_from_table)
    query_table = _HandledAs[spec.QueryTableRequest, spec.QueryTableResponse](
        QueryTableRequest, lambda self: self._queries.query_table
    )
    count_table_rows = _Handled(lambda self: self._rows.count_table_rows)
    create_table = _Handled(lambda self: self._tables.create_table)
    explain_table_query_plan = _HandledAs[spec.ExplainTableQueryPlanRequest, str](
        ExplainTableQueryPlanRequest, lambda self: self._queries.explain_table_query_plan
    )
    analyze_table_query_plan = _HandledAs[spec.AnalyzeTableQueryPlanRequest, str](
        AnalyzeTableQueryPlanRequest, lambda self: self._queries.analyze_table_query_plan
    )
    alter_table_add_columns = _HandledAs[spec.AlterTableAddColumnsRequest, spec.AlterTableAddColumnsResponse](
        AlterTableAddColumnsRequest, lambda self: self._columns.alter_table_add_columns
    )
    create_table_index = _HandledAs[spec.CreateTableIndexRequest, spec.CreateTableIndexResponse](
        CreateTableIndexRequest, lambda self: self._indices.create_table_index
    )
    create_table_scalar_index = _HandledAs[spec.CreateTableIndexRequest, spec.CreateTableScalarIndexResponse](
        CreateTableIndexRequest, lambda self: self._indices.create_table_scalar_index
    )
    list_table_indices = _Handled(lambda self: self._indices.list_table_indices)
    describe_table_index_stats = _Handled(lambda self: self._indices.describe_table_index_stats)
    drop_table_index = _Handled(lambda self: self._indices.drop_table_index)
    prewarm_table_index = _Handled(lambda self: self._indices.prewarm_table_index)
    prewarm_table_data = _Handled(lambda self: self._indices.prewarm_table_data)
    list_table_tags = _Handled(lambda self: self._refs.list_table_tags)
    get_table_tag_version = _pylance(LanceNamespace.get_table_tag_version)
    create_table_tag = _Handled(lambda self: self._refs.create_table_tag)
    delete_table_tag = _pylance(LanceNamespace.delete_table_tag)
    update_table_tag = _Handled(lambda self: self._refs.update_table_tag)
    declare_table = _Handled(lambda self: self._tables.declare_table)
    create_empty_table = _HandledAs[spec.CreateTableRequest | CreateEmptyTableRequest, spec.CreateTableResponse](
        CreateEmptyTableRequest, lambda self: self._tables.create_empty_table
    )
    list_table_branches = _Handled(lambda self: self._refs.list_table_branches)
    create_table_branch = _Handled(lambda self: self._refs.create_table_branch)
    delete_table_branch = _pylance(LanceNamespace.delete_table_branch)
    describe_transaction = _Handled(lambda self: self._job_requests.describe_transaction)
    alter_transaction = _Handled(lambda self: self._job_requests.alter_transaction)
    alter_table_backfill_columns = _Handled(lambda self: self._columns.alter_table_backfill_columns)
    create_materialized_view = _HandledAs[spec.CreateMaterializedViewRequest, spec.CreateMaterializedViewResponse](
        ViewRequest, lambda self: self._views.create_materialized_view
    )
    refresh_materialized_view = _HandledAs[spec.RefreshMaterializedViewRequest, spec.RefreshMaterializedViewResponse](
        ViewRequest, lambda self: self._views.refresh_materialized_view
    )
    describe_materialized_view = _Handled(lambda self: self._views.describe_materialized_view)
    drop_materialized_view = _Handled(lambda self: self._views.drop_materialized_view)
    list_materialized_views = _Handled(lambda self: self._views.list_materialized_views)
    create_function = _Handled(lambda self: self._functions.create_function)
    describe_function = _Handled(lambda self: self._functions.describe_function)
    drop_function = _Handled(lambda self: self._functions.drop_function)
    list_functions = _Handled(lambda self: self._functions.list_functions)
    create_secret = _Handled(lambda self: self._secrets.create_secret)
    alter_secret = _Handled(lambda self: self._secrets.alter_secret)
    describe_secret = _Handled(lambda self: self._secrets.describe_secret)
    drop_secret = _Handled(lambda self: self._secrets.drop_secret)
    list_secrets = _Handled(lambda self: self._secrets.list_secrets)
    list_table_errors = _Handled(lambda self: self._errors.list_table_errors)
    list_jobs = _Handled(lambda self: self._job_requests.list_jobs)
    describe_job = _Handled(lambda self: self._job_requests.describe_job)
    cancel_job = _Handled(lambda self: self._job_requests.cancel_job)
    query_job_events = _Handled(lambda self: self._job_requests.query_job_events)
    pause_job = _Handled(lambda self: self._job_requests.pause_job)
    resume_job = _Handled(lambda self: self._job_requests.resume_job)
    claim_job = _Handled(lambda self: self._job_requests.claim_job)
    report_job = _Handled(lambda self: self._job_requests.report_job)

    def namespace_id(self) -> str:
        return f"SparkNamespace({self._catalog.root!r})"

    def __repr__(self) -> str:
        return self.namespace_id()

    def storage_options_for(self, table_id: list[str]) -> dict[str, str]:
        """What a driver needs to reach a table's storage: vended credentials, or our own where there is no vendor."""
        with translated():
            return dict(self._catalog.vended(table_identifier(table_id)) or self._catalog.storage_options)

    def watcher(self) -> Watcher:
        """Keeps ``auto_refresh`` views and ``auto_backfill`` columns up to date; the server starts it."""
        with self._lock:
            if self._watcher is None:
                self._watcher = Watcher(
                    self._catalog,
                    self._namespaces,
                    self._columns,
                    self._views,
                    self._job_requests,
                    self._watch_settings,
                )
            return self._watcher

    def close(self) -> None:
        """Stop watching; close the jobs service if this namespace opened it."""
        if self._watcher is not None:
            self._watcher.stop()
        if self._owns_jobs and self._jobs is not None:
            self._jobs.close()

    def _jobs_service(self) -> Jobs | None:
        if self._jobs is None and self._jobs_url:
            with self._lock:
                if self._jobs is None:
                    self._jobs = _open_jobs(self._jobs_url, self._config, self.storage_options_for)
                    self._owns_jobs = True
        return self._jobs

    def run(self, operation: Operation, request: object = None, request_data: object = None) -> object:
        """Run an operation of the table. The server calls this, and so does every method of an operation.

        The request is the operation's model or its fields as a dict, in any dialect.
        """
        method = _METHODS[operation.name]
        read = _read(method, request)
        _check_ids(operation, read)
        if operation.main_only and names_branch(getattr(read, "branch", None)):
            raise UnsupportedOperationError(f"{operation.id} works on the main branch only; open the branch's dataset.")
        data = (_bytes(request_data),) if operation.body is Body.ARROW else ()
        if self._workers is not None and is_costly(operation, read):
            return self._in_worker(self._workers, operation, read, *data)
        with translated():
            return method.handler(self)(read, *data)

    def _batch_commit_tables(self, request: spec.BatchCommitTablesRequest) -> spec.BatchCommitTablesResponse:
        raise UnsupportedOperationError(
            "Storage has no transaction over several tables; send the operations one by one."
        )

    def _in_worker(
        self, workers: WorkerProcesses, operation: Operation, request: BaseModel, data: bytes | None = None
    ) -> object:
        """Run an operation in a worker process. If it ends, the caller gets an error and the server goes on."""
        for entry in getattr(request, "new_columns", None) or []:
            if entry.virtual_column is not None and entry.virtual_column.auto_backfill:
                raise InvalidInputError(
                    f"Column {entry.name!r} has auto_backfill, and another column of the request an expression that is "
                    "evaluated at once. Send them as two requests."
                )
        writes = operation.scope is Scope.WRITE
        before = self._version(request) if writes else None
        fields = plain_fields(operation, request)
        try:
            return workers.call(operate, self._worker_properties, operation.name, fields, data)
        except WorkerLostError as error:
            if not writes:
                raise InvalidInputError(f"The request was given up. {error}") from None
            # The process that could still have committed is gone, so the version tells whether it did.
            done = "Nothing was written." if self._version(request) == before else _PERHAPS_WRITTEN
            raise InvalidInputError(f"The request was given up. {error} {done}") from None

    def _version(self, request: BaseModel) -> int:
        table_id, branch = table_identifier(getattr(request, "id", None)), getattr(request, "branch", None)
        with translated():
            return int(self._catalog.open(table_id, branch=branch).version)


#: The methods by their operations' names.
_METHODS: Mapping[str, _Handled[BaseModel, object]] = {
    name: method for name, method in vars(SparkNamespace).items() if isinstance(method, _Handled)
}


def _read(method: _Handled[BaseModel, object], request: object) -> BaseModel:
    """The request as the model that the handler takes: from a model of any package, or from a dict in any dialect."""
    operation = method.operation
    fields = {key: value for key, value in plain_fields(operation, request).items() if value is not None}
    kind = method.reads or model(operation.request)
    if operation.submits_job and kind.model_config.get("extra") != "allow":
        _refuse_unknown(operation, fields, list(kind.model_fields))
    return read_model(operation, kind, read_query(fields) if operation.holds_query else fields)


def _refuse_unknown(operation: Operation, fields: Fields, known: list[str]) -> None:
    """Refuse fields that a generated model would ignore, because the job would not be the one that was asked for."""
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(sorted(known))}."
            raise InvalidInputError(f"{operation.name} has no field `{str(name)[:60]}`: {hint}")


def _check_ids(operation: Operation, request: BaseModel) -> None:
    identifier = getattr(request, "id", None)
    if operation.subject is Subject.NAMESPACE:
        check_identifier(identifier, "namespace")
    elif operation.subject is Subject.TABLE and operation.takes_id:
        table_identifier(identifier)
    elif operation.subject is Subject.VIEW:
        table_identifier(identifier, "view")
    elif operation.subject in {Subject.FUNCTION, Subject.SECRET}:
        table_identifier(identifier, operation.subject.value)
    for entry in getattr(request, "entries", None) or []:
        table_identifier(entry.id)


def _bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidInputError("This operation needs Arrow IPC data.")


def _open_jobs(url: str, config: str | None, storage_options_for: Callable[[list[str]], dict[str, str]]) -> Jobs:
    """A jobs service that submits to a registry and launches nothing, because a server on the registry does that."""
    from airflow_provider_lance.namespace.config import ServerConfig
    from airflow_provider_lance.namespace.jobs.database import Database
    from airflow_provider_lance.namespace.jobs.service import JobsService

    return JobsService(
        Database(url),
        ServerConfig.load(Path(config)) if config else None,
        directory=Path(tempfile.gettempdir()),
        namespace_url="",
        vend=lambda spec: storage_options_for(spec.table_id),
    )
