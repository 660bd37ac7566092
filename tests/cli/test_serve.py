"""``serve`` and ``keys``: a server that starts, says where, and refuses what would be unsafe."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from airflow_provider_lance.cli.main import main


def test_keys_are_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--state-dir", str(tmp_path)]
    assert main(["keys", "create", "--name", "me", "--scopes", "read,jobs", *where]) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("lance_")
    assert main(["keys", "list", "--json", *where]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["me"]
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
        (["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--port", "99999"], "--port is 99999"),
        (
            ["serve", "--root", "{tmp}", "--state-dir", "{tmp}", "--tls-cert", "{tmp}/nope.pem", "--tls-key", "x"],
            "nope.pem cannot be read: No such file",
        ),
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


def test_a_property_without_a_value_is_a_wrong_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--root", str(tmp_path), "--state-dir", str(tmp_path), "--property", "nonsense"]) == 2
    assert capsys.readouterr().err == "airflow-lance: --property 'nonsense' is not NAME=VALUE.\n"
