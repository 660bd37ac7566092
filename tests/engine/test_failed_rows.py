"""Failed rows are kept whatever their number: running again computes them, what is missing and what is stale."""

from __future__ import annotations

import json
import random

import lance
import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.failed_rows import FailedRows, decode_rows, encode_rows

from .backfills import Interleaving, assert_filled, backfill, declare, declare_function, die

NULL = {"on_error": "null"}
ROWS = 20_000


def numbers(uri, rows=ROWS, **options):
    """A table in which every tenth row, and some more, divide by zero."""
    rng = random.Random(5)
    z = [0 if i % 10 == 3 or rng.random() < 0.001 else 1 for i in range(rows)]
    dataset = lance.write_dataset(pa.table({"id": range(rows), "z": z}), uri, **options)
    return dataset, z.count(0)


def failed_files(tmp_path):
    return list((tmp_path / "t.lance" / "_backfill").rglob("failed-*.json"))


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t.lance")


def counts(result):
    return tuple(result[name] for name in ("rows_computed", "rows_assigned", "rows_failed", "rows_remaining"))


@pytest.mark.parametrize("kind", ["function", "sql"])
def test_thousands_of_failed_rows_of_one_fragment_are_the_only_ones_computed_again(spark, uri, tmp_path, kind):
    dataset, bad = numbers(uri)
    assert bad > 2000
    if kind == "sql":
        declare(dataset, "n", "id / z")
    else:
        declare_function(dataset, lambda i, z: i // z, ["id", "z"], {"n": pa.int64()})
    assert counts(backfill(spark, uri, "n", options=NULL)) == (ROWS, ROWS - bad, bad, bad)
    assert counts(backfill(spark, uri, "n", options=NULL)) == (bad, 0, bad, bad)
    [kept] = failed_files(tmp_path)
    assert kept.stat().st_size < 4000
    transaction = lance.dataset(uri).read_transaction(lance.dataset(uri).version)
    assert max(map(len, transaction.transaction_properties.values())) < 200
    # In pieces, and after a deletion, it is still these rows only.
    lance.dataset(uri).delete("id < 100")
    again = counts(backfill(spark, uri, "n", options=NULL, task_size=3000, checkpoint_size=500))
    left = sum(1 for row in lance.dataset(uri).to_table(columns=["z"]).to_pylist() if row["z"] == 0)
    assert again == (left, 0, left, left)
    assert_filled(uri, rule=lambda row: row["id"] if row["z"] else None)


def test_many_failed_rows_that_a_clause_leaves_out_stay_failed(spark, uri):
    dataset, bad = numbers(uri)
    declare(dataset, "n", "id / z")
    backfill(spark, uri, "n", options=NULL)
    assert backfill(spark, uri, "n", where="id < 10000", options=NULL)["rows_computed"] == 10_000
    assert counts(backfill(spark, uri, "n", options=NULL)) == (bad, 0, bad, bad)


def test_many_failed_rows_survive_a_death_a_lost_record_and_a_compaction(spark, uri, tmp_path):
    dataset, bad = numbers(uri, max_rows_per_file=ROWS // 2)
    declare(dataset, "n", "id / z")
    with pytest.raises(ConnectionAbortedError):
        backfill(spark, uri, "n", options=NULL, reporter=Interleaving(die), job_id="same", checkpoint_size=1000)
    assert counts(backfill(None, uri, "n", options=NULL, job_id="same")) == (0, ROWS - bad, bad, bad)
    next((tmp_path / "t.lance" / "_backfill").rglob("fresh.json")).unlink()
    assert counts(backfill(spark, uri, "n", options=NULL)) == (bad, 0, bad, bad)
    assert len(failed_files(tmp_path)) == 2
    lance.dataset(uri).optimize.compact_files()
    assert counts(backfill(spark, uri, "n", options=NULL)) == (bad, 0, bad, bad)
    assert len(failed_files(tmp_path)) == 1
    lance.dataset(uri).update({"z": "1"}, where="z = 0")
    assert counts(backfill(spark, uri, "n"))[1:] == (bad, 0, 0)
    assert_filled(uri, rule=lambda row: row["id"])


def test_without_the_file_the_nulls_are_computed_again(spark, uri, tmp_path):
    dataset, bad = numbers(uri, rows=200)
    declare(dataset, "n", "id / z")
    backfill(spark, uri, "n", options=NULL)
    [kept] = failed_files(tmp_path)
    kept.unlink()
    assert counts(backfill(spark, uri, "n", options=NULL)) == (bad, 0, bad, bad)


def test_records_that_list_the_failed_rows_are_read(spark, uri, tmp_path):
    dataset, bad = numbers(uri, rows=200)
    declare(dataset, "n", "id / z")
    backfill(spark, uri, "n", options=NULL)
    [kept] = failed_files(tmp_path)
    rows = decode_rows(json.loads(kept.read_text())["rows"]).tolist()
    kept.unlink()
    [sidecar] = (tmp_path / "t.lance" / "_backfill").rglob("fresh.json")
    document = json.loads(sidecar.read_text())
    document["fragments"]["0"][3] = rows
    sidecar.write_text(json.dumps(document | {"format": 1}))
    assert counts(backfill(spark, uri, "n", options=NULL)) == (bad, 0, bad, bad)


@pytest.mark.parametrize("seed", range(20))
def test_row_numbers_survive_their_encoding(seed):
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(2**32 if seed % 2 else 5000), rng.choice([0, 1, 2, 1000])))
    assert decode_rows(encode_rows(rows)).tolist() == rows
    assert FailedRows.of(rows).read(None, "", ()).tolist() == rows
    assert len(encode_rows(np.arange(1_000_000))) < 10_000
