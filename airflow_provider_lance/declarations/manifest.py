"""A manifest: what a catalog has, as a file of declarations that ``LanceTaskGroup`` reads while a DAG is parsed.

It has the rules of columns and the queries of views, with what they read. It has no functions and no loaded columns, so
it says in which order columns and views are computed, and cannot be applied to a namespace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id, parse_id
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.declarations.namespace_state import Namespace, TableState, list_rows, read_table, read_view
from airflow_provider_lance.declarations.yaml_file import MANIFEST
from airflow_provider_lance.definitions import column_rules as rules

FORMAT = 1
# A description is a request or a read of a manifest; eight at once keep neither a server nor a bucket busy.
_AT_ONCE = 8


def table_ids(namespace: Namespace, below: Sequence[str], *, nested: bool) -> list[list[str]]:
    """The tables and views of a namespace; with ``nested`` also those of the namespaces inside it."""
    if nested:
        found = [parse_id(name) for name in list_rows(namespace, "list_all_tables", {})]
        return sorted(table_id for table_id in found if table_id[: len(below)] == list(below))
    names = list_rows(namespace, "list_tables", {"id": list(below)})
    return sorted([*below, parse_id(name)[-1]] for name in names)


def make_manifest(namespace: Namespace, ids: Iterable[Sequence[str]], place: str) -> JsonObject:
    """The manifest of these tables and views. One that was dropped meanwhile is left out."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        states = list(pool.map(lambda table_id: read_table(namespace, table_id), ids))
        present = [state for state in states if state is not None and state.version is not None]
        described = list(pool.map(lambda state: _view(namespace, state) if state.is_view else None, present))
    found = list(zip(present, described, strict=True))
    return {
        MANIFEST: {"format": FORMAT, "of": place, "written": datetime.now(UTC).isoformat(timespec="seconds")},
        "tables": {join_id(state.id): _table(state) for state, view in found if view is None},
        "views": {join_id(state.id): view for state, view in found if view is not None},
    }


def _table(state: TableState) -> JsonObject:
    """The rules of a table's columns. A rule of a kind that only its own system can compute is left out."""
    computed: dict[str, str] = {}
    virtual: dict[str, JsonObject] = {}
    groups: dict[str, str] = {}
    for name, metadata in state.rules.items():
        if metadata.get(rules.COMPUTED) == "true" and metadata.get(rules.COMPUTED_KIND, "sql") == "sql":
            computed[name] = metadata.get(rules.COMPUTED_EXPRESSION, "")
        elif metadata.get(rules.VIRTUAL) == "true":
            owner = groups.setdefault(metadata.get(rules.VIRTUAL_GROUP) or name, name)
            entry = virtual.setdefault(owner, _function(metadata))
            entry["outputs"].append({"column": name})
    return {key: value for key, value in (("computed", computed), ("virtual", virtual)) if value}


def _function(metadata: dict[str, str]) -> JsonObject:
    try:
        definition = json.loads(metadata.get(rules.VIRTUAL_DEFINITION) or "{}")
    except ValueError:
        definition = {}
    known = {key: definition[key] for key in ("input_columns", "udf_name", "udf_version") if definition.get(key)}
    return {**known, "outputs": []}


def _view(namespace: Namespace, state: TableState) -> JsonObject | None:
    stored = read_view(namespace, state)
    if stored is None:
        return None
    view: JsonObject = {"query": stored.query or "SELECT"}
    try:
        sources = namespace.call("describe_materialized_view", {"id": list(state.id)}).get("sources") or []
    except WireError:
        return view  # a server that does not tell the sources; they are found in the query
    if sources and all(source.get("table_id") for source in sources):
        view["sources"] = [list(source["table_id"]) for source in sources]
    return view
