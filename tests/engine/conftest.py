"""What engine tests share. All tests of a run use one Spark, because starting it takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_lance.namespace import SparkNamespace
    from tests.namespace.recording_jobs import RecordingJobs

os.environ.setdefault("LANCE_LOG", "error")


@pytest.fixture
def jobs() -> RecordingJobs:
    """The jobs that the namespace of this test submits; they are recorded and not run."""
    from tests.namespace.recording_jobs import RecordingJobs

    return RecordingJobs()


@pytest.fixture
def people(tmp_path: Path, jobs: RecordingJobs) -> SparkNamespace:
    """A namespace with the table ``people``."""
    from tests.namespace.people import with_people

    return with_people(tmp_path, jobs)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from airflow_provider_lance.engine.spark.session import make_session

    session = make_session("tests", master="local[2,4]", conf={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def new_uri(tmp_path: Path) -> str:
    """Where a test may create a table."""
    return str(tmp_path / "t.lance")


@pytest.fixture
def uri(new_uri: str) -> str:
    """A table of 100 people whose column ``n`` is declared and not filled yet."""
    from tests.engine.backfills import declare, people

    declare(people(new_uri), "n", "length(text) + id")
    return new_uri
