"""The command in a shell: it starts fast, its help has examples, completion works, a terminal gets tables and bars."""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_lance.cli.main import make_parser
from tests.cli.conftest import Run
from tests.namespace.server_process import ROOT, ServerProcess

HEAVY = ("lance", "pyarrow", "numpy", "pandas", "lance_namespace", "fastapi", "sqlalchemy", "pydantic", "httpx", "rich")


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that can be run: ``("jobs", "list")``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from leaves(child, (*words, name))
            return
    yield words


COMMANDS = list(leaves(make_parser()))


def test_all_commands_are_there() -> None:
    names = {" ".join(words) for words in COMMANDS}
    assert names == {
        *("tables", "show", "columns", "head", "query", "views", "tags", "versions"),
        *("backfill", "sample", "refresh"),
        *("apply", "manifest"),
        *("jobs list", "jobs show", "jobs logs", "jobs cancel", "serve", "completion"),
        *("keys create", "keys list", "keys revoke"),
    }


@pytest.mark.parametrize("arguments", [["--help"], ["head", "--help"], ["completion", "bash"]])
def test_help_and_completion_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom airflow_provider_lance.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert answer.stderr == "[]\n"
    assert answer.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_help_ends_with_an_example_that_parses(run: Run, words: tuple[str, ...]) -> None:
    answer = run(*words, "--help")
    assert answer.status == 0
    assert answer.out.startswith(f"usage: airflow-lance {' '.join(words)} ")
    example = answer.out.rpartition("example:\n")[2].strip()
    assert example.startswith(f"airflow-lance {' '.join(words)}")
    make_parser().parse_args(shlex.split(example.partition(" > ~")[0])[1:])


def test_the_version(run: Run) -> None:
    from airflow_provider_lance import __version__

    assert run("--version").out == f"airflow-lance {__version__}\n"


def test_an_error_has_no_traceback_unless_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    where = ["--root", str(tmp_path / "none")]
    assert "Traceback" not in run("tables", *where).err
    with pytest.raises(ValueError, match="There is no folder"):
        run("tables", "--debug", *where)


def test_a_reader_that_goes_away_is_no_error(lake: Path) -> None:
    head = f"{sys.executable} -m airflow_provider_lance.cli head articles --json --root {lake}"
    command = f"{head} | true; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def completed(line: str, script: str) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    program = (
        f"{script}\nCOMP_WORDS=({' '.join(shlex.quote(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        '_airflow_lance\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    answer = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return answer.stdout.split()


def test_bash_completes_commands_and_options(run: Run) -> None:
    script = run("completion", "bash").out
    assert {"tables", "head", "jobs", "completion", "--help"} <= set(completed("airflow-lance ", script))
    assert completed("airflow-lance ta", script) == ["tables", "tags"]
    assert {"list", "show", "logs", "cancel"} <= set(completed("airflow-lance jobs ", script))
    assert set(completed("airflow-lance jobs list --st", script)) == {"--state", "--storage-option"}
    assert completed("airflow-lance head tables --col", script) == ["--columns"]
    assert completed("airflow-lance completion f", script) == ["fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_every_command_and_is_read_by_its_shell(run: Run, shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).out
    for words in COMMANDS:
        assert "/" + "/".join(words) in script, words
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        answer = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
        assert (answer.returncode, answer.stderr) == (0, "")


def in_terminal(*arguments: str, columns: int = 120, interrupt_at: str = "") -> str:
    """What a person sees, without colours. Ctrl-C is pressed when ``interrupt_at`` appears."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "airflow_provider_lance.cli", *arguments]
    # A session of its own, whose terminal this is: otherwise Ctrl-C would be no signal.
    program = (
        "import fcntl, os, sys, termios\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
            if interrupt_at and interrupt_at.encode() in seen:
                os.write(ours, b"\x03")
                interrupt_at = ""
    os.close(ours)
    text = seen.decode().replace("\r\n", "\n")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's word for the end of a terminal
        return b""


def test_a_terminal_gets_a_table_that_fits(lake: Path) -> None:
    where = ["--root", str(lake)]
    wide = in_terminal("tables", *where, columns=100).splitlines()
    assert wide[0].split() == ["NAME", "KIND", "ROWS", "VERSION", "COLUMNS", "SIZE"]
    assert all(len(line) <= 100 for line in wide)
    narrow = in_terminal("head", "articles", "--columns", "id,title,author", *where, columns=40).splitlines()
    assert all(len(line.rstrip()) <= 40 for line in narrow[:-1])
    assert "[ada@" in "".join(narrow)


def test_a_row_with_too_many_columns_is_shown_as_a_record(lake: Path) -> None:
    lines = in_terminal("head", "articles", "-n", "1", "--root", str(lake), columns=60).splitlines()
    assert lines[0] == "row 1"
    assert lines[1].split() == ["id", "1"]
    assert [line.split()[0] for line in lines[1:6]] == ["id", "title", "lang", "author", "embedding"]


def test_a_terminal_gets_a_progress_bar_until_ctrl_c(server: ServerProcess, run: Run) -> None:
    where = ["--url", server.url]
    seen = in_terminal("backfill", "articles", "endless", *where, interrupt_at="compute: rows ")
    assert "articles.endless ━" in seen
    assert "Traceback" not in seen
    found = re.search(r"Job (\S+) goes on\. ", seen)
    assert found is not None, seen
    assert run("jobs", "cancel", found[1], *where).status == 0
    assert server.wait_for_end(found[1])["job_state"] == "CANCELLED"
