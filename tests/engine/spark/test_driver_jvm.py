"""The class-data archive: made by the first JVM that ran tasks, used by all after it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_provider_lance.engine.spark import driver_jvm


@pytest.fixture
def java_home(tmp_path: Path) -> str:
    (tmp_path / "jdk").mkdir()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"')
    return str(tmp_path / "jdk")


def written(options: str, size: int, *, age: float) -> None:
    """What a JVM with these options leaves at its end."""
    (target,) = (part.split("=")[1] for part in options.split() if "ArchiveClassesAtExit" in part)
    Path(target).write_bytes(b"")
    os.truncate(target, size)
    os.utime(target, (time.time() - age, time.time() - age))


def test_a_whole_archive_is_used_once_it_has_settled(tmp_path: Path, java_home: str) -> None:
    first = driver_jvm.driver_java_options(java_home, cache=tmp_path)
    written(first, 110 << 20, age=1)
    assert "ArchiveClassesAtExit" in driver_jvm.driver_java_options(java_home, cache=tmp_path), "it may still grow"
    written(first, 110 << 20, age=10)
    options = driver_jvm.driver_java_options(java_home, cache=tmp_path)
    assert "-XX:SharedArchiveFile=" in options
    assert "ArchiveClassesAtExit" not in options
    assert "TieredStopAtLevel" in options
    assert "TieredStopAtLevel" not in driver_jvm.driver_java_options(java_home, cache=tmp_path, data_in_jvm=True)


def test_the_archive_of_a_jvm_that_did_nothing_is_used_for_an_hour(tmp_path: Path, java_home: str) -> None:
    written(driver_jvm.driver_java_options(java_home, cache=tmp_path), 30 << 20, age=10)
    assert "-XX:SharedArchiveFile=" in driver_jvm.driver_java_options(java_home, cache=tmp_path)
    (ready,) = tmp_path.rglob("*.jsa")
    os.utime(ready, (time.time() - 4000, time.time() - 4000))
    again = driver_jvm.driver_java_options(java_home, cache=tmp_path)
    assert "ArchiveClassesAtExit" in again
    written(again, 110 << 20, age=10)
    assert "-XX:SharedArchiveFile=" in driver_jvm.driver_java_options(java_home, cache=tmp_path)
    os.utime(ready, (time.time() - 4000, time.time() - 4000))
    assert "-XX:SharedArchiveFile=" in driver_jvm.driver_java_options(java_home, cache=tmp_path), "a whole one stays"
    assert not list(tmp_path.rglob("*.new"))


def test_another_jdk_has_another_archive(tmp_path: Path, java_home: str) -> None:
    written(driver_jvm.driver_java_options(java_home, cache=tmp_path), 110 << 20, age=10)
    driver_jvm.driver_java_options(java_home, cache=tmp_path)
    Path(java_home, "release").write_text('JAVA_VERSION="21"')
    assert "ArchiveClassesAtExit" in driver_jvm.driver_java_options(java_home, cache=tmp_path)
