"""The whole of Airflow (scheduler, triggerer, API server) around jobs the test controls: kills, clears, crashes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.airflow.conftest import rest_connection
from tests.airflow.jobs_server import FakeJob, JobsServer
from tests.airflow.standalone import Standalone, eventually

pytestmark = [pytest.mark.timeout(900)]

DAGS = """
from datetime import timedelta
from airflow.sdk import DAG, AssetWatcher, Param, task
from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.triggers.table import LanceTableTrigger

for name, deferrable in (("deferred", True), ("on_worker", False)):
    with DAG(name, schedule=None, params={"column": Param("c", type="string")}) as dag:
        LanceBackfillColumnOperator(
            task_id="fill", table_id=name, column="{{ params.column }}", deferrable=deferrable,
            retries=2, retry_delay=timedelta(seconds=1),
        )
    globals()[name] = dag
    with DAG(f"{name}_bounded", schedule=None, dagrun_timeout=timedelta(seconds=30)) as bounded:
        LanceBackfillColumnOperator(task_id="fill", table_id=f"{name}_bounded", column="c", deferrable=deferrable)
    globals()[f"{name}_bounded"] = bounded

asset = create_asset(authority="test", table_id=["watched"], watchers=[
    AssetWatcher(name="watched", trigger=LanceTableTrigger(table_id=["watched"], poll_interval=0.5)),
])
with DAG("on_change", schedule=[asset]) as on_change:
    @task
    def payload(triggering_asset_events=None):
        return [event.extra["payload"] for events in triggering_asset_events.values() for event in events]
    payload()
"""
LOADS = """
import os, signal
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, CronPartitionTimetable, PartitionedAssetTimetable
from airflow_provider_lance.assets.lance import create_alias, create_asset
from airflow_provider_lance.operators.check import LanceTableCheckOperator
from airflow_provider_lance.operators.table import LanceCreateTableOperator
from airflow_provider_lance.operators.write import LanceWriteOperator

FOLDER = {"lance_conn_id": "lance_folder"}

def three_rows():
    import pyarrow as pa
    from airflow_provider_lance.storage.commits import Committer

    mark = Path(os.environ["AIRFLOW_HOME"], "killed")
    def die(*_, **__):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if not mark.exists():
        Committer.commit = die  # the files are written, and the commit is next
    return pa.table({"id": [1, 2, 3]})

with DAG("loads", schedule=None, default_args=FOLDER) as loads:
    create = LanceCreateTableOperator(task_id="create", table_id="numbers", schema={"id": "int64"}, if_exists="skip")
    create >> LanceWriteOperator(
        task_id="load", table_id="numbers", data=three_rows, retries=1, retry_delay=timedelta(0)
    )

days = create_asset(authority="test", table_id=["days"])
with DAG(
    "daily", schedule=CronPartitionTimetable("0 0 29 2 *", timezone="UTC", key_format="%Y-%m-%d"), default_args=FOLDER
) as daily:
    # A rendered text that is a list is read as one.
    LanceWriteOperator(
        task_id="load", table_id="days", data="[{'day': '{{ partition_key }}'}]", mode="upsert", on="day",
        outlets=[days, create_alias(authority="test", name="days")],
    )
with DAG("each_day", schedule=PartitionedAssetTimetable(assets=days), default_args=FOLDER) as each_day:
    LanceTableCheckOperator(task_id="check", table_id="days", predicate="day = '{{ partition_key }}'")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[JobsServer]:
    with JobsServer() as found:
        found.versions["watched"] = 1
        yield found


