"""Following a job to its end: a progress bar in a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.cli.output import note

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.cli.connection import ServerConnection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
# With pauses of up to ten seconds a server may be away for some three minutes, which is longer than a restart takes.
_MOST_FAILED_LOOKS, _LONGEST_PAUSE_AFTER_FAILURE = 20, 10.0


def follow(server: ServerConnection, job_id: str) -> Job:
    """Wait for a job's end and show its progress on standard error; the job as it ended."""
    with _display() as show:
        pause, failed = _FIRST_PAUSE, 0
        while True:
            try:
                job = server.wire.job(job_id)
            except WireError as error:
                failed += 1
                if not error.transient or failed >= _MOST_FAILED_LOOKS:
                    raise
                if failed == 1:
                    note(f"{server.place} gave no answer; asking again.")
                time.sleep(min(_LONGEST_PAUSE_AFTER_FAILURE, 2.0**failed))
                continue
            failed = 0
            show(job)
            if job.state.terminal:
                return job
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 1.5)


@contextmanager
def _display() -> Iterator[Callable[[Job], None]]:
    from rich.console import Console

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[phase]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=None, phase="")

        def show(job: Job) -> None:
            done = job.progress.fraction if job.progress is not None else 0.0
            running = job.progress is not None and job.state is JobState.RUNNING
            phase = job.progress.describe() if running and job.progress is not None else job.state.value
            bars.update(bar, description=job.target, total=1 if done else None, completed=done, phase=phase)

        yield show


def _lines() -> Callable[[Job], None]:
    last = ""

    def show(job: Job) -> None:
        nonlocal last
        running = job.progress is not None and job.state is JobState.RUNNING
        progress = f" {job.progress.describe()}" if running and job.progress is not None else ""
        line = f"{job.state.value}{progress}"
        if line != last:
            note(line)
        last = line

    return show
