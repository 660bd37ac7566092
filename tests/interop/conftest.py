"""A real server for clients nobody here wrote: ``airflow-lance serve`` in a process of its own, with a key."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEY = "interop-key-0123456789abcdef"


@dataclass(frozen=True)
class Address:
    url: str
    key: str
    lake: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Its ``local`` cluster is real Spark on this machine."""
    with running_server(tmp_path_factory.mktemp("server")) as address:
        yield address


@contextlib.contextmanager
def running_server(directory: Path, variables: Mapping[str, str] | None = None) -> Iterator[Address]:
    keys = directory / "keys"
    keys.write_text(f"all:{KEY}\n")
    keys.chmod(0o600)
    command = [sys.executable, "-m", "airflow_provider_lance.cli", "serve", "--port", "0"]
    command += ["--root", str(directory / "lake"), "--state-dir", str(directory / "state"), "--keys", str(keys)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), (directory / "server.log").read_text()[-3000:]
        yield Address(line.split()[1], KEY, directory / "lake")
    finally:
        process.terminate()
        process.wait(30)
