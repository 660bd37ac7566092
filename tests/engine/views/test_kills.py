"""A driver or worker killed at any moment: readers see the old or the new view whole, the next refresh makes good."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.engine.job.context import JobCancelledError, JobContext, SilentReporter
from airflow_provider_lance.engine.views.job import run_refresh
from tests.engine.view_world import World, people
from tests.engine.views.test_chunker import chunker, docs

QUERY = "SELECT id, upper(text) AS shout FROM people WHERE id % 2 = 0"


def expected(world: World) -> list[tuple[Any, ...]]:
    rows = world.open("people").to_table().to_pylist()
    return sorted([(row["id"], row["text"].upper()) for row in rows if row["id"] % 2 == 0], key=repr)


def run_engine(
    world: World, name: str, fault: str, *arguments: str, **request: Any
) -> subprocess.CompletedProcess[str]:
    """The engine as its own process, as spark-submit runs it, with a place where it dies."""
    spec = world.context(name, **request).spec
    path = world.root / "spec.json"
    path.write_text(json.dumps(spec.to_dict()))
    return subprocess.run(
        [sys.executable, "-m", "airflow_provider_lance.engine", "--spec", str(path), *arguments],
        env={**os.environ, "LANCE_ENGINE_TEST_FAULT": fault},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


@pytest.mark.parametrize("fault", ["view-task", "view-before-rows", "view-between-commits"])
def test_a_killed_driver_leaves_the_old_view_or_the_new_one(tmp_path: Path, fault: str) -> None:
    world = World(tmp_path)
    world.table("people", people(range(20)))
    world.view("view", QUERY)
    world.refresh("view")
    before = world.rows("view")
    world.append("people", people(range(20, 30)))
    world.open("people").delete("id < 4")
    killed = run_engine(world, "view", fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.rows("view") == (expected(world) if fault == "view-between-commits" else before)

    again = run_engine(world, "view", "")
    result = json.loads(again.stdout)["result"]
    assert (result["rows_written"], result["rows_deleted"]) == (5, 2), "nothing is applied twice"
    assert world.rows("view") == expected(world)
    assert world.refresh("view")["mode"] == "no_op"


def test_a_refresh_whose_end_was_not_heard_is_told_again_and_not_repeated(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("people", people(range(20)))
    world.view("view", QUERY)
    spec = world.context("view", full=True).spec
    contexts = [JobContext(spec, world.make_spark, SilentReporter(), job_id="unheard", attempt=n) for n in (1, 2)]
    first, second = ({**run_refresh(context), "seconds": 0} for context in contexts)
    assert first == second
    assert (first["mode"], first["rows_written"]) == ("rebuild", 10)
    assert world.open("view").version == first["version"]
    other = JobContext(spec, world.make_spark, SilentReporter(), job_id="another", attempt=2)
    assert run_refresh(other)["version"] > first["version"], "a full refresh of another job is a new one"


def test_readers_see_the_old_view_or_the_new_one_and_nothing_between(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("people", people(range(200)), rows_per_file=20)
    world.view("view", QUERY)
    world.refresh("view")
    allowed = [world.rows("view")]
    seen: list[list[tuple[Any, ...]]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(world.rows("view"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for round_ in range(6):
            world.append("people", people(range(1000 * (round_ + 1), 1000 * (round_ + 1) + 30)))
            world.open("people").update({"text": f"'r{round_}'"}, where="id % 3 = 0")
            world.open("people").delete(f"id % 50 = {round_}")
            world.refresh("view", full=round_ % 2 == 0)
            allowed.append(expected(world))
    finally:
        stop.set()
        reader.join()
    assert len(seen) > 5
    assert all(rows in allowed for rows in seen)


def test_a_plan_touches_nothing_and_says_what_would_happen(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("people", people(range(20)))
    world.view("view", QUERY)
    world.refresh("view")
    world.append("people", people(range(20, 26)))
    files = sorted(path for path in Path(world.path("view")).rglob("*"))
    planned = json.loads(run_engine(world, "view", "", "--plan").stdout)["result"]
    assert (planned["mode"], planned["plan"]["source_rows"]) == ("incremental", 6)
    planned = json.loads(run_engine(world, "view", "", "--plan", full=True).stdout)["result"]
    assert (planned["mode"], planned["plan"]["source_rows"]) == ("rebuild", 26)
    assert sorted(path for path in Path(world.path("view")).rglob("*")) == files


class CancelledReporter(SilentReporter):
    """A job that is cancelled as soon as it computes."""

    def check(self) -> None:
        if self.latest.phase == "compute":
            raise JobCancelledError


def test_a_cancelled_refresh_stops_its_spark_job_and_commits_nothing(tmp_path: Path, spark: SparkSession) -> None:
    world = World(tmp_path, spark)
    world.table("docs", docs(dict.fromkeys(range(8), "a b")))
    world.view("slow", **chunker(lambda doc, text: __import__("time").sleep(60)))
    spec = world.context("slow").spec
    context = JobContext(spec, lambda: spark, reporter=CancelledReporter(), job_id="cancel-me")
    with pytest.raises(JobCancelledError):
        run_refresh(context)
    assert world.open("slow").version == 1
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_killed_worker_is_replaced_and_its_rows_come_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("docs", docs({n: f"word{n} and more" for n in range(40)}), rows_per_file=5)
    world.view("words", **chunker())
    done = run_engine(world, "words", f"view-task:once:{tmp_path}/died", "--master", "local[2,4]", source_task_size=5)
    assert json.loads(done.stdout)["state"] == "DONE", done.stderr[-2000:]
    assert (tmp_path / "died").exists()
    assert len(world.rows("words")) == 120
    assert len(set(world.rows("words"))) == 120
