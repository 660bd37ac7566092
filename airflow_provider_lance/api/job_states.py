"""The words of the jobs API: states in any server's vocabulary, kinds of jobs, context entries of a submit.

They are apart from ``jobs.py`` because operators need no more than this while a DAG is parsed.
"""

from __future__ import annotations

import enum

#: The context entry that names a submit, so that a submit which is sent twice starts one job.
IDEMPOTENCY_KEY = "idempotency-key"
#: The context entry of a declaration that says what happens to a column or view of that name which is different.
IF_EXISTS = "if-exists"
#: The context entry of a submit that bounds how long a job goes on after its last waiter was seen.
LEASE_SECONDS = "lease-seconds"
#: The cluster of jobs that the server does not launch. A driver started elsewhere claims them.
EXTERNAL = "external"
#: The environment variable of a driver that names the file with its launch token and credentials.
TOKEN_FILE_VARIABLE = "LANCE_JOB_TOKEN_FILE"  # noqa: S105 - the name of a variable


class JobState(str, enum.Enum):
    """The five states of a job. ``QUEUED → RUNNING → DONE | FAILED | CANCELLED``."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
LIVE_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})

# Vocabularies seen on real servers: LanceDB's jobs API, its older spelling, the spec's transactions.
_STATE_WORDS = {
    "QUEUED": JobState.QUEUED,
    "PENDING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "IN_PROGRESS": JobState.RUNNING,
    "DONE": JobState.DONE,
    "SUCCEEDED": JobState.DONE,
    "FINISHED": JobState.DONE,
    "FAILED": JobState.FAILED,
    "TIMED_OUT": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "CANCELED": JobState.CANCELLED,
}


def parse_state(word: str | None) -> JobState:
    """Read a state in any server's vocabulary; an unknown word means the job still runs."""
    return _STATE_WORDS.get((word or "").strip().upper().replace("-", "_").replace(" ", "_"), JobState.RUNNING)


class JobType(str, enum.Enum):
    """What a job does; the value travels as ``job_type``."""

    BACKFILL = "backfill_column"
    REFRESH = "refresh_materialized_view"
    WRITE = "write"


class StartPath(str, enum.Enum):
    """How the driver of a job began: started for the job, started before it, or kept from an earlier job."""

    COLD = "cold"
    STANDBY = "standby"
    REUSED = "reused"
