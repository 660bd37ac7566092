"""Commits of Lance's own, stopped right before their version is created: what ``create_table_version`` is asked."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.namespace import SparkNamespace
from tests.namespace.people import PEOPLE


class Stager(LanceNamespace):
    """Stands where Lance expects a namespace, and keeps the first staged manifest instead of creating its version."""

    def __init__(self, namespace: SparkNamespace) -> None:
        self._namespace = namespace
        self.request: dict[str, Any] = {}

    def namespace_id(self) -> str:
        return "stager"

    def describe_table(self, request: Any) -> Any:
        return self._namespace.describe_table(request)

    def list_table_versions(self, request: Any) -> Any:
        return self._namespace.list_table_versions(request)

    def create_table_version(self, request: Any) -> Any:
        self.request = self.request or dict(request)
        raise InvalidInputError("kept for the test")


def stage(namespace: SparkNamespace, rows: pa.Table = PEOPLE, table: str = "people", **fields: Any) -> dict[str, Any]:
    """A real commit of Lance's, stopped right before its version is created."""
    stager = Stager(namespace)
    with pytest.raises(OSError, match="Commit result for version"):
        lance.write_dataset(rows, namespace_client=stager, table_id=[table], mode="append", **fields)
    return stager.request
