"""Requests to load files: what becomes a job, with which lock and key, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, TableAlreadyExistsError, UnsupportedOperationError

from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from tests.namespace.people import with_people
from tests.namespace.recording_jobs import RecordingJobs


@pytest.fixture
def jobs() -> RecordingJobs:
    return RecordingJobs()


@pytest.fixture
def namespace(tmp_path: Path, jobs: RecordingJobs) -> Any:
    return with_people(tmp_path, jobs)


def test_a_write_becomes_a_job_with_its_key_and_the_version_before_it(namespace: Any, jobs: RecordingJobs) -> None:
    version = namespace.describe_table({"id": ["people"], "load_detailed_metadata": True}).version
    body = {"id": ["people"], "path": "s3://landing/*.parquet", "context": {"idempotency-key": "run-1"}}
    job_id = namespace.write_table(body).job_id
    (submitted,) = jobs.submissions
    assert submitted.spec.job_type == "write"
    assert submitted.spec.request == {"path": "s3://landing/*.parquet"}
    assert (submitted.spec.write_key, submitted.spec.write_after) == ("run-1", version)
    assert submitted.locks == (), "appends run side by side"
    assert submitted.user_code == "", "its driver may be used again"
    jobs.end(job_id)
    namespace.insert_into_table({"id": ["people"]}, _arrow([99]))
    namespace.write_table(body)
    assert jobs.submissions[1].spec.write_after == version, "where the first one began"


def test_a_table_that_is_not_there_is_declared(namespace: Any, jobs: RecordingJobs) -> None:
    namespace.write_table({"id": ["new"], "path": "/data/in", "mode": "create"})
    (submitted,) = jobs.submissions
    assert submitted.spec.location.endswith("new.lance")
    assert namespace.describe_table({"id": ["new"], "check_declared": True}).is_only_declared


def test_what_replaces_rows_runs_alone(namespace: Any, jobs: RecordingJobs) -> None:
    namespace.write_table({"id": ["people"], "path": "/data/in", "mode": "overwrite"})
    with pytest.raises(JobConflictError):
        namespace.write_table({"id": ["people"], "path": "/data/other", "mode": "upsert", "on": "id"})
    namespace.write_table({"id": ["people"], "path": "/data/other"})
    assert len(jobs.submissions) == 2


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "path"),
        ({"path": "in/*.parquet"}, "must be absolute, or a URI"),
        ({"path": "/data/in", "mode": "add"}, "mode is 'add'"),
        ({"path": "/data/in", "mode": "upsert"}, "needs `on`"),
        ({"path": "/data/in", "mode": "upsert", "on": ["nr"]}, "`on` names 'nr'"),
        ({"path": "/data/in", "file_format": "orc"}, "file_format is one of"),
        ({"path": "/data/in", "max_rows_per_file": 0}, "1 or more"),
        ({"path": "/data/in", "pth": 1}, "did you mean `path`"),
        ({"path": "/data/in", "cluster": "moon"}, "There is no cluster"),
    ],
)
def test_a_wrong_request_is_refused_and_starts_nothing(
    namespace: Any, jobs: RecordingJobs, fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        namespace.write_table({"id": ["people"], **fields})
    assert told in str(refused.value)
    assert not jobs.submissions


def test_a_table_with_rows_cannot_be_created(namespace: Any, jobs: RecordingJobs) -> None:
    with pytest.raises(TableAlreadyExistsError):
        namespace.write_table({"id": ["people"], "path": "/data/in", "mode": "create"})
    assert not jobs.submissions


def test_without_a_jobs_service_nothing_is_declared(tmp_path: Path) -> None:
    namespace: Any = SparkNamespace(root=str(tmp_path))
    with pytest.raises(UnsupportedOperationError):
        namespace.write_table({"id": ["new"], "path": "/data/in"})
    assert namespace.list_tables({"id": [], "include_declared": True}).tables == []


def test_a_cluster_may_say_which_folders_its_jobs_read(tmp_path: Path) -> None:
    from airflow_provider_lance.namespace.config import ConfigError, ServerConfig
    from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
    from airflow_provider_lance.namespace.jobs.service import JobsService

    section = {"input_paths": ["s3://landing/in", "/data"]}
    config = ServerConfig.from_dict({"clusters": {"local": section}})
    service = JobsService(Database(sqlite_url(tmp_path / "jobs.sqlite")), config, directory=tmp_path, namespace_url="")
    for path in ("s3://landing/in/day=1/*.parquet", "/data/x.csv", "/data"):
        service.check_input(None, path)
    for path in ("s3://landing/inner/x", "/database/x", "/data/../etc/passwd", "s3://other/x"):
        with pytest.raises(InvalidInputError, match="may not read"):
            service.check_input("local", path)
    service.close()
    with pytest.raises(ConfigError, match="absolute path or a URI"):
        ServerConfig.from_dict({"clusters": {"local": {"input_paths": ["data"]}}})


def _arrow(ids: list[int]) -> bytes:
    import pyarrow as pa

    from tests.namespace.people import stream

    return stream(pa.table({"id": pa.array(ids, pa.int64()), "text": ["x"] * len(ids)}))
