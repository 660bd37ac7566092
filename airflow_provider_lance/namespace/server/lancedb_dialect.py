"""The answers that LanceDB's client reads in another form than the spec's. Its ``User-Agent`` names it.

Most fields of its dialect fit beside the spec's in one answer and are always sent. These answers are the exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER
from airflow_provider_lance.api.operations import LanceDBAnswer

#: Answers with this header tell LanceDB's client that the server takes structured full-text queries and several vectors
#: in one query. Without it the client sends the words of such a query alone. From 0.4.0 on it writes in several parts,
#: which this server does not take.
DIALECT_HEADER = ("phalanx-version", "0.3.0")


def speaks_lancedb(headers: Mapping[str, str]) -> bool:
    return headers.get("user-agent", "").startswith("LanceDB-")


def to_lancedb(kind: LanceDBAnswer | None, value: object) -> object:
    """The answer's value as LanceDB's client reads it."""
    if not isinstance(value, dict):
        return value
    if kind is LanceDBAnswer.TAGS:
        return value.get("tags") or {}
    if kind is LanceDBAnswer.ROOT_TABLES:
        return {**value, "tables": [name for name in value["tables"] if DEFAULT_DELIMITER not in name]}
    if kind is LanceDBAnswer.ROWS_UPDATED:
        return {**value, "rows_updated": value.get("updated_rows", 0)}
    return value
