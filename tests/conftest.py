"""Shared by all tests: three folders run at once, and Hypothesis has no wall-clock limits.

Hypothesis is seeded by default and random in long runs.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "short", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("soak", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A folder stays in one process: its tests share one Spark session.

    Of those that take longest a file does.

    pytest-xdist's own groups go by a suffix of the node id, which pytest 9.2 no longer lets it set.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            folder, *rest = nodeid.partition("::")[0].split("/")[1:]
            return "/".join([folder, *rest]) if folder in ("airflow", "namespace") else folder

    return ByFolder(config, log)
