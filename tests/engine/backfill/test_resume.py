"""Drivers and workers are killed with SIGKILL; the next attempt computes what is missing and commits nothing twice."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.backfill.job import BackfillResult
from airflow_provider_lance.engine.backfill.records.checkpoint import (
    Checkpoint,
    FilledFragment,
    RowCounts,
    column_folder,
    read_saved_work,
    usable_fragments,
    write_checkpoint,
)
from airflow_provider_lance.engine.backfill.row_batches import ComputedRows
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.storage.table import TableRef
from tests.engine.backfills import (
    Interleaving,
    assert_filled,
    backfill,
    declare,
    declare_function,
    die,
    people,
    rename_column,
)
from tests.engine.drivers import start_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KILLED = -signal.SIGKILL


def commits(uri: str, job_id: str) -> list[int]:
    """The fragments each commit of a job filled, one after the other."""
    dataset = lance.dataset(uri)
    filled: list[int] = []
    for version in range(2, dataset.version + 1):
        transaction = dataset.read_transaction(version)
        assert transaction is not None
        if (transaction.transaction_properties or {}).get("job_id") == job_id:
            assert isinstance(transaction.operation, lance.LanceOperation.DataReplacement)
            filled += [group.fragment_id for group in transaction.operation.replacements]
    return filled


def assert_nothing_left(uri: str) -> None:
    """No journal, no part, and no data file that the table does not use."""
    assert [path.name for path in Path(uri, "_backfill").rglob("*") if path.is_file()] == ["fresh.json"]
    used = {file.path for fragment in lance.dataset(uri).get_fragments() for file in fragment.data_files()}
    assert {path.name for path in Path(uri, "data").glob("*.lance")} == used


def kill_and_resume(spark: SparkSession, tmp_path: Path, uri: str, fault: str, **request: Any) -> BackfillResult:
    request = {"commit_granularity": 2, "checkpoint_size": 1, **request}
    driver = start_spec(tmp_path, uri, "n", job_id="job", fault=fault, **request)
    assert driver.wait() == KILLED, driver.log.read_text()[-3000:]
    lance.dataset(uri).to_table()  # the table is readable whatever happened
    result = backfill(spark, uri, "n", job_id="job", **request)
    assert_filled(uri)
    assert result["rows_assigned"] == 100
    assert result["rows_remaining"] == 0
    assert sorted(commits(uri, "job")) == list(range(10))
    assert_nothing_left(uri)
    return result


def test_killed_before_its_second_commit(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    # One task, and every fragment of it durable when it ends: nothing is computed again.
    result = kill_and_resume(spark, tmp_path, uri, "before-commit:2", concurrency=1)
    assert (result["rows_computed"], result["tasks"]) == (0, 0)


def test_killed_right_after_a_commit(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    result = kill_and_resume(spark, tmp_path, uri, "after-commit:2", concurrency=1)
    assert result["rows_computed"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["after-commit:5", "record-saved", "before-commit"])
def test_killed_elsewhere(spark: SparkSession, tmp_path: Path, uri: str, fault: str) -> None:
    kill_and_resume(spark, tmp_path, uri, fault)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["after-commit:2", "before-commit:3"])
def test_a_where_run_is_continued_and_not_repeated(spark: SparkSession, tmp_path: Path, uri: str, fault: str) -> None:
    where = "id >= 0"
    result = kill_and_resume(spark, tmp_path, uri, fault, where=where)
    assert result["rows_assigned"] == 100


def test_a_driver_that_computes_itself_is_killed_at_every_point(tmp_path: Path, uri: str) -> None:
    points = ["task-start", "part-durable", "fragment-durable", "file-start", "file-written", "before-commit"]
    points += ["after-commit", "record-saved"]
    fault = ",".join(f"{point}:once:{tmp_path / point}" for point in points)
    request = {"checkpoint_size": 3, "task_size": 6, "commit_granularity": 2}
    for _ in points:
        driver = start_spec(tmp_path, uri, "n", job_id="job", fault=fault, driver_rows=1000, **request)
        assert driver.wait() == KILLED, driver.log.read_text()[-3000:]
        lance.dataset(uri).to_table()
    driver = start_spec(tmp_path, uri, "n", job_id="job", fault=fault, driver_rows=1000, **request)
    assert driver.wait() == 0, driver.log.read_text()[-3000:]
    result = driver.answer()["result"]
    assert (result["rows_assigned"], result["rows_remaining"], result["ran_on"]) == (100, 0, "driver")
    assert sorted(commits(uri, "job")) == list(range(10))
    assert_filled(uri)
    assert_nothing_left(uri)


def test_workers_killed_at_every_point_of_a_task(tmp_path: Path, uri: str) -> None:
    points = ["task-start", "part-durable", "fragment-durable", "file-start", "file-written"]
    fault = ",".join(f"{point}:once:{tmp_path / point}" for point in points)
    driver = start_spec(tmp_path, uri, "n", job_id="job", fault=fault, checkpoint_size=3, task_size=6)
    assert driver.wait() == 0, driver.log.read_text()[-3000:]
    assert all((tmp_path / point).exists() for point in points)
    assert driver.answer()["result"]["rows_assigned"] == 100
    assert_filled(uri)
    assert_nothing_left(uri)


def test_the_whole_job_killed_while_it_computes(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    calls = tmp_path / "calls"

    def slow(number: int) -> int:
        time.sleep(0.02)
        with open(calls, "a") as file:
            file.write(f"{number}\n")
        return number * 3

    declare_function(people(uri, rows=400, per_fragment=200), slow, ["id"], {"n": pa.int64()})
    driver = start_spec(tmp_path, uri, "n", job_id="job", checkpoint_size=20)
    folder = Path(uri, "_backfill")
    deadline = time.monotonic() + 150
    while len(list(folder.rglob("part-*"))) < 6:
        assert time.monotonic() < deadline, driver.log.read_text()[-3000:]
        assert driver.process.poll() is None, driver.log.read_text()[-3000:]
        time.sleep(0.05)
    driver.kill()
    _wait_until_quiet(calls)
    durable = sum(_rows(path) for path in folder.rglob("part-*.lance"))
    calls.unlink()
    result = backfill(spark, uri, "n", job_id="job", checkpoint_size=20)
    assert durable >= 120
    assert result["rows_computed"] == 400 - durable == len(calls.read_text().split())
    assert_filled(uri, rule=lambda row: row["id"] * 3)
    assert_nothing_left(uri)


def _wait_until_quiet(calls: Path) -> None:
    """Python workers outlive their JVM by the row they are at: they are in a process group of their own."""
    size = -1
    while size != (size := calls.stat().st_size):
        time.sleep(0.5)


def _rows(path: Path) -> int:
    from lance.file import LanceFileReader

    try:
        return LanceFileReader(str(path)).num_rows()
    except OSError:  # a temporary name: the file was being written when the worker died
        return 0


def test_another_job_inherits_the_work_of_a_dead_one(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    driver = start_spec(tmp_path, uri, "n", job_id="dead", fault="before-commit", checkpoint_size=1, concurrency=1)
    assert driver.wait() == KILLED
    result = backfill(spark, uri, "n", job_id="alive")
    assert (result["rows_computed"], result["rows_assigned"]) == (0, 100)
    assert_filled(uri)
    assert_nothing_left(uri)


def dies_before_its_commit(spark: SparkSession, uri: str, **request: Any) -> None:
    """Finished fragments, each of them durable, and no commit."""
    with pytest.raises(ConnectionAbortedError):
        backfill(spark, uri, "n", reporter=Interleaving(die), checkpoint_size=1, concurrency=1, **request)


def test_work_for_a_column_of_another_type_is_not_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare_function(people(uri), "tests.engine.functions:double", ["id"], {"n": pa.int64()})
    dies_before_its_commit(spark, uri)
    lance.dataset(uri).drop_columns(["n"])
    declare_function(lance.dataset(uri), "tests.engine.functions:double", ["id"], {"n": pa.float64()})
    assert backfill(spark, uri, "n")["rows_computed"] == 100
    assert_filled(uri, rule=lambda row: row["id"] * 2.0)


def test_work_from_an_input_that_another_column_replaced_is_not_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(pa.table({"id": range(20), "x": range(20), "y": range(100, 120)}), uri)
    declare(dataset, "n", "x + 1")
    dies_before_its_commit(spark, uri)
    lance.dataset(uri).drop_columns(["x"])
    rename_column(uri, "y", "x")
    backfill(spark, uri, "n")
    assert_filled(uri, rule=lambda row: row["id"] + 101)


def test_a_finished_file_is_used_only_if_it_is_whole_and_of_the_columns_type(tmp_path: Path) -> None:
    from lance.file import LanceFileWriter
    from lance.fragment import DataFile

    table = TableRef(str(tmp_path))
    schema = pa.schema([("n", pa.int64())])
    with LanceFileWriter(table.data_path("f.lance"), schema, version="2.2") as writer:
        writer.write_batch(pa.record_batch([pa.array([1, 2, 3])], schema=schema))

    def usable(rows: int, kind: pa.DataType, path: str = "f.lance") -> bool:
        filled = FilledFragment(0, "k", rows, DataFile(path, [0]), RowCounts(), True)
        return bool(usable_fragments(table, {"k": filled}, [kind]))

    assert usable(3, pa.int64())
    assert not usable(4, pa.int64())
    assert not usable(3, pa.float64())
    assert not usable(3, pa.int64(), "gone.lance")


@pytest.fixture
def fragile(tmp_path: Path) -> tuple[str, Path]:
    """A table whose column fails on every tenth row while the file ``down`` is there."""
    uri, down = str(tmp_path / "t.lance"), tmp_path / "down"
    down.touch()

    def call(number: int) -> int:
        if number % 10 == 3 and down.exists():
            raise ConnectionError("the service is down")
        return number * 3

    declare_function(people(uri), call, ["id"], {"n": pa.int64()}, on_error="null")
    return uri, down


@pytest.mark.parametrize(("job_id", "on_error"), [("alive", "null"), ("alive", "fail"), ("dead", "fail")])
def test_rows_that_failed_in_a_dead_job_are_tried_again_by_the_next_one(
    spark: SparkSession, fragile: tuple[str, Path], job_id: str, on_error: str
) -> None:
    uri, down = fragile
    dies_before_its_commit(spark, uri, job_id="dead")
    down.unlink()
    result = backfill(spark, uri, "n", job_id=job_id, options={"on_error": on_error})
    assert (result["rows_assigned"], result["rows_failed"], result["rows_remaining"]) == (100, 0, 0)
    assert_filled(uri, rule=lambda row: row["id"] * 3)


def test_rows_that_failed_in_an_earlier_attempt_of_the_same_job_are_not_computed_again(
    spark: SparkSession, fragile: tuple[str, Path]
) -> None:
    uri, _ = fragile
    dies_before_its_commit(spark, uri, job_id="job")
    result = backfill(spark, uri, "n", job_id="job")
    assert (result["rows_computed"], result["rows_assigned"], result["rows_failed"]) == (0, 90, 10)


def test_max_failed_rows_counts_what_an_earlier_attempt_computed(
    spark: SparkSession, fragile: tuple[str, Path]
) -> None:
    uri, _ = fragile
    dies_before_its_commit(spark, uri, job_id="job")
    version = lance.dataset(uri).version
    with pytest.raises(JobError, match="10 rows failed, more than max_failed_rows 9"):
        backfill(spark, uri, "n", job_id="job", options={"max_failed_rows": "9"})
    assert lance.dataset(uri).version == version


def test_parts_with_failed_rows_are_for_their_own_job(tmp_path: Path) -> None:
    import numpy as np

    table, folder, schema = TableRef(str(tmp_path)), column_folder(2), pa.schema([("n", pa.int64())])
    computed = ComputedRows(np.arange(2), pa.record_batch([pa.array([1, None])], schema=schema))
    for start, failed in ((0, 0), (2, 1)):
        checkpoint = Checkpoint("a" * 32, 7, 3, start, start + 2, path="")
        write_checkpoint(table, folder, checkpoint, [computed], schema, RowCounts(rows=2, failed=failed), "dead")
    saved = read_saved_work(table.files(), folder)

    def starts(job_id: str) -> list[int]:
        return [part.start for parts in saved.checkpoints_for(job_id).values() for part in parts]

    assert sorted(part.start for part in saved.checkpoints) == [0, 2]
    assert (starts("alive"), starts("dead")) == ([0], [0, 2])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_moment(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    import random

    uri = str(tmp_path / "t.lance")

    def slow(number: int) -> int:
        time.sleep(0.002)
        return number * 3

    declare_function(people(uri, rows=2000, per_fragment=250), slow, ["id"], {"n": pa.int64()})
    generator = random.Random(seed)
    for _ in range(3):
        driver = start_spec(tmp_path, uri, "n", job_id="job", checkpoint_size=50, commit_granularity=1, task_size=120)
        time.sleep(generator.uniform(5, 12))
        driver.kill()
        lance.dataset(uri).to_table()
    result = backfill(spark, uri, "n", job_id="job")
    assert result["rows_remaining"] == 0
    assert sorted(set(commits(uri, "job"))) == sorted(commits(uri, "job"))
    assert_filled(uri, rule=lambda row: row["id"] * 3)
