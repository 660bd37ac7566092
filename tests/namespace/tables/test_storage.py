"""The same namespace on object storage, from many threads, and beside a registry of jobs."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import lance_namespace
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.jobs.database import sqlite_url
from tests.namespace.people import PEOPLE, make_namespace, present, stream, with_people
from tests.namespace.recording_jobs import RecordingJobs
from tests.namespace.staging import stage


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """An S3 server on this machine, and the storage options that reach it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield {
        "aws_endpoint": f"http://127.0.0.1:{port}",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hush-hush",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    server.stop()


@pytest.fixture
def bucket(s3: dict[str, str]) -> str:
    import boto3

    name = f"b{uuid.uuid4().hex[:12]}"
    boto3.client(
        "s3",
        endpoint_url=s3["aws_endpoint"],
        aws_access_key_id="key",
        aws_secret_access_key="hush-hush",
        region_name="us-east-1",
    ).create_bucket(Bucket=name)
    return f"s3://{name}/lake"


class TestObjectStorage:
    def test_tables_versions_columns_and_views(self, s3: dict[str, str], bucket: str) -> None:
        jobs = RecordingJobs()
        namespace = make_namespace(bucket, jobs, **{f"storage.{key}": value for key, value in s3.items()})
        namespace.create_namespace({"id": ["team"]})
        for table_id in (["people"], ["team", "people"]):
            namespace.create_table({"id": table_id, "properties": {"a": "b"}}, stream(PEOPLE))
            described = namespace.describe_table({"id": table_id})
            assert present(described.location).startswith(bucket)
            assert (described.version, present(described.metadata)["stable_row_ids"]) == (1, "true")
            assert described.properties == {"a": "b"}
            assert described.storage_options is None, "our credentials are nobody else's"
            lance.write_dataset(
                PEOPLE, namespace_client=namespace, table_id=table_id, mode="append", storage_options=s3
            )
            assert namespace.count_table_rows({"id": table_id}).count == 6
        namespace.declare_table({"id": ["placed"], "location": f"{bucket}/elsewhere"})
        namespace.create_table({"id": ["placed"]}, stream(PEOPLE))
        assert namespace.describe_table({"id": ["placed"]}).location == f"{bucket}/elsewhere"
        namespace.alter_table_add_columns(
            {"id": ["people"], "new_columns": [{"name": "n", "computed": "length(text)"}]}
        )
        namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"})
        namespace.create_materialized_view({"id": ["loud"], "query": "SELECT id FROM people", "with_no_data": False})
        assert namespace.list_materialized_views({}).views == ["loud"]
        backfill, refresh = jobs.submissions
        assert "hush" not in repr(backfill) + repr(refresh), "credentials never enter a spec"
        assert namespace.storage_options_for(backfill.spec.table_id) == s3
        with pytest.raises(UnsupportedOperationError, match="object stores"):
            namespace.rename_table({"id": ["people"], "new_table_name": "x"})
        jobs.end("job-1")
        namespace.deregister_table({"id": ["people"]})
        with pytest.raises(TableNotFoundError):
            namespace.describe_table({"id": ["people"]})
        namespace.register_table({"id": ["people"], "location": "people.lance"})
        assert namespace.count_table_rows({"id": ["people"]}).count == 6
        namespace.drop_namespace({"id": ["team"], "behavior": "cascade"})
        assert namespace.list_all_tables({}).tables == ["loud", "people", "placed"]

    def test_a_version_is_checked_and_made_once(self, s3: dict[str, str], bucket: str) -> None:
        namespace = make_namespace(bucket, **{f"storage.{key}": value for key, value in s3.items()})
        namespace.create_table({"id": ["people"]}, stream(PEOPLE))
        mine, theirs = (stage(namespace, storage_options=s3) for _ in range(2))
        made = namespace.create_table_version({**mine, "metadata": {"who": "me"}})
        assert present(made.version).metadata == {"who": "me"}
        assert namespace.create_table_version({**mine, "metadata": {"who": "me"}}) == made
        with pytest.raises(ConcurrentModificationError):
            namespace.create_table_version(theirs)
        with pytest.raises(InvalidInputError, match="no staged manifest"):
            namespace.create_table_version({**theirs, "version": 3, "manifest_path": theirs["manifest_path"] + "x"})
        assert namespace.count_table_rows({"id": ["people"]}).count == 6

    def test_every_first_insert_is_in_the_table(self, s3: dict[str, str], bucket: str) -> None:
        namespace = make_namespace(bucket, **{f"storage.{key}": value for key, value in s3.items()})
        namespace.declare_table({"id": ["people"]})
        ready = threading.Barrier(3)

        def insert(_: int) -> int:
            ready.wait()
            return present(namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE)).version)

        with ThreadPoolExecutor(3) as pool:
            assert sorted(pool.map(insert, range(3))) == [1, 2, 3]
        assert namespace.count_table_rows({"id": ["people"]}).count == 9


