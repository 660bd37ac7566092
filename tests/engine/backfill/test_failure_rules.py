"""Random failures under rules: which rows have a value, which have failed and how often a row is tried."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.definitions.functions.failure_policy import FailureRule
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.functions import Fail, Retry, Skip, UdfColumn, udf
from tests.engine.backfills import assert_filled, backfill, column, declare, declare_column, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES: list[FailureRule] = [
    Retry(ConnectionError, match="reset", retries=2, backoff=0.01),
    Skip((ConnectionError, "json.decoder.JSONDecodeError"), match="reset|Expecting"),
    Skip(ValueError, match="^empty$"),
    Fail(),
]


class Failing:
    """Fails on chosen rows, and writes each call of a row into a folder."""

    def __init__(self, plan: dict[str, list[str]], folder: str) -> None:
        self.plan, self.folder = plan, Path(folder)

    def raise_for(self, id: int) -> None:
        errors = self.plan.get(str(id), [])
        mine = self.folder / str(id)
        tried = len(mine.read_text()) if mine.exists() else 0
        mine.write_text("x" * (tried + 1))
        error = errors[min(tried, len(errors) - 1)] if errors else ""
        if error == "json":
            import json

            json.loads("")
        elif error.startswith("reset"):
            raise ConnectionResetError(error)  # a subclass of ConnectionError
        elif error:
            raise ValueError(error)

    def __call__(self, id: int) -> int:
        self.raise_for(id)
        return id * 2


class FailingAsync(Failing):
    async def __call__(self, id: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        self.raise_for(id)
        return id * 2


class FailingBatch(Failing):
    def __call__(self, id: pa.Array[Any]) -> list[int]:  # type: ignore[override]
        numbers: list[Any] = id.to_pylist()
        for number in numbers:
            self.raise_for(number)
        return [number * 2 for number in numbers]


def random_plan(seed: int) -> dict[str, list[str]]:
    """For some rows the errors of their calls, in order; the last one is repeated, and an empty text is success."""
    chance = random.Random(seed)
    outcomes = [["reset", ""], ["reset", "reset", ""], ["reset"], ["json"], ["empty"], ["reset", "empty"]]
    return {str(row): chance.choice(outcomes) for row in chance.sample(range(100), 30)}


def expected(plan: dict[str, list[str]], row: int) -> tuple[int | None, int]:
    """The value of a row and the number of its calls, by the rules in plain Python."""
    for tried in range(3):
        errors = plan.get(str(row), [""])
        error = errors[min(tried, len(errors) - 1)]
        if not error:
            return row * 2, tried + 1
        if error != "reset":
            return None, tried + 1
    return None, 3


@pytest.mark.parametrize(("kind", "seed"), [(Failing, 1), (FailingAsync, 2)])
def test_rules_decide_as_plain_python_does(
    spark: SparkSession, new_uri: str, tmp_path: Path, kind: type[Failing], seed: int
) -> None:
    plan = random_plan(seed)
    (tmp_path / "calls").mkdir()
    arguments = {"plan": plan, "folder": str(tmp_path / "calls")}
    made = UdfColumn(kind, type="int64", arguments=arguments, options={"on_error": RULES, "max_concurrency": 4})
    declare_column(people(new_uri), "n", made)
    result = backfill(spark, new_uri, "n")
    assert_filled(new_uri, rule=lambda row: expected(plan, row["id"])[0])
    calls = {int(file.name): len(file.read_text()) for file in (tmp_path / "calls").iterdir()}
    assert calls == {row: expected(plan, row)[1] for row in range(100)}
    failed = [row for row in range(100) if expected(plan, row)[0] is None]
    assert (result["rows_failed"], result["rows_remaining"]) == (len(failed), len(failed))


def test_a_batch_is_halved_until_its_bad_rows_are_alone(spark: SparkSession, new_uri: str, tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    arguments = {"plan": {"7": ["empty"], "8": ["empty"], "42": ["json"]}, "folder": str(tmp_path / "calls")}
    options: Any = {"on_error": RULES, "batch_rows": 4}
    declare_column(people(new_uri), "n", UdfColumn(FailingBatch, None, "int64", options, arguments=arguments))
    assert backfill(spark, new_uri, "n")["rows_failed"] == 3
    assert_filled(new_uri, rule=lambda row: None if row["id"] in (7, 8, 42) else row["id"] * 2)


@pytest.mark.parametrize("kind", [Failing, FailingAsync, FailingBatch])
def test_an_error_that_no_rule_is_for_fails_the_job(
    spark: SparkSession, new_uri: str, tmp_path: Path, kind: type[Failing]
) -> None:
    (tmp_path / "calls").mkdir()
    arguments = {"plan": {"7": ["empty"], "42": ["not empty"]}, "folder": str(tmp_path / "calls")}
    declare_column(people(new_uri), "n", UdfColumn(kind, None, "int64", {"on_error": RULES}, arguments=arguments))
    with pytest.raises(JobError, match="fragment 4: ValueError: not empty"):
        backfill(spark, new_uri, "n")
    assert set(column(new_uri, "n").values()) == {None}


def test_only_failed_computes_just_the_failed_rows(spark: SparkSession, new_uri: str, tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    plan = {str(row): ["empty", "empty"] if row == 33 else ["empty", ""] for row in (3, 4, 33, 77)}
    arguments = {"plan": plan, "folder": str(tmp_path / "calls")}
    dataset = people(new_uri)
    declare_column(dataset, "n", UdfColumn(Failing, None, "int64", {"on_error": "null"}, arguments=arguments))
    failed_only = {"only": "failed"}
    assert backfill(None, new_uri, "n", options=failed_only)["rows_assigned"] == 0  # nothing has failed yet
    assert backfill(spark, new_uri, "n")["rows_failed"] == 4
    new = pa.table({"id": pa.array([100], pa.int64()), "text": ["new"], "n": pa.array([None], pa.int64())})
    lance.write_dataset(new, new_uri, mode="append")
    result = backfill(spark, new_uri, "n", options=failed_only, where="id < 50")
    assert (result["rows_assigned"], result["rows_failed"]) == (2, 1)
    assert {row: value for row, value in column(new_uri, "n").items() if value is None} == {
        33: None,
        77: None,
        100: None,
    }
    result = backfill(spark, new_uri, "n", options=failed_only)
    assert (result["rows_assigned"], result["rows_failed"], result["rows_remaining"]) == (1, 1, 2)
    calls = Counter({int(file.name): len(file.read_text()) for file in (tmp_path / "calls").iterdir()})
    assert calls == {**dict.fromkeys(range(100), 1), 3: 2, 4: 2, 33: 3, 77: 2}
    backfill(spark, new_uri, "n")
    assert [row for row, value in column(new_uri, "n").items() if value is None] == [33]


@pytest.mark.parametrize("threads", [None, 2])
def test_a_call_that_takes_too_long_is_a_failed_row(spark: SparkSession, new_uri: str, threads: int | None) -> None:
    @udf(timeout=0.3, on_error=[Skip(TimeoutError, match="longer than 0.3 s"), Fail()])
    def slow(id: int) -> int:
        if id == 13:
            time.sleep(600)
        return id

    declare_column(people(new_uri), "n", UdfColumn(slow))
    assert backfill(spark, new_uri, "n", intra_applier_concurrency=threads)["rows_failed"] == 1
    assert_filled(new_uri, rule=lambda row: None if row["id"] == 13 else row["id"])


def test_async_calls_run_together_up_to_their_limit(spark: SparkSession, new_uri: str) -> None:
    @udf(max_concurrency=3, timeout=60)
    class Together:
        async def setup(self) -> None:
            self.running = 0

        async def __call__(self, id: int) -> int:
            self.running += 1
            for _ in range(5):
                await asyncio.sleep(0)
            seen = self.running
            self.running -= 1
            return seen

    declare_column(people(new_uri, rows=60, per_fragment=30), "n", UdfColumn(Together))
    backfill(spark, new_uri, "n")
    assert max(column(new_uri, "n").values()) == 3


def test_the_users_batch_size_is_kept(spark: SparkSession, new_uri: str) -> None:
    @udf(batch_rows=7)
    def size(id: pa.Array[Any]) -> list[int]:
        return [len(id)] * len(id)

    declare_column(people(new_uri, rows=40, per_fragment=20), "n", UdfColumn(size, type="int64"))
    backfill(spark, new_uri, "n")
    assert list(column(new_uri, "n").values()) == [*[7] * 14, *[6] * 6] * 2


def test_a_function_gets_the_threads_of_its_cores_and_too_many_are_refused(spark: SparkSession, new_uri: str) -> None:
    def threads(id: int) -> str | None:
        import os

        return os.environ.get("OPENBLAS_NUM_THREADS")

    dataset = people(new_uri, rows=20)
    declare_column(dataset, "n", UdfColumn(threads))
    declare_column(dataset, "two", UdfColumn(threads, options={"num_cpus": 2, "memory": 1 << 20}))
    declare_column(dataset, "many", UdfColumn(threads, options={"num_cpus": 1000}))
    declare(dataset, "m", "id + 1")
    backfill(spark, new_uri, "n")
    backfill(spark, new_uri, "two")
    assert set(column(new_uri, "n").values()) == {"1"}
    assert set(column(new_uri, "two").values()) == {"2"}
    with pytest.raises(JobError, match="asks for 1000 CPUs per task"):
        backfill(spark, new_uri, "many")
