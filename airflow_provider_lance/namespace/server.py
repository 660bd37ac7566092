"""The REST server: one route per row of the operation table, over a namespace and its jobs.

A request passes in this order: path, who asks, body, call (in a thread: namespaces block), answer. Errors of every
step become Lance error bodies in ``problems.py``. Nothing here knows tables, SQL or Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from airflow_provider_lance import __version__
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.operations import OPERATIONS, Body, Operation, Scope
from airflow_provider_lance.namespace.answers import answer_of
from airflow_provider_lance.namespace.arrow_bodies import check_arrow_body
from airflow_provider_lance.namespace.calls import read_fields
from airflow_provider_lance.namespace.config import Limits
from airflow_provider_lance.namespace.database import RegistryUnavailableError
from airflow_provider_lance.namespace.jobs import JobsService
from airflow_provider_lance.namespace.keys import ANYBODY, Keys, Principal
from airflow_provider_lance.namespace.lancedb_dialect import speaks_lancedb
from airflow_provider_lance.namespace.metrics import Metrics
from airflow_provider_lance.namespace.openapi import openapi_document
from airflow_provider_lance.namespace.pages import page_routes
from airflow_provider_lance.namespace.problems import HttpProblem, outcome_unknown, problem_of

log = logging.getLogger(__name__)

_READINESS_SECONDS = 1.0
# A driver proves itself by its launch or claim token, inside the body: anybody may send one, so it must be small.
_BY_TOKEN = frozenset({"claim_job", "report_job"})
_MOST_OF_STRANGERS = 256 << 10
# A larger body is read in a thread: the event loop answers others meanwhile.
_READ_AT_ONCE = 16 << 10
_MOST_HEADERS = 256
# What Lance asks a namespace for while it commits to a table; a driver reads everything else by its location.
_COMMITTING = frozenset({"describe_table", "list_table_versions", "describe_table_version", "create_table_version"})


class Server:
    """What the routes share. ``handle`` is the one way a request is answered."""

    def __init__(self, namespace: Any, jobs: JobsService, keys: Keys, limits: Limits) -> None:
        self.namespace = namespace
        self.jobs = jobs
        self.keys = keys
        self.limits = limits
        self.metrics = Metrics()
        self._waiting = 0
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="lance-request")
        self._registry_threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="lance-registry")
        self._readiness = (0.0, "")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._registry_threads.shutdown(wait=False, cancel_futures=True)

    async def handle(
        self, name: str, request: Request, answer: Callable[[], Awaitable[Response]], request_id: str
    ) -> Response:
        """Count and time one request; turn whatever goes wrong into an answer."""
        began = time.perf_counter()
        self.metrics.in_flight += 1
        try:
            response = await answer()
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            problem = problem_of(error, request_id)
            response = Response(
                problem.body(), status_code=problem.status, headers=problem.headers, media_type="application/json"
            )
        finally:
            self.metrics.in_flight -= 1
        response.headers["x-request-id"] = request_id
        self.metrics.observe(name, response.status_code, time.perf_counter() - began)
        return response

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking call on tables; what it costs is its own."""
        return await self._run(self._threads, function, *arguments)

    async def ask_registry(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking call on the registry, in threads of its own: requests that wait for a registry that is away
        must not keep those waiting that only need tables."""
        return await self._run(self._registry_threads, function, *arguments)

    async def _run(self, threads: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking call within the request's time. Its thread cannot be stopped: the answer says so.

        What waits here is bounded. A request whose body is still on its way waits elsewhere, so that nobody can keep
        others out by sending slowly.
        """
        if self._waiting >= self.limits.max_waiting_requests:
            raise HttpProblem(503, "The server has too many requests to answer: try again in a moment.")
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self.limits.request_seconds)
        except TimeoutError:
            if future.done():
                raise
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise outcome_unknown(f"The request took longer than {self.limits.request_seconds:g} s.") from None
        finally:
            self._waiting -= 1

    async def principal(self, request: Request) -> Principal | None:
        """Who asks. Without keys the server is for this machine only, and a web page elsewhere is not this machine."""
        _check_origin(request)
        key = _key(request)
        if self.keys.remembers():
            required, found = self._look_up(key)
        else:
            required, found = await self.ask_registry(self._look_up, key)
        if not required:
            host = _host_name(request.headers.get("host", ""))
            if not is_loopback(host):
                raise PermissionDeniedError(
                    f"This server has no API keys and answers loopback names only, not {host[:100]!r}. "
                    "Create a key with `airflow-lance keys create`."
                )
            return ANYBODY
        if found is None and key:
            table_id = await self.ask_registry(self.jobs.executions.claimed_table, key)
            if table_id is not None:
                return Principal("driver", frozenset(), tuple(table_id))
        return found

    def _look_up(self, key: str | None) -> tuple[bool, Principal | None]:
        required = self.keys.required()
        return required, self.keys.find(key) if required and key else None

    async def require(self, request: Request, scope: Scope, operation: str = "") -> Principal:
        """Who asks, if they may; of a driver the table is yet to be compared."""
        principal = await self.principal(request)
        if principal is None:
            raise UnauthenticatedError(
                "This needs an API key: send it as `x-api-key` or `Authorization: Bearer`. "
                "The one that was sent, if any, is unknown or revoked."
            )
        if principal.writes is not None:
            if operation not in _COMMITTING:
                raise PermissionDeniedError(
                    f"The claim on a job lets its driver commit to {join_id(principal.writes)}, and do nothing else."
                )
        elif not principal.may(scope):
            raise PermissionDeniedError(f"The API key {principal.name!r} lacks the scope `{scope.value}`.")
        return principal

    async def body(self, request: Request, operation: Operation, stranger: bool) -> bytes:
        """A request's body. Whoever is known may take long to send it, but not pause; others may not take long."""
        limit = self.limits.max_arrow_bytes if operation.body is Body.ARROW else self.limits.max_json_bytes
        limit = min(limit, _MOST_OF_STRANGERS) if stranger else limit
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > limit:
            raise HttpProblem(413, f"The body has {announced} bytes; this server takes {limit}.")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_seconds) as patience:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        raise HttpProblem(413, f"The body has more than the {limit} bytes this server takes.")
                    parts.append(chunk)
                    if not stranger:
                        patience.reschedule(asyncio.get_running_loop().time() + self.limits.body_seconds)
        except TimeoutError:
            seconds = f"{self.limits.body_seconds:g} s"
            raise HttpProblem(408, f"The rest of the body did not come within {seconds}.") from None
        return b"".join(parts)

    async def operate(self, operation: Operation, request: Request) -> Response:
        """One operation of the table."""
        if len(request.headers) > _MOST_HEADERS:
            raise HttpProblem(431, f"The request has more than {_MOST_HEADERS} headers.")
        principal, stranger = ANYBODY, False
        if operation.name not in _BY_TOKEN:
            principal = await self.require(request, operation.scope, operation.name)
        else:
            stranger = await self._is_stranger(request)
        body = await self.body(request, operation, stranger)
        request_parts = (operation, request.path_params, request.query_params, request.headers, body)
        small = operation.body is Body.ARROW or len(body) <= _READ_AT_ONCE
        fields = read_fields(*request_parts) if small else await self.in_thread(read_fields, *request_parts)
        if principal.writes is not None and fields["id"] != list(principal.writes):
            raise PermissionDeniedError(
                f"The claim on a job lets its driver commit to {join_id(principal.writes)}, not to "
                f"{join_id(fields['id'])}."
            )
        if operation.name == "claim_job" and not await self.ask_registry(self._knows_launch_token, fields):
            await self.require(request, operation.scope)
        run = self.ask_registry if operation.path.startswith("/v1/jobs/") else self.in_thread
        result = await run(self._call, operation, fields, body if operation.body is Body.ARROW else None)
        return answer_of(operation, fields, result, lancedb=speaks_lancedb(request.headers))

    def _call(self, operation: Operation, fields: dict[str, Any], data: bytes | None) -> Any:
        if operation.path.startswith("/v1/jobs/"):
            return getattr(self.jobs, operation.name)(fields)
        method = getattr(self.namespace, operation.name, None)
        if method is None:
            raise NotImplementedError(f"This namespace has no {operation.id}.")
        if data is not None and not data:
            raise InvalidInputError(f"{operation.name} needs an Arrow IPC stream as its body.")
        if data is not None:
            check_arrow_body(data, self.limits.max_arrow_bytes, self.limits.max_arrow_rows)
        try:
            return method(fields) if data is None else method(fields, data)
        except ServiceUnavailableError as error:
            if operation.replayable:
                raise
            # Storage gave up in the middle. A 503 would say that nothing was done, and clients would send it again.
            raise outcome_unknown(str(error)) from error

    async def _is_stranger(self, request: Request) -> bool:
        """Whether a request of a driver shows neither a key nor its claim in a header. Those we launch show it."""
        if _key(request) is None:
            return True
        return await self.principal(request) is None

    def _knows_launch_token(self, fields: dict[str, Any]) -> bool:
        """Whether a claim carries the token we gave to the driver we launched; others need a key to claim."""
        job_id, token = fields.get("job_id"), fields.get("launch_token")
        if not isinstance(job_id, str) or not isinstance(token, str):
            return False
        return self.jobs.knows_launch_token(job_id, token)

    def ready(self) -> str:
        """Empty when the server can do its work, else what is wrong.

        Anybody may ask, so the registry is written to at most once a second.
        """
        until, problem = self._readiness
        if time.monotonic() < until:
            return problem
        try:
            self.jobs.database.check()
            problem = "" if self.jobs.supervisor.healthy else "the jobs supervisor does not run"
        except RegistryUnavailableError as error:
            log.warning("The registry is not ready: %s", error)
            problem = "the registry's database does not answer, is locked, or its disk is full"
        self._readiness = (time.monotonic() + _READINESS_SECONDS, problem)
        return problem


