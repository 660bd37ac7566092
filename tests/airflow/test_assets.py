"""Lance tables as assets: one spelling each, a factory, and lineage."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar, cast

import pytest

from airflow_provider_lance.assets.lance import (
    assets_of,
    convert_asset_to_openlineage,
    create_alias,
    create_asset,
    table_of,
)
from airflow_provider_lance.decorators.lance import lance_task
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.table import LanceCreateTableOperator
from tests.airflow.conftest import NewDag, RunDag

pytestmark = pytest.mark.usefixtures("airflow_home")


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("lance://Prod/sales/orders", "lance://prod/sales/orders"),
        ("lance://user:secret@prod/t", "lance://prod/t"),
        ("lance://prod/a%2Fb", "lance://prod/a%2Fb"),
        ("lance://prod:2333/t/", "lance://prod:2333/t"),
    ],
)
def test_a_table_has_one_spelling(written: str, stored: str) -> None:
    from airflow.sdk import Asset

    asset = Asset(uri=written, name="x")
    assert asset.uri == stored


@pytest.mark.parametrize("uri", ["lance:///t", "lance://prod", "lance://prod/"])
def test_what_names_no_table_is_refused(uri: str) -> None:
    from urllib.parse import urlsplit

    from airflow_provider_lance.assets.lance import sanitize_uri

    with pytest.raises(ValueError, match="Lance asset"):
        sanitize_uri(urlsplit(uri))


def test_the_factory_names_the_asset_as_its_uri() -> None:
    asset = create_asset(authority="Prod", table_id="a/b$c", extra={"owner": "search"})
    assert asset.name == asset.uri == "lance://prod/a%2Fb/c"
    assert table_of(asset) == ("prod", ["a/b", "c"])
    assert asset.extra == {"owner": "search"}


def test_only_outlets_of_the_same_table_are_found() -> None:
    from airflow.sdk import Asset

    mine, other = create_asset(authority="x", table_id=["a", "b"]), create_asset(authority="x", table_id=["b"])
    assert assets_of([other, Asset("s3://bucket/a/b"), mine], ["a", "b"]) == [mine]


def test_openlineage_speaks_of_the_same_table() -> None:
    pytest.importorskip("openlineage.client")
    dataset = convert_asset_to_openlineage(create_asset(authority="prod", table_id=["a", "b"]), None)
    assert dataset is not None
    assert (dataset.namespace, dataset.name) == ("lance://prod", "a/b")


class DescribingHook:
    """Answers as our server does; stands in for a namespace with a view and a computed column."""

    class resolved:
        settings = None
        implementation = "test"
        default_authority = "test"
        asset_authority: ClassVar[str | None] = None

    def parse_id(self, text: str) -> list[str]:
        return text.split("$")

    def call(self, operation: str, fields: dict[str, Any]) -> dict[str, Any]:
        if operation == "describe_materialized_view":
            return {
                "source_table": "people",
                "projections": [
                    {"output_column": "id", "expression": "id"},
                    {"output_column": "shout", "expression": "upper(text) || id"},
                ],
                "source_version": 7,
            }
        inputs = {"computed_column.inputs": '["text", "id"]'}
        return {"schema": {"fields": [{"name": "id"}, {"name": "text"}, {"name": "n", "metadata": inputs}]}}


def test_column_lineage_of_views_and_backfills() -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from airflow_provider_lance.tasks.lineage import computed_inputs, lineage_facets, view_lineage, view_sources

    hook: Any = DescribingHook()
    assert computed_inputs(hook, ["people"], "n") == ["text", "id"]
    (source,) = view_sources(hook, ["ns", "v"])
    assert (source.table_id, source.refreshed_version) == (["ns", "people"], 7)
    lineage = view_lineage(hook, ["ns", "v"])
    assert {(edge.output, edge.input) for edge in lineage.edges} == {("id", "id"), ("shout", "text"), ("shout", "id")}
    facets = lineage_facets(hook, [create_asset(authority="prod", table_id=["ns", "v"])], lineage)
    assert facets is not None
    assert [(dataset.namespace, dataset.name) for dataset in facets.inputs] == [("lance://prod", "ns/people")]
    (output,) = facets.outputs
    assert output.name == "ns/v"
    facet: Any = (output.facets or {})["columnLineage"]
    columns = facet.fields
    assert {field.field for field in columns["shout"].inputFields} == {"text", "id"}


def test_one_table_has_one_name_in_lineage_whichever_task_speaks_of_it() -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from airflow_provider_lance.tasks.lineage import TableLineage, lineage_facets

    class NamedHook(DescribingHook):
        class resolved(DescribingHook.resolved):
            asset_authority = "prod"

    hook: Any = NamedHook()
    asset = create_asset(authority="prod", table_id=["a/b", "c"])
    expected = convert_asset_to_openlineage(asset, None)
    assert expected is not None
    lineage = TableLineage(output=["a/b", "c"], inputs=[["a", "b", "c"]])
    for assets in ([], [asset], [create_asset(authority="elsewhere", table_id=["x"])]):
        facets = lineage_facets(hook, assets, lineage)
        assert facets is not None
        assert (facets.outputs[0].namespace, facets.outputs[0].name) == (expected.namespace, expected.name)
        assert facets.inputs[0].name != facets.outputs[0].name, "two tables, two names"


def test_lineage_of_a_view_over_several_tables() -> None:
    from airflow_provider_lance.tasks.lineage import TableLineage, view_lineage, view_sources

    class JoiningHook(DescribingHook):
        sources: ClassVar[list[dict[str, Any]]] = [
            {"name": "people", "table_id": ["ns", "people"], "version": 7},
            {"name": "pets", "table_id": ["pets"]},
        ]

        def call(self, operation: str, fields: dict[str, Any]) -> dict[str, Any]:
            assert operation == "describe_materialized_view"
            return {"source_table": "", "projections": [], "sources": self.sources}

    hook: Any = JoiningHook()
    found = [(source.table_id, source.refreshed_version) for source in view_sources(hook, ["ns", "v"])]
    assert found == [(["ns", "people"], 7), (["pets"], None)]
    assert view_lineage(hook, ["ns", "v"]) == TableLineage(output=["ns", "v"], inputs=[["ns", "people"], ["pets"]])


def test_a_template_in_an_assets_name_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="create_alias"):
        create_asset(authority="prod", table_id="{{ params.table }}")


def test_five_mapped_tables_make_five_events_each_with_its_version(
    run_dag: RunDag, new_dag: NewDag, tables: str
) -> None:
    names = [f"t{uuid.uuid4().hex[:8]}" for _ in range(5)]
    shared = create_asset(authority="prod", table_id=names[0])
    with new_dag() as dag:
        create = LanceCreateTableOperator.partial(
            task_id="create", schema={"id": "int64"}, outlets=[create_alias(authority="prod")]
        ).expand(table_id=names)
        add = LanceAddColumnsOperator.partial(task_id="add", expressions={"twice": "id * 2"}, outlets=[shared]).expand(
            table_id=names
        )
        create >> add
    run = run_dag(dag)
    assert run.state == "success"
    first = run.asset_extras(f"lance://prod/{names[0]}")
    assert sorted(extra["version"] for extra in first) == [1, 2], "the other tables write no event of this one"
    for name in names[1:]:
        assert run.asset_extras(f"lance://prod/{name}") == [{"version": 1}]


def test_a_templated_table_yields_the_event_of_that_table(run_dag: RunDag, new_dag: NewDag, tables: str) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    other = create_asset(authority="prod", table_id=f"x{name}")
    with new_dag(params={"table": name}) as dag:
        LanceCreateTableOperator(
            task_id="create",
            table_id="{{ params.table }}",
            schema={"id": "int64"},
            outlets=[create_asset(authority="prod", table_id=name), other],
        )
    run = run_dag(dag)
    assert run.state == "success"
    assert run.asset_extras(f"lance://prod/{name}") == [{"version": 1}]
    assert run.asset_extras(other.uri) == []


def test_a_function_that_writes_tables_yields_their_events(run_dag: RunDag, new_dag: NewDag, tables: str) -> None:
    declared, found = (f"t{uuid.uuid4().hex[:8]}" for _ in range(2))
    with new_dag() as dag:

        def load(*, namespace: Any) -> None:
            import pyarrow as pa

            for name in (declared, found):
                namespace.create_table({"id": [name]}, pa.table({"id": [1]}))

        outlets = [create_asset(authority="prod", table_id=declared), create_alias(authority="other")]
        cast("Any", lance_task)(outlets=outlets)(load)()
    run = run_dag(dag)
    assert run.state == "success"
    assert run.asset_extras(f"lance://prod/{declared}") == [{"version": 1}]
    assert run.asset_extras(f"lance://other/{found}") == [{"version": 1}]
