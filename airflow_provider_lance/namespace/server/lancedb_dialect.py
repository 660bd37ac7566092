"""The answers that LanceDB's client reads in another form than the spec's. Its ``User-Agent`` names it.

Most fields of its dialect fit beside the spec's in one answer and are always sent. These answers are the exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER
from airflow_provider_lance.api.operations import LanceDBAnswer

#: Answers with this header tell LanceDB's client that the server takes structured full-text queries and several vectors
#: in one query. Without it the client sends the words of such a query alone. From 0.4.0 on it writes in several parts,
#: which this server does not take.
DIALECT_HEADER = ("phalanx-version", "0.3.0")

#: What LanceDB's client asks for and this server does not have. A bare 404 would be shown as a missing table.
_NOT_HERE = {
    r"/v1/table/[^/]+/branches/(diff|cherry_pick)": "Branches are neither compared nor picked from here. Merge the "
    "rows of a branch with merge_insert, or read both.",
    r"/v1/table/[^/]+/(\w+_)?lsm(_\w+)?": "This server has no LSM writers. Write with add or merge_insert.",
    r"/v1/table/[^/]+/clone": "This server clones no tables, because a shallow clone reads files outside of its own "
    "folder. Create a table and add the rows.",
    r"/v1/table/[^/]+/multipart_write(/\w+)?": "This server takes a write in one request, as `phalanx-version` says.",
    r"/v1/view/.*|/v1/namespace/[^/]+/view/list": "A stored view is read with Flight SQL, which this server does not "
    "have. Create a materialized view instead.",
}


def not_here(path: str) -> str | None:
    """The sentence for a route of LanceDB's that this server does not have; None for any other path."""
    return next((sentence for pattern, sentence in _NOT_HERE.items() if re.fullmatch(pattern, path)), None)


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
