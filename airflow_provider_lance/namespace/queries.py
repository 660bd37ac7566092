"""The dialects in which clients write a query, read into the spec's one.

LanceDB's client sends a bare list as ``vector`` (empty: a plain scan), a list or a map as ``columns`` and
``{"query": …, "columns": […]}`` as ``full_text_query``; the spec wraps each in an object of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lance_namespace.errors import InvalidInputError

# LanceDB asks for "everything" with 2^63 - 1; pylance counts rows in 32 bits.
_MOST_ROWS = (1 << 31) - 1
#: Operations whose body is a query, or holds one under ``query``.
QUERIES = frozenset({"query_table", "explain_table_query_plan", "analyze_table_query_plan"})


def read_query(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A query's fields in the spec's dialect; what is in it already stays as it is."""
    if isinstance(fields.get("query"), Mapping):  # explain wraps its query
        return {**fields, "query": read_query(fields["query"])}
    query = {key: value for key, value in fields.items() if value is not None}
    query["vector"] = _vector(query.get("vector"))
    if isinstance(query.get("columns"), list):
        query["columns"] = {"column_names": query["columns"]}
    elif isinstance(query.get("columns"), Mapping) and not {"column_names", "column_aliases"} & set(query["columns"]):
        query["columns"] = {"column_aliases": query["columns"]}
    text = query.get("full_text_query")
    if isinstance(text, Mapping) and "query" in text:
        wanted = text["query"]
        query["full_text_query"] = (
            {"string_query": {"query": wanted, "columns": text.get("columns") or None}}
            if isinstance(wanted, str)
            else {"structured_query": {"query": wanted}}
        )
    k = query.setdefault("k", 10)
    if isinstance(k, int):
        query["k"] = min(k, _MOST_ROWS)
    return query


def _vector(vector: Any) -> Mapping[str, Any]:
    if vector is None or vector == []:
        return {}
    if isinstance(vector, Mapping):
        return vector
    if isinstance(vector, list):
        return {"multi_vector": vector} if isinstance(vector[0], list) else {"single_vector": vector}
    raise InvalidInputError("vector must be a list of numbers.")
