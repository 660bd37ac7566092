"""The open namespace: tables, versions, columns, views and jobs under one root, in process and behind a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_lance.namespace.spark_namespace import SparkNamespace

__all__ = ["SparkNamespace"]


def __getattr__(name: str) -> type[SparkNamespace]:
    # This import waits for its first use: pylance takes a second to load, and other modules here do not need it.
    if name == "SparkNamespace":
        from airflow_provider_lance.namespace.spark_namespace import SparkNamespace

        return SparkNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
