"""Failed rows are kept whatever their number: running again computes them, what is missing and what is stale."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.backfill.job import BackfillResult
from airflow_provider_lance.engine.backfill.records.failed_rows import FailedRows, decode_rows, encode_rows
from airflow_provider_lance.storage.table import TableRef
from tests.engine.backfills import Interleaving, assert_filled, backfill, declare, declare_function, die

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NULL = {"on_error": "null"}
ROWS = 3000  # isolating a row on which SQL fails takes several scans


def numbers(uri: str, rows: int = ROWS, **options: Any) -> tuple[lance.LanceDataset, int]:
    """A table in which every tenth row, and some more, divide by zero."""
    rng = random.Random(5)
    z = [0 if i % 10 == 3 or rng.random() < 0.001 else 1 for i in range(rows)]
    dataset = lance.write_dataset(pa.table({"id": range(rows), "z": z}), uri, **options)
    return dataset, z.count(0)


def failed_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "t.lance" / "_backfill").rglob("failed-*.json"))


def counts(result: BackfillResult) -> tuple[int, int, int, int]:
    return result["rows_computed"], result["rows_assigned"], result["rows_failed"], result["rows_remaining"]


@pytest.mark.parametrize(("kind", "rows"), [("function", 20_000), ("sql", ROWS)])
def test_many_failed_rows_of_one_fragment_are_the_only_ones_computed_again(
    spark: SparkSession, new_uri: str, tmp_path: Path, kind: str, rows: int
) -> None:
    dataset, bad = numbers(new_uri, rows)
    assert bad > rows / 10
    if kind == "sql":
        declare(dataset, "n", "id / z")
    else:
        declare_function(dataset, lambda i, z: i // z, ["id", "z"], {"n": pa.int64()})
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (rows, rows - bad, bad, bad)
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (bad, 0, bad, bad)
    [kept] = failed_files(tmp_path)
    assert kept.stat().st_size < 4000
    transaction = lance.dataset(new_uri).read_transaction(lance.dataset(new_uri).version)
    assert transaction is not None
    assert transaction.transaction_properties is not None
    assert max(map(len, transaction.transaction_properties.values())) < 200
    # In pieces, and after a deletion, it is still these rows only.
    lance.dataset(new_uri).delete("id < 100")
    again = counts(backfill(spark, new_uri, "n", options=NULL, task_size=rows // 6, checkpoint_size=rows // 40))
    left = sum(1 for row in lance.dataset(new_uri).to_table(columns=["z"]).to_pylist() if row["z"] == 0)
    assert again == (left, 0, left, left)
    assert_filled(new_uri, rule=lambda row: row["id"] if row["z"] else None)


def test_many_failed_rows_that_a_clause_leaves_out_stay_failed(spark: SparkSession, new_uri: str) -> None:
    dataset, bad = numbers(new_uri)
    declare(dataset, "n", "id / z")
    backfill(spark, new_uri, "n", options=NULL)
    assert backfill(spark, new_uri, "n", where="id < 1000", options=NULL)["rows_computed"] == 1000
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (bad, 0, bad, bad)


def test_many_failed_rows_survive_a_death_a_lost_record_and_a_compaction(
    spark: SparkSession, new_uri: str, tmp_path: Path
) -> None:
    dataset, bad = numbers(new_uri, max_rows_per_file=ROWS // 2)
    declare(dataset, "n", "id / z")
    with pytest.raises(ConnectionAbortedError):
        backfill(
            spark, new_uri, "n", options=NULL, reporter=Interleaving(die), job_id="same", checkpoint_size=ROWS // 20
        )
    assert counts(backfill(None, new_uri, "n", options=NULL, job_id="same")) == (0, ROWS - bad, bad, bad)
    next((tmp_path / "t.lance" / "_backfill").rglob("fresh.json")).unlink()
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (bad, 0, bad, bad)
    assert len(failed_files(tmp_path)) == 2
    lance.dataset(new_uri).optimize.compact_files()
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (bad, 0, bad, bad)
    assert len(failed_files(tmp_path)) == 1
    lance.dataset(new_uri).update({"z": "1"}, where="z = 0")
    assert counts(backfill(spark, new_uri, "n"))[1:] == (bad, 0, 0)
    assert_filled(new_uri, rule=lambda row: row["id"])


def test_without_the_file_the_nulls_are_computed_again(spark: SparkSession, new_uri: str, tmp_path: Path) -> None:
    dataset, bad = numbers(new_uri, rows=200)
    declare(dataset, "n", "id / z")
    backfill(spark, new_uri, "n", options=NULL)
    [kept] = failed_files(tmp_path)
    kept.unlink()
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (bad, 0, bad, bad)


def test_records_that_list_the_failed_rows_are_read(spark: SparkSession, new_uri: str, tmp_path: Path) -> None:
    dataset, bad = numbers(new_uri, rows=200)
    declare(dataset, "n", "id / z")
    backfill(spark, new_uri, "n", options=NULL)
    [kept] = failed_files(tmp_path)
    rows = decode_rows(json.loads(kept.read_text())["rows"]).tolist()
    kept.unlink()
    [sidecar] = (tmp_path / "t.lance" / "_backfill").rglob("fresh.json")
    document = json.loads(sidecar.read_text())
    document["fragments"]["0"][3] = rows
    sidecar.write_text(json.dumps(document | {"format": 1}))
    assert counts(backfill(spark, new_uri, "n", options=NULL)) == (bad, 0, bad, bad)


@pytest.mark.parametrize("seed", range(20))
def test_row_numbers_survive_their_encoding(seed: int) -> None:
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(2**32 if seed % 2 else 5000), rng.choice([0, 1, 2, 1000])))
    assert decode_rows(encode_rows(rows)).tolist() == rows


def test_a_million_failed_rows_take_little_space() -> None:
    assert len(encode_rows(np.arange(1_000_000))) < 10_000


def test_rows_that_a_commit_lists_are_read_without_a_file(tmp_path: Path) -> None:
    found = FailedRows.from_list([5, 3]).read(TableRef(str(tmp_path)).files(), "folder", ())
    assert found is not None
    assert found.tolist() == [3, 5]
