"""How long a small job takes from its submit to DONE, by how its driver began, in one run on one machine.

    python benchmarks/latency.py [--rounds 20] [--ways spark-submit,cold,standby,reused] [--cases a,b,c,d] [--airflow 5]

Each way has a server and tables of its own, and the ways take turns, so that they share the machine's busy moments.
The yardstick is ``spark-submit``: a JVM that starts Python for every job. LanceDB computes (a) and (b) in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("LANCE_LOG", "error")

import httpx
import lance
import lancedb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_lance.definitions.column_rules import virtual_column_entry, virtual_fields
from airflow_provider_lance.definitions.functions.envelope import wrap

ROWS = 100_000
NEW_ROWS = 200
YARDSTICK, REUSED = "spark-submit", "reused"
WAYS = {
    YARDSTICK: 'launch = "spark-submit"\n',
    "cold": 'reuse = "never"\n',
    "standby": 'reuse = "never"\nstandby = 1\n',
    REUSED: 'reuse = "function"\nidle_seconds = 7200\nmax_jobs = 10000\n',
}
CASES = {
    "a": f"backfill of {NEW_ROWS} new rows in {ROWS:,}",
    "b": f"refresh after {NEW_ROWS} appended rows",
    "c": f"GROUP BY view of {ROWS:,} rows",
    "d": f"Python function over {NEW_ROWS} rows",
}
EXPRESSION = "length(text) + id"
TOGETHER = 10


def new_rows(start: int, rows: int) -> pa.Table:
    ids = np.arange(start, start + rows)
    text = pc.binary_join_element_wise(pa.array(ids).cast(pa.string()), pa.scalar("x" * 40), "-")
    return pa.table({"id": ids, "text": text})


def shout(text: str) -> str:
    return text.upper()


class Table:
    """A table that gets new rows before each job."""

    def __init__(self, folder: Path, name: str, rows: int = ROWS) -> None:
        self.uri = str(folder / f"{name}.lance")
        self.rows = rows
        lance.write_dataset(new_rows(0, rows), self.uri, enable_stable_row_ids=True)

    def append(self, rows: int = NEW_ROWS) -> None:
        lance.write_dataset(new_rows(self.rows, rows), self.uri, mode="append")
        self.rows += rows


@dataclass
class Way:
    """A server whose drivers begin in one way, with the seconds that its jobs took."""

    name: str
    url: str
    process: psutil.Process
    lake: Path
    seconds: dict[str, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=120)
        self.tables = {case: Table(self.lake, f"t_{case}", NEW_ROWS if case == "d" else ROWS) for case in CASES}
        self.declare("t_a")
        self.view("v_b", "SELECT id, length(text) AS n FROM t_b WHERE id % 2 = 0")
        self.view("v_c", "SELECT id % 100 AS bucket, count(*) AS n, sum(id) AS total FROM t_c GROUP BY id % 100")
        dataset = lance.dataset(self.tables["d"].uri)
        entry = virtual_column_entry(wrap(shout, call="scalar"), inputs=["text"], outputs={"loud": pa.string()})
        dataset.add_columns(virtual_fields(dataset.schema, entry))
        self.requests: dict[str, tuple[str, dict[str, object]]] = {
            "a": ("/v1/table/t_a/backfill_column", {"column": "n"}),
            "b": ("/v1/materialized_view/v_b/refresh", {}),
            "c": ("/v1/materialized_view/v_c/refresh", {"full": True}),
            "d": ("/v1/table/t_d/backfill_column", {"column": "loud"}),
        }

    def declare(self, table: str) -> None:
        self.post(f"/v1/table/{table}/add_columns", new_columns=[{"name": "n", "computed": EXPRESSION}])

    def view(self, name: str, query: str) -> None:
        self.post(f"/v1/materialized_view/{name}/create", query=query, with_no_data=True)

    def post(self, path: str, **body: object) -> dict[str, object]:
        answer = self.http.post(path, json=body)
        assert answer.status_code < 300, f"{path}: {answer.status_code} {answer.text[:500]}"
        found: dict[str, object] = answer.json()
        return found

    def wait(self, job_id: object) -> dict[str, object]:
        while True:
            job = self.post("/v1/jobs/describe", job_id=job_id)
            if job["job_state"] not in {"QUEUED", "RUNNING"}:
                assert job["job_state"] == "DONE", json.dumps(job)[:1000]
                return job
            time.sleep(0.01)

    def run(self, case: str) -> float:
        """One job of this way, which must have begun as the way says."""
        path, body = self.requests[case]
        self.tables[case].append()
        self.ready()
        began = time.monotonic()
        job = self.wait(self.post(path, **body)["job_id"])
        spent = time.monotonic() - began
        expected = self.name if self.name in {"standby", REUSED} else "cold"
        if job["start_path"] == expected:
            self.seconds[case].append(spent)
        return spent

    def ready(self) -> None:
        """Wait until the driver of the job before has ended or waits, and until nothing of this server computes."""
        until = time.monotonic() + 180
        while time.monotonic() < until:
            waiting = "lance_drivers_waiting 1" in self.http.get("/metrics").text
            before = self.cpu_seconds()
            time.sleep(0.5)
            if self.cpu_seconds() - before < 0.05 and (self.name != "standby" or waiting):
                return

    def drivers(self) -> list[psutil.Process]:
        """The processes of drivers, which have sessions of their own."""
        found = []
        for child in self.process.children(recursive=True):
            with suppress(OSError):
                if os.getsid(child.pid) != os.getsid(self.process.pid):
                    found.append(child)
        return found

    def cpu_seconds(self) -> float:
        spent = 0.0
        for process in self.drivers():
            with suppress(psutil.Error):
                times = process.cpu_times()
                spent += times.user + times.system
        return spent

    def memory(self) -> dict[str, float]:
        """The MB of the drivers by program, with shared pages divided among the processes that share them."""
        found: dict[str, float] = {}
        for process in self.drivers():
            with suppress(psutil.Error):
                name = process.name()
                found[name] = found.get(name, 0.0) + process.memory_full_info().pss / 1e6
        return found


@contextmanager
def server(name: str, folder: Path, config: str) -> Iterator[Way]:
    lake = folder / "lake"
    lake.mkdir(parents=True)
    (folder / "server.toml").write_text("[clusters.local]\n" + config)
    command = [sys.executable, "-m", "airflow_provider_lance.cli", "serve", "--port", "0", "--root", str(lake)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--state-dir", str(folder / "state"), "--config", str(folder / "server.toml")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            start_new_session=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), (folder / "server.log").read_text()[-2000:]
    try:
        yield Way(name, line.split()[1].rstrip("/"), psutil.Process(process.pid), lake)
    finally:
        process.terminate()
        process.wait(60)


class LanceDb:
    """The same work by LanceDB in this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.tables = {case: Table(folder, f"t_{case}") for case in "ab"}
        self.database = lancedb.connect(str(folder))
        self.database.open_table("t_a").add_columns(computed={"n": EXPRESSION})
        select, where = {"id": "id", "n": "length(text)"}, "id % 2 = 0"
        self.database.create_materialized_view("v_b", "t_b", select=select, where=where, with_no_data=True)
        self.seconds: dict[str, list[float]] = {"a": [], "b": []}
        self.run("a")
        self.run("b")

    def run(self, case: str) -> float:
        self.tables[case].append()
        began = time.monotonic()
        if case == "a":
            self.database.open_table("t_a").refresh_column("n")
        else:
            self.database.open_materialized_view("v_b").refresh()
        return time.monotonic() - began


