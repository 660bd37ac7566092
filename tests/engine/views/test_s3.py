"""Views on object storage: the same refresh, the same fence, with vended credentials that no plan shows."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.job.context import JobContext
from airflow_provider_lance.engine.views.job import run_refresh
from tests.engine.view_world import create_view, no_spark, people


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="lake")
    yield {**keys, "aws_region": "us-east-1", "aws_endpoint": endpoint, "allow_http": "true"}
    server.stop()


class Lake:
    def __init__(self, options: dict[str, str]) -> None:
        self.options, self.root = options, f"s3://lake/{uuid.uuid4().hex}"

    def path(self, name: str) -> str:
        return f"{self.root}/{name}.lance"

    def open(self, name: str) -> lance.LanceDataset:
        return lance.dataset(self.path(name), storage_options=self.options)

    def write(self, data: pa.Table, **mode: Any) -> None:
        lance.write_dataset(data, self.path("people"), storage_options=self.options, **mode)

    def refresh(
        self, make_spark: Callable[[], SparkSession] = no_spark, name: str = "view", **request: Any
    ) -> dict[str, Any]:
        spec = JobSpec(
            "refresh_materialized_view", [name], self.path(name), request, tables={"people": self.path("people")}
        )
        return run_refresh(JobContext(spec, make_spark, storage_options=self.options, job_id=uuid.uuid4().hex))


@pytest.fixture
def lake(s3: dict[str, str]) -> Lake:
    lake = Lake(s3)
    lake.write(people(range(20)), enable_stable_row_ids=True, max_rows_per_file=5)
    definition = ViewDefinition.from_request({"query": "SELECT id, upper(text) AS shout FROM people WHERE id % 2 = 0"})
    create_view(lake.path("view"), definition, lake.open, storage_options=s3)
    return lake


def test_refreshes_on_s3_are_incremental_and_fenced(lake: Lake) -> None:
    assert lake.refresh()["rows_written"] == 10
    lake.write(people(range(20, 30)), mode="append")
    lake.open("people").delete("id = 0")
    outcomes: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: outcomes.append(lake.refresh())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 3
    assert set(lake.open("view").to_table()["id"].to_pylist()) == set(range(2, 30, 2))
    assert lake.open("view").count_rows() == 14
    assert lake.refresh()["mode"] == "no_op"


def test_spark_workers_read_and_write_s3_with_the_jobs_credentials(lake: Lake, spark: SparkSession) -> None:
    result = lake.refresh(lambda: spark, concurrency=2)
    assert result["rows_written"] == 10
    definition = ViewDefinition.from_request({"query": "SELECT id % 3 AS k, count(*) AS n FROM people GROUP BY id % 3"})
    create_view(lake.path("counts"), definition, lake.open, storage_options=lake.options)
    assert lake.refresh(lambda: spark, "counts")["rows_written"] == 3
    assert Counter(lake.open("counts").to_table()["n"].to_pylist()) == {6: 1, 7: 2}