def create_app(
    namespace: Any,
    jobs: JobsService,
    keys: Keys,
    *,
    limits: Limits | None = None,
    base_path: str = "",
    on_close: Callable[[], None] | None = None,
) -> ASGIApp:
    """The ASGI application.

    ``namespace`` has a method per operation that takes the request's fields as a dict (and Arrow bytes). ``base_path``
    is a prefix in front of every route, as behind a proxy.
    """
    server = Server(namespace, jobs, keys, limits or jobs.config.limits)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        server.close()
        if on_close is not None:
            await asyncio.to_thread(on_close)

    app = FastAPI(
        title="Lance namespace",
        version=__version__,
        docs_url=None,  # its page loads scripts from the internet
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.server = server
    document = openapi_document(base_path)

    def route(path: str, name: str, answer: Callable[[Request], Awaitable[Response]], method: str = "GET") -> None:
        async def endpoint(request: Request) -> Response:
            return await server.handle(name, request, lambda: answer(request), _request_id(request))

        app.router.routes.append(Route(path, endpoint, methods=[method], name=name))

    def operation_answer(operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        return lambda request: server.operate(operation, request)

    # Fixed paths before those with an id in the same place.
    for operation in sorted(OPERATIONS.values(), key=lambda row: "{" in row.path):
        route(operation.path, operation.name, operation_answer(operation), operation.method)

    async def openapi(_request: Request) -> Response:
        return Response(document, media_type="application/json")

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        problem = await server.ask_registry(server.ready)
        if problem:
            raise HttpProblem(503, f"Not ready: {problem}.")
        return PlainTextResponse("ready\n")

    async def metrics(request: Request) -> Response:
        await server.require(request, Scope.READ)
        try:
            counts = await server.ask_registry(jobs.registry.counts)
        except RegistryUnavailableError:
            counts = None
        text = server.metrics.render(counts, jobs.supervisor.drivers)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def front(request: Request) -> Response:
        return RedirectResponse(f"{base_path}/ui")

    route("/", "front", front)
    route("/openapi.json", "openapi", openapi)
    route("/healthz", "healthz", health)
    route("/readyz", "readyz", ready)
    route("/metrics", "metrics", metrics)
    for path, name, page in page_routes(server, base_path):
        route(path, name, page)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        request_id = _request_id(request)

        async def refuse() -> Response:
            words = {404: "There is no such route", 405: f"This route does not take {request.method}"}
            sentence = f"{words.get(error.status_code, str(error.detail))}: {request.url.path[:200]}"
            raise HttpProblem(error.status_code, sentence, dict(error.headers or {}))

        return await server.handle("unknown", request, refuse, request_id)

    app.add_exception_handler(HTTPException, no_route)
    return _Paths(app, base_path)


class _Paths:
    """Routes on the path as it was sent: percent-encoded, so that an id may hold a slash; and without a slash at its
    end, which LanceDB's client adds and others leave out."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self.app = app
        self.base_path = base_path

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path") or scope["path"].encode()
            path = raw.partition(b"?")[0].decode("latin-1")
            if self.base_path and (path == self.base_path or path.startswith(self.base_path + "/")):
                path = path.removeprefix(self.base_path) or "/"
            elif self.base_path and path not in {"/healthz", "/readyz"}:
                path = "/no-such-base-path"
            path = path.rstrip("/") or "/"
            scope = {**scope, "path": path, "root_path": ""}
        await self.app(scope, receive, send)


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    if 0 < len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _key(request: Request) -> str | None:
    """The key a request carries, in either of the two headers in use."""
    key = request.headers.get("x-api-key", "").strip()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if not key and scheme.lower() == "bearer":
        key = token.strip()
    return key or None


def _check_origin(request: Request) -> None:
    """A browser says which page sent a request; only our own pages may."""
    origin = request.headers.get("origin")
    if origin is None or request.method == "GET":
        return
    if not hmac.compare_digest(origin.partition("://")[2].encode(), request.headers.get("host", "").encode()):
        raise PermissionDeniedError("Requests of other sites' pages are refused.")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own; no other name that only begins like one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The host header without its port; IPv6 addresses come in brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
