"""Following a job to its end.

The wait of an operator, the poke of a sensor and the trigger all use :class:`JobFollower`, which does no I/O. They
differ only in who asks the server and who sleeps.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.missing_features import describe_failure, is_permanent
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.tasks.errors import TaskLog
from airflow_provider_lance.tasks.job_outcome import TIMEOUT, JobEvent, ended_event, lost_event, timeout_event
from airflow_provider_lance.tasks.poll_errors import PollErrors

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

    #: What a poll shows: the job, the error of the poll, or ``None`` where the server does not know the job.
    PolledJob = Job | WireError | None

# The seconds until the second poll of a job. The pauses grow with the time that the job takes, up to the interval.
_FIRST_PAUSE = 0.1
_GROWTH = 1.5
# A single answer may come from a replica that lags behind.
_ABSENCES_UNTIL_LOST = 3


class JobFollower:
    """Takes the result of one poll after the other and tells when the wait is over.

    :param job_id: The job.
    :param deadline: The time, in seconds since the epoch, after which the wait is over, or ``None``.
    :param errors: How many polls in a row may fail.
    :param log: The log, which gets a line for each change of the job's state or progress.
    :param clock: Returns the seconds since the epoch.
    """

    def __init__(
        self,
        job_id: str,
        *,
        deadline: float | None = None,
        errors: int = 20,
        log: TaskLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.job_id = job_id
        self.deadline = deadline
        self._log = log
        self._clock = clock
        self._state: JobState | None = None
        self._progress = ""
        self._errors = PollErrors(log, errors)
        self._absences = 0

    def pause(self, usual: float) -> float:
        """The seconds until the next poll, which is not later than the deadline."""
        pause, left = self._errors.pause(usual), self.seconds_left
        return pause if left is None else min(pause, left)

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the deadline, if there is one."""
        return None if self.deadline is None else max(0.0, self.deadline - self._clock())

    @property
    def last_error(self) -> str | None:
        """Why the last poll failed; ``None`` if it was answered."""
        return self._errors.reason

    def observe(self, polled: PolledJob) -> JobEvent | None:
        """Take the result of a poll; returns the event if that ends the wait."""
        if isinstance(polled, WireError):
            return self._observe_error(polled)
        self._errors.clear()
        if polled is None:
            return self._observe_absence()
        self._absences = 0
        self._log_change(polled)
        return ended_event(polled) if polled.state.terminal else self.expired()

    def expired(self) -> JobEvent | None:
        """The TIMEOUT event, once the deadline has passed."""
        if self.deadline is None or self._clock() < self.deadline:
            return None
        return timeout_event(self.job_id, self.last_error)

    def _log_change(self, job: Job) -> None:
        progress = job.progress.describe() if job.progress is not None and job.state is JobState.RUNNING else ""
        if job.state is JobState.FAILED:
            pass  # the task logs the reason as an ERROR
        elif job.state is not self._state:
            self._log.info("Job %s is %s%s", job.job_id, job.state.value, f" ({progress})" if progress else "")
        elif progress and progress != self._progress:
            self._log.info("Job %s: %s", job.job_id, progress)
        self._state, self._progress = job.state, progress

    def _observe_absence(self) -> JobEvent | None:
        self._absences += 1
        if self._absences < _ABSENCES_UNTIL_LOST:
            return self.expired()
        # Without a state the job may have been known to an earlier process of this task, so nothing is said about it.
        known_before = self._state is not None
        reason = "The server does not know it any more." if known_before else "The server does not know it."
        return lost_event(self.job_id, reason, retryable=True)

    def _observe_error(self, error: WireError) -> JobEvent | None:
        permanent = is_permanent(error)
        # Refused credentials may pass, because they may be rotated while a task waits. An error after an answer may
        # pass, because the same request has succeeded before.
        may_pass = (error.transient or self._state is not None or error.refused) and not permanent
        if self._errors.tolerate(error, may_pass=may_pass):
            return self.expired()
        return lost_event(self.job_id, describe_failure(error), retryable=not permanent)


def poll_job(hook: LanceNamespaceHook, job_id: str) -> PolledJob:
    """Ask the server for a job once. Refused credentials make the hook read its connection again."""
    try:
        return hook.find_job(job_id)
    except WireError as error:
        if error.refused:
            hook.reread()
        return error


def wait_for_job(
    hook: LanceNamespaceHook,
    job_id: str,
    log: TaskLog,
    *,
    deadline: float | None = None,
    poll_interval: float | None = None,
) -> JobEvent:
    """Wait on this worker for a job's end or for the deadline; returns the event that a trigger would have sent."""
    event = watch_job(hook, job_id, log, seconds=math.inf, deadline=deadline, poll_interval=poll_interval)
    assert event is not None
    return event


def watch_job(
    hook: LanceNamespaceHook,
    job_id: str,
    log: TaskLog,
    *,
    seconds: float,
    deadline: float | None = None,
    poll_interval: float | None = None,
) -> JobEvent | None:
    """Like :func:`wait_for_job`, for some seconds; ``None`` if the job goes on after them."""
    configuration = read_configuration()
    interval = poll_interval or configuration.poll_interval
    follower = JobFollower(job_id, deadline=deadline, errors=configuration.poll_errors, log=log)
    until = time.monotonic() + seconds
    pause = min(_FIRST_PAUSE, interval)
    while time.monotonic() < until:
        event = follower.observe(poll_job(hook, job_id))
        if event is not None:
            return event
        pause_now = follower.pause(pause * (1 + 0.2 * random.random()))
        time.sleep(min(pause_now, max(0.0, until - time.monotonic())))
        pause = min(interval, pause * _GROWTH)
    return None


def recheck_timeout(hook: LanceNamespaceHook, event: JobEvent) -> JobEvent:
    """The event, or after a TIMEOUT that of the job's end, because the job may have ended since the last poll."""
    polled = poll_job(hook, event["job_id"]) if event["state"] == TIMEOUT else None
    if polled is None or isinstance(polled, WireError) or not polled.state.terminal:
        return event
    return ended_event(polled)
