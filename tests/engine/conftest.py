"""One Spark for all engine tests of a run: starting it costs more than any of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("LANCE_LOG", "error")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from airflow_provider_lance.engine.session import make_session

    session = make_session("tests", master="local[2,4]", conf={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