# --- what is measured ------------------------------------------------------------------------------------------------


def single_jobs(ways: Sequence[Way], cases: Sequence[str], rounds: int, folder: Path) -> None:
    peer = LanceDb(folder / "lancedb")
    for case in cases:
        for way in ways:
            for _ in range(2):  # the first job of a table computes all of it, and begins otherwise
                way.run(case)
            way.seconds[case].clear()
        for _ in range(rounds):
            for way in ways:
                way.run(case)
            if case in peer.seconds:
                peer.seconds[case].append(peer.run(case))
    print(f"\nseconds from submit to DONE, p50 and p95 of {rounds}; ratio of the p50 to {ways[0].name}")
    print("| job | way | p50 | p95 | ratio |\n|---|---|---|---|---|")
    for case in cases:
        base = statistics.median(ways[0].seconds[case])
        rows = [(way.name, way.seconds[case]) for way in ways]
        if case in peer.seconds:
            rows.append(("LanceDB in process", peer.seconds[case]))
        for name, seconds in rows:
            p50 = statistics.median(seconds)
            print(f"| ({case}) {CASES[case]} | {name} | {p50:.2f} | {p95(seconds):.2f} | {p50 / base:.3f} |")


def p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[max(0, -(-len(seconds) * 95 // 100) - 1)]


def jobs_together(ways: Sequence[Way]) -> None:
    """Ten backfills of ten tables at once."""
    print(f"\n{TOGETHER} small backfills at once, seconds until the last is DONE")
    print("| way | seconds | ratio |\n|---|---|---|")
    base = 0.0
    for way in ways:
        if way.name == "standby":
            continue
        tables = [Table(way.lake, f"many_{number}", 1000) for number in range(TOGETHER)]
        for number in range(TOGETHER):
            way.declare(f"many_{number}")
        way.ready()
        began = time.monotonic()
        jobs = [way.post(f"/v1/table/many_{number}/backfill_column", column="n") for number in range(len(tables))]
        for job in jobs:
            way.wait(job["job_id"])
        spent = time.monotonic() - began
        base = base or spent
        print(f"| {way.name} | {spent:.1f} | {spent / base:.2f} |")


def waiting_memory(ways: Sequence[Way]) -> None:
    for way in ways:
        if way.name in {"standby", REUSED}:
            way.ready()
            parts = way.memory()
            words = ", ".join(f"{name} {size:.0f}" for name, size in sorted(parts.items()))
            print(f"\na waiting driver of {way.name}: {sum(parts.values()):.0f} MB ({words})")


_DAG = """
from airflow.sdk import DAG
from airflow_provider_lance.operators.materialized_view import LanceRefreshMaterializedViewOperator

for way in {ways!r}:
    with DAG(way.replace("-", "_"), schedule=None, catchup=False) as dag:
        LanceRefreshMaterializedViewOperator(
            task_id="refresh", table_id="v_b", lance_conn_id=way.replace("-", "_"), deferrable=True, retries=2
        )
    globals()[dag.dag_id] = dag
"""


def from_dags(ways: Sequence[Way], rounds: int, folder: Path) -> None:
    """A deferrable refresh in a real Airflow, from the start of its task to its end."""
    from tests.airflow.standalone import Standalone

    print("\na deferrable refresh (b) in Airflow, seconds from the start of its task to its end")
    print("| `defer_after` | way | p50 | longest |\n|---|---|---|---|")
    for defer_after in ("0", "3"):
        home = folder / f"airflow-{defer_after}"
        connections = {
            f"AIRFLOW_CONN_{way.name.replace('-', '_').upper()}": json.dumps({"conn_type": "lance", "host": way.url})
            for way in ways
        }
        (home / "dags").mkdir(parents=True)
        (home / "dags" / "refresh.py").write_text(_DAG.format(ways=[way.name for way in ways]))
        settings = {"AIRFLOW__LANCE__DEFER_AFTER": defer_after, "AIRFLOW__LANCE__POLL_INTERVAL": "5"}
        with Standalone(home, {**connections, **settings}) as airflow:
            for way in ways:
                way.run("b")  # a driver that can be reused is there
                dag_id = way.name.replace("-", "_")
                seconds = []
                for _ in range(rounds + 1):  # the first run of a DAG is slower
                    way.tables["b"].append()
                    way.ready()
                    run_id = airflow.trigger(dag_id)
                    airflow.wait_run(dag_id, run_id, "success", 300)
                    seconds.append(float(airflow.instance(dag_id, run_id, "refresh")["duration"]))
                seconds = seconds[1:]
                print(f"| {defer_after} | {way.name} | {statistics.median(seconds):.1f} | {max(seconds):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="jobs of each kind; 0 leaves them out")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--airflow", type=int, default=5, help="runs of each DAG; 0 leaves Airflow out")
    options = parser.parse_args()
    # A Python without compiled modules spends its time on compiling.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="lance-latency-") as name, ExitStack() as stack:
        folder = Path(name)
        ways = [stack.enter_context(server(way, folder / way, WAYS[way])) for way in options.ways.split(",")]
        if options.rounds:
            single_jobs(ways, options.cases.split(","), options.rounds, folder)
            jobs_together(ways)
            waiting_memory(ways)
        if options.airflow:
            from_dags([way for way in ways if way.name != "standby"], options.airflow, folder)


if __name__ == "__main__":
    main()
