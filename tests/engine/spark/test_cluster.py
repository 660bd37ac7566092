"""The packaged application on a real standalone cluster, whose workers do not have this package installed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.spark.submit_command import (
    python_command,
    submit_command,
    submit_environment,
    submit_options,
)
from tests.engine import view_world
from tests.engine.backfills import assert_filled, column, declare, declare_function, people

ROOT = Path(__file__).parents[3]
SPARK_CLASS = str(Path(sys.executable).with_name("spark-class"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Cluster:
    """A master and two workers, as processes of ``spark-class``; their ports are read from the logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = self._make_python()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[Path] = []
        self.url = ""

    def start(self) -> None:
        """Start everything and wait until both workers are known to the master."""
        master = self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = self._find(master, r"Starting Spark master at (spark://\S+)")
        self.workers = [
            self._start(
                f"worker{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(self.folder / f"work{number}"), self.url),
            )
            for number in range(2)
        ]
        for worker in self.workers:
            self._find(worker, r"(Successfully registered) with master")

    def _make_python(self) -> str:
        """A Python that has the libraries of this one but not this package.

        ``-S`` leaves out the .pth files, and with them the editable install.
        """
        script = self.folder / "python"
        libraries = sysconfig.get_path("purelib")
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{libraries}" exec "{sys.executable}" -S "$@"\n')
        script.chmod(0o755)
        return str(script)

    def _start(self, name: str, *command: str) -> Path:
        log = self.folder / f"{name}.log"
        environment = {**ENVIRONMENT, **submit_environment(), "SPARK_MASTER_WEBUI_PORT": "0"}
        with log.open("wb") as file:
            self.processes.append(
                subprocess.Popen(
                    [SPARK_CLASS, *command], stdout=file, stderr=file, env=environment, start_new_session=True
                )
            )
        return log

    def _find(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + 90
        while not (found := re.search(pattern, log.read_text())):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        return found[1]

    def stop(self) -> None:
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    def start_job(
        self, job_type: str, uri: str, memory: str = "512m", *, launch: str = "spark-submit", **spec: object
    ) -> subprocess.Popen[str]:
        """Start the application; only its driver has this package on its path."""
        path = self.folder / f"{Path(uri).stem}.json"
        path.write_text(json.dumps({"job_type": job_type, "table_id": ["t"], "location": uri, **spec}))
        conf = {"spark.executor.memory": memory, "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
        arguments = ["--spec", str(path)]
        environment = {**ENVIRONMENT, **submit_environment(master=self.url), "PYSPARK_PYTHON": self.python}
        if launch == "python":
            command, more = python_command(arguments, submit_options(master=self.url, conf=conf), {}, environment)
            environment |= more
        else:
            command = submit_command(arguments, master=self.url, conf=conf)
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**environment, "PYTHONPATH": str(ROOT)},
        )

    def run_job(self, job_type: str, uri: str, *, launch: str = "spark-submit", **spec: object) -> dict[str, object]:
        """The result of a job."""
        process = self.start_job(job_type, uri, "512m", launch=launch, **spec)
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said[-4000:]
        # spark-submit mixes the driver's log into its output.
        [answer] = [line for line in said.splitlines() if line.startswith('{"job_id"')]
        result: dict[str, object] = json.loads(answer)["result"]
        return result


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_the_python_of_the_workers_does_not_have_this_package(cluster: Cluster) -> None:
    code = "import lance, pyspark; import airflow_provider_lance"
    answer = subprocess.run([cluster.python, "-c", code], cwd=cluster.folder, capture_output=True, text=True)
    assert "No module named 'airflow_provider_lance'" in answer.stderr


@pytest.mark.timeout(400)
def test_a_sql_rule_on_a_master_and_two_workers(cluster: Cluster, tmp_path: Path) -> None:
    uri = str(tmp_path / "sql.lance")
    declare(people(uri, rows=400, per_fragment=20), "n", "length(text) + id")
    lance.dataset(uri).delete("id % 9 = 4")
    request = {"column": "n", "commit_granularity": 5, "concurrency": 2}
    result = cluster.run_job("backfill_column", uri, request=request)
    assert result["rows_assigned"] == lance.dataset(uri).count_rows()
    assert result["rows_remaining"] == 0
    assert_filled(uri)
    for worker in cluster.workers:
        assert "Asked to launch executor" in worker.read_text()


@pytest.mark.timeout(400)
def test_a_function_runs_with_the_shipped_package(cluster: Cluster, tmp_path: Path) -> None:
    def origin(_: int) -> str:
        import airflow_provider_lance.engine.backfill.task

        return airflow_provider_lance.engine.backfill.task.__file__

    uri = str(tmp_path / "function.lance")
    declare_function(people(uri, rows=40), origin, ["id"], {"n": pa.string()})
    assert cluster.run_job("backfill_column", uri, launch="python", request={"column": "n"})["rows_assigned"] == 40
    for path in column(uri, "n").values():
        assert path.endswith("/airflow_provider_lance.zip/airflow_provider_lance/engine/backfill/task.py")


@pytest.mark.timeout(400)
def test_a_view_of_spark_sql_is_refreshed(cluster: Cluster, tmp_path: Path) -> None:
    world = view_world.World(tmp_path)
    world.table("people", view_world.people(range(12)))
    world.view("totals", "SELECT id % 3 AS k, count(*) AS c FROM people GROUP BY id % 3")
    tables = {"people": world.path("people")}
    result = cluster.run_job("refresh_materialized_view", world.path("totals"), launch="python", tables=tables)
    assert (result["mode"], result["rows_written"]) == ("rebuild", 3)
    assert world.rows("totals") == [(0, 4), (1, 4), (2, 4)]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_cluster_without_room_for_an_executor_is_named(cluster: Cluster, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare(people(uri, rows=20, per_fragment=20), "n", "length(text) + id")
    process = cluster.start_job("backfill_column", uri, memory="8g", request={"column": "n", "concurrency": 1})
    assert process.stdout is not None
    try:
        told = next(line for line in process.stdout if "no executor for 30 s" in line)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert cluster.url in told
    assert "room for one of 8g" in told
    assert lance.dataset(uri).version == 2
