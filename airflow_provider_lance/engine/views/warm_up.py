"""Runs a query over a few rows before there is a job, because the first one in a JVM takes many times as long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.spark_source import LanceSource, spark_table
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def warm_up_queries(session: SparkSession, folder: str) -> None:
    """Read, filter, group and write rows as a view in Spark SQL does; ``folder`` gets a table of two rows."""
    import lance
    import pyarrow as pa

    dataset = lance.write_dataset(pa.table({"key": [1, 2]}), f"{folder}/warm-up.lance", mode="overwrite")
    source = LanceSource.of(TableRef(dataset.uri), dataset, ["key"], 1)
    spark_table(session, source, push_filters=True).createOrReplaceTempView("warm_up")
    query = "SELECT key % 2 AS odd, count(*) AS many FROM warm_up WHERE key > 0 GROUP BY key % 2"
    frame = session.sql(query)
    frame.mapInArrow(_same, frame.schema).collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
