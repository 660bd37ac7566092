"""Following one job to its end, without I/O: what was seen goes in, log lines and one final event come out.

The synchronous wait of an operator, a sensor's poke and the trigger all use :class:`Follower`; they differ only in
who asks the server and who sleeps. The event's shape is the provider's contract between a trigger and its task.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_words import JobState
from airflow_provider_lance.api.vended import without_credentials
from airflow_provider_lance.hooks.reasons import failure_lines, hopeless
from airflow_provider_lance.triggers.looks import FailedLooks

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job

TIMEOUT, LOST = "TIMEOUT", "LOST"
_MOST_BYTES = 32_000
_ABSENCES = 3

Event = dict[str, Any]


class Follower:
    """Reads one sighting after the other and says when it is over.

    :param deadline: seconds since the epoch after which the wait is over, or ``None``.
    :param errors: how many looks in a row may fail.
    :param log: a logger, which gets a line for each change of state or progress, and none for what stayed the same.
    """

    def __init__(
        self,
        job_id: str,
        *,
        deadline: float | None = None,
        errors: int = 20,
        log: Any,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.job_id = job_id
        self.deadline = deadline
        self._log = log
        self._clock = clock
        self._state: JobState | None = None
        self._line = ""
        self._failed = FailedLooks(log, errors)
        self._absent = 0

    def pause(self, usual: float) -> float:
        """How long to wait for the next look."""
        return self._failed.pause(usual)

    def pause_before_deadline(self, usual: float) -> float:
        """The same, cut at the deadline."""
        pause, left = self.pause(usual), self.seconds_left
        return pause if left is None else min(pause, left)

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - self._clock())

    @property
    def failed_look(self) -> str | None:
        """Why the last look failed; ``None`` if it was answered."""
        return self._failed.reason

    def see(self, sighting: Job | WireError | None) -> Event | None:
        """Take what a look showed (``None``: the server does not know the job); the event if that ends the wait."""
        if isinstance(sighting, WireError):
            return self._error(sighting)
        self._failed.answered()
        if sighting is None:
            return self._absence()
        self._absent = 0
        self._say(sighting)
        if sighting.state.terminal:
            return job_event(sighting)
        return self.expired()

    def expired(self) -> Event | None:
        """The TIMEOUT event once the deadline has passed; with the reason of the last look, if that failed."""
        if self.deadline is None or self._clock() < self.deadline:
            return None
        reason = self.failed_look
        return _event(self.job_id, TIMEOUT, _failure("wait", reason, retryable=True) if reason else None)

    def _say(self, job: Job) -> None:
        line = job.progress.describe() if job.progress is not None and job.state is JobState.RUNNING else ""
        if job.state is JobState.FAILED:
            pass  # whoever waits says why, in an ERROR line
        elif job.state is not self._state:
            self._log.info("Job %s is %s%s", job.job_id, job.state.value, f" ({line})" if line else "")
        elif line and line != self._line:
            self._log.info("Job %s: %s", job.job_id, line)
        self._state, self._line = job.state, line

    def _absence(self) -> Event | None:
        # One answer may come from a replica that lags behind; three do not.
        self._absent += 1
        if self._absent < _ABSENCES:
            return self.expired()
        # A trigger or sensor that goes on elsewhere has not seen what its predecessor saw.
        seen = "does not know it any more" if self._state else "does not know it"
        return _event(self.job_id, LOST, _failure("wait", f"The server {seen}.", retryable=True))

    def _error(self, error: WireError) -> Event | None:
        # Credentials may be rotated while a task waits; whoever submitted the job had good ones.
        may_pass = (error.transient or self._state is not None or error.refused) and not hopeless(error)
        if self._failed.failed(error, may_pass=may_pass):
            return self.expired()
        return _event(self.job_id, LOST, _failure("wait", failure_lines(error), retryable=not hopeless(error)))


def job_event(job: Job) -> Event:
    """The event of a finished job."""
    failure = None
    if job.failure is not None:
        failure = job.failure.to_dict()
    elif job.state is JobState.FAILED:
        failure = _failure("unknown", "The server gave no reason.", retryable=False)
    return _event(job.job_id, job.state.value, failure, job.result)


def _failure(phase: str, message: str, *, retryable: bool) -> dict[str, Any]:
    return {"phase": phase, "message": message, "retryable": retryable}


def _event(job_id: str, state: str, failure: dict[str, Any] | None = None, result: Any = None) -> Event:
    """Small enough for Airflow's database and log, and without credentials."""
    if failure is not None:
        failure = {**failure, "message": _cut(str(failure.get("message") or ""))}
    result = public_result(result)
    event: Event = {"job_id": job_id, "state": state, "result": result, "failure": failure}
    if result is not None and len(json.dumps(event, default=str).encode()) > _MOST_BYTES:
        small = {key: value for key, value in result.items() if isinstance(value, int | float | bool | None)}
        event["result"] = {**small, "truncated": True}
    return event


def public_result(result: Any) -> dict[str, Any] | None:
    """A job's result without what must not be shown."""
    if not isinstance(result, dict):
        return None
    return without_credentials(result)


def _cut(message: str, most: int = 4000) -> str:
    return message if len(message) <= most else f"{message[: most - 20]} … (cut)"