@pytest.fixture(scope="module")
def airflow(server: JobsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("standalone")
    in_folder = {"impl": "dir", "properties": {"root": str(folder / "lake")}}
    variables = {
        "AIRFLOW_CONN_LANCE_DEFAULT": rest_connection(server.url),
        "AIRFLOW_CONN_LANCE_FOLDER": json.dumps({"conn_type": "lance", "extra": in_folder}),
    }
    standalone = Standalone(folder, variables)
    (folder / "dags" / "lance_tests.py").write_text(DAGS)
    (folder / "dags" / "lance_loads.py").write_text(LOADS)
    with standalone:
        yield standalone
    assert [job.job_id for job in server.live()] == [], "no job is left behind"


def states_of(server: JobsServer, table: str) -> list[str]:
    """The states of a table's jobs."""
    return [job.state for job in server.jobs.values() if job.table == table]


def next_job(server: JobsServer, known: int) -> FakeJob:
    """The job submitted after so many others."""
    return server.wait_for(lambda it: len(it.jobs) > known and list(it.jobs.values())[known], 180)


def test_a_deferred_task_shows_its_job_and_returns_its_result(airflow: Standalone, server: JobsServer) -> None:
    known = len(server.jobs)
    run = airflow.trigger("deferred", column="embedding")
    job = next_job(server, known)
    assert job.body["column"] == "embedding"
    airflow.wait_deferred("deferred", run, "fill")
    assert airflow.xcom("deferred", run, "fill", "job_id") == job.job_id
    assert airflow.links("deferred", run, "fill")["Lance job"] == f"{server.url}/ui/jobs/{job.job_id}"
    server.finish(job.job_id, result={"rows_assigned": 3, "published_version": 9})
    airflow.wait_state("deferred", run, "fill", "success")
    assert airflow.xcom("deferred", run, "fill")["version"] == 9


MARKS = ["failed", pytest.param("success", marks=pytest.mark.soak)]


@pytest.mark.parametrize("state", MARKS)
def test_marking_a_deferred_task_cancels_its_job(airflow: Standalone, server: JobsServer, state: str) -> None:
    known = len(server.jobs)
    run = airflow.trigger("deferred")
    job = next_job(server, known)
    airflow.wait_deferred("deferred", run, "fill")
    eventually(lambda: any(job.job_id in body.get("job_ids", []) for _, _, body in server.requests), 30, "a look")
    airflow.mark("deferred", run, "fill", state)
    server.wait_for(lambda it: it.jobs[job.job_id].state == "CANCELLED", 60)


@pytest.mark.parametrize("state", MARKS)
def test_marking_a_running_task_cancels_its_job(airflow: Standalone, server: JobsServer, state: str) -> None:
    known = len(server.jobs)
    run = airflow.trigger("on_worker")
    job = next_job(server, known)
    airflow.wait_state("on_worker", run, "fill", "running")
    airflow.mark("on_worker", run, "fill", state)
    server.wait_for(lambda it: it.jobs[job.job_id].state == "CANCELLED", 60)


@pytest.mark.soak
def test_a_run_that_takes_too_long_cancels_its_jobs(airflow: Standalone, server: JobsServer) -> None:
    """``dagrun_timeout``: Airflow fails the run and takes its tasks away, waiting ones and deferred ones."""
    runs = {name: airflow.trigger(name) for name in ("deferred_bounded", "on_worker_bounded")}
    for name, run in runs.items():
        server.wait_for(partial(states_of, table=name), 30)
        airflow.wait_run(name, run, "failed", 120)
        server.wait_for(lambda it: states_of(it, name) == ["CANCELLED"], 60)  # noqa: B023 - called in this round


@pytest.mark.soak
def test_clearing_a_deferred_task_ends_the_old_job_and_runs_a_new_one(airflow: Standalone, server: JobsServer) -> None:
    known = len(server.jobs)
    run = airflow.trigger("deferred")
    old = next_job(server, known)
    airflow.wait_deferred("deferred", run, "fill")
    airflow.clear("deferred", run, "fill")
    new = next_job(server, known + 1)
    assert server.jobs[old.job_id].state == "CANCELLED", "the old one ended before the new one began"
    airflow.wait_deferred("deferred", run, "fill")
    server.finish(new.job_id, result={"rows_assigned": 1, "published_version": 2})
    airflow.wait_state("deferred", run, "fill", "success")
    assert airflow.xcom("deferred", run, "fill")["job_id"] == new.job_id
    # A task that succeeded and is cleared runs its job again, too. (A clear between the task's end and the run's is
    # undone by the scheduler.)
    airflow.wait_run("deferred", run, "success")
    airflow.clear("deferred", run, "fill")
    third = next_job(server, known + 2)
    airflow.wait_deferred("deferred", run, "fill")
    server.finish(third.job_id, result={"rows_assigned": 1, "published_version": 3})
    airflow.wait_state("deferred", run, "fill", "success")


def test_a_new_version_runs_the_dag_that_watches_it(airflow: Standalone, server: JobsServer) -> None:
    before = len(airflow.runs("on_change"))
    server.wait_for(lambda it: any(path == "/v1/table/watched/describe" for path in it.paths()), 60)
    time.sleep(2)
    server.versions["watched"] += 1
    runs = eventually(lambda: airflow.runs("on_change")[before:], 60, "a run by the watcher")
    run = runs[0]["dag_run_id"]
    airflow.wait_state("on_change", run, "payload", "success")
    (payload,) = airflow.xcom("on_change", run, "payload")
    assert payload["version"] == server.versions["watched"]
    assert payload["previous_version"] == server.versions["watched"] - 1
    assert payload["table_id"] == ["watched"]


def stored(airflow: Standalone, table: str, column: str) -> list[object]:
    import lance

    rows = lance.dataset(str(airflow.home / "lake" / f"{table}.lance")).to_table()
    return [row[column] for row in sorted(rows.to_pylist(), key=lambda row: str(row[column]))]


def test_a_write_killed_between_staging_and_commit_is_retried_once_and_a_clear_writes_again(
    airflow: Standalone,
) -> None:
    run = airflow.trigger("loads")
    airflow.wait_state("loads", run, "load", "success", 180)
    assert (airflow.home / "killed").exists(), "the first try was killed"
    assert airflow.instance("loads", run, "load")["try_number"] == 2
    data = airflow.home / "lake" / "numbers.lance" / "data"
    assert len(list(data.iterdir())) == 2, "both tries have staged their rows"
    assert stored(airflow, "numbers", "id") == [1, 2, 3]
    airflow.wait_run("loads", run, "success")
    airflow.clear("loads", run, "load")
    eventually(lambda: airflow.instance("loads", run, "load")["try_number"] == 3, 60, "the cleared task's try")
    airflow.wait_state("loads", run, "load", "success")
    assert stored(airflow, "numbers", "id") == [1, 1, 2, 2, 3, 3]


def test_events_carry_the_partition_key_of_their_run_to_the_dag_of_that_partition(airflow: Standalone) -> None:
    airflow.trigger("daily", partition_key="2026-03-01")
    runs = eventually(lambda: airflow.runs("each_day"), 120, "a run for the partition")
    assert [run["partition_key"] for run in runs] == ["2026-03-01"]
    run = runs[0]["dag_run_id"]
    airflow.wait_state("each_day", run, "check", "success")
    assert airflow.xcom("each_day", run, "check")["violations"] == 0
    assert stored(airflow, "days", "day") == ["2026-03-01"]
    uri = "lance://test/days"
    (asset,) = [each for each in airflow.call("GET", "/assets")["assets"] if each["uri"] == uri]
    events = airflow.call("GET", f"/assets/events?asset_id={asset['id']}")["asset_events"]
    assert {event["partition_key"] for event in events} == {"2026-03-01"}
    assert {event["extra"]["rows"] for event in events} == {1}


def kill_all(airflow: Standalone, words: str) -> None:
    found = airflow.processes(words)
    assert found, f"there is a process with {words!r}"
    for process in found:
        os.kill(process, signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.parametrize("dag", ["on_worker"])
def test_a_worker_that_dies_is_followed_by_a_try_that_rejoins(
    airflow: Standalone, server: JobsServer, dag: str
) -> None:
    known = len(server.jobs)
    run = airflow.trigger(dag)
    job = next_job(server, known)
    airflow.wait_state(dag, run, "fill", "running")
    time.sleep(2)
    pid = airflow.instance(dag, run, "fill")["pid"]
    os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: airflow.instance(dag, run, "fill")["try_number"] >= 2, 240, "a second try")
    airflow.wait_state(dag, run, "fill", "running", 60)
    time.sleep(2)
    server.finish(job.job_id, result={"rows_assigned": 1, "published_version": 5})
    airflow.wait_state(dag, run, "fill", "success", 90)
    assert len(server.jobs) == known + 1, "nothing was submitted twice"


@pytest.mark.soak
def test_a_triggerer_that_dies_leaves_the_wait_to_the_next(airflow: Standalone, server: JobsServer) -> None:
    known = len(server.jobs)
    run = airflow.trigger("deferred")
    job = next_job(server, known)
    airflow.wait_deferred("deferred", run, "fill")
    kill_all(airflow, "triggerer")
    time.sleep(3)
    assert server.jobs[job.job_id].state == "QUEUED", "a dead triggerer cancels nothing"
    airflow.start("triggerer")
    server.finish(job.job_id, result={"rows_assigned": 1, "published_version": 6})
    airflow.wait_state("deferred", run, "fill", "success", 150)
    assert len(server.jobs) == known + 1


@pytest.mark.soak
def test_a_version_made_while_no_triggerer_runs_is_noticed(airflow: Standalone, server: JobsServer) -> None:
    before = len(airflow.runs("on_change"))
    kill_all(airflow, "triggerer")
    server.versions["watched"] += 3
    airflow.start("triggerer")
    runs = eventually(lambda: airflow.runs("on_change")[before:], 150, "a run by the watcher")
    airflow.wait_state("on_change", runs[0]["dag_run_id"], "payload", "success")
    payload = airflow.xcom("on_change", runs[0]["dag_run_id"], "payload")[-1]
    assert payload["version"] == server.versions["watched"]


@pytest.mark.soak
def test_a_scheduler_that_dies_ends_no_job(airflow: Standalone, server: JobsServer) -> None:
    known = len(server.jobs)
    run = airflow.trigger("deferred")
    job = next_job(server, known)
    airflow.wait_deferred("deferred", run, "fill")
    kill_all(airflow, "scheduler")
    time.sleep(2)
    airflow.start("scheduler")
    server.finish(job.job_id, result={"rows_assigned": 1, "published_version": 7})
    airflow.wait_state("deferred", run, "fill", "success", 150)
    assert len(server.jobs) == known + 1


@pytest.mark.soak
@pytest.mark.parametrize("moment", range(6))
def test_killed_around_the_moment_of_deferral(airflow: Standalone, server: JobsServer, moment: int) -> None:
    """Whatever is caught neither by the operator nor by the trigger is left to the lease, and only that."""
    known = len(server.jobs)
    run = airflow.trigger("deferred")
    job = next_job(server, known)
    time.sleep(moment * 0.15)
    airflow.mark("deferred", run, "fill", "failed")
    time.sleep(8)
    if server.jobs[job.job_id].state != "CANCELLED":
        assert job.lease == "21600", "the server ends it when its lease runs out"
        server.finish(job.job_id, state="CANCELLED")


def test_the_log_of_a_deferred_task_tells_its_job(airflow: Standalone, server: JobsServer) -> None:
    known = len(server.jobs)
    run = airflow.trigger("deferred")
    job = next_job(server, known)
    airflow.wait_deferred("deferred", run, "fill")
    progressed = time.monotonic()
    server.finish(job.job_id, state="RUNNING", progress={"phase": "compute", "fragments_done": 1, "fragments_total": 2})

    def looks() -> int:
        return sum(job.job_id in body.get("job_ids", []) for at, _, body in server.requests if at > progressed)

    eventually(lambda: looks() >= 2, 60, "two looks at the running job")
    server.finish(job.job_id, result={"rows_assigned": 1, "published_version": 2})
    airflow.wait_state("deferred", run, "fill", "success")
    logs = [
        path.read_text()
        for path in Path(airflow.home, "logs").rglob("*.log*")
        if run.replace(":", "") and path.is_file()
    ]
    mine = [text for text in logs if job.job_id in text]
    assert any("fragments 1/2" in text for text in mine), "the trigger's lines are in the task's log"
