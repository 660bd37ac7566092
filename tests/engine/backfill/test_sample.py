"""A sample tries a rule on some rows: inputs, outputs, errors and seconds, and the table stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pytest
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.backfill_request import BackfillRequest, writes_nothing
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.functions import UdfColumn, udf
from tests.engine.backfills import backfill, declare, declare_column, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_function_is_tried_on_rows_of_the_whole_table(spark: SparkSession, new_uri: str) -> None:
    @udf(on_error="fail")
    def repeat(id: int, text: str | None) -> list[int]:
        if text is None:
            raise ValueError("no text")
        return [id] * 20

    dataset = people(new_uri, rows=200, per_fragment=20)
    dataset.delete("id % 2 = 1")
    declare_column(dataset, "n", UdfColumn(repeat))
    version = lance.dataset(new_uri).version
    result = backfill(spark, new_uri, "n", options={"sample": "30", "plan": "true"})
    sample, plan = result["sample"], result["plan"]
    truth = {row["id"]: row["text"] for row in lance.dataset(new_uri).to_table(["id", "text"]).to_pylist()}
    seen: list[Any] = [row["inputs"]["id"] for row in sample["rows"]]
    assert len(set(seen)) == 30
    assert min(seen) < 20
    assert max(seen) >= 140
    for row in sample["rows"]:
        number: Any = row["inputs"]["id"]
        assert row["inputs"]["text"] == truth[number]
        if truth[number] is None:
            assert (row["outputs"], row["error"]) == ({"n": None}, "ValueError: no text")
        else:
            assert (row["outputs"], "error" in row) == ({"n": [*[number] * 8, "… 20 items"]}, False)
    assert sample["rows_failed"] == sum(truth[number] is None for number in seen)
    assert sample["seconds_per_row"] > 0
    assert plan["estimated_seconds"] == result["estimated_seconds"] > 0
    assert plan["rows"] == 100
    assert (result["rows_assigned"], result["published_version"]) == (0, None)
    assert lance.dataset(new_uri).version == version


def test_sql_is_tried_in_the_driver_and_where_selects_the_rows(new_uri: str) -> None:
    declare(people(new_uri), "n", "100 / (id - 95)")
    result = backfill(None, new_uri, "n", options={"sample": 20}, where="id > 89")
    rows = {row["inputs"]["id"]: row for row in result["sample"]["rows"]}
    assert set(rows) == set(range(90, 100))
    assert "error" in rows[95]
    assert rows[99]["outputs"] == {"n": 25}
    assert backfill(None, new_uri, "n", options={"sample": 5}, where="id > 1000")["sample"]["rows"] == []


def test_a_function_that_cannot_be_loaded_fails_the_sample(spark: SparkSession, new_uri: str) -> None:
    declare_column(people(new_uri), "n", UdfColumn("no_such_package.here:f", ["id"], "int64"))
    with pytest.raises(JobError, match=r"t\.n: no_such_package\.here:f cannot be imported"):
        backfill(spark, new_uri, "n", options={"sample": "3"})


@pytest.mark.parametrize("rows", ["0", "-1", "many", "100000", 2.5])
def test_a_sample_is_a_number_of_rows(rows: object) -> None:
    with pytest.raises(InvalidInputError, match=r"sample is .* it must be a number of rows from 1 to 1000"):
        BackfillRequest.parse({"column": "n"}, {"sample": rows})


def test_a_sample_needs_no_lock() -> None:
    assert writes_nothing({"sample": "3"})
    assert not writes_nothing({"only": "failed"})
