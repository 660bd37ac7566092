"""The words of the jobs API: states in any server's vocabulary, kinds of jobs, the key that names a submit.

Apart from ``jobs.py`` because operators need no more than this while a DAG is parsed.
"""

from __future__ import annotations

import enum

#: The context entry that names a submit, so that one sent twice cannot become two jobs.
IDEMPOTENCY_KEY = "idempotency-key"
#: The context entry of a declaration: what happens to a column or view of that name that is declared otherwise.
IF_EXISTS = "if-exists"


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
