"""What a driver's report says: its end, its figures, its events. Checked here, before any of it is stored.

Pure functions over plain data; ``executions.py`` stores what they return.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.api.job_words import TERMINAL_STATES, JobState
from airflow_provider_lance.api.jobs import JobFailure, Progress

_MOST_SAMPLES = 240


def read_terminal(
    terminal: Mapping[str, Any] | None,
) -> tuple[JobState, dict[str, Any] | None, JobFailure | None] | None:
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
    return state, dict(result) if result is not None else None, JobFailure.from_dict(failure)


def read_progress(progress: Mapping[str, Any] | None) -> Progress | None:
    """The known figures, as what they are; a driver of another release may send more."""
    if progress is None:
        return None
    figures: dict[str, Any] = {}
    for name, example in Progress().to_dict().items():
        value = progress.get(name)
        if isinstance(example, str):
            figures[name] = str(value)[:100] if value is not None else None
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            figures[name] = min(max(type(example)(value), type(example)(0)), type(example)(2**62))
    return Progress.from_dict(figures)


def read_event(line: Mapping[str, Any], now: int) -> tuple[str, int, dict[str, Any]]:
    at_ms = line.get("at_ms")
    at_ms = int(at_ms) if isinstance(at_ms, int | float) and 0 < at_ms < 2**53 else now
    fields = {str(key): value for key, value in line.items() if key not in {"message", "at_ms"}}
    return str(line.get("message") or ""), at_ms, fields


def sampled(samples: list[list[float]] | None, created_ms: int, now: int, progress: Progress) -> list[list[float]]:
    """The rows/s curve so far, thinned as the job gets older so that it never holds more than a screen's width."""
    samples = samples or []
    spacing = max(1000, (now - created_ms) // _MOST_SAMPLES)
    if samples and now - samples[-1][0] < spacing:
        return samples
    samples = [*samples, [now, progress.rows_done, round(progress.rows_per_second, 1)]]
    return samples if len(samples) <= _MOST_SAMPLES else samples[::2]
