"""``airflow standalone`` as a child of the tests: its own home and ports, its REST API, and an end that leaves nothing.

Ending the parent orphans its children, so all processes that carry our home in their environment are ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_lance.system.process_groups import find_processes

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def eventually(condition: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
    """The first true value of the condition."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {seconds} s: {what or condition}"
        time.sleep(0.25)


class Standalone:
    """``with Standalone(folder, {"AIRFLOW_CONN_…": …}) as airflow:`` once its DAG files are in ``folder/dags``."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.home = folder
        (folder / "dags").mkdir(parents=True, exist_ok=True)
        port, worker_log, trigger_log = free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self.environment = {
            **inherited,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "90",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW__LANCE__POLL_INTERVAL": "0.5",
            "AIRFLOW__LANCE__DEFER_AFTER": "0",
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            **variables,
        }
        self._http = httpx.Client(base_url=self.url, timeout=30)
        self.children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Standalone:
        try:
            self.start("standalone")
            eventually(self._ready, 240, "the API to answer")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, how)
            until = time.monotonic() + 5
            while self.processes() and time.monotonic() < until:
                for child in self.children:
                    child.poll()
                time.sleep(0.2)
        assert not self.processes(), "every process is gone"

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{command[0]}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "airflow", *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=self.home,
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def processes(self, words: str = "") -> list[int]:
        """Our processes, by session or by the home in their environment; those with ``words`` in their title."""
        found = []
        for pid in find_processes(f"AIRFLOW_HOME={self.home}", {child.pid for child in self.children}):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if words in command.decode(errors="replace"):
                    found.append(pid)
        return found

    # The REST API

    def _ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = self._http.get("/auth/token")
            if answer.status_code in {200, 201}:
                self._http.headers["authorization"] = f"Bearer {answer.json()['access_token']}"
                return True
        return False

    def call(self, method: str, path: str, **body: Any) -> Any:
        for _ in range(10):
            answer = self._http.request(method, f"/api/v2{path}", json=body or None)
            # Airflow's SQLite was locked by another of its processes: nothing was changed, and it may be asked again.
            if answer.status_code != 500 or "Database error" not in answer.text:
                break
            time.sleep(0.5)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def trigger(self, dag_id: str, *, partition_key: str | None = None, **conf: Any) -> str:
        def known() -> bool:
            return self._http.get(f"/api/v2/dags/{dag_id}").status_code == 200

        eventually(known, 180, f"the DAG {dag_id} to be parsed")
        body = {"logical_date": None, "conf": conf, "partition_key": partition_key}
        run = self._http.post(f"/api/v2/dags/{dag_id}/dagRuns", json=body)
        assert run.status_code == 200, run.text
        return str(run.json()["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        answer = self._http.get(f"/api/v2/dags/{dag_id}/dagRuns")
        return list(answer.json().get("dag_runs", [])) if answer.status_code == 200 else []

    def instance(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"))

    def state(self, dag_id: str, run_id: str, task_id: str) -> str:
        return str(self.instance(dag_id, run_id, task_id)["state"])

    def wait_state(self, dag_id: str, run_id: str, task_id: str, state: str, seconds: float = 120) -> None:
        def reached() -> bool:
            return self.state(dag_id, run_id, task_id) == state

        eventually(reached, seconds, f"{dag_id}.{task_id} to be {state}")

    def wait_deferred(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Until the task is deferred and its worker process has gone.

        That process lives up to a heartbeat (5 s) longer than the deferral. If the task is resumed before, the
        scheduler takes the old process's end for the new one's (both are the same try) and fails it: Airflow's own
        race, not what these tests are about. The next try finds the job again; see ``tasks/rejoin.py``.
        """
        self.wait_state(dag_id, run_id, task_id, "deferred")
        time.sleep(7)

    def wait_run(self, dag_id: str, run_id: str, state: str, seconds: float = 60) -> None:
        def reached() -> bool:
            return any(run["dag_run_id"] == run_id and run["state"] == state for run in self.runs(dag_id))

        eventually(reached, seconds, f"the run of {dag_id} to be {state}")

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        self.call("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", new_state=state)

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        self.call(
            "POST",
            f"/dags/{dag_id}/clearTaskInstances",
            dry_run=False,
            dag_run_id=run_id,
            task_ids=[task_id],
            only_failed=False,
            reset_dag_runs=True,
        )

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}?deserialize=true"
        return self.call("GET", path)["value"]

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links")["extra_links"])
