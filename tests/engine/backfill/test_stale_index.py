"""A scalar index that still finds replaced values decides neither which rows are filled nor how many remain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.backfills import assert_filled, backfill, column, declare
from tests.stale_index import INDEX_TYPES, KEPT, NEW, OLD, RENEWED, IndexType, condition, stale_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_a_clause_selects_rows_by_what_they_hold(spark: SparkSession, tmp_path: Path, index_type: IndexType) -> None:
    uri = str(tmp_path / "t.lance")
    declare(stale_table(uri, index_type), "n", "id + length(word)")
    result = backfill(spark, uri, "n", where=condition(index_type, OLD))
    assert (result["rows_assigned"], result["rows_remaining"]) == (len(KEPT), 0)
    assert [key for key, value in column(uri, "n").items() if value is not None] == list(KEPT)
    # In pieces: a clause and a stretch of rows together.
    assert backfill(spark, uri, "n", where=condition(index_type, NEW), task_size=30)["rows_assigned"] == len(RENEWED)
    assert_filled(uri, rule=lambda row: row["id"] + len(row["word"]))
    assert backfill(None, uri, "n")["rows_remaining"] == 0
