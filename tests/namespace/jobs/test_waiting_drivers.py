"""Drivers that wait for a job and drivers that are used again: which job gets which driver, and what that shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.namespace.conftest import wait_until
from tests.namespace.jobs.waiting import ROWS, WaitingServer, alive, waiting_server

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaitingServer]:
    """A server without a word about drivers in its configuration."""
    with waiting_server(tmp_path_factory.mktemp("waiting") / "server") as server:
        yield server


@pytest.fixture
def idle(server: WaitingServer) -> WaitingServer:
    """The same, once a driver waits."""
    if server.waiting() != 1:
        server.fill("c15")
        server.wait_for_waiting(1)
    return server


def test_nothing_runs_before_the_first_job_and_its_driver_stays_for_the_next(tmp_path: Path) -> None:
    with waiting_server(tmp_path / "server") as server:
        assert server.processes() == set()
        first = server.fill("c0")
        assert first["start_path"] == "cold"
        server.wait_for_waiting(1)
        driver = server.driver()
        second = server.fill("c1")
        assert second["start_path"] == "reused"
        assert second["result"]["ran_on"] == "driver"
        server.wait_for_waiting(1)
        assert server.driver() == driver
        assert server.values("c0") == [3] * ROWS
        assert server.values("c1") == [4] * ROWS
        assert "Given to a driver that has run one job before" in server.events(second["job_id"])
        server.stop()
        wait_until(lambda: not alive(driver), 10)
        assert server.folders == []


def test_each_job_has_its_own_log(idle: WaitingServer) -> None:
    ids = [idle.fill(f"c{number}", where=f"id < {100 + number}")["job_id"] for number in range(3)]
    for number, job_id in enumerate(ids):
        assert f"Computing {100 + number} rows in the driver" in idle.logs(job_id)
        assert idle.logs(job_id).count("Computing") == 1


def test_jobs_that_come_together_take_turns_on_the_drivers_there_are(idle: WaitingServer) -> None:
    ids = [idle.submit(f"c{number}") for number in range(8)]
    jobs = [idle.done(job_id) for job_id in ids]
    paths = [job["start_path"] for job in jobs]
    # Two drivers may run at once, so one more is started.
    assert paths.count("cold") == 1
    assert paths.count("reused") == 7
    idle.wait_for_waiting(1)


def test_a_function_gets_a_fresh_driver_that_ends_after_it(idle: WaitingServer) -> None:
    driver = idle.driver()
    idle.add_function("name", "os.path:basename")
    job = idle.fill("name")
    assert job["start_path"] == "cold"
    assert "Launching a driver: the job runs a function" in idle.events(job["job_id"])
    wait_until(lambda: idle.leaders() == [driver], 30)
    assert idle.fill("c2")["start_path"] == "reused"


def test_a_job_that_failed_ends_its_driver(idle: WaitingServer) -> None:
    driver = idle.driver()
    with idle.client() as client:
        added = [{"name": "impossible", "computed": "id / (id - id)"}]
        client.alter_table_add_columns({"id": ["t"], "new_columns": added})
    job = idle.wait_for_end(idle.submit("impossible"))
    assert job["job_state"] == "FAILED"
    assert job["start_path"] == "reused"
    wait_until(lambda: not alive(driver), 30)
