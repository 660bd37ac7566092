"""A run without a server: what its log tells, when it ends by itself, and what a wrong spec is told."""

from __future__ import annotations

import fcntl
import json
import logging
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.api.jobs import JobSpec, Progress
from airflow_provider_lance.engine.job import log_reporter
from airflow_provider_lance.engine.job.context import JobCancelledError
from airflow_provider_lance.engine.job.log_reporter import LogReporter
from tests.engine.backfills import declare, people
from tests.engine.drivers import Driver


def test_progress_is_logged_when_it_changed_and_not_too_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("airflow_provider_lance.engine.job.log_reporter.time.monotonic", lambda: now)
    caplog.set_level(logging.INFO)
    reporter = LogReporter()
    reporter.progress(Progress(phase="plan"))
    reporter.progress(Progress(phase="compute", rows_total=10))
    for rows in range(1, 4):
        reporter.progress(Progress(phase="compute", rows_total=10, rows_done=rows))
    now += log_reporter.LINE_SECONDS
    reporter.progress(Progress(phase="compute", rows_total=10, rows_done=4))
    now += log_reporter.LINE_SECONDS
    reporter.progress(Progress(phase="compute", rows_total=10, rows_done=4))
    for rate in (5.0, 6.0):
        reporter.progress(Progress(phase="compute", rows_total=10, rows_done=10, rows_per_second=rate))
    reporter.event("Continuing")
    assert caplog.messages == [
        "Progress: plan",
        "Progress: compute: rows 0/10",
        "Progress: compute: rows 4/10",
        "Progress: compute: rows 10/10, 5 rows/s",
        "Continuing",
    ]
    caplog.clear()
    LogReporter(lines=False).progress(Progress(phase="plan"))
    assert not caplog.messages, "a terminal has a bar instead"


def test_a_run_ends_with_the_lock_of_whoever_started_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text("{}")
    reporter = LogReporter(lock=path)
    with path.open("rb") as starter:
        fcntl.flock(starter, fcntl.LOCK_EX)
        reporter.check()
        reporter.check_commit()
    with pytest.raises(JobCancelledError, match="gone"):
        reporter.check_commit()
    path.unlink()
    with pytest.raises(JobCancelledError, match="gone"):
        LogReporter(lock=path).check()
    LogReporter().check_commit()


def test_a_driver_whose_starter_is_gone_writes_nothing_and_says_so(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare(people(uri), "n", "length(text) + id")
    before = lance.dataset(uri).version
    spec, answer = tmp_path / "job.json", tmp_path / "answer.json"
    spec.write_text(json.dumps({"job_type": "backfill_column", "location": uri, "request": {"column": "n"}}))
    driver = Driver(["--spec", str(spec), "--while-locked", "--answer", str(answer), "--job-id", "j"], tmp_path)
    assert driver.wait() == 4
    assert driver.answer() == json.loads(answer.read_text())
    assert (driver.answer()["state"], driver.answer()["table_id"]) == ("CANCELLED", ["t"])
    assert lance.dataset(uri).version == before


def test_a_wrong_spec_ends_the_driver_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"job_type": "backfill"}')
    driver = Driver(["--spec", str(path)], tmp_path)
    assert driver.wait() == 2
    log = driver.log.read_text()
    assert "job_type is 'backfill'; it must be backfill_column, refresh_materialized_view or write." in log
    assert "Traceback" not in log


def test_a_spec_names_its_table_after_its_location() -> None:
    spec = {"job_type": "backfill_column", "location": "s3://lake/sales/orders.lance/", "request": {"column": "n"}}
    assert JobSpec.read(spec).table_id == ["orders"]
    assert JobSpec.read({**spec, "table_id": ["sales", "orders"]}).table_id == ["sales", "orders"]
    assert JobSpec.read({**spec, "job_id": "mine"}).location == spec["location"]
