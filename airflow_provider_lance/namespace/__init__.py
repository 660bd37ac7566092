"""The open namespace: tables, versions, columns, views and jobs under one root, in process and behind a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_lance.namespace.namespace import SparkNamespace

__all__ = ["SparkNamespace"]


def __getattr__(name: str) -> Any:
    # Lazily: the package is imported for its small modules too, and pylance takes a second to load.
    if name == "SparkNamespace":
        from airflow_provider_lance.namespace.namespace import SparkNamespace

        return SparkNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
