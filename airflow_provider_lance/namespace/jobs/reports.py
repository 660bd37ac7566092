"""What a driver's report says: how its job ended, its progress, its events. It is checked before any of it is stored.

These are functions over plain data; ``executions.py`` stores what they return.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.api.job_states import TERMINAL_STATES, JobState
from airflow_provider_lance.api.jobs import JobFailure, Progress
from airflow_provider_lance.api.models import ReportJobRequest
from airflow_provider_lance.namespace.jobs.registry import JobRow

_MOST_SAMPLES = 240
_LARGEST = 2**62


@dataclass(frozen=True)
class Ending:
    """How a job ended."""

    state: JobState
    result: dict[str, object] | None = None
    failure: JobFailure | None = None

    @classmethod
    def of_row(cls, row: JobRow) -> Ending:
        return cls(JobState(row.state), row.result, JobFailure.from_dict(row.failure))

    def with_cancel_reason(self, reason: str | None) -> Ending:
        """This ending, with a failure that says why where a driver that was told to stop gave none."""
        if self.state is not JobState.CANCELLED or self.failure is not None:
            return self
        return replace(self, failure=JobFailure("cancel", reason or "The driver was told to stop."))

    def to_dict(self) -> dict[str, object]:
        failure = self.failure.to_dict() if self.failure else None
        return {"state": self.state.value, "result": self.result, "failure": failure}


@dataclass(frozen=True)
class DriverReport:
    """A report after it was checked; ``ending`` is there in the last one of a driver."""

    job_id: str
    claim_token: str
    seq: int
    progress: Progress | None = None
    events: Sequence[Mapping[str, object]] = ()
    ending: Ending | None = None

    @classmethod
    def read(cls, request: ReportJobRequest) -> DriverReport:
        return cls(
            request.job_id,
            request.claim_token,
            min(request.seq, _LARGEST),
            _read_progress(request.progress),
            request.events or (),
            _read_ending(request.terminal),
        )

    def without_progress(self) -> DriverReport:
        return replace(self, progress=None, events=())


def _read_ending(terminal: Mapping[str, object] | None) -> Ending | None:
    if terminal is None:
        return None
    try:
        state = JobState(str(terminal.get("state")))
    except ValueError:
        state = JobState.RUNNING
    if state not in TERMINAL_STATES:
        raise InvalidInputError("`terminal.state` must be DONE, FAILED or CANCELLED.")
    result, failure = terminal.get("result"), terminal.get("failure")
    if result is not None and not isinstance(result, Mapping):
        raise InvalidInputError("`terminal.result` must be an object.")
    if failure is not None and not isinstance(failure, Mapping):
        raise InvalidInputError("`terminal.failure` must be an object with `phase` and `message`.")
    if state is JobState.FAILED and not failure:
        raise InvalidInputError("A FAILED report needs `terminal.failure`.")
    return Ending(state, dict(result) if result is not None else None, JobFailure.from_dict(failure))


def _read_progress(progress: Mapping[str, object] | None) -> Progress | None:
    """The known figures within their bounds; a driver of another release may send more."""
    if progress is None:
        return None
    figures: dict[str, object] = {}
    for name, example in Progress().to_dict().items():
        value = progress.get(name)
        if isinstance(example, str):
            figures[name] = str(value)[:100] if value is not None else None
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            figures[name] = min(max(type(example)(value), type(example)(0)), type(example)(_LARGEST))
    return Progress.from_dict(figures)


def read_event(line: Mapping[str, object], now: int) -> tuple[str, int, dict[str, object]]:
    """The message, the time in milliseconds and the other fields of an event."""
    at_ms = line.get("at_ms")
    at_ms = int(at_ms) if isinstance(at_ms, int | float) and 0 < at_ms < 2**53 else now
    fields = {str(key): value for key, value in line.items() if key not in {"message", "at_ms"}}
    return str(line.get("message") or ""), at_ms, fields


def add_sample(samples: list[list[float]] | None, created_ms: int, now: int, progress: Progress) -> list[list[float]]:
    """The curve of rows per second with one more sample; it is thinned, so that it never has more than fit a screen."""
    samples = samples or []
    spacing = max(1000, (now - created_ms) // _MOST_SAMPLES)
    if samples and now - samples[-1][0] < spacing:
        return samples
    samples = [*samples, [now, progress.rows_done, round(progress.rows_per_second, 1)]]
    return samples if len(samples) <= _MOST_SAMPLES else samples[::2]
