"""The packaged application on a real standalone cluster: a master and two workers, submitted with spark-submit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.engine.submit import submit_command, submit_environment

from .backfills import assert_filled, declare, people

SPARK_CLASS = str(Path(sys.executable).with_name("spark-class"))


class Cluster:
    """Processes of ``spark-class``; ports are the system's choice and read from the logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[Path] = []
        self.url = ""

    def wait(self) -> None:
        """Start everything and wait until both workers are known to the master."""
        folder = self.folder
        master = self.start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = self.find(master, r"Starting Spark master at (spark://\S+)")
        self.workers = [
            self.start(
                f"worker{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(folder / f"work{number}"), self.url),
            )
            for number in range(2)
        ]
        for worker in self.workers:
            self.find(worker, r"(Successfully registered) with master")

    def start(self, name: str, *command: str) -> Path:
        log = self.folder / f"{name}.log"
        environment = {**os.environ, **submit_environment(), "SPARK_MASTER_WEBUI_PORT": "0"}
        with log.open("wb") as file:
            self.processes.append(
                subprocess.Popen(
                    [SPARK_CLASS, *command], stdout=file, stderr=file, env=environment, start_new_session=True
                )
            )
        return log

    def find(self, log: Path, pattern: str) -> str:
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


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()


def start(cluster: Cluster, tmp_path: Path, uri: str, memory: str, **request: object) -> subprocess.Popen[str]:
    spec = {"job_type": "backfill_column", "table_id": ["t"], "location": uri, "request": request}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = submit_command(
        ["--spec", str(tmp_path / "spec.json")],
        master=cluster.url,
        conf={"spark.executor.memory": memory, "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"},
    )
    # The package is not on the executors' path: the engine sends itself.
    environment = {**os.environ, **submit_environment(master=cluster.url), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def submit(cluster: Cluster, tmp_path: Path, uri: str, **request: object) -> dict[str, object]:
    process = start(cluster, tmp_path, uri, "512m", **request)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said[-4000:]
    # spark-submit mixes the driver's log into its output.
    [answer] = [line for line in said.splitlines() if line.startswith('{"job_id"')]
    return json.loads(answer)["result"]


@pytest.mark.timeout(400)
def test_a_backfill_on_a_master_and_two_workers(cluster, tmp_path):
    uri = str(tmp_path / "t.lance")
    declare(people(uri, rows=400, per_fragment=20), "n", "length(text) + id")
    lance.dataset(uri).delete("id % 9 = 4")
    result = submit(cluster, tmp_path, uri, column="n", commit_granularity=5, concurrency=2)
    assert result["rows_assigned"] == lance.dataset(uri).count_rows()
    assert result["rows_remaining"] == 0
    assert_filled(uri)
    for worker in cluster.workers:
        assert "Launching executor" in worker.read_text() or "Asked to launch executor" in worker.read_text()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_cluster_without_room_for_an_executor_is_named(cluster, tmp_path):
    uri = str(tmp_path / "t.lance")
    declare(people(uri, rows=20, per_fragment=20), "n", "length(text) + id")
    process = start(cluster, tmp_path, uri, "8g", column="n")
    try:
        told = next(line for line in process.stdout if "no executor for 30 s" in line)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert cluster.url in told
    assert "room for one of 8g" in told
    assert lance.dataset(uri).version == 2
