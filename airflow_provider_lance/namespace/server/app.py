"""The REST server: one route per row of the operation table, over a namespace and its jobs.

The steps of a request are: its path, its caller, its body, the call of the namespace (in a thread, because namespaces
block) and the answer. ``error_bodies.py`` turns the errors of every step into Lance error bodies. Tables, SQL and Spark
are unknown here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, TypeVarTuple

from fastapi import FastAPI
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    ServiceUnavailableError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from airflow_provider_lance import __version__
from airflow_provider_lance.api.client import OperationRunner
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.operations import OPERATIONS, Access, Body, Operation, Scope
from airflow_provider_lance.api.plain_data import Fields
from airflow_provider_lance.namespace.config import Limits
from airflow_provider_lance.namespace.jobs.database import RegistryUnavailableError
from airflow_provider_lance.namespace.jobs.service import JobsService
from airflow_provider_lance.namespace.server.arrow_bodies import check_arrow_body
from airflow_provider_lance.namespace.server.error_bodies import HttpProblem, outcome_unknown, problem_of
from airflow_provider_lance.namespace.server.keys import ANYBODY, Keys, Principal
from airflow_provider_lance.namespace.server.lancedb_dialect import DIALECT_HEADER, not_here, speaks_lancedb
from airflow_provider_lance.namespace.server.metrics import Metrics
from airflow_provider_lance.namespace.server.openapi import openapi_document
from airflow_provider_lance.namespace.server.pages import page_routes
from airflow_provider_lance.namespace.server.read_request import read_fields
from airflow_provider_lance.namespace.server.write_answer import answer_of

log = logging.getLogger(__name__)

Answer = Callable[[Request], Awaitable[Response]]
_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_READINESS_SECONDS = 1.0
# Before its token is compared, the body of a driver may come from anybody, so it must be small.
_MOST_OF_STRANGERS = 256 << 10
# A larger body is read in a thread, so that the event loop answers other requests meanwhile.
_READ_AT_ONCE = 16 << 10
_MOST_HEADERS = 256


class Server:
    """What the routes share. Every request is answered by ``handle``."""

    def __init__(self, namespace: OperationRunner, jobs: JobsService, keys: Keys, limits: Limits) -> None:
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

    def route(self, path: str, name: str, answer: Answer, method: str = "GET") -> Route:
        return Route(path, partial(self.handle, name, answer), methods=[method], name=name)

    async def handle(self, name: str, answer: Answer, request: Request) -> Response:
        """Count and time one request, and turn every error into an answer."""
        began, request_id = time.perf_counter(), _request_id(request)
        self.metrics.in_flight += 1
        try:
            response = await answer(request)
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
        if speaks_lancedb(request.headers):
            name_of_dialect, version = DIALECT_HEADER
            response.headers[name_of_dialect] = version
        self.metrics.observe(name, response.status_code, time.perf_counter() - began)
        return response

    async def in_thread(self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Run a blocking call on tables."""
        return await self._run(self._threads, function, *arguments)

    async def ask_registry(self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Run a blocking call on the registry.

        The registry has separate threads, because requests that wait for it while it is away must not delay those that
        only need tables.
        """
        return await self._run(self._registry_threads, function, *arguments)

    async def _run(
        self, threads: ThreadPoolExecutor, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments
    ) -> _Result:
        """Run a blocking call within the request's time. Its thread cannot be stopped, and the answer says so.

        The number of calls that wait here is bounded. A request whose body has not arrived does not count, so that a
        slow sender cannot keep others out.
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
        """The caller, or ``None`` where its key is missing or unknown.

        Without keys the server answers this machine only. A page of another site is refused, although the browser that
        loaded it may run on this machine.
        """
        _check_origin(request)
        key = _key(request)
        if self.keys.remembers():
            required, found = self._find_key(key)
        else:
            required, found = await self.ask_registry(self._find_key, key)
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

    def _find_key(self, key: str | None) -> tuple[bool, Principal | None]:
        required = self.keys.required()
        return required, self.keys.find(key) if required and key else None

    async def require(self, request: Request, scope: Scope, access: Access = Access.KEY) -> Principal:
        """The caller, if it has the scope. The table of a driver is compared later, when the body was read."""
        principal = await self.principal(request)
        if principal is None:
            raise UnauthenticatedError(
                "This needs an API key: send it as `x-api-key` or `Authorization: Bearer`. "
                "The one that was sent, if any, is unknown or revoked."
            )
        if principal.writes is not None:
            if access is not Access.KEY_OR_CLAIM:
                raise PermissionDeniedError(
                    f"The claim on a job lets its driver commit to {join_id(principal.writes)}, and do nothing else."
                )
        elif not principal.may(scope):
            raise PermissionDeniedError(f"The API key {principal.name!r} lacks the scope `{scope.value}`.")
        return principal

    async def _body(self, request: Request, operation: Operation, stranger: bool) -> bytes:
        """A request's body. A known caller may take long to send it, if it does not pause; a stranger may not."""
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
        if operation.access in {Access.KEY_OR_LAUNCH_TOKEN, Access.CLAIM_TOKEN}:
            stranger = await self._is_stranger(request)
        else:
            principal = await self.require(request, operation.scope, operation.access)
        body = await self._body(request, operation, stranger)
        request_parts = (operation, request.path_params, request.query_params, request.headers, body)
        small = operation.body is Body.ARROW or len(body) <= _READ_AT_ONCE
        fields = read_fields(*request_parts) if small else await self.in_thread(read_fields, *request_parts)
        if principal.writes is not None and fields["id"] != list(principal.writes):
            raise PermissionDeniedError(
                f"The claim on a job lets its driver commit to {join_id(principal.writes)}, not to "
                f"{join_id(fields['id'])}."
            )
        by_token = operation.access is Access.KEY_OR_LAUNCH_TOKEN
        if by_token and not await self.ask_registry(self._knows_launch_token, fields):
            await self.require(request, operation.scope)
        data = body if operation.body is Body.ARROW else None
        threads = self._registry_threads if operation.jobs_api else self._threads
        result = await self._run(threads, self._call, operation, fields, data)
        return answer_of(operation, fields, result, lancedb=speaks_lancedb(request.headers))

    def _call(self, operation: Operation, fields: Fields, data: bytes | None) -> object:
        if data is not None and not data:
            raise InvalidInputError(f"{operation.name} needs an Arrow IPC stream as its body.")
        if data is not None:
            check_arrow_body(data, self.limits.max_arrow_bytes, self.limits.max_arrow_rows)
        try:
            return self.namespace.run(operation, fields, data)
        except ServiceUnavailableError as error:
            if operation.replayable:
                raise
            # Storage failed during the request. A 503 would say that nothing was done, and clients would send it again.
            raise outcome_unknown(str(error)) from error

    async def _is_stranger(self, request: Request) -> bool:
        """Whether a request of a driver has no valid key or claim in a header. The drivers that we launch have it."""
        if _key(request) is None:
            return True
        return await self.principal(request) is None

    def _knows_launch_token(self, fields: Fields) -> bool:
        """Whether a claim has the token that the server gave to its driver. Any other claim needs a key."""
        job_id, token = fields.get("job_id"), fields.get("launch_token")
        if not isinstance(job_id, str) or not isinstance(token, str):
            return False
        return self.jobs.knows_launch_token(job_id, token)

    def ready(self) -> str:
        """Why the server cannot do its work; empty if it can.

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

    async def answer_ready(self, _request: Request) -> Response:
        problem = await self.ask_registry(self.ready)
        if problem:
            raise HttpProblem(503, f"Not ready: {problem}.")
        return PlainTextResponse("ready\n")

    async def answer_metrics(self, request: Request) -> Response:
        await self.require(request, Scope.READ)
        try:
            counts = await self.ask_registry(self.jobs.registry.counts)
        except RegistryUnavailableError:
            counts = None
        supervisor = self.jobs.supervisor
        text = self.metrics.render(counts, supervisor.drivers, supervisor.pool.waiting)
        text += "\n".join([*self.jobs.start_seconds.lines(), ""])
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def answer_no_route(self, request: Request, error: Exception) -> Response:
        """The answer where the router found no route."""
        return await self.handle("unknown", partial(_refuse_route, error), request)


def create_app(
    namespace: OperationRunner,
    jobs: JobsService,
    keys: Keys,
    *,
    limits: Limits | None = None,
    base_path: str = "",
    on_close: Callable[[], None] | None = None,
) -> ASGIApp:
    """The ASGI application. ``base_path`` is a prefix of every route, as behind a proxy."""
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
    app.router.routes.extend(_routes(server, base_path))
    app.add_exception_handler(HTTPException, server.answer_no_route)
    return _Paths(app, base_path)


def _routes(server: Server, base_path: str) -> Iterator[Route]:
    # The router takes the first route that fits, so fixed paths come before those with an id in the same place.
    for operation in sorted(OPERATIONS.values(), key=lambda row: "{" in row.path):
        yield server.route(operation.path, operation.name, partial(server.operate, operation), operation.method)
    yield server.route("/", "front", _fixed(partial(RedirectResponse, f"{base_path}/ui")))
    document = openapi_document(base_path)
    yield server.route("/openapi.json", "openapi", _fixed(partial(Response, document, media_type="application/json")))
    yield server.route("/healthz", "healthz", _fixed(partial(PlainTextResponse, "ok\n")))
    yield server.route("/readyz", "readyz", server.answer_ready)
    yield server.route("/metrics", "metrics", server.answer_metrics)
    for path, name, page in page_routes(server, base_path):
        yield server.route(path, name, page)


def _fixed(make: Callable[[], Response]) -> Answer:
    """Answers every request with a new response of the same content."""

    async def answer(_request: Request) -> Response:
        return make()

    return answer


async def _refuse_route(error: Exception, request: Request) -> Response:
    assert isinstance(error, HTTPException)
    known = not_here(request.url.path)
    if known is not None:
        raise UnsupportedOperationError(known)
    words = {404: "There is no such route", 405: f"This route does not take {request.method}"}
    sentence = f"{words.get(error.status_code, str(error.detail))}: {request.url.path[:200]}"
    raise HttpProblem(error.status_code, sentence, dict(error.headers or {}))


class _Paths:
    """Gives the router the path as it was sent.

    It stays percent-encoded, so that an id may have a slash, and loses a slash at its end, which LanceDB's client adds
    and others leave out.
    """

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
    """The key of a request, from either of the two headers in use."""
    key = request.headers.get("x-api-key", "").strip()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if not key and scheme.lower() == "bearer":
        key = token.strip()
    return key or None


def _check_origin(request: Request) -> None:
    """Refuse the requests of other sites' pages. A browser says which page sent a request."""
    origin = request.headers.get("origin")
    if origin is None or request.method == "GET":
        return
    if not hmac.compare_digest(origin.partition("://")[2].encode(), request.headers.get("host", "").encode()):
        raise PermissionDeniedError("Requests of other sites' pages are refused.")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own. A name that only begins like one is not."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The host header without its port. IPv6 addresses are in brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
