"""A real server in a process of its own, which tests can stop and kill; runnable as a script.

The same code as ``airflow-lance serve``, with the protocol's times shortened and the fake driver as spark-submit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.namespace.jobs.registry import Timings

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class ServerProcess:
    """The folder and the settings of a server, and the process that runs it at the moment."""

    directory: Path
    registry: str | None = None
    port: int = 0
    timings: Timings = field(default_factory=Timings)
    max_drivers: int = 2
    driver_env: dict[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    keys: Path | None = None
    host: str = "127.0.0.1"
    base_path: str = ""
    airflow_url: str = ""
    cluster: Mapping[str, object] | None = None  # real drivers on a cluster with these entries, not the fake one
    dies: str = ""  # where the server kills itself: see ``main``
    process: subprocess.Popen[str] | None = None
    url: str = ""

    @property
    def trace(self) -> Path:
        return self.directory / "trace"

    def start(self) -> ServerProcess:
        """Start it, or start it again on the port that its drivers know."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        config = self.directory / "config.toml"
        env = {"FAKE_DRIVER_TRACE": str(self.trace), **self.driver_env}
        lines = [f"{name} = {json.dumps(value)}" for name, value in env.items()]
        driver = {"spark_submit": str(Path(__file__).with_name("fake_driver.py"))}
        entries = {"max_drivers": self.max_drivers, **(driver if self.cluster is None else self.cluster)}
        config.write_text(
            "[clusters.local]\n"
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in entries.items())
            + f"env = {{ {', '.join(lines)} }}\n[limits]\n"
            + "".join(f"{name} = {value}\n" for name, value in self.limits.items())
            + f"[airflow]\nurl = {json.dumps(self.airflow_url)}\n"
        )
        options = {
            "root": str(self.directory / "lake"),
            "host": self.host,
            "port": self.port,
            "registry": self.registry,
            "state": str(self.directory / "state"),
            "config": str(config),
            "keys": str(self.keys) if self.keys else None,
            "base_path": self.base_path,
            "timings": asdict(self.timings),
            "dies": self.dies,
        }
        with (self.directory / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(options)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), (self.directory / "server.log").read_text()[-3000:]
        self.url = line.split()[1]
        return self

    def kill(self) -> None:
        """End it without a warning, like a machine that loses power."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, as an administrator does."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def post(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body if body is not None else {}, headers=headers, timeout=30)

    def job(self, job_id: str) -> JsonObject:
        answer = self.post("/v1/jobs/describe", {"job_id": job_id})
        assert answer.status_code == 200, answer.text
        job: JsonObject = answer.json()
        return job

    def wait_for_end(self, job_id: str, seconds: float = 30) -> JsonObject:
        until = time.monotonic() + seconds
        while (job := self.job(job_id))["job_state"] in {"QUEUED", "RUNNING"}:
            assert time.monotonic() < until, job
            time.sleep(0.05)
        return job

    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    def sibling(self, name: str) -> ServerProcess:
        """Another server on the same registry."""
        return replace(self, directory=self.directory.parent / name, port=0, process=None, url="")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def die_at(point: str) -> None:
    """Let this server kill itself when it hands a job over: ``before-sending`` or ``after-sending``."""
    from airflow_provider_lance.namespace.jobs.driver_pool import DriverPool

    assign = DriverPool.assign

    def dying(self: DriverPool, *arguments: Any) -> bool:
        if point == "after-sending":
            assign(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    if point:
        setattr(DriverPool, "assign", dying)  # noqa: B010


def main() -> None:
    import logging

    from airflow_provider_lance.namespace.server.serve import ServeOptions, serve

    options = json.loads(sys.argv[1])
    for name in ("state", "config", "keys"):
        options[name] = Path(options[name]) if options[name] else None
    options["timings"] = Timings(**options["timings"])
    die_at(options.pop("dies"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(ServeOptions(**options), lambda url: print(f"ready {url}", flush=True))


if __name__ == "__main__":
    main()
