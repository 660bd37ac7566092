"""The OpenLineage datasets of tasks in real DAGs, as Airflow's own extractor reads them, and hook-level lineage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.declarations import LanceTable, LanceView
from airflow_provider_lance.decorators.lance import lance_task
from airflow_provider_lance.hooks.lance import LanceNamespaceHook
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.operators.apply import LanceApplyOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.table import LanceCreateEmptyTableOperator, LanceCreateTableOperator
from airflow_provider_lance.operators.write import LanceWriteOperator, write_rows
from airflow_provider_lance.tasks.lineage import file_dataset, located_facets
from tests.airflow.conftest import NewDag, RunDag, connection, rest_connection

pytest.importorskip("airflow.providers.openlineage")
pytestmark = [pytest.mark.usefixtures("airflow_home"), pytest.mark.timeout(120)]


class Extracted:
    """What Airflow's OpenLineage provider extracts from tasks when they succeed."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}

    def __call__(self, context: Any) -> None:
        from airflow.providers.openlineage.extractors import ExtractorManager
        from airflow.utils.state import TaskInstanceState

        task, ti = context["task"], context["ti"]
        manager = ExtractorManager()  # type: ignore[no-untyped-call]
        found = manager.extract_metadata(context["dag_run"], task, TaskInstanceState.SUCCESS, ti)
        self.of[task.task_id] = found

    def names(self, task_id: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        found = self.of[task_id]
        return tuple([(each.namespace, each.name) for each in side] for side in (found.inputs, found.outputs))  # type: ignore[return-value]


@pytest.fixture
def extracted() -> Extracted:
    return Extracted()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow's collector of hook lineage, which it makes where a plugin reads it."""
    from airflow.sdk import lineage, plugins_manager

    monkeypatch.setattr(plugins_manager, "get_hook_lineage_readers_plugins", lambda: [object()])
    lineage.get_hook_lineage_collector.cache_clear()
    yield
    lineage.get_hook_lineage_collector.cache_clear()


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def test_creating_adding_and_writing_report_one_table_under_one_name(
    run_dag: RunDag, new_dag: NewDag, rest_adapter: str, extracted: Extracted, table: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [3, 4], "text": ["c", "d"]}), tmp_path / "part-1.parquet")
    with new_dag(default_args={"on_success_callback": extracted}) as dag:
        declare = LanceCreateEmptyTableOperator(task_id="declare", table_id=f"{table}x")
        create = LanceCreateTableOperator(
            task_id="create", table_id=table, data=lambda: pa.table({"id": [1, 2], "text": ["a", "b"]})
        )
        add = LanceAddColumnsOperator(task_id="add", table_id=table, expressions={"twice": "id * 2"})
        write = LanceWriteOperator(
            task_id="write",
            table_id=table,
            path=f"{tmp_path}/part-*.parquet",
            outlets=[create_asset(authority="prod", table_id=table)],
        )
        declare >> create >> add >> write
    with connection("lance_default", rest_connection(rest_adapter, asset_authority="prod")):
        run = run_dag(dag)
    assert run.state == "success"
    mine = ("lance://prod", table)
    assert extracted.names("declare") == ([], [("lance://prod", f"{table}x")])
    assert extracted.names("create") == ([], [mine])
    assert extracted.names("add") == ([mine], [mine])
    assert extracted.names("write") == ([("file", f"{tmp_path}/")], [mine])

    (created,) = extracted.of["create"].outputs
    assert [(field.name, field.type) for field in created.facets["schema"].fields] == [
        ("id", "int64"),
        ("text", "utf8"),
    ]
    assert created.outputFacets["outputStatistics"].rowCount == 2
    assert created.facets["version"].datasetVersion == str(run.xcom("create")["version"])
    (added,) = extracted.of["add"].outputs
    assert [field.field for field in added.facets["columnLineage"].fields["twice"].inputFields] == ["id"]
    assert "twice" in [field.name for field in added.facets["schema"].fields]
    (written,) = extracted.of["write"].outputs
    assert written.outputFacets["outputStatistics"].rowCount == 2
    assert written.facets["version"].datasetVersion == str(run.xcom("write")["version"])


