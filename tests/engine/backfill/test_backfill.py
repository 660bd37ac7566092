"""A computed column is filled to the last live row, and every field of the request has its effect."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from airflow_provider_lance.engine.job.context import JobError, SilentReporter
from tests.engine.backfills import assert_filled, backfill, column, declare, declare_function, events, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_fills_every_row_and_says_so(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n")
    assert_filled(uri)
    assert result["rows_assigned"] == 100
    assert result["rows_failed"] == result["rows_remaining"] == 0
    assert result["source_version"] == 2
    assert result["published_version"] == lance.dataset(uri).version == 3


def test_writes_nothing_but_the_column(spark: SparkSession, uri: str) -> None:
    before = {f.fragment_id: [d.path for d in f.data_files()] for f in lance.dataset(uri).get_fragments()}
    backfill(spark, uri, "n")
    for fragment in lance.dataset(uri).get_fragments():
        files = fragment.data_files()
        assert [file.path for file in files[:-1]] == before[fragment.fragment_id]
        assert list(files[-1].fields) == [2]


def test_a_second_run_has_nothing_to_do_and_starts_no_spark(spark: SparkSession, uri: str) -> None:
    backfill(spark, uri, "n")
    version = lance.dataset(uri).version
    result = backfill(None, uri, "n")
    assert result["rows_assigned"] == result["rows_remaining"] == 0
    assert result["published_version"] is None
    assert lance.dataset(uri).version == version


def test_deleted_rows_are_not_evaluated(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(pa.table({"id": range(20), "z": [i % 5 for i in range(20)]}), uri)
    declare(dataset, "n", "id / z")
    dataset.delete("z = 0")
    assert backfill(spark, uri, "n")["rows_assigned"] == 16
    assert_filled(uri, rule=lambda row: row["id"] // row["z"])


def test_transactions_name_the_job(spark: SparkSession, uri: str) -> None:
    backfill(spark, uri, "n", job_id="the-job")
    dataset = lance.dataset(uri)
    transaction = dataset.read_transaction(dataset.version)
    assert transaction is not None
    assert (transaction.transaction_properties or {})["job_id"] == "the-job"


def test_where_fills_only_its_rows_and_keeps_the_others(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n", where="id < 25")
    assert (result["rows_assigned"], result["rows_remaining"]) == (25, 0)
    assert {key for key, value in column(uri, "n").items() if value is not None} <= set(range(25))
    assert result["fragments"] == 3
    backfill(spark, uri, "n", where="id >= 20 and id < 40")
    assert {key for key, value in column(uri, "n").items() if value is None and key % 11 != 5} == {
        i for i in range(40, 100) if i % 11 != 5
    }
    # Half-covered fragments are not fresh: the default selection completes them.
    backfill(spark, uri, "n")
    assert_filled(uri)


def test_a_where_that_covers_half_a_fragment_leaves_it_stale(spark: SparkSession, uri: str) -> None:
    backfill(spark, uri, "n", where="id % 2 = 0")
    assert backfill(spark, uri, "n")["rows_assigned"] == 100
    assert_filled(uri)
    # One that covers all live rows makes them fresh.
    assert backfill(spark, uri, "n", where="id >= 0")["rows_assigned"] == 100
    assert backfill(None, uri, "n")["rows_assigned"] == 0


def test_where_recomputes_rows_that_have_a_value(spark: SparkSession, uri: str) -> None:
    backfill(spark, uri, "n")
    assert backfill(spark, uri, "n", where="id = 7")["rows_assigned"] == 1
    assert_filled(uri)


def test_num_frags_limits_and_the_next_run_continues(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n", num_frags=3)
    assert (result["fragments"], result["rows_assigned"], result["rows_remaining"]) == (3, 30, 70)
    assert backfill(spark, uri, "n")["rows_assigned"] == 70
    assert_filled(uri)


def test_commit_granularity_is_fragments_per_version(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n", commit_granularity=4)
    assert result["published_version"] == 2 + 3
    assert_filled(uri)


def test_task_size_splits_a_fragment(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare(people(uri, rows=1000, per_fragment=1000), "n", "length(text) + id")
    lance.dataset(uri).delete("id % 7 = 2")
    result = backfill(spark, uri, "n", task_size=300)
    assert result["tasks"] == 4
    assert result["rows_assigned"] == result["rows_computed"] == lance.dataset(uri).count_rows()
    assert_filled(uri)


def test_task_size_with_where(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare(people(uri, rows=1000, per_fragment=1000), "n", "length(text) + id")
    result = backfill(spark, uri, "n", task_size=300, where="id % 2 = 0")
    assert result["rows_assigned"] == 500
    assert all(value is None for key, value in column(uri, "n").items() if key % 2)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_concurrency_bounds_the_tasks_at_once(
    spark: SparkSession, new_uri: str, tmp_path: Path, concurrency: int
) -> None:
    calls = tmp_path / "calls"
    calls.touch()

    def most_at_once() -> int:
        changes = [1 if line == "begin" else -1 for line in calls.read_text().split()]
        return max(itertools.accumulate(changes), default=0)

    def observed(number: int) -> int:
        with calls.open("a") as file:
            file.write("begin\n")
        deadline = time.monotonic() + 60
        while most_at_once() < concurrency and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.005)
        with calls.open("a") as file:
            file.write("end\n")
        return number

    declare_function(people(new_uri), observed, ["id"], {"n": pa.int64()})
    result = backfill(spark, new_uri, "n", concurrency=concurrency, task_size=10)
    assert result["tasks"] == 10
    assert most_at_once() == concurrency


@pytest.mark.parametrize("threads", [1, 3])
def test_intra_applier_concurrency_is_how_many_threads_call_the_function(
    spark: SparkSession, new_uri: str, threads: int
) -> None:
    seen: dict[int, float] = {}

    def thread(_: int) -> int:
        seen.setdefault(threading.get_ident(), time.monotonic())
        while len(seen) < threads and time.monotonic() < min(seen.values()) + 20:
            time.sleep(0.005)
        return threading.get_ident()

    declare_function(people(new_uri, rows=500, per_fragment=500), thread, ["id"], {"n": pa.int64()})
    backfill(spark, new_uri, "n", concurrency=1, intra_applier_concurrency=threads)
    assert len(set(column(new_uri, "n").values())) == threads


def test_read_version_reads_that_version(spark: SparkSession, uri: str) -> None:
    lance.write_dataset(pa.table({"id": pa.array([1000]), "text": ["late"]}), uri, mode="append")
    result = backfill(spark, uri, "n", read_version=2)
    assert (result["source_version"], result["rows_assigned"], result["rows_remaining"]) == (2, 100, 1)
    assert column(uri, "n")[1000] is None


def test_read_version_before_the_declaration_is_refused(spark: SparkSession, uri: str) -> None:
    with pytest.raises(TableColumnNotFoundError, match="no column 'n'"):
        backfill(spark, uri, "n", read_version=1)


def test_branch_is_filled_and_main_is_not(spark: SparkSession, uri: str) -> None:
    branch = lance.dataset(uri).create_branch("dev")
    result = backfill(spark, uri, "n", branch="dev", checkpoint_size=3)
    assert result["rows_assigned"] == 100
    filled = lance.dataset(uri).checkout_version(("dev", None)).to_table().to_pylist()
    assert all(row["n"] == (None if row["text"] is None else len(row["text"]) + row["id"]) for row in filled)
    assert set(column(uri, "n").values()) == {None}
    assert backfill(None, uri, "n", branch="dev")["rows_assigned"] == 0
    assert result["published_version"] is not None
    assert branch.version < result["published_version"]


def test_plan_touches_nothing(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    files = sorted(path for path in (tmp_path / "t.lance").rglob("*"))
    plan = backfill(None, uri, "n", options={"plan": "true"}, commit_granularity=4, concurrency=2, num_frags=9)["plan"]
    assert sorted(path for path in (tmp_path / "t.lance").rglob("*")) == files
    assert (plan["fragments"], plan["rows"], plan["fragments_left"], plan["commits"]) == (9, 90, 1, 3)
    assert plan["tasks"] == 2
    assert plan["bytes_read"]
    assert plan["bytes_written"] == 90 * 8
    result = backfill(spark, uri, "n", commit_granularity=4, concurrency=2, num_frags=9)
    assert (result["fragments"], result["tasks"], result["rows_assigned"]) == (9, 2, 90)


def test_progress_and_events_are_reported(spark: SparkSession, uri: str) -> None:
    reporter = SilentReporter()
    backfill(spark, uri, "n", reporter=reporter)
    assert (reporter.latest.fragments_done, reporter.latest.fragments_total) == (10, 10)
    assert (reporter.latest.rows_done, reporter.latest.rows_total) == (100, 100)
    assert reporter.latest.bytes_read > 0
    assert reporter.latest.bytes_written > 0
    assert any("Committed 10 fragments" in message for message in events(reporter))


def test_sql_error_fails_the_job_and_names_the_row(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(pa.table({"id": range(100), "z": [0 if i == 42 else 1 for i in range(100)]}), uri)
    declare(dataset, "n", "id / z")
    with pytest.raises(JobError, match=r"row 42 of fragment 0.*[Dd]ivide by zero"):
        backfill(spark, uri, "n")
    assert set(column(uri, "n").values()) == {None}


def test_sql_error_becomes_null_where_the_request_says_so(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": range(3000), "z": [0 if i in (42, 43, 2999) else 1 for i in range(3000)]})
    declare(lance.write_dataset(table, uri), "n", "id / z")
    result = backfill(spark, uri, "n", options={"on_error": "null"})
    assert (result["rows_assigned"], result["rows_failed"], result["rows_remaining"]) == (2997, 3, 3)
    assert [row["row_id"] for row in result["failed_rows"]] == [42, 43, 2999]
    assert "Divide by zero" in result["failed_rows"][0]["message"]
    assert_filled(uri, rule=lambda row: None if row["z"] == 0 else row["id"])
    # Only the failed rows are tried again.
    again = backfill(spark, uri, "n", options={"on_error": "null"})
    assert (again["rows_assigned"], again["rows_failed"], again["rows_computed"]) == (0, 3, 3)


@pytest.mark.parametrize(
    ("expression", "bad", "reason"),
    [
        ("decode(s, 'hex')", "zz", "Failed to decode from hex"),
        ("chr(cast(s as bigint))", "-5", "invalid Unicode scalar value"),
        ("factorial(cast(s as bigint))", "50", "Overflow happened"),
    ],
)
def test_what_a_function_of_lance_refuses_is_a_failed_row(
    spark: SparkSession, tmp_path: Path, expression: str, bad: str, reason: str
) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": range(5), "s": ["10", bad, "11", "12", "13"]})
    declare(lance.write_dataset(table, uri), "n", expression)
    with pytest.raises(JobError, match=f"failed on row 1 of fragment 0: {reason}") as caught:
        backfill(spark, uri, "n")
    assert not caught.value.retryable
    result = backfill(spark, uri, "n", options={"on_error": "null"})
    assert (result["rows_assigned"], result["rows_failed"]) == (4, 1)
    assert [key for key, value in column(uri, "n").items() if value is None] == [1]


def test_a_where_that_fails_on_a_row_fails_the_job_with_a_sentence(spark: SparkSession, uri: str) -> None:
    with pytest.raises(JobError, match=r"^The where clause '10 / id > 1' fails on some row: Divide by zero error$"):
        backfill(spark, uri, "n", where="10 / id > 1")


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_table_with_blobs_is_filled(spark: SparkSession, tmp_path: Path, version: Any) -> None:
    uri = str(tmp_path / "t.lance")
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64()), blob]
    table = pa.table([range(4), [b"x" * i for i in range(4)]], schema=pa.schema(fields))
    declare(lance.write_dataset(table, uri, data_storage_version=version), "n", "id + 1")
    declare_function(lance.dataset(uri), len, ["blob"], {"size": pa.int64()})
    backfill(spark, uri, "n", where="id > 1")
    backfill(spark, uri, "size")
    assert column(uri, "n") == {0: None, 1: None, 2: 3, 3: 4}
    assert column(uri, "size") == {0: 0, 1: 1, 2: 2, 3: 3}


def test_max_failed_rows_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": range(100), "z": [i % 2 for i in range(100)]})
    declare(lance.write_dataset(table, uri), "n", "id / z")
    # As soon as it is known that they are too many: at a task's end, or before.
    with pytest.raises(
        JobError, match=r"^t\.n: (1[1-9]|[2-4]\d|50) rows failed, more than max_failed_rows 10; the first: row "
    ):
        backfill(spark, uri, "n", options={"on_error": "null", "max_failed_rows": "10"})
    assert lance.dataset(uri).count_rows("n IS NOT NULL") == 0
    assert backfill(spark, uri, "n", options={"on_error": "null", "max_failed_rows": "50"})["rows_failed"] == 50


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [False, True])
def test_every_storage_version_with_and_without_stable_row_ids(
    spark: SparkSession, tmp_path: Path, version: str, stable: bool
) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = people(uri, data_storage_version=version, enable_stable_row_ids=stable)
    declare(dataset, "n", "length(text) + id")
    dataset.delete("id % 3 = 1")
    lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=30)
    result = backfill(spark, uri, "n", checkpoint_size=7)
    assert result["rows_assigned"] == lance.dataset(uri).count_rows()
    assert_filled(uri)


def test_an_index_on_the_column_stays_right(spark: SparkSession, uri: str) -> None:
    backfill(spark, uri, "n")
    lance.dataset(uri).create_scalar_index("n", "BTREE")
    lance.dataset(uri).update({"text": "'changed'"}, where="id = 50")
    backfill(spark, uri, "n")
    assert_filled(uri)
    assert lance.dataset(uri).to_table(filter="n = 57")["id"].to_pylist() == [
        row["id"] for row in lance.dataset(uri).to_table().to_pylist() if row["n"] == 57
    ]


def test_nested_targets_and_unknown_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"s": [{"a": 1}]}), uri)
    with pytest.raises(InvalidInputError, match="inside a struct"):
        backfill(spark, uri, "s.a")
    with pytest.raises(InvalidInputError, match="has no rule"):
        backfill(spark, uri, "s")


def test_few_rows_of_sql_are_computed_in_the_driver(uri: str) -> None:
    """Without a session at all; a bound of zero, and whoever asks for concurrency, gets Spark."""
    reporter = SilentReporter()
    result = backfill(None, uri, "n", driver_rows=100, reporter=reporter)
    assert (result["rows_assigned"], result["rows_remaining"], result["tasks"]) == (100, 0, 1)
    assert_filled(uri)
    assert "Computing 100 rows in the driver, without Spark" in events(reporter)
    people_again = lance.write_dataset(pa.table({"id": [500], "text": ["abc"]}), uri, mode="append")
    assert people_again.count_rows() == 101
    for driver_rows, concurrency in ((0, None), (100, 1)):
        with pytest.raises(AssertionError, match="should not have needed Spark"):
            backfill(None, uri, "n", driver_rows=driver_rows, concurrency=concurrency)
    assert backfill(None, uri, "n", driver_rows=1)["rows_assigned"] == 1
    assert_filled(uri)
