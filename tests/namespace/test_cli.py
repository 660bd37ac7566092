"""The command line: keys, jobs, and a server that starts, says where, and refuses what would be unsafe."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_lance.namespace.cli import main
from airflow_provider_lance.namespace.database import sqlite_url
from airflow_provider_lance.namespace.serving import ServeOptions

from .conftest import QUICK, submission
from .server_process import ROOT, ServerProcess
from .test_supervisor import jobs_of


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airflow_provider_lance.namespace.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        check=False,
    )


def test_keys_are_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--state-dir", str(tmp_path)]
    assert main(["keys", "create", "--name", "me", "--scopes", "read,jobs", *where]) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("lance_")
    assert main(["keys", "list", *where]) == 0
    listed = capsys.readouterr().out
    assert "jobs,read" in listed
    assert key not in listed
    assert key.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    key_id = key.split("_")[1]
    assert main(["keys", "revoke", key_id, *where]) == 0
    capsys.readouterr()
    assert main(["keys", "revoke", key_id, *where]) == 1
    assert capsys.readouterr().err == f"airflow-lance: There is no active key '{key_id}'.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["keys", "list"], "Say which registry"),
        (["keys", "create", "--name", "x", "--scopes", "everything", "--state-dir", "{tmp}"], "Scopes are"),
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--host", "0.0.0.0"], "loopback only"),
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--config", "{tmp}/none.toml"], "cannot be read"),
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--registry", "mysql://x/y"], "SQLite or PostgreSQL"),
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--keys", "{tmp}/none"], "key file"),
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--property", "nonsense"], "NAME=VALUE"),
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--port", "99999"], "--port is 99999"),
        (
            ["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--tls-cert", "{tmp}/nope.pem", "--tls-key", "x"],
            "nope.pem cannot be read: No such file",
        ),
        (["jobs", "list", "--url", "http://127.0.0.1:1"], "got no answer"),
        (["jobs", "logs", "some-job", "--url", "http://127.0.0.1:1"], "http://127.0.0.1:1 gave no answer"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "--root", str(tmp_path), "--state-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "uvicorn" in error
    assert "pip install 'airflow-provider-lance[server]'" in error


class TestDefaultRegistry:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "one")

    def test_is_one_per_root_however_the_root_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        here = {ServeOptions(root).registry_url for root in ("lake", "./lake", "lake/", str(tmp_path / "one" / "lake"))}
        assert len(here) == 1
        monkeypatch.chdir(tmp_path / "two")
        assert ServeOptions("./lake").registry_url not in here
        assert ServeOptions("s3://bucket/lake/").registry_url == ServeOptions("s3://bucket/lake").registry_url

    def test_that_an_older_release_made_is_found(self, tmp_path: Path) -> None:
        older = tmp_path / "state" / "airflow-lance" / hashlib.sha256(b"./lake").hexdigest()[:12]
        older.mkdir(parents=True)
        fresh = ServeOptions("./lake").state_directory
        assert fresh != older
        (older / "jobs.sqlite").touch()
        assert ServeOptions("./lake").state_directory == older
        fresh.mkdir()
        (fresh / "jobs.sqlite").touch()
        assert ServeOptions("./lake").state_directory == fresh


def test_help_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["--help"], ["serve", "--help"], ["keys", "create", "--help"], ["jobs", "list", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert "usage: airflow-lance" in capsys.readouterr().out


def test_jobs_of_a_server(tmp_path: Path) -> None:
    registry = sqlite_url(tmp_path / "jobs.sqlite")
    server = ServerProcess(tmp_path / "server", registry, timings=QUICK).start()
    try:
        with jobs_of(registry, tmp_path) as jobs:
            done, hanging = jobs.submit(submission("a")), jobs.submit(submission("b", fake={"end": "hang"}))
        env = {"LANCE_URL": server.url}
        shown = run("jobs", "show", done, "--wait", env=env)
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["job_state"] == "DONE"
        assert f"fake driver of {done}" in run("jobs", "logs", done, env=env).stdout
        assert "was told to stop" in run("jobs", "cancel", hanging, env=env).stdout or (
            server.wait_for_end(hanging)["job_state"] == "CANCELLED"
        )
        assert server.wait_for_end(hanging)["job_state"] == "CANCELLED"
        listing = run("jobs", "list", env=env).stdout
        assert done in listing
        assert hanging in listing
        rows = [
            json.loads(line) for line in run("jobs", "list", "--json", "--state", "done", env=env).stdout.splitlines()
        ]
        assert [row["job_id"] for row in rows] == [done]
        unknown = run("jobs", "show", "nothing", env=env)
        assert unknown.returncode == 1
        assert "There is no job 'nothing'" in unknown.stderr
        assert unknown.stderr.count("\n") == 1
    finally:
        server.stop()
