"""Job operators on a namespace that lives in the worker: our own, whose jobs a server on the same registry executes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.engine.views.commit_next import ViewTable
from airflow_provider_lance.engine.views.publish import write_bookmark
from airflow_provider_lance.functions import UdfColumn
from airflow_provider_lance.hooks.lance import LanceNamespaceHook
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.jobs.database import sqlite_url
from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.materialized_view import (
    LanceCreateMaterializedViewOperator,
    LanceRefreshMaterializedViewOperator,
)
from airflow_provider_lance.operators.tag import LanceCreateTagOperator, LanceUpdateTagOperator
from airflow_provider_lance.operators.version import LanceCreateTableVersionOperator, stage_version
from airflow_provider_lance.sensors.job import LanceJobSensor
from airflow_provider_lance.storage.manifests import version_timestamp
from airflow_provider_lance.storage.view_state import Outcome, SourcePoint
from airflow_provider_lance.tasks.lineage import computed_inputs
from tests.airflow.conftest import NewDag, RunDag, connection
from tests.namespace.conftest import QUICK
from tests.namespace.people import PEOPLE, stream, with_people
from tests.namespace.server_process import ServerProcess

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("airflow_home")]


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ServerProcess]:
    """Executes the jobs; ``lance_default`` is the in-process namespace on the same tables and the same registry."""
    server = ServerProcess(tmp_path, registry=sqlite_url(tmp_path / "jobs.sqlite"), timings=QUICK).start()
    people: Any = with_people(tmp_path / "lake")
    people.alter_table_add_columns({"id": ["people"], "new_columns": [{"name": "n", "computed": "length(text)"}]})
    kind = f"{SparkNamespace.__module__.rpartition('.')[0]}.{SparkNamespace.__name__}"
    properties = {"root": str(tmp_path / "lake"), "jobs_url": server.registry, "config": str(tmp_path / "config.toml")}
    extra = {"impl": kind, "properties": properties}
    try:
        with connection("lance_default", json.dumps({"conn_type": "lance", "extra": extra})):
            yield server
    finally:
        server.stop()


def test_backfills_and_views_by_poking(run_dag: RunDag, new_dag: NewDag, executor: ServerProcess) -> None:
    with new_dag(params={"some": 2}) as dag:
        fill = LanceBackfillColumnOperator(
            task_id="fill", table_id="people", column="n", concurrency="{{ params.some }}", deferrable=True
        )
        create = LanceCreateMaterializedViewOperator(
            task_id="create", table_id="loud", query="SELECT id, upper(text) AS shout FROM people"
        )
        refresh = LanceRefreshMaterializedViewOperator(task_id="refresh", table_id="loud", full=True)
        submit = LanceBackfillColumnOperator(
            task_id="submit", table_id="people", column="n", where="id > 1", wait_for_completion=False
        )
        wait = LanceJobSensor(task_id="wait", job_id=submit.output, poke_interval=0.2, deferrable=True)
        fill >> create >> refresh >> submit >> wait
    run = run_dag(dag)
    assert run.state == "success"
    jobs = {task: executor.job(run.xcom(task)["job_id"]) for task in ("fill", "create", "refresh", "submit")}
    assert {job["job_state"] for job in jobs.values()} == {"DONE"}
    assert {task: job["spec"]["request"] for task, job in jobs.items()} == {
        "fill": {"column": "n", "concurrency": 2},
        "create": {},
        "refresh": {"full": True},
        "submit": {"column": "n", "where": "id > 1"},
    }
    assert run.xcom("fill")["result"]["rows_assigned"] == 1000  # by the driver without Spark, which makes figures up
    assert run.xcom("wait")["job_id"] == run.xcom("submit")["job_id"]
    assert run.xcom("create")["table_id"] == ["loud"]


def test_what_the_namespace_refuses_is_said_in_one_sentence(executor: ServerProcess) -> None:
    hook = LanceNamespaceHook()
    cases: list[tuple[str, dict[str, object], str]] = [
        ("refresh_materialized_view", {"id": ["loud"], "concurrency": "2"}, "concurrency: input should be a valid int"),
        ("create_materialized_view", {"id": ["loud"], "query": "DROP TABLE people"}, "query must be a SELECT"),
        ("create_materialized_view", {"id": ["loud"]}, "create_materialized_view: kind: input should be"),
    ]
    for operation, fields, sentence in cases:
        with pytest.raises(WireError, match=sentence) as refused:
            hook.call(operation, fields)
        assert refused.value.code == 13
        assert "\n" not in str(refused.value)
        assert str(refused.value).count(operation) == 1


def test_the_inputs_of_every_kind_of_column_are_found(
    run_dag: RunDag, new_dag: NewDag, executor: ServerProcess
) -> None:
    with new_dag() as dag:
        LanceAddColumnsOperator(
            task_id="declare",
            table_id="people",
            virtual={"loud": UdfColumn("os.path:basename", inputs=["text", "id"], type="string")},
        )
    assert run_dag(dag).state == "success"
    hook = LanceNamespaceHook()
    assert computed_inputs(hook, ["people"], "loud") == ["text", "id"]
    assert computed_inputs(hook, ["people"], "n") == ["text"]
    assert computed_inputs(hook, ["people"], "text") == []


def test_columns_of_a_branch_are_added_once(run_dag: RunDag, new_dag: NewDag, executor: ServerProcess) -> None:
    namespace: Any = LanceNamespaceHook().get_conn()
    namespace.create_table_branch({"id": ["people"], "name": "work"})
    columns: dict[str, Any] = {"table_id": "people", "expressions": {"twice": "id * 2"}, "if_exists": "skip"}
    with new_dag() as dag:
        branch = LanceAddColumnsOperator(task_id="branch", branch="work", **columns)
        again = LanceAddColumnsOperator(task_id="again", branch="work", **columns)
        main = LanceAddColumnsOperator(task_id="main", **columns)
        branch >> again >> main
    run = run_dag(dag)
    assert run.state == "success"
    assert {task: run.xcom(task)["added"] for task in ("branch", "again", "main")} == {
        "branch": ["twice"],
        "again": [],
        "main": ["twice"],
    }


def test_a_version_is_skipped_where_it_is_there_and_not_where_it_cannot_be(
    run_dag: RunDag, new_dag: NewDag, executor: ServerProcess
) -> None:
    namespace: Any = LanceNamespaceHook().get_conn()
    staged = stage_version(namespace, ["people"], lambda table: table.delete("id = 1"))
    namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE.append_column("n", pa.nulls(3, pa.int32()))))
    newest = namespace.describe_table({"id": ["people"], "load_detailed_metadata": True}).version
    assert newest == staged["version"], "somebody else was faster"
    with new_dag() as dag:
        LanceCreateTableVersionOperator(task_id="lost", table_id="people", staged=staged, if_exists="skip")
        LanceCreateTableVersionOperator(task_id="late", table_id="people", staged=staged, if_exists="skip_task")
        LanceCreateTableVersionOperator(
            task_id="beyond", table_id="people", staged=staged, version=newest + 2, if_exists="skip_task"
        )
    run = run_dag(dag)
    assert run.task_state("lost") == "failed", "the version that is there is another one"
    assert run.task_state("late") == "skipped"
    assert run.task_state("beyond") == "failed"


def test_a_tag_on_a_branch_is_followed_to_its_branch(run_dag: RunDag, new_dag: NewDag, executor: ServerProcess) -> None:
    namespace: Any = LanceNamespaceHook().get_conn()
    namespace.create_table_branch({"id": ["people"], "name": "work"})
    namespace.delete_from_table({"id": ["people"], "branch": "work", "predicate": "id = 1"})
    namespace.delete_from_table({"id": ["people"], "predicate": "id > 0"})  # main has a version of that number too
    with new_dag() as dag:
        candidate = LanceCreateTagOperator(task_id="candidate", table_id="people", tag="candidate", branch="work")
        create = LanceCreateTagOperator(task_id="create", table_id="people", tag="copy", version="candidate")
        away = LanceUpdateTagOperator(task_id="away", table_id="people", tag="production", create_if_missing=True)
        move = LanceUpdateTagOperator(
            task_id="move", table_id="people", tag="production", version="candidate", branch="work"
        )
        other = LanceUpdateTagOperator(
            task_id="other", table_id="people", tag="production", version="candidate", branch="main"
        )
        candidate >> create >> away >> move >> other
    run = run_dag(dag)
    assert run.task_state("other") == "failed"
    tags = namespace.list_table_tags({"id": ["people"]}).tags
    assert {name: tag.branch for name, tag in tags.items()} == dict.fromkeys(
        ["candidate", "copy", "production"], "work"
    )
    created = run.xcom("create")["version"]
    assert created == run.xcom("candidate")["version"] == run.xcom("move")["version"]


def test_a_view_over_two_tables_is_skipped_only_while_both_stay(
    run_dag: RunDag, new_dag: NewDag, executor: ServerProcess
) -> None:
    namespace: Any = LanceNamespaceHook().get_conn()
    namespace.create_table({"id": ["pets"]}, stream(PEOPLE))
    query = "SELECT a.id FROM people a JOIN pets b ON a.id = b.id"
    namespace.create_materialized_view({"id": ["joined"], "query": query, "with_no_data": True})
    points = {}
    for name in ("people", "pets"):
        table = namespace._catalog.table([name])
        version = table.open().version
        points[name] = SourcePoint(version, version_timestamp(table, version))
    view = namespace._catalog.table(["joined"])
    write_bookmark(ViewTable(view), view.open().version, Outcome(points, "rebuild"), "job")

    def refresh() -> str:
        with new_dag() as dag:
            LanceRefreshMaterializedViewOperator(task_id="refresh", table_id="joined", skip_if_unchanged=True)
        return run_dag(dag).task_state("refresh")

    assert refresh() == "skipped"
    namespace.insert_into_table({"id": ["pets"]}, stream(PEOPLE))
    assert refresh() == "success"
