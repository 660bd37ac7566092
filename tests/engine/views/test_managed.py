"""Views whose versions the namespace creates: the fence stands in front of it, in process and over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.namespace import DirectoryNamespace, RestAdapter
from lance_namespace import DeclareTableRequest, DescribeTableRequest, LanceNamespace

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.commit_client import CommitClient
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.job.context import JobContext
from airflow_provider_lance.engine.views.commit_next import ViewMovedError, ViewTable, commit_next
from airflow_provider_lance.engine.views.job import run_refresh
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.view_table import empty_view
from tests.engine.view_world import create_view, no_spark, people

TRACKED = {"table_version_tracking_enabled": "true"}


@pytest.fixture(params=["in process", "over HTTP"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LanceNamespace]:
    if request.param == "in process":
        yield DirectoryNamespace(root=str(tmp_path), **TRACKED)  # type: ignore[no-untyped-call]
        return
    from airflow_provider_lance.api.settings import Settings

    adapter = RestAdapter("dir", {"root": str(tmp_path), **TRACKED}, port=0)
    adapter.start()  # type: ignore[no-untyped-call]
    try:
        yield LanceClient(Settings.from_connection(host=f"http://127.0.0.1:{adapter.port}"))
    finally:
        adapter.stop()  # type: ignore[no-untyped-call]


def _open(namespace: LanceNamespace, name: str) -> lance.LanceDataset:
    return lance.dataset(namespace_client=namespace, table_id=[name])


def test_a_managed_view_is_created_refreshed_and_fenced(namespace: LanceNamespace, tmp_path: Path) -> None:
    for name in ("people", "view"):
        namespace.declare_table(DeclareTableRequest(id=[name]))
    lance.write_dataset(
        people(range(10)), namespace_client=namespace, table_id=["people"], mode="append", enable_stable_row_ids=True
    )
    definition = ViewDefinition.from_request({"query": "SELECT id FROM people WHERE id % 2 = 0"})
    described = {name: namespace.describe_table(DescribeTableRequest(id=[name])) for name in ("people", "view")}
    locations = {name: str(answer.location).removeprefix("file://") for name, answer in described.items()}
    empty, _ = empty_view(definition, lambda name: _open(namespace, name))
    # A declared table exists without a version: "create" would refuse it.
    created = lance.write_dataset(
        empty, namespace_client=namespace, table_id=["view"], mode="append", enable_stable_row_ids=True
    )
    assert created.version == 1
    # A driver commits with a client that imports no models.
    commits: Any = CommitClient(namespace.settings) if isinstance(namespace, LanceClient) else namespace

    def refresh() -> dict[str, Any]:
        spec = JobSpec(
            "refresh_materialized_view",
            ["view"],
            locations["view"],
            managed=True,
            tables={"people": locations["people"]},
        )
        return run_refresh(JobContext(spec, no_spark, connect=lambda: commits))

    assert refresh()["rows_written"] == 5
    lance.write_dataset(people([10, 12]), namespace_client=namespace, table_id=["people"], mode="append")
    result = refresh()
    assert (result["mode"], result["rows_written"], result["version"]) == ("incremental", 2, 5)
    view = _open(namespace, "view")
    assert [row["id"] for row in view.to_table().sort_by("id").to_pylist()] == [0, 2, 4, 6, 8, 10, 12]
    assert view.version == 5

    table = ViewTable(TableRef(locations["view"]), lambda: commits, ("view",), managed=True)
    stale = lance.LanceOperation.Update(new_fragments=[], updated_fragments=[], removed_fragment_ids=[])
    with pytest.raises(ViewMovedError, match="from version 3 to 5"):
        commit_next(table, 3, stale, {})
    assert _open(namespace, "view").version == 5


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_view_in_a_nested_namespace_is_fenced_without_its_namespace(tmp_path: Path, prefix: str) -> None:
    """Nested tables lie in directories such as ``5553a3ef_team$view``."""
    source, view = str(tmp_path / "people.lance"), f"{prefix}{tmp_path}/5553a3ef_team$view"
    lance.write_dataset(people(range(10)), source, enable_stable_row_ids=True)
    create_view(view, ViewDefinition.from_request({"query": "SELECT id FROM people"}), lambda _: lance.dataset(source))
    spec = JobSpec("refresh_materialized_view", ["team", "view"], view, tables={"people": source})
    assert run_refresh(JobContext(spec, no_spark))["rows_written"] == 10
    lance.write_dataset(people([10]), source, mode="append")
    assert run_refresh(JobContext(spec, no_spark))["mode"] == "incremental"

    table = ViewTable(TableRef(view))
    outcomes: list[int | str] = []

    def commit() -> None:
        new = lance.fragment.write_fragments(lance.dataset(view).to_table(), view)
        operation = lance.LanceOperation.Update(new_fragments=new, updated_fragments=[], removed_fragment_ids=[])
        try:
            outcomes.append(commit_next(table, 5, operation, {}))
        except ViewMovedError:
            outcomes.append("moved")

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [6, "moved", "moved", "moved"]
    assert lance.dataset(view).count_rows() == 22
    assert not [path for path in Path(view.removeprefix("file://"), "_versions").iterdir() if "manifest-" in path.name]
