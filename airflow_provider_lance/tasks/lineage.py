"""Which tables and columns a backfill or a view reads and writes, as plain values and as OpenLineage facets.

The namespace tells them. OpenLineage is imported only when Airflow asks for facets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.assets.lance import SCHEME, asset_path
from airflow_provider_lance.tasks.outlets import asset_authority

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset, DatasetFacet, Fields, RunFacet
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

    TaskLineage = OperatorLineage[Dataset, RunFacet]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|`[^`]+`|\"[^\"]+\"")


@dataclass(frozen=True)
class ColumnEdge:
    """``output`` is computed from the column ``input`` of ``table_id``."""

    output: str
    table_id: list[str]
    input: str


@dataclass(frozen=True)
class TableLineage:
    """The tables that are read to write the table ``output``, and the columns where they are known."""

    output: list[str]
    inputs: list[list[str]]
    edges: list[ColumnEdge] = field(default_factory=list)


@dataclass(frozen=True)
class ViewSource:
    """A table that a view reads, and the version that the view was last refreshed from, where that is known."""

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


def _decoded(text: object) -> object:
    """A value of a field's metadata, decoded from JSON; ``None`` where there is none, or where it is not JSON."""
    try:
        decoded: object = json.loads(text) if isinstance(text, str) and text else None
    except ValueError:
        return None
    return decoded


def view_sources(hook: LanceNamespaceHook, view_id: list[str]) -> list[ViewSource]:
    """Every table that a view reads; empty where the namespace does not tell all of them."""
    return _sources(hook, view_id, hook.call("describe_materialized_view", {"id": view_id}))


def _sources(hook: LanceNamespaceHook, view_id: list[str], described: JsonObject) -> list[ViewSource]:
    listed = described.get("sources")
    if isinstance(listed, list) and listed:
        if not all(isinstance(source, dict) and source.get("table_id") for source in listed):
            return []  # one of the tables does not exist any more
        return [ViewSource(list(source["table_id"]), _version(source.get("version"))) for source in listed]
    # LanceDB's servers name one table and keep its version in the metadata of the view's schema.
    name = described.get("source_table")
    if not isinstance(name, str) or not name:
        return []
    parts = hook.parse_id(name)
    version = described.get("source_version")
    if version is None:
        version = (_schema(hook, view_id).get("metadata") or {}).get("mv.source_version")
    return [ViewSource(parts if len(parts) > 1 else [*view_id[:-1], *parts], _version(version))]


def _version(value: object) -> int | None:
    return int(str(value)) if value is not None and str(value).isdigit() else None


def view_lineage(hook: LanceNamespaceHook, view_id: list[str]) -> TableLineage:
    """The lineage of a view: all its sources, and the columns of a single source that its expressions name."""
    try:
        described = hook.call("describe_materialized_view", {"id": view_id})
        sources = [source.table_id for source in _sources(hook, view_id, described)]
        edges = _projected(hook, sources[0], described) if len(sources) == 1 else []
    except WireError:
        return TableLineage(output=view_id, inputs=[])
    return TableLineage(output=view_id, inputs=sources, edges=edges)


def _projected(hook: LanceNamespaceHook, source_id: list[str], described: JsonObject) -> list[ColumnEdge]:
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


def lineage_facets(hook: LanceNamespaceHook, assets: Iterable[object], lineage: TableLineage) -> TaskLineage | None:
    """The lineage as Airflow's OpenLineage provider expects it; ``None`` where that provider is not installed."""
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
    namespace = f"{SCHEME}://{asset_authority(hook, assets)}"
    fields: dict[str, Fields] = {}
    for output in dict.fromkeys(edge.output for edge in lineage.edges):
        fields[output] = Fields(
            inputFields=[
                InputField(namespace=namespace, name=asset_path(edge.table_id), field=edge.input)
                for edge in lineage.edges
                if edge.output == output
            ],
            transformationDescription="",
            transformationType="",
        )
    facets: dict[str, DatasetFacet] = {"columnLineage": ColumnLineageDatasetFacet(fields=fields)} if fields else {}
    # A dataset is named as convert_asset_to_openlineage names the asset of the same table.
    return OperatorLineage(
        inputs=[Dataset(namespace=namespace, name=asset_path(table_id)) for table_id in lineage.inputs],
        outputs=[Dataset(namespace=namespace, name=asset_path(lineage.output), facets=facets)],
    )


def _schema(hook: LanceNamespaceHook, table_id: list[str], branch: str | None = None) -> JsonObject:
    described = hook.call("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION})
    schema = described.get("schema") or described.get("var_schema")
    return schema if isinstance(schema, dict) else {}
