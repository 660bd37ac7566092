"""Shared by all tests: two folders run at once, and Hypothesis has no wall-clock limits.

Hypothesis is seeded by default and random in long runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "short", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A folder stays in one process: its tests share one Airflow, one Spark session, one PostgreSQL."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        item.add_marker(pytest.mark.xdist_group(folder))
