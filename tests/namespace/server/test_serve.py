"""Where a server keeps its registry by default."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from airflow_provider_lance.namespace.server.serve import ServeOptions


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
