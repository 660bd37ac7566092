"""The default selection: what is missing, older than its inputs or made by another rule, and nothing else."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.columns import computed_field

from .backfills import assert_filled, backfill, declare, people


@pytest.fixture
def uri(tmp_path):
    uri = str(tmp_path / "t.lance")
    declare(people(uri), "n", "length(text) + id")
    return uri


@pytest.fixture
def filled(spark, uri):
    backfill(spark, uri, "n")
    return uri


def test_compaction_keeps_values_fresh(filled):
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=50)
    assert backfill(None, filled, "n")["rows_remaining"] == 0


def test_compaction_of_fresh_and_stale_fragments_is_stale(spark, filled):
    lance.write_dataset(pa.table({"id": pa.array([500]), "text": ["new"]}), filled, mode="append")
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=1000)
    assert backfill(spark, filled, "n")["rows_assigned"] == 101
    assert_filled(filled)


def test_append_costs_what_was_appended(spark, filled):
    lance.write_dataset(pa.table({"id": pa.array([500]), "text": ["new"]}), filled, mode="append")
    assert backfill(spark, filled, "n")["rows_computed"] == 1
    assert_filled(filled)


def test_update_of_an_input_makes_its_rows_stale(spark, filled):
    lance.dataset(filled).update({"text": "'longer'"}, where="id = 12 or id = 77")
    result = backfill(spark, filled, "n")
    assert result["rows_computed"] == 2
    assert_filled(filled)


def test_deletes_make_nothing_stale(filled):
    lance.dataset(filled).delete("id % 3 = 0")
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_other_columns_make_nothing_stale(spark, filled):
    declare(lance.dataset(filled), "m", "id + 1")
    backfill(spark, filled, "m")
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_a_new_expression_makes_everything_stale(spark, filled):
    field = computed_field(lance.dataset(filled).schema, "x", "length(text) + id + 1")
    metadata = {key.decode(): value.decode() for key, value in field.metadata.items()}
    lance.dataset(filled).update_field_metadata({"n": metadata})
    assert backfill(spark, filled, "n")["rows_assigned"] == 100
    assert_filled(filled, rule=lambda row: None if row["text"] is None else len(row["text"]) + row["id"] + 1)


def test_without_its_sidecar_the_record_is_read_from_history(filled, tmp_path):
    [sidecar] = (tmp_path / "t.lance" / "_backfill").rglob("fresh.json")
    sidecar.unlink()
    lance.dataset(filled).optimize.compact_files(target_rows_per_fragment=50)
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_restoring_an_older_version_makes_it_stale_again(spark, filled):
    dataset = lance.dataset(filled, version=2)
    dataset.restore()
    assert backfill(spark, filled, "n")["rows_assigned"] == 100
    assert_filled(filled)


def test_cleaning_up_old_versions_keeps_the_record(filled):
    from datetime import timedelta

    lance.dataset(filled).cleanup_old_versions(older_than=timedelta(0))
    assert backfill(None, filled, "n")["rows_assigned"] == 0


def test_failed_rows_survive_a_compaction(spark, tmp_path):
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


def test_lancedb_refreshes_a_column_we_filled_and_the_other_way_round(spark, tmp_path):
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
