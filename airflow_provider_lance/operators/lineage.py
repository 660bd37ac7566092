"""What flows where: tables and columns of a backfill or a view, and the same as OpenLineage facets.

The facts come from the namespace and are plain values; OpenLineage itself is imported only when Airflow asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.assets.lance import SCHEME, asset_path, table_of

if TYPE_CHECKING:
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|`[^`]+`|\"[^\"]+\"")


@dataclass(frozen=True)
class ColumnEdge:
    """``output`` is computed from the column ``input`` of ``table_id``."""

    output: str
    table_id: list[str]
    input: str


@dataclass(frozen=True)
class TableLineage:
    output: list[str]
    inputs: list[list[str]]
    edges: list[ColumnEdge] = field(default_factory=list)


@dataclass(frozen=True)
class ViewSource:
    """A table a view reads, and the version of it that the view was last refreshed from, where that is known."""

    table_id: list[str]
    refreshed_version: int | None


def computed_inputs(hook: LanceNamespaceHook, table_id: list[str], column: str, branch: str | None = None) -> list[str]:
    """The input columns of a computed or virtual column, as the table's schema declares them."""
    for entry in _schema(hook, table_id, branch).get("fields") or []:
        if entry.get("name") != column:
            continue
        metadata = entry.get("metadata") or {}
        names = _decoded(metadata.get("computed_column.inputs"))
        definition = _decoded(metadata.get("virtual_column.definition"))
        if isinstance(definition, dict):
            names = definition.get("input_columns")
        return [str(name) for name in names] if isinstance(names, list) else []
    return []


def _decoded(text: Any) -> Any:
    """JSON of a field's metadata; ``None`` where there is none, or something else."""
    try:
        return json.loads(text or "null")
    except (TypeError, ValueError):
        return None


def view_sources(hook: LanceNamespaceHook, view_id: list[str]) -> list[ViewSource]:
    """Every table a view reads; empty where the namespace does not tell them all."""
    return _sources(hook, view_id, hook.call("describe_materialized_view", {"id": view_id}))


def _sources(hook: LanceNamespaceHook, view_id: list[str], described: dict[str, Any]) -> list[ViewSource]:
    listed = described.get("sources")
    if isinstance(listed, list) and listed:
        if not all(isinstance(source, dict) and source.get("table_id") for source in listed):
            return []  # one of them is gone
        return [ViewSource(list(source["table_id"]), _version(source.get("version"))) for source in listed]
    # LanceDB's servers name one table, and keep its version in the view's schema.
    name = described.get("source_table")
    if not isinstance(name, str) or not name:
        return []
    parts = hook.parse_id(name)
    version = described.get("source_version")
    if version is None:
        version = (_schema(hook, view_id).get("metadata") or {}).get("mv.source_version")
    return [ViewSource(parts if len(parts) > 1 else [*view_id[:-1], *parts], _version(version))]


def _version(value: Any) -> int | None:
    return int(value) if value is not None and str(value).isdigit() else None


def view_lineage(hook: LanceNamespaceHook, view_id: list[str]) -> TableLineage:
    """From all sources to the view; and from a single source's columns, by the names the view's expressions use."""
    try:
        described = hook.call("describe_materialized_view", {"id": view_id})
        sources = [source.table_id for source in _sources(hook, view_id, described)]
        edges = _projected(hook, sources[0], described) if len(sources) == 1 else []
    except WireError:
        return TableLineage(output=view_id, inputs=[])
    return TableLineage(output=view_id, inputs=sources, edges=edges)


def _projected(hook: LanceNamespaceHook, source_id: list[str], described: dict[str, Any]) -> list[ColumnEdge]:
    projections = {
        str(item["output_column"]): str(item["expression"])
        for item in described.get("projections") or []
        if isinstance(item, dict) and "output_column" in item and "expression" in item
    }
    columns = {str(entry.get("name")) for entry in _schema(hook, source_id).get("fields") or []}
    return [
        ColumnEdge(output, source_id, word)
        for output, expression in projections.items()
        for word in dict.fromkeys(found.strip('`"') for found in _WORD.findall(expression))
        if word in columns
    ]


def lineage_facets(hook: LanceNamespaceHook, assets: Iterable[Any], lineage: TableLineage) -> Any:
    """The ``OperatorLineage`` Airflow's OpenLineage provider expects; ``None`` where that is not installed."""
    try:
        from airflow.providers.common.compat.openlineage.facet import (
            ColumnLineageDatasetFacet,
            Dataset,
            Fields,
            InputField,
        )
        from airflow.providers.openlineage.extractors import OperatorLineage
    except ImportError:
        return None
    namespace = f"{SCHEME}://{_authority(hook, assets)}"
    name = asset_path  # as the converter of assets names the same table
    fields: dict[str, Any] = {}
    for output in dict.fromkeys(edge.output for edge in lineage.edges):
        fields[output] = Fields(
            inputFields=[
                InputField(namespace=namespace, name=name(edge.table_id), field=edge.input)
                for edge in lineage.edges
                if edge.output == output
            ],
            transformationDescription="",
            transformationType="",
        )
    facets: dict[str, Any] = {"columnLineage": ColumnLineageDatasetFacet(fields=fields)} if fields else {}
    return OperatorLineage(
        inputs=[Dataset(namespace=namespace, name=name(table_id)) for table_id in lineage.inputs],
        outputs=[Dataset(namespace=namespace, name=name(lineage.output), facets=facets)],
    )


def _authority(hook: LanceNamespaceHook, assets: Iterable[Any]) -> str:
    """What this namespace is called in assets: the connection's word for it, else the task's assets', else its host."""
    if hook.resolved.asset_authority:
        return hook.resolved.asset_authority
    for asset in assets:
        named = table_of(asset)
        if named is not None:
            return named[0]
    settings = hook.resolved.settings
    return (urlsplit(settings.base_url).netloc if settings is not None else hook.resolved.implementation).lower()


def _schema(hook: LanceNamespaceHook, table_id: list[str], branch: str | None = None) -> dict[str, Any]:
    described = hook.call("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION})
    schema = described.get("schema") or described.get("var_schema")
    return schema if isinstance(schema, dict) else {}
