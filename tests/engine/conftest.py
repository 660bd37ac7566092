"""One Spark session for all engine tests: starting one costs seconds, and a machine has room for one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from airflow_provider_lance.engine.session import make_session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = make_session("engine-tests", master="local[2]", conf={"spark.ui.enabled": "false"})
    yield session
    session.stop()
