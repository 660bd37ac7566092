"""kill -9 of the server at random moments of submits, claims, reports and running jobs; then a restart, and again.

Afterwards every answered submit is in the registry, every job has ended exactly once, and nothing is left locked.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from sqlalchemy import func, select

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.namespace.jobs.database import Database, events, jobs, locks, sqlite_url
from tests.namespace.conftest import QUICK, fresh_postgres, wait_until
from tests.namespace.server_process import ServerProcess

COLUMNS = [f"c{number}" for number in range(12)]


class Submitter(threading.Thread):
    """Submits backfills without a pause; remembers each one that was answered with a job."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.random = random.Random(seed)
        self.answered: dict[str, str] = {}
        self.refused = Counter[int]()
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            key = f"{self.name}-{number}"
            body = {"column": self.random.choice(COLUMNS), "task_size": self.random.randint(1000, 2000)}
            with suppress(httpx.TransportError):
                answer = httpx.post(
                    f"{self.server.url}/v1/table/t/backfill_column",
                    json=body,
                    headers={"x-lance-ctx-idempotency-key": key},
                    timeout=10,
                )
                if answer.status_code == 202:
                    self.answered[key] = answer.json()["job_id"]
                else:
                    self.refused[answer.status_code] += 1
            time.sleep(self.random.uniform(0.01, 0.1))


@pytest.fixture(params=["sqlite", "postgresql"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield sqlite_url(tmp_path / "jobs.sqlite")
    else:
        yield from fresh_postgres(request.getfixturevalue("postgres"))


def torment(server: ServerProcess, seed: int, kills: int) -> None:
    moments = random.Random(seed)
    server.start()
    with LanceClient(server.url) as client:
        client.create_table({"id": ["t"]}, pa.table({"text": ["a", "bb"]}))
        added = [{"name": name, "computed": f"length(text) + {number}"} for number, name in enumerate(COLUMNS)]
        client.alter_table_add_columns({"id": ["t"], "new_columns": added})
    submitters = [Submitter(server, seed + number) for number in range(3)]
    for submitter in submitters:
        submitter.start()
    for _ in range(kills):
        time.sleep(moments.uniform(0.2, 2.0))
        server.kill()
        time.sleep(moments.uniform(0.0, 0.5))
        server.start()
    time.sleep(1.0)
    for submitter in submitters:
        submitter.stopped.set()
    for submitter in submitters:
        submitter.join()
    assert server.registry is not None
    database = Database(server.registry)
    try:
        wait_until(lambda: live_jobs(database) == 0, 120, "jobs that never end")
        answered = {key: job_id for submitter in submitters for key, job_id in submitter.answered.items()}
        check(database, server, answered)
        assert set().union(*(submitter.refused for submitter in submitters)) <= {409}
        assert len(answered) >= kills
    finally:
        database.close()
        server.stop()


def live_jobs(database: Database) -> int:
    with database.reading() as connection:
        return connection.scalar(select(func.count()).where(jobs.c.state.in_(["QUEUED", "RUNNING"]))) or 0


def check(database: Database, server: ServerProcess, answered: dict[str, str]) -> None:
    with database.reading() as connection:
        rows = connection.execute(select(jobs)).all()
        ends = Counter(
            connection.scalars(select(events.c.job_id).where(events.c.state.in_(["DONE", "FAILED", "CANCELLED"])))
        )
        left = connection.execute(select(locks)).all()
    by_key = {row.idempotency_key: row.job_id for row in rows}
    lost = {key for key, job_id in answered.items() if by_key.get(key) != job_id}
    assert not lost, "answered submits that the registry does not have"
    assert len(by_key) == len(rows), "one key became several jobs"
    assert {row.state for row in rows} <= {"DONE", "FAILED"}
    assert ends == Counter({row.job_id: 1 for row in rows}), "jobs that ended more than once, or never"
    assert left == []
    lines = [line.split() for line in server.trace.read_text().splitlines()]
    claims = Counter((job_id, attempt) for verb, job_id, attempt, *_ in lines if verb == "claim")
    assert max(claims.values()) == 1, "an attempt was claimed twice"
    # A driver killed with nothing said may be repeated; one that was told its end was stored is never.
    told = Counter(job_id for verb, job_id, *_ in lines if verb == "end")
    assert max(told.values()) == 1
    done = {row.job_id for row in rows if row.state == "DONE"}
    assert set(told) <= done


def test_nothing_accepted_is_lost_and_everything_ends_once(registry: str, tmp_path: Path) -> None:
    torment(ServerProcess(tmp_path / "server", registry, timings=QUICK, max_drivers=3), seed=7, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_for_longer(registry: str, tmp_path: Path, seed: int) -> None:
    torment(ServerProcess(tmp_path / "server", registry, timings=QUICK, max_drivers=4), seed=seed, kills=20)
