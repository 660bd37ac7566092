"""A newcomer's first hour: README, the first DAG and every guide, followed to the letter in a fresh clone.

Only ports and the number of rows are others than on the pages, because tests run beside each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scripts.local import free_port
from tests.airflow.guide import DOCS, GUIDES, ROOT, blocks, missing_lines
from tests.airflow.standalone import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


class Shell:
    """A shell in a folder, with the variables of a person who has nothing set up."""

    def __init__(self, folder: Path, **variables: str) -> None:
        own = ("AIRFLOW", "LANCE", "PYTHONPATH", "VIRTUAL_ENV", "VENV")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        self.folder, self.environment = folder, {**inherited, **variables}

    def run(self, commands: str) -> str:
        """The output of commands, all of which must succeed."""
        answer = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{commands}\n{answer.stdout[-6000:]}"
        return answer.stdout

    @contextlib.contextmanager
    def start(self, command: str, log: Path) -> Iterator[None]:
        """A command in a shell of its own, until Ctrl-C."""
        with log.open("wb") as file:
            child = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield
        finally:
            os.killpg(child.pid, signal.SIGINT)
            child.wait(60)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def commands_of(page: Path, heading: str) -> list[str]:
    """The commands of the first block under a heading, without their comments."""
    section = page.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    block = section.partition("```bash\n")[2].partition("```")[0]
    assert block, heading
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


def test_make_demo_ends_with_rows_of_the_view(clone: Path) -> None:
    demo, ui = commands_of(clone / "README.md", "Try it")
    assert (demo, ui) == ("make demo", "make ui")  # test_ui.py has the second one
    output = Shell(clone, ROWS="20000").run(demo)
    assert missing_lines("What happened\nid shout text_length\nDone in …", re.sub(" +", " ", output)) == [], output
    assert not (clone / ".venv" / "bin" / "mkdocs").exists(), "the demo installs what it needs and no more"


@pytest.fixture(scope="module")
def shell(clone: Path) -> Iterator[Shell]:
    """README's *Install*, the server that it starts, and the variables that *Getting started* exports."""
    install, serve = commands_of(clone / "README.md", "Install")
    subprocess.run([sys.executable, "-m", "venv", str(clone / "venv")], check=True)
    port = free_port()
    variables = {
        "PATH": f"{clone / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LANCE_URL": f"http://localhost:{port}",
        "XDG_STATE_HOME": str(clone / "state"),
    }
    shell = Shell(clone, **variables)
    shell.run(install)
    (clone / "my_dags").mkdir()
    log = clone / "server.log"
    with shell.start(f"{serve} --port {port}", log):
        eventually(lambda: "ready http" in log.read_text(), 120, log.read_text())
        assert httpx.get(f"http://localhost:{port}/ui").status_code == 200
        setup = [block.text for block in blocks(clone / "docs" / "start.md") if "airflow db migrate" in block.text]
        exports = "".join(f"{line}\n" for line in setup[0].splitlines() if line.startswith("export"))
        exports = exports.replace("2333", str(port))
        shown = shell.run(f"{exports}env -0")
        shell.environment |= dict(entry.split("=", 1) for entry in shown.split("\0") if "=" in entry)
        shell.run("airflow db migrate")
        yield shell


def test_the_first_dag(shell: Shell) -> None:
    page = DOCS / "start.md"
    [block] = [block for block in blocks(page) if block.kind == "python"]
    (shell.folder / "my_dags" / "first_column.py").write_text(block.text)
    [printed] = re.findall(r"The last task prints `(.*?)`", page.read_text())
    assert printed in shell.run("airflow dags test first_column")


@pytest.mark.parametrize("page", GUIDES, ids=[page.stem for page in GUIDES])
def test_a_guide(page: Path, shell: Shell) -> None:
    output = ""
    for block in blocks(page):
        if block.kind == "python" and block.dag_id:
            (shell.folder / "my_dags" / f"{block.dag_id}.py").write_text(block.text)
        elif block.kind == "bash":
            output = shell.run(block.text)
        elif block.kind == "text":
            assert missing_lines(block.text, output) == [], output[-6000:]
