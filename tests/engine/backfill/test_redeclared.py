"""A rule that is replaced: readers keep the old values, and the next backfill computes them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pytest
from lance_namespace.errors import ConcurrentModificationError

from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.functions.envelope import wrap
from tests.engine.backfills import backfill
from tests.namespace.recording_jobs import RecordingJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPLACE = {"if-exists": "replace"}


def add(people: Any, column: dict[str, Any], **fields: Any) -> None:
    people.alter_table_add_columns({"id": ["people"], "new_columns": [column], **fields})


def values(uri: str, column: str) -> list[Any]:
    found: list[Any] = lance.dataset(uri).to_table()[column].to_pylist()
    return found


def test_values_of_a_replaced_expression_are_outdated(spark: SparkSession, people: Any) -> None:
    uri = people.describe_table({"id": ["people"]}).location
    add(people, {"name": "n", "computed": "length(text)"})
    backfill(spark, uri, "n")
    before = values(uri, "n")
    add(people, {"name": "n", "computed": "length(text) * 100"}, context=REPLACE)
    assert values(uri, "n") == before
    assert backfill(spark, uri, "n")["rows_assigned"] == len(before)
    assert values(uri, "n") == [None if value is None else value * 100 for value in before]
    version = lance.dataset(uri).version
    add(people, {"name": "n", "computed": "length(text) * 100"}, context=REPLACE)
    assert lance.dataset(uri).version == version, "a retry finds an equal rule"
    assert backfill(spark, uri, "n")["rows_assigned"] == 0


def test_values_of_a_new_version_are_outdated(spark: SparkSession, people: Any) -> None:
    import pyarrow as pa

    def entry(version: str) -> dict[str, Any]:
        function = wrap(lambda number: number + 1)
        outputs = {"next": pa.int64()}
        return {
            "name": "next",
            "virtual_column": virtual_column_entry(function, inputs=["id"], outputs=outputs, version=version),
        }

    uri = people.describe_table({"id": ["people"]}).location
    add(people, entry("1"))
    rows = backfill(spark, uri, "next")["rows_assigned"]
    add(people, entry("1"), context=REPLACE)
    assert backfill(spark, uri, "next")["rows_assigned"] == 0
    add(people, entry("2"), context=REPLACE)
    assert backfill(spark, uri, "next")["rows_assigned"] == rows > 0


def test_a_rule_stays_while_its_column_is_filled(people: Any, jobs: RecordingJobs) -> None:
    add(people, {"name": "n", "computed": "length(text)"})
    plan = {"id": ["people"], "column": "n", "context": {"plan": "true"}}
    people.alter_table_backfill_columns(plan)
    add(people, {"name": "n", "computed": "length(text) + 1"}, context=REPLACE)
    job_id = people.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
    with pytest.raises(ConcurrentModificationError, match="before its rule is replaced"):
        add(people, {"name": "n", "computed": "length(text) + 2"}, context=REPLACE)
    jobs.end(job_id)
    add(people, {"name": "n", "computed": "length(text) + 2"}, context=REPLACE)
