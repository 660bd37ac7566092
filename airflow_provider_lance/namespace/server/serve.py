"""Builds the server from its parts and runs it: database, jobs, namespace, application, uvicorn on a bound socket.

The socket is bound before anything else starts, because drivers are told the port that the system chose.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.api.plain_data import DEFAULT_PORT
from airflow_provider_lance.definitions import expressions
from airflow_provider_lance.namespace.config import ServerConfig
from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
from airflow_provider_lance.namespace.jobs.registry import Timings
from airflow_provider_lance.namespace.jobs.service import JobsService
from airflow_provider_lance.namespace.server.keys import Keys
from airflow_provider_lance.namespace.tables.catalog import plain_location
from airflow_provider_lance.namespace.workers.planning_trial import PlanningTrial
from airflow_provider_lance.namespace.workers.worker_pool import WorkerProcesses

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from airflow_provider_lance.namespace.spark_namespace import SparkNamespace

_REGISTRY = "jobs.sqlite"


class ServeError(RuntimeError):
    """The server cannot start; one sentence says why."""


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``airflow-lance serve``."""

    root: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    base_path: str = ""
    jobs_url: str | None = None
    registry: str | None = None
    state: Path | None = None
    config: Path | None = None
    keys: Path | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    certificate: Path | None = None
    private_key: Path | None = None
    standby: int | None = None
    timings: Timings | None = None

    @property
    def state_directory(self) -> Path:
        """The folder of the logs and, by default, of the registry. It is outside of the root, which may be a bucket.

        Its name is made from the root's absolute location. A folder whose name is made from the text of the root, as
        older releases did, is used where it has a registry and the other has none.
        """
        if self.state is not None:
            return self.state
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "airflow-lance"
        folder, older = (base / _digest(text) for text in (plain_location(self.root), self.root))
        return older if (older / _REGISTRY).exists() and not (folder / _REGISTRY).exists() else folder

    @property
    def registry_url(self) -> str:
        return self.registry or sqlite_url(self.state_directory / _REGISTRY)


def serve(options: ServeOptions, ready: Callable[[str], None] | None = None) -> None:
    """Serve until a signal ends it. ``ready`` is called with the server's URL once it answers."""
    from airflow_provider_lance.namespace.server.app import create_app

    config = ServerConfig.load(options.config)
    if options.standby is not None:
        config = config.with_standby(options.standby)
    options.state_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(options.registry_url)
    keys = Keys(database, options.keys)
    _check(options, keys)
    base_path = "/" + options.base_path.strip("/") if options.base_path.strip("/") else ""
    listener = _bind(options.host, options.port)
    url = _url(options, listener, base_path)
    jobs = JobsService(
        database,
        config,
        directory=options.state_directory,
        namespace_url=(options.jobs_url or url).rstrip("/"),
        timings=options.timings,
    )
    workers = WorkerProcesses(
        config.limits.query_processes, config.limits.query_memory_bytes, config.limits.request_seconds
    )
    expressions.before_planning = PlanningTrial(workers)
    namespace = _namespace(options, jobs, workers)
    jobs.vend = lambda spec: namespace.storage_options_for(spec.table_id)

    def close() -> None:
        namespace.close()
        jobs.close()
        workers.close()

    def started() -> None:
        # Drivers can report from now on. A supervisor that started earlier would take them for silent.
        jobs.start()
        namespace.watcher().start()
        if ready is not None:
            ready(url)

    app = create_app(namespace, jobs, keys, base_path=base_path, on_close=close)
    _run(app, options, config, listener, started)


def _check(options: ServeOptions, keys: Keys) -> None:
    from airflow_provider_lance.namespace.server.app import is_loopback

    if not keys.usable() and not is_loopback(options.host):
        raise ServeError(
            f"Without an API key the server listens on loopback only, not on {options.host}. Create one with "
            f"`airflow-lance keys create {_registry_option(options)}--name me`, or pass --keys."
        )
    if bool(options.certificate) != bool(options.private_key):
        raise ServeError("--tls-cert and --tls-key belong together.")
    for option, path in (("--tls-cert", options.certificate), ("--tls-key", options.private_key)):
        if path is not None:
            _check_readable(option, path)


def _run(
    app: ASGIApp, options: ServeOptions, config: ServerConfig, listener: socket.socket, started: Callable[[], None]
) -> None:
    """Run uvicorn on the socket until a signal ends it; ``started`` is called once it answers."""
    import uvicorn

    from airflow_provider_lance.namespace.server.request_heads import limited_http

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                started()

    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=30,
        http=limited_http(config.limits),
        h11_max_incomplete_event_size=config.limits.max_head_bytes,
        ssl_certfile=str(options.certificate) if options.certificate else None,
        ssl_keyfile=str(options.private_key) if options.private_key else None,
    )
    Server(settings).run(sockets=[listener])


def _namespace(options: ServeOptions, jobs: JobsService, workers: WorkerProcesses) -> SparkNamespace:
    from lance_namespace.errors import LanceNamespaceError

    from airflow_provider_lance.namespace.spark_namespace import SparkNamespace

    try:
        return SparkNamespace(jobs=jobs, workers=workers, root=options.root, **options.properties)
    except (LanceNamespaceError, ValueError, OSError) as error:
        raise ServeError(f"The namespace at {options.root} cannot be opened: {error}") from error


def _registry_option(options: ServeOptions) -> str:
    """The option that gives ``airflow-lance keys`` the same registry, without its URL, which may hold a password."""
    if options.registry:
        return "" if options.registry == os.environ.get("LANCE_REGISTRY") else "--registry <the same> "
    if options.state is not None:
        return f"--state-dir {shlex.quote(str(options.state))} "
    return f"--root {shlex.quote(options.root)} "


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check_readable(option: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise ServeError(f"{option} {path} cannot be read: {error.strerror or error}.") from None


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:  # the system would take such a port modulo 65536
        raise ServeError(f"--port is {port}; it must be between 0 and 65535.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ServeError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None
    listener.listen(2048)
    listener.set_inheritable(False)  # a driver that inherited it would keep the port from the next server
    return listener


def _url(options: ServeOptions, listener: socket.socket, base_path: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)  # noqa: S104 - as a client calls it
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if options.certificate else "http"
    return f"{scheme}://{host}:{listener.getsockname()[1]}{base_path}"
