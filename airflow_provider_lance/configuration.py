"""The ``[lance]`` section of Airflow's configuration: its options, and how the provider reads them.

``get_provider_info`` describes the same options to Airflow.
"""

from __future__ import annotations

from dataclasses import dataclass

SECTION = "lance"
DEFAULT_CONNECTION = "lance_default"

#: The type, the default and the meaning of each option. The defaults hold where Airflow has not loaded them.
OPTIONS: dict[str, tuple[str, float, str]] = {
    "poll_interval": (
        "float",
        5.0,
        "Seconds between two looks at a job or table while a task waits for it, plus a little jitter.",
    ),
    "defer_after": (
        "float",
        3.0,
        "Seconds for which a deferrable task watches its new job on the worker before it defers. A small job ends "
        "sooner than Airflow can defer and resume a task. 0 defers at once.",
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
    """The values of the section."""

    poll_interval: float
    defer_after: float
    poll_errors: int
    poll_batch: int
    job_lease_seconds: int


def read_configuration() -> LanceConfiguration:
    """Read the section. Nothing is cached, because reading is cheap and a test may change an option."""
    from airflow.providers.common.compat.sdk import conf

    def integer(name: str) -> int:
        return int(conf.getint(SECTION, name, fallback=OPTIONS[name][1]))

    def seconds(name: str) -> float:
        return float(conf.getfloat(SECTION, name, fallback=OPTIONS[name][1]))

    return LanceConfiguration(
        poll_interval=seconds("poll_interval"),
        defer_after=seconds("defer_after"),
        poll_errors=integer("poll_errors"),
        poll_batch=integer("poll_batch"),
        job_lease_seconds=integer("job_lease_seconds"),
    )


def describe_configuration() -> dict[str, object]:
    """The section in the form that ``get_provider_info`` returns."""
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
