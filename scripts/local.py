"""The namespace server and Airflow as child processes on this machine, which end with their parent.

Shared by ``make demo`` and ``make ui``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from airflow_provider_lance.engine.spark.java_home import JavaNotFoundError, java_environment
from airflow_provider_lance.system.process_groups import find_processes

HERE = Path(__file__).resolve().parent.parent


def fail(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    raise SystemExit(1)


def stop_on_signals() -> None:
    """Treat SIGTERM as Ctrl-C, and react to Ctrl-C even if the shell started this process with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def remembered_port(folder: Path, name: str, preferred: int) -> int:
    """The port that ``name`` had last time in this folder, else the preferred one, else any that is free."""
    file = folder / "ports.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    candidates = [port for port in (known.get(name), preferred) if port and is_free(port)]
    wanted = known.get(name) or preferred
    known[name] = candidates[0] if candidates else free_port()
    if known[name] != wanted:
        print(f"Port {wanted} is taken by another program: {name} listens on port {known[name]}.", flush=True)
    file.write_text(json.dumps(known))
    return int(known[name])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections linger
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Local:
    """Child processes of one folder; leaving the context ends all of them and everything they started."""

    def __init__(self, folder: Path, dags: Path | None = None) -> None:
        self.folder = folder
        self.airflow_home = folder / "airflow"
        self.namespace_url = ""
        self.children: list[subprocess.Popen[bytes]] = []
        self._mark = f"AIRFLOW_LANCE_LOCAL={folder}:{os.getpid()}"
        try:
            java = java_environment()
        except JavaNotFoundError as error:
            fail(str(error))
        self.environment = {
            **os.environ,
            **java,
            "AIRFLOW_HOME": str(self.airflow_home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags or HERE / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONWARNINGS": "ignore",
            **dict([self._mark.split("=", 1)]),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def bin(self, name: str) -> str:
        return str(Path(sys.executable).parent / name)

    def start(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a child with its output in ``<name>.log``."""
        log = (self.folder / f"{name}.log").open("ab")
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **environment},
            cwd=self.folder,
            start_new_session=True,
        )
        log.close()
        self.children.append(child)
        return child

    def start_namespace(self, port: int = 0, config: Path | None = None) -> str:
        """Start ``airflow-lance serve`` over ``tables/``, with its jobs in ``state/``, and wait until it is ready."""
        tables = self.folder / "tables"
        tables.mkdir(parents=True, exist_ok=True)
        log = self.folder / "namespace.log"
        earlier = log.stat().st_size if log.exists() else 0  # with the address of an earlier run
        command = [self.bin("airflow-lance"), "serve", "--root", str(tables), "--port", str(port)]
        command += ["--state-dir", str(self.folder / "state"), *(["--config", str(config)] if config else [])]
        if config is None:
            command += ["--standby", "1"]  # Spark starts while Airflow does.
        child = self.start("namespace", command)
        until = time.monotonic() + 90
        while time.monotonic() < until and child.poll() is None:
            found = re.search(r"^ready (http://\S+)$", log.read_bytes()[earlier:].decode(), re.MULTILINE)
            if found:
                self.namespace_url = found[1].rstrip("/")
                return self.namespace_url
            time.sleep(0.1)
        fail(f"The namespace server did not start:\n{log.read_text()[-2000:]}")

    def prepare_airflow(self) -> None:
        """Create Airflow's database."""
        child = self.start("airflow-db", [self.bin("airflow"), "db", "migrate"])
        if child.wait(600):
            fail(f"Airflow's database could not be made:\n{(self.folder / 'airflow-db.log').read_text()[-2000:]}")

    def __enter__(self) -> Local:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGTERM)
        until = time.monotonic() + 15
        for child in reversed(self.children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, until - time.monotonic()))
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal every process started here; Spark drivers have sessions of their own but inherit the mark."""
        for pid in list(find_processes(self._mark, {child.pid for child in self.children})):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        for child in self.children:  # where there is no /proc
            with contextlib.suppress(OSError):
                os.killpg(child.pid, number)
