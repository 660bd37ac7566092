"""``SparkNamespace``: an open ``LanceNamespace`` with jobs, over pylance's directory namespace.

Every operation takes one path: read the request, check its identifiers, hand it to the room that owns it or to
pylance, and say what went wrong in the spec's words. The rooms beside this file hold what pylance lacks.
"""

from __future__ import annotations

import difflib
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from pydantic import BaseModel, ValidationError

from airflow_provider_lance.api.client import validation_sentence
from airflow_provider_lance.api.models import ViewRequest, model
from airflow_provider_lance.api.operations import OPERATIONS, Body, Operation, Scope
from airflow_provider_lance.namespace.bounded_requests import is_costly
from airflow_provider_lance.namespace.catalog import Catalog, names_branch
from airflow_provider_lance.namespace.columns import Columns
from airflow_provider_lance.namespace.identifiers import check_identifier, table_identifier
from airflow_provider_lance.namespace.job_requests import JobRequests
from airflow_provider_lance.namespace.queries import QUERIES, read_query
from airflow_provider_lance.namespace.refs import Refs
from airflow_provider_lance.namespace.rows import Rows
from airflow_provider_lance.namespace.submission import Jobs
from airflow_provider_lance.namespace.tables import Tables
from airflow_provider_lance.namespace.translation import translated
from airflow_provider_lance.namespace.tree import Tree
from airflow_provider_lance.namespace.versions import Versions
from airflow_provider_lance.namespace.views import Views
from airflow_provider_lance.namespace.watch import Watcher, WatchSettings
from airflow_provider_lance.namespace.worker import operate
from airflow_provider_lance.namespace.worker_processes import WorkerLostError, WorkerProcesses

_STORAGE = "storage."
_OWN = ("root", "jobs_url", "config", "watch.")
# Both dialects of these go to the engine's own reader, which checks every field.
_READ_ELSEWHERE = frozenset({"create_materialized_view", "refresh_materialized_view"})
# pylance takes a branch in these requests and works on main all the same: worse than to refuse.
_MAIN_ONLY = frozenset(
    {
        "alter_table_alter_columns",
        "analyze_table_query_plan",
        "create_table_index",
        "create_table_scalar_index",
        "describe_table_index_stats",
        "drop_table_index",
        "explain_table_query_plan",
        "list_table_indices",
        "query_table",
        "update_table_schema_metadata",
    }
)
_IMPOSSIBLE = {
    "batch_commit_tables": "Storage has no transaction over several tables; send the operations one by one.",
}


_PERHAPS_WRITTEN = "The table has a new version since then, which may be this request's: look before you send it again."


