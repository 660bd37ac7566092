"""The example DAGs against our own server with real Spark, and a search for secrets in everything they left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.api.wire import Wire
from tests.airflow.conftest import connection
from tests.airflow.standalone import eventually

ROOT = Path(__file__).parents[2]
KEY = "MARKED-KEY-4f1d2c9b7a"
pytestmark = [pytest.mark.timeout(900)]


class Arguments(threading.Thread):
    """Notes down the command lines of every process on the machine, as `ps` of another user would see them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.1):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.seen.add(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))


class RealServer:
    def __init__(self, url: str, folder: Path, arguments: Arguments) -> None:
        self.url, self.folder, self.arguments = url, folder, arguments
        settings = Settings.from_connection(host=url, password=KEY)
        self.wire = Wire(settings)

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.wire.rows("list_jobs", {}))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """``airflow-lance serve`` with an API key, and the Lance and Spark connections that go with it."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "keys").write_text(f"all:{KEY}\n")
    (folder / "keys").chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "airflow_provider_lance.namespace.cli", "serve", "--root", str(folder / "lake")]
    command += ["--port", str(port), "--state-dir", str(folder / "state"), "--keys", str(folder / "keys")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    arguments = Arguments()
    arguments.start()
    try:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/v1/table", headers={"x-api-key": KEY}).status_code == 200:
                    break
            assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)
        lance = json.dumps({"conn_type": "lance", "host": url, "password": KEY})
        spark = json.dumps({"conn_type": "spark", "host": "local[2]"})
        with connection("lance_default", lance), connection("spark_default", spark):
            yield RealServer(url, folder, arguments)
    finally:
        arguments.stop.set()
        process.terminate()
        process.wait(timeout=20)


def example(name: str) -> Any:
    return runpy.run_path(str(ROOT / "dags" / f"{name}.py"))["dag"]


@pytest.mark.usefixtures("airflow_home")
class TestExamples:
    """In this order: the quickstart makes the tables the other DAGs work on."""

    def test_quickstart(self, run_dag: Callable[..., Any], real: RealServer):
        run = run_dag(example("lance_quickstart"), run_conf={"rows": 2000})
        assert run.state == "success"
        assert run.xcom("backfill_column")["result"]["rows_assigned"] == 2000
        assert run.xcom("refresh_view")["result"]["rows_written"] > 0
        assert run.xcom("move_tag")["version"] == run.xcom("create_version")["version"]

    def test_backfill_suggests_names(self, run_dag: Callable[..., Any], real: RealServer):
        run = run_dag(example("lance_backfill"), run_conf={"table": "artcles"})
        assert run.task_state("check") == "failed"
        run = run_dag(example("lance_backfill"), run_conf={"column": "text"})
        assert run.task_state("check") == "failed"

    def test_spark_submit_executes_the_job(self, run_dag: Callable[..., Any], real: RealServer):
        dag = example("lance_spark_submit")
        # ``dag.test`` runs one task after the other; the sensor must not come before what it waits for.
        dag.get_task("execute") >> dag.get_task("watch")
        run = run_dag(dag)
        assert run.task_state("submit") == "success"
        assert run.task_state("execute") == "success"
        assert run.task_state("watch") == "success"
        done = run.xcom("execute")
        assert done == run.xcom("watch")
        assert (done["state"], done["table_id"]) == ("DONE", ["articles"])
        assert done["job_id"] == run.xcom("submit")["job_id"]

    def test_promote_moves_the_tag_or_rolls_back(self, run_dag: Callable[..., Any], real: RealServer):
        before = real.wire.call("get_table_tag_version", {"id": ["articles"], "tag": "production"}).value["version"]
        run = run_dag(example("lance_promote"), run_conf={"min_rows": 10_000_000})
        assert run.task_state("check") == "failed"
        assert run.task_state("roll_back") == "success"
        assert run.task_state("promote") == "upstream_failed"
        after = real.wire.call("get_table_tag_version", {"id": ["articles"], "tag": "production"}).value["version"]
        assert after == before

    def test_views_are_refreshed_in_order_and_skipped(self, run_dag: Callable[..., Any], real: RealServer):
        run = run_dag(example("lance_refresh_views"))
        assert run.xcom("discover")[0] == [["long_articles"]]
        assert run.state == "success"

    def test_no_job_is_left_and_no_secret_is_found(self, airflow_home: Path, real: RealServer):
        assert {job["state"] for job in real.jobs()} <= {"DONE"}
        # The server keeps a driver's launch token in a file of its own until the driver is gone.
        running = real.folder / "state" / "running"
        eventually(lambda: not [path for path in running.rglob("*") if path.is_file()], 120, "the drivers to be gone")
        places = [path for base in (airflow_home, real.folder / "state") for path in base.rglob("*") if path.is_file()]
        places = [path for path in places if path.name != "keys"] + [real.folder / "server.log"]
        assert any(path.suffix == ".db" for path in places), "the metadata database is among them"
        for path in places:
            content = path.read_bytes()
            assert KEY.encode() not in content, path
            assert b"launch_token" not in content or path.suffix in {".py", ".pyc"}, path
        assert len(real.arguments.seen) > 5
        assert any("engine/app.py" in line for line in real.arguments.seen), "a driver was seen"
        assert not [line for line in real.arguments.seen if KEY in line and "pytest" not in line]
        drivers = [line for line in real.arguments.seen if "engine/app.py" in line]
        assert not [line for line in drivers if re.search(r"token=|api.key=|password", line, re.IGNORECASE)]
