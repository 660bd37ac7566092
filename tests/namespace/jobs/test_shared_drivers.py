"""What jobs that share a driver leave for each other: nothing to see, and nothing that grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_lance.system.process_groups import ProcessGroup
from tests.namespace.conftest import wait_until
from tests.namespace.jobs.waiting import ROWS, WaitingServer, waiting_server

pytestmark = pytest.mark.timeout(600)

FUNCTIONS = "tests.namespace.jobs.waiting_functions"


def test_what_a_function_leaves_behind_is_seen_by_no_other_job(tmp_path: Path) -> None:
    with waiting_server(tmp_path / "server", cluster={"reuse": "function"}) as server:
        server.add_function("soiled", f"{FUNCTIONS}:soil")
        server.add_function("seen", f"{FUNCTIONS}:look")
        first = server.fill("soiled", where="id < 100")
        assert first["start_path"] == "cold"
        server.wait_for_waiting(1)
        soiled = server.driver()
        # The same function of the same table may use the process again, and no other job may.
        assert server.fill("soiled", where="id < 200")["start_path"] == "reused"
        server.wait_for_waiting(1)
        assert server.driver() == soiled
        looking = server.fill("seen")
        assert looking["start_path"] == "cold"
        assert "Launching a driver: the job runs a function" in server.events(looking["job_id"])
        assert set(server.values("seen")) == {"nothing"}
        assert set(server.values("soiled")[:100]) != {None}
        computed = server.fill("c0")
        assert computed["start_path"] == "cold"
        assert "Launching a driver: the waiting driver has run a function" in server.events(computed["job_id"])


def test_a_rule_that_became_a_function_is_not_run_by_a_driver_of_sql(tmp_path: Path) -> None:
    """A server that takes a function for SQL, as one that was asked before the rule was replaced, is corrected."""
    from sqlalchemy import update

    from airflow_provider_lance.namespace.jobs.database import Database, jobs

    with waiting_server(tmp_path / "server", cluster={"max_drivers": 1}) as server:
        server.add_function("name", "os.path:basename")
        server.fill("c0")
        server.wait_for_waiting(1)
        driver = server.driver()
        os.kill(driver, 19)  # It stops, so that the one driver is busy and the next job waits.
        first = server.submit("c1")
        second = server.submit("name")
        database = Database(f"sqlite:///{server.directory}/state/jobs.sqlite")
        with database.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == second).values(user_code=""))
        database.close()
        os.kill(driver, 18)
        server.done(first)
        job = server.done(second)
        assert job["attempt"] == 2
        assert job["start_path"] == "cold"
        assert "This driver has run other jobs" in " ".join(server.events(second))
        assert server.values("name") == ["abc"] * ROWS


def test_a_driver_ends_after_max_jobs_and_without_a_job_for_idle_seconds(tmp_path: Path) -> None:
    with waiting_server(tmp_path / "server", cluster={"max_jobs": 2, "idle_seconds": 1.0}) as server:
        server.fill("c0")
        server.wait_for_waiting(1)
        driver = server.driver()
        assert server.fill("c1")["start_path"] == "reused"
        wait_until(lambda: driver not in server.leaders(), 30)
        assert server.fill("c2")["start_path"] == "cold"
        server.wait_for_waiting(0)
        wait_until(lambda: not server.processes(), 30)
        wait_until(lambda: not server.folders)


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaitingServer]:
    """A server with one driver, in which Spark is started, and a view in Spark SQL."""
    cluster = {"standby": 1, "max_drivers": 1, "max_jobs": 1000}
    folder = tmp_path_factory.mktemp("shared")
    temporary = str(folder / "temporary")
    os.mkdir(temporary)
    variables = {"TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary}
    with waiting_server(folder / "server", cluster=cluster, driver_env=variables) as server:
        with server.client() as client:
            query = "SELECT id % 10 AS k, count(*) AS n FROM t GROUP BY id % 10"
            client.create_materialized_view({"id": ["v"], "query": query})
        server.wait_for_message("Spark is ready")
        yield server


def run(server: WaitingServer, number: int) -> str:
    """A job of each kind in turn: SQL in the driver, SQL on Spark, a view in Spark SQL. How its driver began."""
    if number % 3 == 2:
        answer = server.post("/v1/materialized_view/v/refresh", {"full": True})
        assert answer.status_code == 202, answer.text
        job = server.done(answer.json()["job_id"])
    else:
        more = {"concurrency": 1} if number % 3 else {}
        job = server.fill(f"c{number % 2}", where=f"id < {number + 1}", **more)
        assert job["result"]["ran_on"] == ("spark" if more else "driver")
    server.wait_for_waiting(1)
    return str(job["start_path"])


def descriptors(server: WaitingServer) -> int:
    """Open files of all processes of the driver."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in server.processes())


def threads(server: WaitingServer) -> int:
    return len(os.listdir(f"/proc/{server.driver()}/task"))


def temporary_files(server: WaitingServer) -> set[str]:
    """The folders and files of the driver in what is /tmp for it."""
    return set(os.listdir(server.directory.parent / "temporary"))


def memory(server: WaitingServer) -> int:
    return ProcessGroup.of(server.driver()).memory_bytes()


def test_ten_jobs_leave_no_file_no_thread_and_no_folder_behind(spark_server: WaitingServer) -> None:
    assert [run(spark_server, number) for number in range(4)][1:] == ["reused"] * 3
    driver, temporary = spark_server.driver(), temporary_files(spark_server)
    assert temporary
    files, before = descriptors(spark_server), threads(spark_server)
    for number in range(4, 14):
        assert run(spark_server, number) == "reused"
    assert spark_server.driver() == driver
    # The JVM opens and closes some files by itself.
    assert wait_until(lambda: descriptors(spark_server) <= files + 8, 30)
    assert wait_until(lambda: threads(spark_server) <= before + 2, 30)
    assert temporary_files(spark_server) == temporary


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_jobs_take_no_more_memory_than_ten(spark_server: WaitingServer) -> None:
    for number in range(10):
        run(spark_server, number)
    driver, files, after_ten = spark_server.driver(), descriptors(spark_server), memory(spark_server)
    for number in range(10, 200):
        run(spark_server, number)
    assert spark_server.driver() == driver
    after_all = memory(spark_server)
    print(f"memory after 10 jobs {after_ten >> 20} MB, after 200 jobs {after_all >> 20} MB")
    assert after_all <= after_ten * 1.2
    assert descriptors(spark_server) <= files + 20
