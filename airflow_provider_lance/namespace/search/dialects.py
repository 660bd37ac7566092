"""Translates the dialects in which clients write a query to that of the spec.

LanceDB's client sends a bare list as ``vector`` (empty: a plain scan), a list or a map as ``columns`` and
``{"query": …, "columns": […]}`` as ``full_text_query``; the spec wraps each in an object of its own. The client writes
one text for several columns (``multi_match``) with the columns beside it, and the spec a query for each column.
"""

from __future__ import annotations

from collections.abc import Mapping

from lance_namespace.errors import InvalidInputError

# LanceDB asks for all rows with 2^63 - 1, and pylance counts rows in 32 bits.
_MOST_ROWS = (1 << 31) - 1


def read_query(fields: Mapping[str, object]) -> dict[str, object]:
    """A query's fields in the spec's dialect."""
    wrapped = fields.get("query")
    if isinstance(wrapped, Mapping):  # ExplainTableQueryPlan has its query in a field.
        return {**fields, "query": read_query(wrapped)}
    query = {key: value for key, value in fields.items() if value is not None}
    query["vector"] = _vector(query.get("vector"))
    columns = query.get("columns")
    if isinstance(columns, list):
        query["columns"] = {"column_names": columns}
    elif isinstance(columns, Mapping) and not {"column_names", "column_aliases"} & set(columns):
        query["columns"] = {"column_aliases": columns}
    text = query.get("full_text_query")
    if isinstance(text, Mapping) and "query" in text:
        wanted = text["query"]
        query["full_text_query"] = (
            {"string_query": {"query": wanted, "columns": text.get("columns") or None}}
            if isinstance(wanted, str)
            else {"structured_query": {"query": _full_text(wanted)}}
        )
    k = query.setdefault("k", 10)
    if isinstance(k, int):
        query["k"] = min(k, _MOST_ROWS)
    return query


def _full_text(query: object) -> object:
    """A structured full-text query, with each ``multi_match`` in the spec's form."""
    if isinstance(query, list):
        return [_full_text(part) for part in query]
    if not isinstance(query, Mapping):
        return query
    return {key: _match_queries(value) if key == "multi_match" else _full_text(value) for key, value in query.items()}


def _match_queries(multi: object) -> object:
    if not isinstance(multi, Mapping) or not isinstance(multi.get("columns"), list):
        return multi
    columns, boosts = multi["columns"], multi.get("boost")
    if not isinstance(boosts, list):
        boosts = [boosts or 1.0] * len(columns)
    if len(boosts) != len(columns):
        raise InvalidInputError(f"multi_match has {len(columns)} columns and {len(boosts)} boosts.")
    common = {"terms": multi.get("query"), "operator": multi.get("operator")}
    return {
        "match_queries": [
            {"column": column, "boost": boost, **common} for column, boost in zip(columns, boosts, strict=True)
        ]
    }


def _vector(vector: object) -> Mapping[str, object]:
    if vector is None or vector == []:
        return {}
    if isinstance(vector, Mapping):
        return vector
    if isinstance(vector, list):
        return {"multi_vector": vector} if isinstance(vector[0], list) else {"single_vector": vector}
    raise InvalidInputError("vector must be a list of numbers.")
