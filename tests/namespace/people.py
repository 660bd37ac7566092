"""What the tests of the namespace share: a namespace with recorded jobs, and Arrow data as bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from airflow_provider_lance.api.arrow import read_arrow
from airflow_provider_lance.namespace import SparkNamespace
from tests.namespace.recording_jobs import RecordingJobs

T = TypeVar("T")

PEOPLE = pa.table({"id": [1, 2, 3], "text": ["a", "bb", "ccc"]})


def stream(table: pa.Table) -> bytes:
    """An Arrow IPC stream, as clients send it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def present(value: T | None) -> T:
    """What an answer's model may leave out and this answer has."""
    assert value is not None
    return value


def queried(data: object) -> pa.Table:
    """The rows in the data of a query's answer."""
    assert isinstance(data, bytes)
    return read_arrow(data)


def make_namespace(root: Path | str, jobs: Any = None, **properties: str) -> SparkNamespace:
    return SparkNamespace(jobs, workers=None, root=str(root), **properties)


def with_people(root: Path, jobs: RecordingJobs | None = None, **properties: str) -> SparkNamespace:
    """A namespace with the table ``people``."""
    namespace = make_namespace(root, jobs, **properties)
    namespace.create_table({"id": ["people"]}, stream(PEOPLE))
    return namespace


def files_below(directory: Path) -> set[str]:
    """Every file and folder below a directory."""
    return {os.path.join(folder, name) for folder, folders, files in os.walk(directory) for name in (*folders, *files)}
