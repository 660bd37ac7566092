"""The default selection: what is missing, older than its inputs or made by another rule, and nothing else."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

from airflow_provider_lance.definitions.column_rules import computed_field
from airflow_provider_lance.engine.job.context import SilentReporter
from tests.columns_in_place import replace_column
from tests.engine.backfills import assert_filled, backfill, declare, die, rename_column, restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def filled(spark: SparkSession, uri: str) -> str:
    backfill(spark, uri, "n")
    return uri


@pytest.fixture
def failed(spark: SparkSession, new_uri: str) -> str:
    """A column that is filled except for row 2, on which its rule fails."""
    table = pa.table({"id": range(10), "z": [0 if i == 2 else 1 for i in range(10)]})
    declare(lance.write_dataset(table, new_uri), "n", "id / z")
    backfill(spark, new_uri, "n", options={"on_error": "null"})
    return new_uri


def test_compaction_keeps_values_fresh(filled: str) -> None:
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=50)
    assert backfill(None, filled, "n")["rows_remaining"] == 0


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
@pytest.mark.parametrize("indexed", ["id", "n"])
def test_compaction_of_an_indexed_table_keeps_values_fresh(
    spark: SparkSession, filled: str, indexed: str, kind: Any
) -> None:
    lance.dataset(filled).create_scalar_index(indexed, kind)
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=50)
    assert backfill(None, filled, "n")["rows_remaining"] == 0
    lance.write_dataset(pa.table({"id": pa.array([500]), "text": ["new"]}), filled, mode="append")
    assert backfill(spark, filled, "n")["rows_computed"] == 1
    assert_filled(filled)


def test_compaction_of_an_indexed_table_leaves_other_fragments_stale(spark: SparkSession, filled: str) -> None:
    lance.dataset(filled).create_scalar_index("id", "BTREE")
    lance.write_dataset(pa.table({"id": pa.array([500]), "text": ["new"]}), filled, mode="append")
    plan = Compaction.plan(lance.dataset(filled), {"target_rows_per_fragment": 30})
    Compaction.commit(lance.dataset(filled), [task.execute(lance.dataset(filled)) for task in plan.tasks[:2]])
    assert backfill(spark, filled, "n")["rows_computed"] == 1
    assert_filled(filled)


def test_compaction_of_fresh_and_stale_fragments_is_stale(spark: SparkSession, filled: str) -> None:
    lance.write_dataset(pa.table({"id": pa.array([500]), "text": ["new"]}), filled, mode="append")
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=1000)
    assert backfill(spark, filled, "n")["rows_assigned"] == 101
    assert_filled(filled)


def test_append_costs_what_was_appended(spark: SparkSession, filled: str) -> None:
    lance.write_dataset(pa.table({"id": pa.array([500]), "text": ["new"]}), filled, mode="append")
    assert backfill(spark, filled, "n")["rows_computed"] == 1
    assert_filled(filled)


def test_update_of_an_input_makes_its_rows_stale(spark: SparkSession, filled: str) -> None:
    lance.dataset(filled).update({"text": "'longer'"}, where="id = 12 or id = 77")
    result = backfill(spark, filled, "n")
    assert result["rows_computed"] == 2
    assert_filled(filled)


def test_deletes_make_nothing_stale(filled: str) -> None:
    lance.dataset(filled).delete("id % 3 = 0")
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_other_columns_make_nothing_stale(spark: SparkSession, filled: str) -> None:
    declare(lance.dataset(filled), "m", "id + 1")
    backfill(spark, filled, "m")
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_a_new_expression_makes_everything_stale(spark: SparkSession, filled: str) -> None:
    field = computed_field(lance.dataset(filled).schema, "x", "length(text) + id + 1")
    metadata: dict[str, str | None] = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    lance.dataset(filled).update_field_metadata({"n": metadata})
    assert backfill(spark, filled, "n")["rows_assigned"] == 100
    assert_filled(filled, rule=lambda row: None if row["text"] is None else len(row["text"]) + row["id"] + 1)


def test_without_its_sidecar_the_record_is_read_from_history(filled: str, tmp_path: Path) -> None:
    [sidecar] = (tmp_path / "t.lance" / "_backfill").rglob("fresh.json")
    sidecar.unlink()
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=50)
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_restoring_an_older_version_makes_it_stale_again(spark: SparkSession, filled: str) -> None:
    restore(filled, version=2)
    assert backfill(spark, filled, "n")["rows_assigned"] == 100
    assert_filled(filled)


def test_cleaning_up_old_versions_keeps_the_record(filled: str) -> None:
    lance.dataset(filled).cleanup_old_versions(older_than=timedelta(0))
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_failed_rows_survive_a_compaction(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"id": range(100), "z": [0 if i == 42 else 1 for i in range(100)]})
    declare(lance.write_dataset(table, uri, max_rows_per_file=10), "n", "id / z")
    backfill(spark, uri, "n", options={"on_error": "null"})
    lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=1000)
    again = backfill(spark, uri, "n", options={"on_error": "null"})
    assert (again["rows_computed"], again["rows_failed"], again["rows_remaining"]) == (1, 1, 1)
    lance.dataset(uri).update({"z": "1"}, where="id = 42")
    assert backfill(spark, uri, "n")["rows_remaining"] == 0
    assert_filled(uri, rule=lambda row: row["id"])


@pytest.mark.parametrize("sidecar", [True, False])
def test_an_input_dropped_and_added_anew_makes_everything_stale(
    spark: SparkSession, filled: str, tmp_path: Path, sidecar: bool
) -> None:
    lance.dataset(filled).drop_columns(["text"])
    lance.dataset(filled).add_columns(pa.field("text", pa.string()))
    if not sidecar:
        next((tmp_path / "t.lance" / "_backfill").rglob("fresh.json")).unlink()
    assert backfill(spark, filled, "n")["rows_assigned"] == 100
    assert_filled(filled)


@pytest.mark.parametrize("sidecar", [True, False])
def test_another_column_in_the_place_of_an_input_makes_everything_stale(
    spark: SparkSession, tmp_path: Path, sidecar: bool
) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(pa.table({"id": range(20), "x": range(20), "y": range(100, 120)}), uri)
    declare(dataset, "n", "x + 1")
    backfill(spark, uri, "n")
    lance.dataset(uri).drop_columns(["x"])
    rename_column(uri, "y", "x")
    if not sidecar:
        next((tmp_path / "t.lance" / "_backfill").rglob("fresh.json")).unlink()
    assert backfill(spark, uri, "n")["rows_assigned"] == 20
    assert_filled(uri, rule=lambda row: row["id"] + 101)


def test_a_record_that_does_not_name_its_inputs_ids_is_taken_at_its_word(filled: str, tmp_path: Path) -> None:
    [sidecar] = (tmp_path / "t.lance" / "_backfill").rglob("fresh.json")
    document = json.loads(sidecar.read_text())
    del document["input_ids"]
    sidecar.write_text(json.dumps(document))
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_a_struct_read_as_a_whole_is_an_input(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    kind = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    lance.write_dataset(pa.table({"id": range(6)}), uri).add_columns(pa.field("s", kind))
    declare(lance.dataset(uri), "n", "id * 10 + cast(s IS NULL as int)")
    backfill(spark, uri, "n")
    dataset = lance.dataset(uri)
    replace_column(dataset, "s", {f: pa.array([{"x": 1, "y": 2}] * 6, kind) for f in dataset.get_fragments()})
    assert backfill(spark, uri, "n")["rows_assigned"] == 6
    assert_filled(uri, rule=lambda row: row["id"] * 10)


def test_a_commit_whose_version_was_cleaned_up_before_it_was_recorded_is_stale(spark: SparkSession, uri: str) -> None:
    class Dying(SilentReporter):
        def event(self, message: str, **fields: object) -> None:
            if message.startswith("Committed"):
                die()

    with pytest.raises(ConnectionAbortedError):
        backfill(spark, uri, "n", reporter=Dying())
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))
    assert backfill(spark, uri, "n")["rows_assigned"] == 100
    assert backfill(None, uri, "n")["rows_assigned"] == 0


def test_a_where_run_leaves_a_fresh_fragment_fresh(spark: SparkSession, filled: str) -> None:
    assert backfill(spark, filled, "n", where="id = 3")["rows_computed"] == 1
    assert backfill(None, filled, "n")["rows_remaining"] == 0
    # But not one whose inputs changed: the rows left out are as stale as before.
    lance.dataset(filled).update({"text": "'longer'"}, where="id >= 40 and id < 50")
    assert backfill(spark, filled, "n", where="id = 43")["rows_computed"] == 1
    assert backfill(spark, filled, "n")["rows_computed"] == 10
    assert_filled(filled)


def test_a_where_run_does_not_hide_rows_that_failed(spark: SparkSession, failed: str) -> None:
    for where, rows_failed in (("id = 3", 0), ("id <= 3", 1), ("id > 3", 0)):
        assert backfill(spark, failed, "n", where=where, options={"on_error": "null"})["rows_failed"] == rows_failed
        again = backfill(spark, failed, "n", options={"on_error": "null"})
        assert (again["rows_computed"], again["rows_failed"], again["rows_remaining"]) == (1, 1, 1)


def test_a_failed_row_that_was_deleted_does_not_remain(failed: str) -> None:
    assert backfill(None, failed, "n", options={"plan": "true"})["rows_remaining"] == 1
    lance.dataset(failed).delete("id = 2")
    result = backfill(None, failed, "n")
    assert (result["rows_remaining"], result["rows_assigned"]) == (0, 0)


def test_lancedb_refreshes_a_column_we_filled_and_the_other_way_round(spark: SparkSession, tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb")
    database = lancedb.connect(str(tmp_path))
    table = database.create_table("people", pa.table({"id": range(20), "text": ["abc"] * 20}))
    table.add_columns(computed={"n": "length(text)"})
    uri = str(tmp_path / "people.lance")
    assert backfill(spark, uri, "n")["rows_assigned"] == 20
    table.checkout_latest()
    table.refresh_column("n")
    assert set(table.to_arrow()["n"].to_pylist()) == {3}
    table.add([{"id": 20, "text": "four"}])
    assert backfill(spark, uri, "n")["rows_remaining"] == 0
    assert_filled(uri, rule=lambda row: len(row["text"]))


def test_an_input_after_a_string_with_an_apostrophe_makes_values_stale(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "quotes.lance")
    rows = {"id": list(range(20)), "b": ["b"] * 20, "t2": ["old"] * 20}
    declare(lance.write_dataset(pa.table(rows), uri), "n", """concat(b, "it's ", t2, ' end')""")
    backfill(spark, uri, "n")
    dataset = lance.dataset(uri)
    replace_column(dataset, "t2", {fragment: pa.array(["new"] * 20) for fragment in dataset.get_fragments()})
    assert backfill(spark, uri, "n")["rows_assigned"] == 20
    assert set(lance.dataset(uri).to_table(["n"])["n"].to_pylist()) == {"bit's new end"}


def test_a_where_with_a_comment_selects_the_same_rows_in_split_fragments(spark: SparkSession, uri: str) -> None:
    result = backfill(spark, uri, "n", where="id < 30 /* early */ OR id > 90 -- late", task_size=3)
    assert result["rows_assigned"] == 39
    values = lance.dataset(uri).to_table(["id", "text", "n"]).to_pylist()
    assert [row["id"] for row in values if row["n"] is not None] == [
        row["id"] for row in values if row["text"] is not None and (row["id"] < 30 or row["id"] > 90)
    ]
