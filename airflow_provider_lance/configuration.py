"""The ``[lance]`` section of Airflow's configuration: what is in it, and how the rest of the provider reads it.

One typed value for one read; ``get_provider_info`` documents the same options to Airflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECTION = "lance"
DEFAULT_CONNECTION = "lance_default"

#: Option name → (type, default, what it means). The defaults hold where Airflow has none on file.
OPTIONS: dict[str, tuple[str, float, str]] = {
    "poll_interval": (
        "float",
        5.0,
        "Seconds between two looks at a job or table while a task waits for it, plus a little jitter.",
    ),
    "poll_errors": (
        "integer",
        20,
        "How many looks in a row may fail (each of them is itself retried) before a waiting task gives up. The job "
        "is not cancelled then: the task's next try rejoins it.",
    ),
    "poll_batch": (
        "integer",
        200,
        "Against a server that cannot list jobs by id: how many single jobs a triggerer asks about per poll interval, "
        "for each connection. Waiting jobs take turns.",
    ),
    "job_lease_seconds": (
        "integer",
        21600,
        "A job that nobody asked about for this long is cancelled by the server. It ends the job of a task that was "
        "killed in the very moment it deferred. 0 switches it off.",
    ),
}


@dataclass(frozen=True)
class LanceConfiguration:
    """The section as values."""

    poll_interval: float
    poll_errors: int
    poll_batch: int
    job_lease_seconds: int


def read_configuration() -> LanceConfiguration:
    """Read the section now; cheap enough for every task, and a test may change it in between."""
    from airflow.providers.common.compat.sdk import conf

    values: dict[str, Any] = {}
    for name, (kind, default, _) in OPTIONS.items():
        read = conf.getint if kind == "integer" else conf.getfloat
        values[name] = read(SECTION, name, fallback=default)
    return LanceConfiguration(**values)


def describe_configuration() -> dict[str, Any]:
    """The section as ``get_provider_info`` hands it to Airflow."""
    return {
        SECTION: {
            "description": "How tasks wait for Lance jobs and tables.",
            "options": {
                name: {
                    "description": text,
                    "version_added": "0.1.0",
                    "type": kind,
                    "example": None,
                    "default": str(int(default) if kind == "integer" else default),
                }
                for name, (kind, default, text) in OPTIONS.items()
            },
        }
    }
