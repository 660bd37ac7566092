"""Credentials that a namespace vends with its answers: for whoever opens the table, never for a log or an XCom."""

from __future__ import annotations

from typing import Any


def without_credentials(value: Any) -> Any:
    """Plain data, at any depth without the credentials a namespace vends beside a table's address."""
    if isinstance(value, dict):
        return {key: without_credentials(item) for key, item in value.items() if key != "storage_options"}
    return [without_credentials(item) for item in value] if isinstance(value, list) else value
