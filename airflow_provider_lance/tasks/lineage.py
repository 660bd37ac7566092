"""Which tables, files and columns a task reads and writes, as plain values and as OpenLineage facets.

The namespace tells them. OpenLineage is imported only when Airflow asks for facets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import JobType
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.assets.lance import SCHEME, asset_path, assets_of, table_of
from airflow_provider_lance.tasks.outlets import asset_authority

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        DatasetFacet,
        Fields,
        RunFacet,
        SchemaDatasetFacetFields,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import OutputDatasetFacet

    from airflow_provider_lance.api.jobs import JobSpec
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
    """The tables and files that are read to write the table ``output``, and the columns where they are known.

    ``version`` and ``rows`` say what the task wrote, where that is known.
    """

    output: list[str]
    inputs: list[list[str]] = field(default_factory=list)
    edges: list[ColumnEdge] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    branch: str | None = None
    version: int | None = None
    rows: int | None = None


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


def backfill_lineage(
    hook: LanceNamespaceHook, table_id: list[str], column: str, branch: str | None = None
) -> TableLineage:
    """The lineage of a backfill: its table, and the input columns of its column."""
    edges = [ColumnEdge(column, table_id, name) for name in computed_inputs(hook, table_id, column, branch)]
    return TableLineage(output=table_id, inputs=[table_id], edges=edges, branch=branch)


def job_lineage(hook: LanceNamespaceHook, job: JobSpec) -> TableLineage:
    """The lineage of a job of any kind."""
    if job.job_type == JobType.REFRESH.value:
        return view_lineage(hook, job.table_id)
    branch = job.request.get("branch")
    if job.job_type == JobType.BACKFILL.value:
        return backfill_lineage(hook, job.table_id, str(job.request.get("column")), branch)
    return TableLineage(output=job.table_id, branch=branch)


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
    return _named_columns(hook, source_id, projections)


def added_columns_lineage(
    hook: LanceNamespaceHook, table_id: list[str], expressions: Mapping[str, str], names: Iterable[str]
) -> TableLineage:
    """The lineage of columns that were added: those of an expression, and those whose rule the table keeps."""
    edges = _named_columns(hook, table_id, expressions)
    for name in names:
        if name not in expressions:
            edges += [ColumnEdge(name, table_id, each) for each in computed_inputs(hook, table_id, name)]
    return TableLineage(output=table_id, inputs=[table_id], edges=edges)


def _named_columns(hook: LanceNamespaceHook, source_id: list[str], expressions: Mapping[str, str]) -> list[ColumnEdge]:
    """The columns of a table that occur as words in expressions."""
    columns = {str(entry.get("name")) for entry in _schema(hook, source_id).get("fields") or []}
    return [
        ColumnEdge(output, source_id, word)
        for output, expression in expressions.items()
        for word in dict.fromkeys(found.strip('`"') for found in _WORD.findall(expression))
        if word in columns
    ]


def file_dataset(path: str) -> tuple[str, str]:
    """The namespace and the name of a file or folder, as OpenLineage names them: ``s3://bucket`` and its key."""
    uri = urlsplit(path)
    if not uri.scheme or uri.scheme == "file":
        return "file", uri.path if uri.scheme else path
    return f"{uri.scheme}://{uri.netloc.rpartition('@')[2]}", uri.path.strip("/") or "/"


def lineage_facets(hook: LanceNamespaceHook, assets: Iterable[object], lineage: TableLineage) -> TaskLineage | None:
    """The lineage as Airflow's OpenLineage provider expects it; ``None`` where that provider is not installed."""
    try:
        from airflow.providers.common.compat.openlineage.facet import (
            ColumnLineageDatasetFacet,
            Dataset,
            Fields,
            InputField,
            OutputDataset,
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
    facets = _schema_facet(hook, lineage)
    if fields:
        facets["columnLineage"] = ColumnLineageDatasetFacet(fields=fields)
    # A dataset is named as convert_asset_to_openlineage names the asset of the same table.
    inputs = [Dataset(namespace=namespace, name=asset_path(table_id)) for table_id in lineage.inputs]
    inputs += [Dataset(*file_dataset(path)) for path in lineage.files]
    written = OutputDataset(
        namespace=namespace,
        name=asset_path(lineage.output),
        facets={**facets, **_version_facet(lineage.version)},
        outputFacets=_figures(lineage.rows),
    )
    return OperatorLineage(inputs=inputs, outputs=[written])


def applied_facets(
    hook: LanceNamespaceHook, assets: Iterable[object], written: Iterable[TableLineage]
) -> TaskLineage | None:
    """The lineage of a task that wrote several tables; ``None`` where the OpenLineage provider is not installed."""
    listed = list(assets)
    found = [facets for lineage in written if (facets := lineage_facets(hook, listed, lineage)) is not None]
    if not found:
        return None
    whole = type(found[0])()
    for facets in found:
        whole.inputs += [each for each in facets.inputs if each not in whole.inputs]
        whole.outputs += facets.outputs
    return whole


def located_facets(
    outlets: Iterable[object], table_id: list[str], location: str, *, version: int | None, rows: int | None
) -> TaskLineage | None:
    """The lineage of a table that no namespace names: as its asset among the outlets, else as the place of its files.

    ``None`` where Airflow's OpenLineage provider is not installed.
    """
    try:
        from airflow.providers.common.compat.openlineage.facet import OutputDataset
        from airflow.providers.openlineage.extractors import OperatorLineage
    except ImportError:
        return None
    named = next((table_of(asset) for asset in assets_of(outlets, table_id)), None)
    namespace, name = file_dataset(location) if named is None else (f"{SCHEME}://{named[0]}", asset_path(named[1]))
    output = OutputDataset(
        namespace=namespace, name=name, facets=dict(_version_facet(version)), outputFacets=_figures(rows)
    )
    return OperatorLineage(outputs=[output])


def _figures(rows: int | None) -> dict[str, OutputDatasetFacet]:
    from airflow.providers.common.compat.openlineage.facet import OutputStatisticsOutputDatasetFacet

    return {} if rows is None else {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=rows)}


def _version_facet(version: int | None) -> dict[str, DatasetFacet]:
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    return {} if version is None else {"version": DatasetVersionDatasetFacet(datasetVersion=str(version))}


def _schema_facet(hook: LanceNamespaceHook, lineage: TableLineage) -> dict[str, DatasetFacet]:
    """The columns of the written table; nothing where they are not known."""
    from airflow.providers.common.compat.openlineage.facet import SchemaDatasetFacet

    try:
        columns = _schema(hook, lineage.output, lineage.branch).get("fields")
    except WireError:  # lineage is not worth a failure
        columns = None
    return {"schema": SchemaDatasetFacet(fields=[_schema_field(column) for column in columns])} if columns else {}


def _schema_field(column: JsonObject) -> SchemaDatasetFacetFields:
    """A described column, whose type has the columns of a struct and the items of a list in its ``fields``."""
    from airflow.providers.common.compat.openlineage.facet import SchemaDatasetFacetFields

    described = column.get("type")
    whole = described if isinstance(described, Mapping) else {"type": described}
    kind = whole.get("type")
    return SchemaDatasetFacetFields(
        name=str(column.get("name")),
        type=None if kind is None else str(kind),
        fields=[_schema_field(child) for child in whole.get("fields") or []],
    )


def _schema(hook: LanceNamespaceHook, table_id: list[str], branch: str | None = None) -> JsonObject:
    described = hook.call("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION})
    schema = described.get("schema") or described.get("var_schema")
    return schema if isinstance(schema, dict) else {}
