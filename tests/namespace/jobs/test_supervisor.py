"""Jobs with driver processes: launched, checked, cancelled, replaced, taken over. The driver is ``fake_driver.py``."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
from airflow_provider_lance.namespace.jobs.service import JobsService
from airflow_provider_lance.system.process_groups import ProcessGroup
from tests.namespace.conftest import QUICK, fresh_postgres, submission, wait_until
from tests.namespace.server_process import ServerProcess


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    urls = iter([sqlite_url(folder / "jobs.sqlite")])
    if request.param == "postgresql":
        urls = fresh_postgres(request.getfixturevalue("postgres"))
    process = ServerProcess(folder / "server", registry=next(urls), timings=QUICK).start()
    yield process
    process.stop()
    next(urls, None)


@pytest.fixture
def submit(server: ServerProcess) -> Iterator[Callable[..., str]]:
    """Submits straight into the registry, as another server on it would; the server under test picks it up."""
    assert server.registry is not None
    with jobs_of(server.registry, server.directory) as jobs:
        yield lambda *arguments, **fields: jobs.submit(submission(*arguments, **fields))


@contextmanager
def jobs_of(registry: str, directory: Path) -> Iterator[JobsService]:
    database = Database(registry)
    yield JobsService(database, directory=directory / "other", namespace_url="", timings=QUICK)
    database.close()


def groups(server: ServerProcess, job_id: str) -> list[ProcessGroup]:
    """The process groups the registry knows for a job."""
    assert server.registry is not None
    with jobs_of(server.registry, server.directory) as jobs:
        row = jobs.find(job_id)
    group = ProcessGroup.from_dict(row.launcher_ref if row is not None else None)
    return [group] if group else []


def running(server: ServerProcess, job_id: str) -> ProcessGroup:
    wait_until(lambda: server.job(job_id)["job_state"] == "RUNNING")
    found: list[ProcessGroup] = wait_until(lambda: groups(server, job_id))
    return found[0]


def gone(group: ProcessGroup) -> Callable[[], bool]:
    return lambda: not group.alive


def trace(server: ServerProcess, *job_ids: str) -> list[str]:
    """What drivers of these jobs did."""
    lines = server.trace.read_text().splitlines() if server.trace.exists() else []
    return [line for line in lines if line.split()[1] in job_ids]


def test_jobs_run_in_order_and_no_more_than_allowed_at_once(server: ServerProcess, submit: Callable[..., str]) -> None:
    ids = [submit(f"c{number}") for number in range(5)]
    assert [server.wait_for_end(job_id)["job_state"] for job_id in ids] == ["DONE"] * 5
    assert server.registry is not None
    with jobs_of(server.registry, server.directory) as jobs:
        events = [event for event in jobs.registry.history(None, 1000) if event["job_id"] in ids]
    launched: list[str] = []
    at_once = [0]
    for event in events:
        if event["message"] == "Launching a driver":
            launched.append(event["job_id"])
            at_once.append(at_once[-1] + 1)
        elif event["state"] == "DONE":
            at_once.append(at_once[-1] - 1)
    assert launched == ids
    assert max(at_once) == server.max_drivers


def test_a_driver_gets_its_token_in_a_private_file_and_none_on_its_command_line(
    server: ServerProcess, submit: Callable[..., str]
) -> None:
    job_id = submit(fake={"end": "hang"})
    group = running(server, job_id)
    (token_file,) = (server.directory / "state" / "running" / job_id / "1").glob("launch.json")
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    secrets = json.loads(token_file.read_text())
    command = Path(f"/proc/{group.pid}/cmdline").read_bytes().decode()
    assert job_id in command
    log = (server.directory / "state" / "logs" / job_id / "attempt-1.log").read_text()
    for secret in secrets.values():
        assert secret not in command
        assert secret not in log
        assert secret not in server.log()
        assert secret not in json.dumps(server.job(job_id))
    server.post("/v1/jobs/cancel", {"job_id": job_id})
    server.wait_for_end(job_id)
    wait_until(lambda: not token_file.exists())


@pytest.mark.parametrize("driver", ["hang", "deaf"])
def test_a_cancel_stops_the_driver_with_all_its_processes(
    server: ServerProcess, submit: Callable[..., str], driver: str
) -> None:
    seconds: list[float] = []
    # A busy machine can only make it slower: one of three must be within the limit.
    while not seconds or (min(seconds) >= QUICK.kill_after_cancel + 3 and len(seconds) < 3):
        job_id = submit("a", fake={"end": driver})
        group = running(server, job_id)
        began = time.monotonic()
        server.post("/v1/jobs/cancel", {"job_id": job_id})
        job = server.wait_for_end(job_id)
        seconds.append(time.monotonic() - began)
        assert job["job_state"] == "CANCELLED"
        wait_until(gone(group), 15)
        if driver == "hang":  # The driver stopped by itself and reported how far it was.
            assert trace(server, job_id) == [f"claim {job_id} 1", f"end {job_id} 1 CANCELLED"]
            assert job["result"] == {"rows_assigned": job["progress"]["rows_done"]}
        else:
            assert trace(server, job_id) == [f"claim {job_id} 1"]
            assert "Cancelled by request" in job["failure"]["message"]
    assert min(seconds) < QUICK.kill_after_cancel + 3


def test_a_driver_that_dies_is_replaced_and_its_words_are_told(
    server: ServerProcess, submit: Callable[..., str]
) -> None:
    job_id = submit(fake={"end": "exit", "seconds": 0.1})
    job = server.wait_for_end(job_id)
    assert job["job_state"] == "FAILED"
    assert job["attempt"] == 3
    assert job["failure"]["retryable"] is True
    assert "exited with code 1" in job["failure"]["message"]
    assert "ran out of luck" in job["failure"]["message"]
    assert [line for line in trace(server, job_id) if line.startswith("claim")] == [
        f"claim {job_id} {n}" for n in (1, 2, 3)
    ]


def test_a_killed_driver_is_replaced_at_once(server: ServerProcess, submit: Callable[..., str], tmp_path: Path) -> None:
    job_id = submit(fake={"until": str(tmp_path / "go")})
    group = running(server, job_id)
    os.killpg(group.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    job = server.wait_for_end(job_id)
    assert (job["job_state"], job["attempt"]) == ("DONE", 2)


def test_a_frozen_driver_loses_its_claim_and_is_killed(
    server: ServerProcess, submit: Callable[..., str], tmp_path: Path
) -> None:
    job_id = submit(fake={"until": str(tmp_path / "go")})
    group = running(server, job_id)
    os.killpg(group.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    job = server.wait_for_end(job_id)
    assert (job["job_state"], job["attempt"]) == ("DONE", 2)
    assert not group.alive
    wait_until(lambda: trace(server, job_id)[-1] == f"end {job_id} 2 DONE")
    assert [line for line in trace(server, job_id) if line.startswith("end")] == [f"end {job_id} 2 DONE"]


class TestRestart:
    @pytest.mark.parametrize("how", ["stop", "kill"])
    def test_a_running_driver_is_adopted(
        self, server: ServerProcess, submit: Callable[..., str], how: str, tmp_path: Path
    ) -> None:
        job_id = submit(fake={"until": str(tmp_path / "go")})
        group = running(server, job_id)
        getattr(server, how)()
        assert group.alive
        server.start()
        (tmp_path / "go").touch()
        job = server.wait_for_end(job_id)
        assert (job["job_state"], job["attempt"]) == ("DONE", 1)
        # The driver writes its trace after it has the answer to its last report.
        wait_until(lambda: trace(server, job_id) == [f"claim {job_id} 1", f"end {job_id} 1 DONE"])

    def test_an_adopted_driver_can_be_cancelled_and_killed(
        self, server: ServerProcess, submit: Callable[..., str]
    ) -> None:
        job_id = submit(fake={"end": "deaf"})
        group = running(server, job_id)
        server.kill()
        server.start()
        server.post("/v1/jobs/cancel", {"job_id": job_id})
        assert server.wait_for_end(job_id)["job_state"] == "CANCELLED"
        wait_until(gone(group))

    def test_a_driver_that_died_meanwhile_is_replaced(
        self, server: ServerProcess, submit: Callable[..., str], tmp_path: Path
    ) -> None:
        job_id = submit(fake={"until": str(tmp_path / "go")})
        group = running(server, job_id)
        server.kill()
        assert group.kill()
        (tmp_path / "go").touch()
        server.start()
        job = server.wait_for_end(job_id)
        assert (job["job_state"], job["attempt"]) == ("DONE", 2)


def test_two_servers_share_the_work_and_take_over(postgres: str, tmp_path: Path) -> None:
    urls = fresh_postgres(postgres)
    registry = next(urls)
    one = ServerProcess(tmp_path / "one", registry=registry, timings=QUICK, max_drivers=1).start()
    two = one.sibling("two").start()
    try:
        with jobs_of(registry, tmp_path) as jobs:
            fake = {"until": str(tmp_path / "go")}
            ids = [jobs.submit(submission(f"c{number}", fake=fake)) for number in range(4)]
        wait_until(lambda: sum(one.job(job_id)["job_state"] == "RUNNING" for job_id in ids) == 2)
        one.kill()
        (tmp_path / "go").touch()
        for job_id in ids:
            assert two.wait_for_end(job_id, 60)["job_state"] == "DONE"

        def ended() -> list[str]:
            lines = trace(one, *ids) + trace(two, *ids)
            return sorted(line.split()[1] for line in lines if line.startswith("end"))

        wait_until(lambda: ended() == sorted(ids))
        assert any(line.startswith("claim") for line in trace(one, *ids))
    finally:
        two.stop()
        next(urls, None)


def test_a_driver_that_cannot_start_fails_the_job_with_its_last_words(tmp_path: Path) -> None:
    registry = sqlite_url(tmp_path / "jobs.sqlite")
    server = ServerProcess(tmp_path / "server", registry, timings=QUICK, driver_env={"FAKE_DRIVER_EXIT": "7"}).start()
    try:
        with jobs_of(registry, tmp_path) as jobs:
            job = server.wait_for_end(jobs.submit(submission()))
        assert job["job_state"] == "FAILED"
        assert "exited with code 7" in job["failure"]["message"]
        assert "no cluster to be seen" in job["failure"]["message"]
        assert job["failure"]["phase"] == "launch"
    finally:
        server.stop()
