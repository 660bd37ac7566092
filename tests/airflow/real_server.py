"""``airflow-lance serve`` as a process of its own, with an API key, and an eye on every command line meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.settings import Settings

ROOT = Path(__file__).parents[2]
KEY = "MARKED-KEY-4f1d2c9b7a"


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

    @property
    def connection(self) -> str:
        """The Lance connection that goes with it."""
        return json.dumps({"conn_type": "lance", "host": self.url, "password": KEY})

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.wire.rows("list_jobs", {}))


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[RealServer]:
    """The server over ``folder/lake``, which it ends with."""
    (folder / "keys").write_text(f"all:{KEY}\n")
    (folder / "keys").chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "airflow_provider_lance.cli",
        "serve",
        "--root",
        str(folder / "lake"),
    ]
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
        yield RealServer(url, folder, arguments)
    finally:
        arguments.stop.set()
        process.terminate()
        process.wait(timeout=20)
