"""What flows where: tables and columns of a backfill or a view, and the same as OpenLineage facets.

The facts come from the namespace and are plain values; OpenLineage itself is imported only when Airflow asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.assets.lance import SCHEME, table_of
from airflow_provider_lance.hooks.lance import LanceNamespaceHook
from airflow_provider_lance.triggers.position import WITH_VERSION

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
    """A view's source table, what the view takes of it, and the version it was last refreshed from."""

    table_id: list[str]
    projections: dict[str, str]
    refreshed_version: int | None


def computed_inputs(hook: LanceNamespaceHook, table_id: list[str], column: str) -> list[str]:
    """The input columns of a computed or virtual column, as the table's schema declares them."""
    for entry in _schema(hook, table_id).get("fields") or []:
        if entry.get("name") != column:
            continue
        metadata = entry.get("metadata") or {}
        for key in ("computed_column.inputs", "virtual_column.inputs", "virtual_column.udf_inputs"):
            try:
                names = json.loads(metadata.get(key) or "null")
            except ValueError:
                continue
            if isinstance(names, list):
                return [str(name) for name in names]
    return []


def view_source(hook: LanceNamespaceHook, view_id: list[str]) -> ViewSource | None:
    """What the namespace tells about a view; ``None`` if it has no single source table."""
    described = hook.call("describe_materialized_view", {"id": view_id})
    name = described.get("source_table")
    if not isinstance(name, str) or not name:
        return None
    parts = hook.parse_id(name)
    projections = {
        str(item["output_column"]): str(item["expression"])
        for item in described.get("projections") or []
        if isinstance(item, dict) and "output_column" in item and "expression" in item
    }
    version = described.get("source_version")
    if version is None:
        version = (_schema(hook, view_id).get("metadata") or {}).get("mv.source_version")
    return ViewSource(
        table_id=parts if len(parts) > 1 else [*view_id[:-1], *parts],
        projections=projections,
        refreshed_version=int(version) if version is not None and str(version).isdigit() else None,
    )


def view_lineage(hook: LanceNamespaceHook, view_id: list[str]) -> TableLineage:
    """From the source's columns to the view's, by the names its expressions use."""
    try:
        source = view_source(hook, view_id)
    except WireError:
        source = None
    if source is None:
        return TableLineage(output=view_id, inputs=[])
    columns = {str(entry.get("name")) for entry in _schema(hook, source.table_id).get("fields") or []}
    edges = [
        ColumnEdge(output, source.table_id, word)
        for output, expression in source.projections.items()
        for word in dict.fromkeys(found.strip('`"') for found in _WORD.findall(expression))
        if word in columns
    ]
    return TableLineage(output=view_id, inputs=[source.table_id], edges=edges)


def lineage_facets(hook: LanceNamespaceHook, outlets: Iterable[Any], lineage: TableLineage) -> Any:
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
    namespace = f"{SCHEME}://{_authority(hook, outlets)}"

    def name(table_id: list[str]) -> str:
        return "/".join(table_id)

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


def _authority(hook: LanceNamespaceHook, outlets: Iterable[Any]) -> str:
    """The word the task's own assets use for this namespace, else its host."""
    for outlet in outlets:
        named = table_of(outlet)
        if named is not None:
            return named[0]
    settings = hook.resolved.settings
    return (urlsplit(settings.base_url).netloc if settings is not None else hook.resolved.implementation).lower()


def _schema(hook: LanceNamespaceHook, table_id: list[str]) -> dict[str, Any]:
    described = hook.call("describe_table", {"id": table_id, **WITH_VERSION})
    schema = described.get("schema") or described.get("var_schema")
    return schema if isinstance(schema, dict) else {}
