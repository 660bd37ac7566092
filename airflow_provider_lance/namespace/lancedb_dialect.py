"""Where LanceDB's client reads an answer otherwise than the spec has it; its name is in its ``User-Agent``.

Most of its dialect fits beside the spec's in one answer and is always sent. Here is what does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER


def speaks_lancedb(headers: Mapping[str, str]) -> bool:
    return headers.get("user-agent", "").startswith("LanceDB-")


def to_lancedb(operation: str, value: Any) -> Any:
    """The answer's value as LanceDB's client reads it."""
    if not isinstance(value, dict):
        return value
    if operation == "list_table_tags":
        return value.get("tags") or {}  # the bare map
    if operation == "list_all_tables":
        # It lists a database, which is the root, and takes a joined id for an invalid name.
        return {**value, "tables": [name for name in value["tables"] if DEFAULT_DELIMITER not in name]}
    if operation == "update_table":
        return {**value, "rows_updated": value.get("updated_rows", 0)}
    return value
