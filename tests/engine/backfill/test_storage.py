"""The same backfill on S3 with vended credentials, and on a table whose versions a namespace manages."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace

from tests.engine.backfills import Interleaving, assert_filled, backfill, declare, length_plus_id, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class S3(NamedTuple):
    options: dict[str, str]
    client: Any


class LosingNamespace(LanceNamespace):
    """A namespace whose next ``lose`` answers to commits get lost."""

    lose = 0


class Managed(NamedTuple):
    """A table whose versions a namespace manages; ``created`` are the versions it was asked to create."""

    namespace: LosingNamespace
    created: list[int]
    uri: str


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """A bucket of moto's server: real HTTP, conditional writes included."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_region": "us-east-1",
        "aws_endpoint": f"http://{host}:{port}",
        "allow_http": "true",
    }
    boto3: Any = importlib.import_module("boto3")  # it has no types

    client = boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lake")
    yield S3(options, client)
    server.stop()


def test_s3_by_storage_options(spark: SparkSession, s3: S3) -> None:
    options, client = s3
    uri = f"s3://lake/{uuid.uuid4().hex}/t.lance"
    dataset = people(uri, storage_options=options)
    declare(dataset, "n", "length(text) + id")
    result = backfill(spark, uri, "n", storage_options=options, checkpoint_size=4, task_size=7, commit_granularity=6)
    assert (result["rows_assigned"], result["rows_remaining"]) == (100, 0)
    rows = lance.dataset(uri, storage_options=options).to_table().to_pylist()
    assert all(row["n"] == length_plus_id(row) for row in rows)
    assert backfill(None, uri, "n", storage_options=options)["rows_assigned"] == 0
    prefix = uri.removeprefix("s3://lake/") + "/_backfill/"
    left = client.list_objects_v2(Bucket="lake", Prefix=prefix)["Contents"]
    assert [entry["Key"].rpartition("/")[2] for entry in left] == ["fresh.json"]


@pytest.fixture
def managed(tmp_path: Path) -> Managed:
    from lance.namespace import DirectoryNamespace

    directory: Callable[..., Any] = DirectoryNamespace

    inner: Any = directory(root=str(tmp_path), table_version_tracking_enabled="true", manifest_enabled="true")
    created: list[int] = []

    class Counting(LosingNamespace):
        def namespace_id(self) -> str:
            return "counting"

        def describe_table(self, request: Any) -> Any:
            return inner.describe_table(request)

        def list_table_versions(self, request: Any) -> Any:
            return inner.list_table_versions(request)

        def describe_table_version(self, request: Any) -> Any:
            return inner.describe_table_version(request)

        def create_table_version(self, request: Any) -> Any:
            answer = inner.create_table_version(dict(request))
            created.append(request["version"])
            if self.lose:
                self.lose -= 1
                raise ConnectionError("the answer got lost")
            return answer

    table = pa.table({"id": pa.array(range(40), pa.int64()), "text": ["x" * (i % 7) for i in range(40)]})
    dataset = lance.write_dataset(table, namespace_client=inner, table_id=["t"], mode="create", max_rows_per_file=10)
    declare(dataset, "n", "length(text) + id")
    return Managed(Counting(), created, dataset.uri)


def test_a_managed_table_is_committed_through_its_namespace(spark: SparkSession, managed: Managed) -> None:
    namespace, created, uri = managed
    result = backfill(spark, uri, "n", namespace=namespace, managed=True, commit_granularity=2)
    assert result["rows_assigned"] == 40
    assert created == [3, 4]
    assert_filled(uri)


def test_a_commit_whose_answer_was_lost_is_recognised(spark: SparkSession, managed: Managed) -> None:
    namespace, _, uri = managed
    namespace.lose = 1
    result = backfill(spark, uri, "n", namespace=namespace, managed=True)
    assert (result["rows_assigned"], result["published_version"]) == (40, 3)
    assert lance.dataset(uri).version == 3
    assert_filled(uri)


def test_conflicts_on_a_managed_table(spark: SparkSession, managed: Managed) -> None:
    namespace, _, uri = managed

    def update() -> None:
        dataset = lance.dataset(namespace_client=namespace, table_id=["t"])
        dataset.update({"text": "'changed'"}, where="id = 13")

    result = backfill(spark, uri, "n", namespace=namespace, managed=True, reporter=Interleaving(update))
    assert result["rows_remaining"] == 0
    assert_filled(uri)