class SparkNamespace(LanceNamespace):
    """A Lance namespace under ``root`` whose backfills and view refreshes are jobs.

    >>> properties = {"root": "s3://bucket/tables", "storage.region": "eu-west-1"}
    >>> namespace = lance_namespace.connect("airflow_provider_lance.namespace.SparkNamespace", properties)

    Properties are strings: ``root`` (a path or URI), ``storage.*`` (Lance's storage options), ``credential_vendor.*``
    (pylance's), ``jobs_url`` (the SQL registry that jobs are submitted to; a server on it executes them) with
    ``config`` (the server's TOML file, for its cluster names), ``watch.*`` (see ``WatchSettings``).
    ``jobs`` is a jobs service instead of a ``jobs_url``. ``workers`` are processes for requests that may end the
    process they run in, which a server needs. Safe to use from many threads.
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
        self._tables = Tables(self._catalog, requests.refuse_while_live)
        self._tree = Tree(self._catalog, requests.refuse_while_live, self._tables.remove)
        self._columns = Columns(self._catalog, requests)
        self._views = Views(self._catalog, self._tree, self._tables, requests)
        self._requests = requests
        self._rooms = (
            self._tree,
            self._tables,
            Rows(self._catalog, self._tables),
            Versions(self._catalog),
            Refs(self._catalog),
            self._columns,
            self._views,
            requests,
        )
        self._watch_settings = WatchSettings.from_properties(properties)
        self._watcher: Watcher | None = None

    def namespace_id(self) -> str:
        return f"SparkNamespace({self._catalog.root!r})"

    def __repr__(self) -> str:
        return self.namespace_id()

    def storage_options_for(self, table_id: list[str]) -> dict[str, str]:
        """What a driver needs to reach a table's storage: vended credentials where there is a vendor, else ours."""
        with translated():
            return dict(self._catalog.vended(table_identifier(table_id)) or self._catalog.storage_options)

    def watcher(self) -> Watcher:
        """Keeps ``auto_refresh`` views and ``auto_backfill`` columns up to date; the server starts it."""
        with self._lock:
            if self._watcher is None:
                self._watcher = Watcher(
                    self._catalog, self._tree, self._columns, self._views, self._requests, self._watch_settings
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

    def _handle(self, operation: Operation, request: Any, data: Any) -> Any:
        request = _read(operation, request)
        _check_ids(operation, request)
        if operation.name in _IMPOSSIBLE:
            raise UnsupportedOperationError(_IMPOSSIBLE[operation.name])
        if operation.name in _MAIN_ONLY and names_branch(request.branch):
            raise UnsupportedOperationError(f"{operation.id} works on the main branch only; open the branch's dataset.")
        arguments = (request,) if operation.body is not Body.ARROW else (request, _bytes(data))
        if self._workers is not None and is_costly(operation.name, request):
            return self._in_worker(self._workers, operation, *arguments)
        with translated():
            for room in self._rooms:
                handler: Callable[..., Any] | None = getattr(room, operation.name, None)
                if handler is not None:
                    return handler(*arguments)
            return self._catalog.call(operation.name, *arguments)

    def _in_worker(
        self, workers: WorkerProcesses, operation: Operation, request: Any, data: bytes | None = None
    ) -> Any:
        """Run an operation in a process of its own; if that ends, the caller has an error and the server goes on."""
        for entry in getattr(request, "new_columns", None) or []:
            if entry.virtual_column is not None and entry.virtual_column.auto_backfill:
                raise InvalidInputError(
                    f"Column {entry.name!r} has auto_backfill, and another column of the request an expression that is "
                    "evaluated at once. Send them as two requests."
                )
        writes = operation.scope is Scope.WRITE
        before = self._version(request) if writes else None
        try:
            return workers.call(operate, self._worker_properties, operation.name, request.to_dict(), data)
        except WorkerLostError as error:
            if not writes:
                raise InvalidInputError(f"The request was given up. {error}") from None
            # A commit of Lance's is there or not, and the one who could have made it is gone.
            done = "Nothing was written." if self._version(request) == before else _PERHAPS_WRITTEN
            raise InvalidInputError(f"The request was given up. {error} {done}") from None

    def _version(self, request: Any) -> int:
        with translated():
            return int(self._catalog.open(request.id, branch=getattr(request, "branch", None)).version)


def _read(operation: Operation, request: Any) -> Any:
    """The request as its model: from a model of any package, or from a dict in any dialect."""
    if isinstance(request, BaseModel):
        fields = request.to_dict() if hasattr(request, "to_dict") else request.model_dump(exclude_none=True)
    elif isinstance(request, Mapping):  # pylance's Rust side hands over a dict
        fields = {key: value for key, value in request.items() if value is not None}
    elif request is None:
        fields = {}
    else:
        raise InvalidInputError(
            f"{operation.name} takes a {operation.request} or a dict, not {type(request).__name__}."
        )
    kind = ViewRequest if operation.name in _READ_ELSEWHERE else model(operation.request or "")
    if operation.submits_job and kind is not ViewRequest:
        _refuse_unknown(operation, fields, list(kind.model_fields))
    try:
        return kind.from_dict(read_query(fields) if operation.name in QUERIES else fields)
    except ValidationError as error:
        raise InvalidInputError(f"{operation.name}: {validation_sentence(error)}") from None
    except (TypeError, ValueError, AttributeError) as error:  # the generated models' own checks
        raise InvalidInputError(f"{operation.name}: {error}") from None


def _refuse_unknown(operation: Operation, fields: Mapping[str, Any], known: list[str]) -> None:
    """The generated models ignore what they do not know; a job that ignores half of its request is the wrong job."""
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(sorted(known))}."
            raise InvalidInputError(f"{operation.name} has no field `{str(name)[:60]}`: {hint}")


def _check_ids(operation: Operation, request: Any) -> None:
    if operation.path.startswith("/v1/namespace/"):
        check_identifier(request.id, "namespace")
    elif operation.path.startswith("/v1/table/{id}"):
        table_identifier(request.id)
    elif operation.path.startswith("/v1/materialized_view/{id}"):
        table_identifier(request.id, "view")
    for entry in getattr(request, "entries", None) or []:
        table_identifier(entry.id)


def _bytes(data: Any) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidInputError("This operation needs Arrow IPC data.")


def _open_jobs(url: str, config: str | None, storage_options_for: Callable[[list[str]], dict[str, str]]) -> Jobs:
    """A jobs service that submits to a registry and launches nothing: a server on the same registry does."""
    from airflow_provider_lance.namespace.config import ServerConfig
    from airflow_provider_lance.namespace.database import Database
    from airflow_provider_lance.namespace.jobs import JobsService

    return JobsService(
        Database(url),
        ServerConfig.load(Path(config)) if config else None,
        directory=Path(tempfile.gettempdir()),
        namespace_url="",
        vend=lambda spec: storage_options_for(spec.table_id),
    )


def _method(operation: Operation) -> Callable[..., Any]:
    def method(self: SparkNamespace, request: Any = None, request_data: Any = None) -> Any:
        return self._handle(operation, request, request_data)

    method.__name__ = operation.name
    method.__qualname__ = f"SparkNamespace.{operation.name}"
    method.__doc__ = f"{operation.summary}. Takes a ``{operation.request}`` or a dict."
    return method


for _operation in OPERATIONS.values():
    setattr(SparkNamespace, _operation.name, _method(_operation))
