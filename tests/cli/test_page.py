"""The page of commands: every example runs as it is printed, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import make_lake
from tests.namespace.conftest import QUICK
from tests.namespace.server_process import ROOT, ServerProcess

PAGE = (ROOT / "docs" / "commands.md").read_text()
#: Each example, with the output that follows it, if the page shows one.
EXAMPLES = re.findall(r"```bash\n(.*?)```\n(?:\n```text\n(.*?)```)?", PAGE, re.DOTALL)
# What differs from one run to the next: times, ids, sizes of files, and where the folder and the server are.
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}"), "JOB"),
    (re.compile(r"^[0-9a-f]{12} ", re.MULTILINE), "KEY "),
    (re.compile(r"in \d+\.\d s"), "SECONDS"),
    (re.compile(r"after \d+\.\d s"), "WAIT"),
    (re.compile(r"\d+\.\d kB"), "SIZE"),
    (re.compile(r"\S+(?=/lake/)"), "FOLDER"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "SERVER"),
    (re.compile(r"[ \n]+"), " "),
)


def settled(text: str) -> str:
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text.strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with ``lake`` in it and ``airflow-lance`` on the PATH, beside a server for the same lake."""
    directory = tmp_path_factory.mktemp("page")
    server = ServerProcess(directory, timings=QUICK)
    make_lake(directory / "lake")
    server.start()
    script = directory / "bin" / "airflow-lance"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m airflow_provider_lance.cli "$@"\n')
    script.chmod(0o755)
    yield (
        directory,
        {
            **os.environ,
            "PATH": f"{script.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LANCE_URL": server.url,
            "XDG_STATE_HOME": str(directory / "xdg"),
        },
    )
    server.stop()


def test_the_page_has_examples() -> None:
    assert sum("airflow-lance" in code for code, _ in EXAMPLES) >= 8


@pytest.mark.parametrize(
    ("code", "shown"),
    [example for example in EXAMPLES if "airflow-lance" in example[0]],
    ids=lambda text: " ".join(text.split()[:2]) or "no output",
)
def test_an_example_prints_what_the_page_shows(code: str, shown: str, place: tuple[Path, dict[str, str]]) -> None:
    directory, environment = place
    answer = subprocess.run(
        ["bash", "-euc", code], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    assert settled(answer.stdout) == settled(shown)
