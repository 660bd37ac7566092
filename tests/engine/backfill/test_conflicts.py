"""Other writers act between computing and committing; the result is that of a quiet run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.backfill.job import BackfillResult
from airflow_provider_lance.engine.job.context import JobError
from tests.engine.backfills import (
    Interleaving,
    assert_filled,
    backfill,
    column,
    declare,
    declare_function,
    events,
    people,
    restore,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append(uri: str, first: int = 1000) -> None:
    rows = pa.table({"id": pa.array(range(first, first + 5)), "text": ["new"] * 5})
    lance.write_dataset(rows, uri, mode="append")


def test_append_meanwhile_is_left_for_the_next_run(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n", reporter=Interleaving(lambda: append(uri)))
    assert (result["rows_assigned"], result["rows_remaining"], result["rounds"]) == (100, 5, 1)
    assert backfill(spark, uri, "n")["rows_assigned"] == 5
    assert_filled(uri)


def test_delete_meanwhile_does_not_matter(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n", reporter=Interleaving(lambda: lance.dataset(uri).delete("id % 10 = 3")))
    assert (result["rounds"], result["rows_remaining"], result["fragments"]) == (1, 0, 10)
    assert_filled(uri)


def test_update_meanwhile_costs_only_the_rows_it_moved(spark: SparkSession, uri: str) -> None:
    def update() -> None:
        lance.dataset(uri).update({"text": "'longer than before'"}, where="id = 33 or id = 58")

    result = backfill(spark, uri, "n", reporter=Interleaving(update))
    assert (result["rounds"], result["rows_remaining"]) == (2, 0)
    # The two fragments keep their column files, computed from the same inputs; only the moved rows are new.
    assert result["rows_computed"] == 102
    assert_filled(uri)


def test_compaction_meanwhile_recomputes_what_it_rewrote(spark: SparkSession, uri: str) -> None:
    def compact() -> None:
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=50)

    result = backfill(spark, uri, "n", reporter=Interleaving(compact))
    assert (result["rounds"], result["rows_remaining"]) == (2, 0)
    assert_filled(uri)


def test_compaction_between_two_commits_keeps_what_was_committed(spark: SparkSession, uri: str) -> None:
    def compact() -> None:
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=50)

    result = backfill(spark, uri, "n", commit_granularity=5, reporter=Interleaving(lambda: None, compact))
    assert result["rows_remaining"] == 0
    assert_filled(uri)


def test_another_columns_backfill_meanwhile(spark: SparkSession, uri: str) -> None:
    declare(lance.dataset(uri), "m", "id * 2")
    result = backfill(spark, uri, "n", reporter=Interleaving(lambda: backfill(spark, uri, "m")))
    assert (result["rounds"], result["rows_remaining"]) == (1, 0)
    assert_filled(uri)
    assert_filled(uri, "m", lambda row: row["id"] * 2)


def test_a_backfill_of_the_input_meanwhile_leaves_stale_rows_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = people(uri)
    declare(dataset, "m", "id * 2")
    declare(lance.dataset(uri), "n", "coalesce(m, -1)")
    result = backfill(spark, uri, "n", reporter=Interleaving(lambda: backfill(spark, uri, "m")))
    assert result["rows_remaining"] == 100
    assert backfill(spark, uri, "n")["rows_assigned"] == 100
    assert_filled(uri, "n", lambda row: row["id"] * 2)


def test_a_second_driver_of_the_same_column_is_fenced(spark: SparkSession, uri: str) -> None:
    other: list[BackfillResult] = []
    reporter = Interleaving(lambda: other.append(backfill(spark, uri, "n", job_id="second")))
    result = backfill(spark, uri, "n", job_id="first", reporter=reporter)
    assert other[0]["rows_assigned"] == 100
    # The first driver's commit was refused; it finds everything fresh and ends without doing it twice.
    assert (result["rows_assigned"], result["rows_remaining"]) == (0, 0)
    assert_filled(uri)


def test_one_conflicting_fragment_does_not_hold_up_its_group(spark: SparkSession, uri: str) -> None:
    def update() -> None:
        lance.dataset(uri).update({"text": "'changed'"}, where="id = 33")

    reporter = Interleaving(update)
    backfill(spark, uri, "n", reporter=reporter)
    assert "Committed 9 fragments" in " ".join(events(reporter))
    assert_filled(uri)


def test_with_a_read_version_conflicting_fragments_are_left(spark: SparkSession, uri: str) -> None:
    def writers() -> None:
        lance.dataset(uri).update({"text": "'changed'"}, where="id = 33")
        lance.dataset(uri).delete("id = 70")

    result = backfill(spark, uri, "n", read_version=2, reporter=Interleaving(writers))
    assert (result["rows_assigned"], result["rounds"]) == (90, 1)
    assert result["rows_remaining"] == 10
    assert all(value is None for key, value in column(uri, "n").items() if 30 <= key < 40)
    backfill(spark, uri, "n")
    assert_filled(uri)


def test_a_writer_that_never_stops_is_not_chased_forever(spark: SparkSession, uri: str) -> None:
    def update() -> None:
        lance.dataset(uri).update({"text": "'again'"}, where="id % 10 = 1")

    with pytest.raises(JobError, match="Other writers changed the same fragments") as caught:
        backfill(spark, uri, "n", reporter=Interleaving(*[update] * 100))
    assert caught.value.retryable
    backfill(spark, uri, "n")
    assert_filled(uri)


def test_where_run_with_conflicts_fills_exactly_its_rows(spark: SparkSession, uri: str) -> None:
    def writers() -> None:
        lance.dataset(uri).update({"text": "'changed'"}, where="id = 33")
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=40)

    backfill(spark, uri, "n", where="id % 2 = 1", reporter=Interleaving(writers))
    rows = lance.dataset(uri).to_table().to_pylist()
    assert all((row["n"] is None) == (row["id"] % 2 == 0 or row["text"] is None) for row in rows)


def test_interleaved_writers_with_a_function_and_parts(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare_function(people(uri, rows=90, per_fragment=30), lambda i: i * 3, ["id"], {"n": pa.int64()})

    def writers() -> None:
        lance.dataset(uri).update({"id": "id + 1000"}, where="id = 33")
        lance.dataset(uri).delete("id = 5")
        append(uri)

    backfill(spark, uri, "n", task_size=8, checkpoint_size=3, reporter=Interleaving(writers))
    backfill(spark, uri, "n")
    assert_filled(uri, rule=lambda row: row["id"] * 3)


def drop(uri: str) -> None:
    lance.dataset(uri).drop_columns(["n"])


def redeclare(uri: str, expression: str) -> None:
    drop(uri)
    declare(lance.dataset(uri), "n", expression)


def add_after_restore(uri: str) -> None:
    restore(uri, version=1)
    lance.dataset(uri).add_columns({"price": "id * 1000"})


def add_plain(uri: str) -> None:
    drop(uri)
    lance.dataset(uri).add_columns({"n": "id * 1000"})


def overwrite(uri: str) -> None:
    lance.write_dataset(pa.table({"id": range(20), "other": ["x"] * 20}), uri, mode="overwrite", max_rows_per_file=10)


REDEFINITIONS: dict[str, Callable[[str], None]] = {
    "dropped": drop,
    "another column with its id": add_after_restore,
    "plain data by its name": add_plain,
    "another expression": lambda uri: redeclare(uri, "length(text) * 1000"),
    "another type": lambda uri: redeclare(uri, "upper(text)"),
    "another table": overwrite,
}


@pytest.mark.parametrize("name", REDEFINITIONS)
def test_a_column_dropped_or_redefined_meanwhile_is_left_as_it_is(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    uri = str(tmp_path / "t.lance")
    declare(people(uri, rows=30), "n", "length(text) + id")
    with pytest.raises(JobError, match="'n' was dropped or redefined while it was filled") as caught:
        backfill(spark, uri, "n", reporter=Interleaving(lambda: REDEFINITIONS[name](uri)))
    assert not caught.value.retryable
    after: Any = lance.dataset(uri)
    after.validate()
    transaction = after.read_transaction(after.version)
    assert transaction is not None
    assert not transaction.transaction_properties
    rows = after.to_table().to_pylist()
    if "price" in after.schema.names:
        assert all(row["price"] == row["id"] * 1000 for row in rows)
    elif name == "plain data by its name":
        assert all(row["n"] == row["id"] * 1000 for row in rows)
    else:
        assert all(row.get("n") is None for row in rows)


def test_failed_rows_of_a_fragment_that_conflicts_count_once(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": range(30), "z": [0 if i % 10 == 4 else 1 for i in range(30)]})
    declare(lance.write_dataset(table, uri, max_rows_per_file=10), "n", "id / z")
    reporter = Interleaving(lambda: lance.dataset(uri).update({"z": "2"}, where="id % 10 = 6"))
    result = backfill(spark, uri, "n", reporter=reporter, options={"on_error": "null", "max_failed_rows": "3"})
    assert (result["rounds"], result["rows_failed"], result["rows_remaining"]) == (2, 3, 3)
    assert_filled(uri, rule=lambda row: row["id"] // row["z"] if row["z"] else None)
