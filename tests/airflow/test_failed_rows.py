"""A job that is DONE with failed rows is not silent in the task's log, and a failed function shows its lines there."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_lance.tasks.job_outcome import log_traceback, warn_of_failed_rows

LOG = logging.getLogger("tests.failed_rows")


def test_failed_rows_are_a_warning_with_share_example_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    result = {
        "rows_assigned": 17_981,
        "rows_failed": 2_019,
        "failed_rows": [{"row_id": 3, "message": "ValueError: no 3 here"}],
    }
    with caplog.at_level(logging.WARNING, LOG.name):
        warn_of_failed_rows(LOG, result)
    [line] = caplog.records
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith(
        "2,019 of 20,000 rows failed (10.1 %) and have no value. The first: row 3: ValueError: no 3 here. Run the task"
    )


@pytest.mark.parametrize("result", [None, {}, {"rows_assigned": 5, "rows_failed": 0}, {"rows_written": 4}])
def test_without_failed_rows_there_is_no_warning(
    result: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_failed_rows(LOG, result)
    assert not caplog.records


def test_the_lines_of_a_failed_function_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    failure = {"phase": "compute", "message": "t.n: the function failed", "traceback": '  File "f.py", line 3, in f'}
    log_traceback(LOG, {"job_id": "j", "state": "FAILED", "result": None, "failure": failure})
    log_traceback(LOG, {"job_id": "j", "state": "FAILED", "result": None, "failure": None})
    [line] = caplog.records
    assert (line.levelname, "line 3, in f" in line.getMessage()) == ("ERROR", True)
