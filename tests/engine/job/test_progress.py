"""How far a job is, and how fast."""

from __future__ import annotations

import io
import time

import pytest

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine.job.context import SilentReporter
from airflow_provider_lance.engine.job.progress import ProgressMeter, ProgressSender, TaskFigures


class Reports(SilentReporter):
    """Keeps what a driver would tell its server."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)


def test_a_job_shorter_than_a_second_has_a_speed_too() -> None:
    reports = Reports()
    with ProgressMeter(reports, terminal=io.StringIO()) as meter:
        meter.phase("compute", rows_total=1000, fragments_total=1)
        meter.task_done("0", TaskFigures(fragments=1, rows=1000))
    last = reports.seen[-1]
    assert (last.rows_done, last.fragments_done, last.fraction) == (1000, 1, 1.0)
    assert last.rows_per_second > 1000, "a thousand rows in less than a second"


def test_the_speed_is_that_of_the_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("airflow_provider_lance.engine.job.progress.time.monotonic", lambda: clock[0])
    reports = Reports()
    with ProgressMeter(reports, terminal=io.StringIO()) as meter:
        meter.phase("plan")
        clock[0] += 60  # planning, and the start of Spark
        assert meter.current().compute_seconds == 0
        meter.phase("compute", rows_total=1000, fragments_total=1)
        clock[0] += 2
        meter.task_done("0", TaskFigures(fragments=1, rows=1000))
    last = reports.seen[-1]
    assert (last.compute_seconds, last.rows_per_second) == (2, 500)


def test_what_a_task_sends_is_replaced_by_what_it_did() -> None:
    reports = Reports()
    with ProgressMeter(reports, terminal=io.StringIO()) as meter:
        sender = ProgressSender(meter.address, "0")
        sender.figures = TaskFigures(rows=400, failed=3)
        sender.tick()
        sender.close()
        while not meter.rows_failed:  # the datagram is on its way; pytest ends a test that waits for ever
            time.sleep(0.01)
        assert meter.current().rows_done == 400
        meter.task_done("0", TaskFigures(fragments=1, rows=1000))
        assert (meter.current().rows_done, meter.rows_failed) == (1000, 0)
        stranger = ProgressSender(type(meter.address)(meter.address.host, meter.address.port, "guessed"), "1")
        stranger.figures = TaskFigures(rows=10**9)
        stranger.tick()
        stranger.close()
    assert reports.seen[-1].rows_done == 1000
