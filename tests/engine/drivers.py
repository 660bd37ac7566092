"""Drivers as processes of their own, so that tests can kill them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Driver:
    """``python -m airflow_provider_lance.engine`` in its own process group, as a launcher starts it."""

    def __init__(self, arguments: list[str], tmp_path: Path, **environment: str) -> None:
        self.log = tmp_path / f"driver-{len(list(tmp_path.glob('driver-*')))}.log"
        env = {**os.environ, "PYTHONPATH": str(ROOT), "LANCE_LOG": "error", **environment}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "airflow_provider_lance.engine", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=tmp_path,
                start_new_session=True,
            )

    def wait(self, timeout: float = 240) -> int:
        """The exit status; everything the driver started is gone afterwards."""
        try:
            self.output = self.process.communicate(timeout=timeout)[0].decode()
            return self.process.returncode
        finally:
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return answer


def start_spec(
    tmp_path: Path, uri: str, column: str, *, job_id: str, fault: str = "", driver_rows: int = 0, **request: Any
) -> Driver:
    """A backfill without a server; on Spark unless ``driver_rows`` are enough for it."""
    spec = {
        "job_type": "backfill_column",
        "table_id": ["t"],
        "location": uri,
        "request": {"column": column, **request},
    }
    path = tmp_path / f"{job_id}.json"
    path.write_text(json.dumps(spec))
    arguments = ["--spec", str(path), "--job-id", job_id, "--master", "local[2,4]"]
    arguments += ["--driver-rows", str(driver_rows)]
    return Driver(arguments, tmp_path, LANCE_ENGINE_TEST_FAULT=fault)
