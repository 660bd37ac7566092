"""End to end without a stand-in: the server launches a driver, the engine claims, fills the column and reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.functions.envelope import IMPORT_PATH_BACKEND, UdfEnvelope
from tests.namespace.conftest import wait_until
from tests.namespace.people import present
from tests.namespace.server_process import ROOT


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., LanceClient]]:
    """``airflow-lance serve`` with a table of 1000 rows and a column to fill; ``env`` is for its drivers."""
    started: list[tuple[subprocess.Popen[str], LanceClient]] = []

    def start(*more: str, launch: str = "auto", **env: str) -> LanceClient:
        config = tmp_path / "config.toml"
        values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
        config.write_text(f"[clusters.local]\nlaunch = {json.dumps(launch)}\nenv = {{ {values} }}\n")
        options = ["--root", tmp_path / "lake", "--state-dir", tmp_path / "state", "--config", config, "--port", "0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_lance.cli", "serve", *map(str, options), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        client = LanceClient(process.stdout.readline().split()[1])
        started.append((process, client))
        client.create_table({"id": ["people"]}, pa.table({"id": range(1000), "text": ["abc"] * 1000}))
        added = [{"name": "n", "computed": "length(text)"}]
        client.alter_table_add_columns({"id": ["people"], "new_columns": added})
        return client

    yield start
    for process, client in started:
        client.close()
        process.terminate()
        process.wait(timeout=30)


def fill(client: LanceClient, logs: Path) -> Job:
    job_id = client.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
    job: Job = wait_until(lambda: (found := client.job(job_id)).state.terminal and found, 240)
    said = "".join(path.read_text()[-3000:] for path in sorted((logs / job_id).glob("attempt-*.log")))
    assert job.state.value == "DONE", (job, said)
    assert job.result is not None
    assert job.result["rows_assigned"] == 1000
    query = {"id": ["people"], "vector": {}, "k": 2000, "columns": {"column_names": ["n"]}}
    assert client.query_arrow(query)["n"].to_pylist() == [3] * 1000
    return job


@pytest.mark.timeout(300)
def test_a_column_is_filled_by_a_spark_job(serve: Callable[..., LanceClient], tmp_path: Path) -> None:
    client = serve()
    job = fill(client, tmp_path / "state" / "logs")
    assert job.progress is not None
    assert job.progress.rows_done == 1000
    messages = client.query_job_events({"job_id": job.job_id})["message"].to_pylist()
    assert messages[-1] == "DONE on attempt 1"


@pytest.mark.parametrize("launch", ["python", "spark-submit"])
@pytest.mark.timeout(300)
def test_drivers_killed_between_claim_and_report_are_followed_by_one_that_ends_the_job(
    serve: Callable[..., LanceClient], tmp_path: Path, launch: str
) -> None:
    """The first dies with its claim in hand, the second with everything committed and nothing said, the third when its
    last word was heard."""
    deaths = {point: tmp_path / point for point in ("claimed", "before-report", "after-report")}
    faults = ",".join(f"{point}:once:{path}" for point, path in deaths.items())
    client = serve(launch=launch, LANCE_ENGINE_TEST_FAULT=faults)
    before = present(client.describe_table({"id": ["people"]}).version)
    job = fill(client, tmp_path / "state" / "logs")
    assert all(path.exists() for path in deaths.values())
    assert client.describe_table({"id": ["people"]}).version == before + 1  # computed and committed once
    messages = client.query_job_events({"job_id": job.job_id})["message"].to_pylist()
    assert messages[-1] == "DONE on attempt 3"


@pytest.mark.timeout(300)
def test_a_column_and_a_view_over_it_follow_their_table_by_themselves(serve: Callable[..., LanceClient]) -> None:
    """An appended row is filled by the column's job, and for that the view's job is started; then it is quiet."""
    client = serve("--property", "watch.interval=0.2", "--property", "watch.cooldown=0")
    function = UdfEnvelope(IMPORT_PATH_BACKEND, path="os.path:basename")
    entry = virtual_column_entry(function, inputs=["text"], outputs={"name": pa.string()}) | {"auto_backfill": True}
    client.alter_table_add_columns({"id": ["people"], "new_columns": [{"name": "name", "virtual_column": entry}]})
    query = "SELECT id, name FROM people WHERE name IS NOT NULL"
    client.create_materialized_view({"id": ["named"], "query": query, "auto_refresh": True})

    def named() -> int | None:
        return client.count_table_rows({"id": ["named"]}).count

    wait_until(lambda: named() == 1000, 120)
    client.insert_into_table({"id": ["people"]}, pa.table({"id": [5000], "text": ["a/b"]}))
    wait_until(lambda: named() == 1001, 120)
    wanted = {"id": ["named"], "vector": {}, "k": 5, "filter": "id = 5000", "columns": {"column_names": ["name"]}}
    assert client.query_arrow(wanted)["name"].to_pylist() == ["b"]

    def finished() -> int | None:
        jobs = client.list_jobs({}).jobs
        return len(jobs) if all(Job.from_wire(job).state.terminal for job in jobs) else None

    count = wait_until(finished, 60)
    time.sleep(2)  # ten looks
    assert finished() == count


def test_a_write_whose_driver_dies_and_whose_submit_is_repeated_stores_its_rows_once(
    serve: Callable[..., LanceClient], tmp_path: Path
) -> None:
    """The first driver dies between staging and commit; later the same key is submitted again, as a retry does."""
    pq.write_table(pa.table({"id": range(1000, 1500)}), tmp_path / "in.parquet")
    client = serve(LANCE_ENGINE_TEST_FAULT=f"write-before-commit:once:{tmp_path / 'killed'}")

    def load() -> Job:
        body = {"id": ["people"], "path": f"{tmp_path}/in.parquet", "context": {"idempotency-key": "the-run"}}
        job_id = present(client.write_table(body).job_id)
        job: Job = wait_until(lambda: (found := client.job(job_id)).state.terminal and found, 240)
        assert job.state.value == "DONE", job.failure
        return job

    first = load()
    assert (tmp_path / "killed").exists()
    assert present(first.result)["rows_inserted"] == 500
    again = load()
    assert again.job_id != first.job_id
    assert present(again.result)["version"] == present(first.result)["version"]
    assert client.count_table_rows({"id": ["people"]}).count == 1500
