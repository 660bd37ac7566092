"""A real server with real drivers that wait, and what its tests look at: processes, folders, events and tables."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.functions.envelope import IMPORT_PATH_BACKEND, UdfEnvelope
from airflow_provider_lance.system.process_groups import find_processes, start_time
from tests.namespace.conftest import QUICK, wait_until
from tests.namespace.server_process import ServerProcess

ROWS = 300
COLUMNS = 16


class WaitingServer(ServerProcess):
    """A server over the table ``t`` with the SQL columns ``c0``, ``c1``, …; its drivers are the engine's own."""

    def client(self) -> LanceClient:
        return LanceClient(self.url)

    def make_table(self) -> None:
        with self.client() as client:
            client.create_table({"id": ["t"]}, pa.table({"id": range(ROWS), "text": ["abc"] * ROWS}))
            added = [{"name": f"c{number}", "computed": f"length(text) + {number}"} for number in range(COLUMNS)]
            client.alter_table_add_columns({"id": ["t"], "new_columns": added})

    def add_function(self, name: str, path: str) -> None:
        """A column of ``t`` that the function at ``path`` fills from ``text``."""
        entry = virtual_column_entry(
            UdfEnvelope(IMPORT_PATH_BACKEND, path=path), inputs=["text"], outputs={name: pa.string()}
        )
        with self.client() as client:
            client.alter_table_add_columns({"id": ["t"], "new_columns": [{"name": name, "virtual_column": entry}]})

    def submit(self, column: str = "c0", **more: object) -> str:
        answer = self.post("/v1/table/t/backfill_column", {"column": column, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job_id"])

    def fill(self, column: str = "c0", **more: object) -> dict[str, Any]:
        """A backfill that must succeed: its description."""
        return self.done(self.submit(column, **more))

    def done(self, job_id: str) -> dict[str, Any]:
        job = self.wait_for_end(job_id, 120)
        assert job["job_state"] == "DONE", (job, self.logs(job_id), self.log()[-2000:])
        return job

    def values(self, column: str) -> list[object]:
        query = {"id": ["t"], "vector": {}, "k": 2 * ROWS, "columns": {"column_names": [column]}}
        with self.client() as client:
            found: list[object] = client.query_arrow(query)[column].to_pylist()
        return found

    def events(self, job_id: str) -> list[str]:
        with self.client() as client:
            return [str(message) for message in client.query_job_events({"job_id": job_id})["message"].to_pylist()]

    def logs(self, job_id: str) -> str:
        folder = self.directory / "state" / "logs" / job_id
        return "".join(path.read_text() for path in sorted(folder.glob("attempt-*.log")))

    @property
    def folders(self) -> list[Path]:
        """The folders of drivers that may wait."""
        return sorted((self.directory / "state" / "drivers").glob("*"))

    def processes(self) -> set[int]:
        """Every process of every kept driver of this server: Python, JVM and workers."""
        found: set[int] = set()
        for folder in self.folders:
            found |= set(find_processes(f"LANCE_DRIVER_FOLDER={folder}"))
        return found

    def driver(self) -> int:
        """The Python process of the one kept driver."""
        return int(wait_until(lambda: next(iter(self.leaders()), None), 60))

    def leaders(self) -> list[int]:
        """The drivers that listen for jobs: leaders of their process groups, old ones first."""
        leaders = []
        for pid in self.processes():
            with suppress(ProcessLookupError):
                if os.getpgid(pid) == pid:
                    leaders.append(pid)
        return sorted(leaders, key=lambda pid: int(start_time(pid) or 0))

    def waiting(self) -> int:
        """How many drivers wait, as the metrics say."""
        import httpx

        text = httpx.get(f"{self.url}/metrics").text
        return int(text.partition("\nlance_drivers_waiting ")[2].split()[0])

    def wait_for_waiting(self, drivers: int) -> None:
        wait_until(lambda: self.waiting() == drivers, 60, f"never {drivers} drivers that wait")

    def wait_for_message(self, text: str) -> None:
        """Wait for a line of the log of a driver without a job."""
        found = wait_until(
            lambda: any(text in path.read_text() for folder in self.folders for path in folder.glob("driver.log")), 120
        )
        assert found


@contextmanager
def waiting_server(directory: Path, **options: Any) -> Iterator[WaitingServer]:
    """The server with its table, which leaves no process behind."""
    cluster = {"master": "local[2,4]", **options.pop("cluster", {})}
    server = WaitingServer(directory, timings=QUICK, cluster=cluster, **options)
    server.start()
    try:
        server.make_table()
        yield server
    finally:
        server.stop()
        wait_until(lambda: not server.processes(), 30, "a driver was left behind")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    return start_time(pid) is not None
