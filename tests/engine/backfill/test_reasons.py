"""What a failed backfill tells: the reason first, the lines of the user's function, and whether trying again helps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import JobFailure, JobSpec
from airflow_provider_lance.engine.functions.user_traceback import user_traceback
from airflow_provider_lance.engine.job.context import JobContext, JobError, SilentReporter
from airflow_provider_lance.engine.run_job import execute
from tests.engine.backfills import backfill, declare, declare_function, events, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def divide(value: int) -> int:
    return 1 // (value - 3)


class Broken:
    def setup(self) -> None:
        raise ValueError("no model at /models/small")

    def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize("call", ["scalar", "batch"])
def test_a_failed_row_says_the_reason_first_and_where_the_function_failed(
    spark: SparkSession, new_uri: str, call: str
) -> None:
    def tenth(batch: Any) -> list[int]:
        return [divide(value) for value in batch.column(0).to_pylist()]

    declare_function(people(new_uri), tenth if call == "batch" else divide, ["id"], {"n": pa.int64()}, call=call)
    reporter = SilentReporter()
    spec = JobSpec("backfill_column", ["shop", "t"], new_uri, {"column": "n"})
    state, result, failure = execute(JobContext(spec, lambda: spark, reporter))
    assert (state, result) == (JobState.FAILED, None)
    assert failure is not None
    place = "a batch, rows 0 to 9" if call == "batch" else "row 3"
    assert failure.message.startswith(f"shop.t.n: the function failed on {place} of fragment 0: ZeroDivisionError: ")
    assert not failure.retryable
    assert "test_reasons.py" in failure.traceback
    assert "in divide" in failure.traceback
    assert failure.traceback.endswith("ZeroDivisionError: integer division or modulo by zero")
    assert "airflow_provider_lance/" not in failure.traceback
    assert "pyspark" not in failure.traceback
    assert any(failure.traceback in message for message in events(reporter))
    assert JobFailure.from_dict(failure.to_dict()) == failure


def test_a_traceback_is_bounded() -> None:
    def deep(level: int) -> float:
        return deep(level - 1) if level else 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        deep(500)
    assert len(user_traceback(caught.value)) <= 4000
    assert user_traceback(caught.value).endswith("ZeroDivisionError: division by zero")


def test_a_setup_that_raises_is_not_tried_again(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), Broken, ["id"], {"n": pa.int64()})
    with pytest.raises(JobError, match=r"^t\.n: the function cannot be set up .*ValueError: no model at") as caught:
        backfill(spark, new_uri, "n")
    assert not caught.value.retryable
    assert "in setup" in caught.value.traceback


def test_a_worker_that_dies_is_named_as_such(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri, rows=10), lambda _: os._exit(7), ["id"], {"n": pa.int64()})
    with pytest.raises(JobError, match=r"^t\.n: the Python worker process died.*out of memory") as caught:
        backfill(spark, new_uri, "n")
    assert caught.value.retryable


@pytest.fixture
def halves(new_uri: str) -> str:
    """A rule that fails on half of the rows."""
    table = pa.table({"id": range(100), "z": [i % 2 for i in range(100)]})
    declare(lance.write_dataset(table, new_uri), "n", "id / z")
    return new_uri


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_failed_rows": "10"}, "max_failed_rows 10"),
        ({"max_failed_fraction": "0.25"}, "max_failed_fraction 0.25 of 100 rows"),
        ({"max_failed_fraction": "0.4", "max_failed_rows": "45"}, "max_failed_fraction 0.4 of 100 rows"),
    ],
)
def test_a_limit_of_failed_rows_fails_with_examples(
    spark: SparkSession, halves: str, limit: dict[str, str], words: str
) -> None:
    with pytest.raises(JobError, match=f"rows failed, more than {words}; the first: row .*Divide by zero") as caught:
        backfill(spark, halves, "n", options={"on_error": "null", **limit})
    assert caught.value.rows_failed > 10
    assert "Divide by zero" in str(caught.value.failed_rows[0]["message"])
    assert lance.dataset(halves).count_rows("n IS NOT NULL") == 0


def test_a_share_of_failed_rows_is_one_of_all_rows_whenever_it_runs(spark: SparkSession, halves: str) -> None:
    options = {"on_error": "null", "max_failed_fraction": "0.5"}
    reporter = SilentReporter()
    assert backfill(spark, halves, "n", options=options, reporter=reporter)["rows_failed"] == 50
    assert any("50 of 100 rows failed and have no value; the first: row " in message for message in events(reporter))
    # The second run computes the failed rows only: all of them fail again, which is still half of the table.
    assert backfill(spark, halves, "n", options=options)["rows_failed"] == 50


@pytest.mark.parametrize("share", ["1.5", "-0.1", "half", "nan"])
def test_a_share_that_is_none_is_refused(halves: str, share: str) -> None:
    with pytest.raises(InvalidInputError, match="max_failed_fraction"):
        backfill(None, halves, "n", options={"max_failed_fraction": share})
