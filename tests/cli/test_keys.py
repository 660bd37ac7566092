"""The API key of commands: from an option, a file or a variable, and what is said where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.namespace.conftest import QUICK
from tests.namespace.server_process import ServerProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("guarded")
    keys = directory / "keys"
    keys.write_text("all:correct-horse-battery\nread:only-for-looking-at-tables\n")
    keys.chmod(0o600)
    server = ServerProcess(directory, timings=QUICK, keys=keys).start()
    yield server
    server.stop()


def test_the_three_ways_to_give_a_key(
    run: Run, guarded: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ["--url", guarded.url]
    key_file = tmp_path / "key"
    key_file.write_text("correct-horse-battery\n")
    assert run("tables", *url, "--key", "correct-horse-battery").status == 0
    assert run("tables", *url, "--key-file", str(key_file)).status == 0
    monkeypatch.setenv("LANCE_API_KEY", "correct-horse-battery")
    assert run("tables", *url).status == 0
    assert run("jobs", "logs", "nothing", *url).err == "airflow-lance: There is no job 'nothing'.\n"


def test_a_missing_or_wrong_key_names_where_to_set_it(run: Run, guarded: ServerProcess, tmp_path: Path) -> None:
    url = ["--url", guarded.url]
    answer = run("tables", *url)
    assert answer.status == 1
    assert answer.err.startswith("airflow-lance: No credentials were sent: set the variable LANCE_API_KEY.")
    wrong = run("tables", *url, "--key", "wrong-horse-battery").err
    assert wrong.startswith("airflow-lance: The API key was refused: check the option --key.")
    assert "wrong-horse" not in wrong
    (tmp_path / "key").write_text("wrong-horse-battery")
    assert f"check the file {tmp_path}/key." in run("tables", *url, "--key-file", str(tmp_path / "key")).err
    missing = run("tables", *url, "--key-file", str(tmp_path / "none")).err
    assert missing == f"airflow-lance: The key file {tmp_path}/none cannot be read: No such file or directory.\n"


def test_a_key_that_may_only_read_starts_no_job(run: Run, guarded: ServerProcess) -> None:
    answer = run("backfill", "t", "c", "--url", guarded.url, "--key", "only-for-looking-at-tables")
    assert answer.status == 1
    assert "lacks the scope `jobs`" in answer.err