class TestThreads:
    def test_one_of_many_creates_wins(self, tmp_path: Path) -> None:
        namespace = SparkNamespace(root=str(tmp_path))
        ready = threading.Barrier(8)

        def create(number: int) -> str:
            ready.wait()
            try:
                namespace.create_table({"id": ["same"]}, stream(PEOPLE.slice(0, 1 + number % 3)))
            except (TableAlreadyExistsError, ConcurrentModificationError):
                return "lost"
            return "won"

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(create, range(8)))
        assert outcomes.count("won") == 1
        assert namespace.describe_table({"id": ["same"]}).version == 1

    def test_many_threads_on_many_tables(self, tmp_path: Path) -> None:
        namespace = with_people(tmp_path)
        namespace.create_namespace({"id": ["team"]})

        def live(number: int) -> int:
            table_id = ["team", f"t{number}"]
            namespace.create_table({"id": table_id}, stream(PEOPLE))
            namespace.insert_into_table({"id": table_id}, stream(PEOPLE))
            namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
            namespace.create_table_tag({"id": table_id, "tag": "now", "version": 2})
            rows = namespace.count_table_rows({"id": table_id}).count
            if number % 2:
                namespace.drop_table({"id": table_id})
            return present(rows)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(live, range(24))) == [6] * 24
        assert len(namespace.list_tables({"id": ["team"]}).tables) == 12
        assert namespace.count_table_rows({"id": ["people"]}).count == 3 + 24 * 3


class TestJobsUrl:
    def test_jobs_are_submitted_to_the_registry(self, tmp_path: Path) -> None:
        properties = {"root": str(tmp_path / "lake"), "jobs_url": sqlite_url(tmp_path / "jobs.sqlite")}
        namespace = lance_namespace.connect("airflow_provider_lance.namespace.SparkNamespace", properties)
        assert isinstance(namespace, SparkNamespace)
        namespace.create_table({"id": ["people"]}, stream(PEOPLE))
        namespace.alter_table_add_columns(
            {"id": ["people"], "new_columns": [{"name": "n", "computed": "length(text)"}]}
        )
        request = {"id": ["people"], "column": "n", "context": {"idempotency-key": "once"}}
        job_id = namespace.alter_table_backfill_columns(request).job_id
        assert namespace.alter_table_backfill_columns(request).job_id == job_id
        another = lance_namespace.connect("airflow_provider_lance.namespace.SparkNamespace", properties)
        assert isinstance(another, SparkNamespace)
        with pytest.raises(ConcurrentModificationError):
            another.alter_table_backfill_columns({"id": ["people"], "column": "n"})
        with pytest.raises(InvalidInputError, match="moon"):
            another.alter_table_backfill_columns({"id": ["people"], "column": "n", "cluster": "moon"})
        assert another.describe_transaction({"id": [job_id]}).status == "Queued"
        another.cancel_job({"job_id": job_id})
        assert namespace.describe_job({"job_id": job_id}).job_state == "CANCELLED"
        namespace.close()
        another.close()