def test_applying_reports_every_table_and_view_that_it_changed(
    run_dag: RunDag, new_dag: NewDag, people: SparkNamespace, extracted: Extracted
) -> None:
    view = LanceView("long_people", "SELECT id FROM people WHERE n > 1")
    declared = LanceTable("people", computed={"n": "length(text)"}, views=[view])
    new = LanceTable("fresh", schema={"id": "int64"})
    with new_dag(default_args={"on_success_callback": extracted}) as dag:
        first = LanceApplyOperator(task_id="first", declaration=[declared, new])
        first >> LanceApplyOperator(task_id="second", declaration=[declared, new])
    assert run_dag(dag).state == "success"
    inputs, outputs = extracted.names("first")
    assert [name for _, name in inputs] == ["people"]
    assert sorted(name for _, name in outputs) == ["fresh", "long_people", "people"]
    [column] = [each for each in extracted.of["first"].outputs if each.name == "people"]
    [field] = column.facets["columnLineage"].fields["n"].inputFields
    assert (field.name, field.field) == ("people", "text")
    assert column.facets["version"].datasetVersion == "2"
    assert extracted.of["second"] is None or extracted.names("second") == ([], [])


def test_a_function_reports_what_it_opened_and_changed_and_a_retry_writes_once(
    run_dag: RunDag, new_dag: NewDag, rest_adapter: str, extracted: Extracted, collector: None, table: str
) -> None:
    other = f"{table}x"
    asset = create_asset(authority="prod", table_id=table)
    with new_dag(default_args={"on_success_callback": extracted}) as dag:

        def load(*, namespace: Any, ti: Any) -> None:
            namespace.count_table_rows({"id": [other]})
            write_rows(LanceNamespaceHook(), table, [{"id": 1}, {"id": 2}])
            if ti.try_number == 1:
                raise RuntimeError("after the commit")

        seen = LanceCreateTableOperator(task_id="other", table_id=other, schema={"id": "int64"})
        seen >> cast("Callable[..., Any]", lance_task)(outlets=[asset], retries=1, retry_delay=0.0)(load)()
    with connection("lance_default", rest_connection(rest_adapter, asset_authority="prod")):
        run = run_dag(dag)
        assert run.state == "success"
        rows = LanceNamespaceHook().call("count_table_rows", {"id": table})["count"]
        version = LanceNamespaceHook().current_version([table])
    assert rows == 2, "the second try found the commit of the first"
    assert run.asset_extras(asset.uri) == [{"version": version, "rows": 2}]
    inputs, outputs = extracted.names("load")
    assert ("lance://prod", other) in inputs
    assert ("lance://prod", table) in outputs
    assert ("lance://prod", table) not in inputs


@pytest.mark.parametrize(
    ("path", "dataset"),
    [
        ("s3://bucket/a/b/", ("s3://bucket", "a/b")),
        ("s3://my_aws@bucket/a", ("s3://bucket", "a")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("/data/in", ("file", "/data/in")),
        ("file:///data/in", ("file", "/data/in")),
    ],
)
def test_files_are_named_as_openlineage_names_them(path: str, dataset: tuple[str, str]) -> None:
    assert file_dataset(path) == dataset


def test_a_job_without_a_namespace_names_its_table_as_its_asset_or_by_its_place() -> None:
    asset = create_asset(authority="lake", table_id=["numbers"])
    for outlets, name in (([asset], ("lance://lake", "numbers")), ([], ("s3://bucket", "numbers.lance"))):
        found = located_facets(outlets, ["numbers"], "s3://bucket/numbers.lance", version=3, rows=60)
        assert found is not None
        (output,) = cast("Any", found.outputs)
        assert (output.namespace, output.name) == name
        assert output.outputFacets["outputStatistics"].rowCount == 60
