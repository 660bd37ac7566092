"""``LanceApplyOperator`` and ``LanceTaskGroup`` in real DAGs, against our namespace and pylance's own server."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.declarations import (
    DeclarationError,
    LanceChecks,
    LanceIndex,
    LanceTable,
    LanceView,
)
from airflow_provider_lance.functions import UdfColumn
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.operators.apply import LanceApplyOperator
from airflow_provider_lance.task_groups.lance import LanceTaskGroup
from tests.airflow.conftest import NewDag, RunDag, connection, rest_connection
from tests.airflow.test_hard_times import run_context

pytestmark = [pytest.mark.usefixtures("airflow_home"), pytest.mark.timeout(180)]


def shout(text: str) -> str:
    return text.upper()


PEOPLE = LanceTable(
    "people",
    schema={"id": "int64", "text": "string"},
    computed={"n": "length(text)"},
    virtual={"loud": UdfColumn(shout, ["text"], "string")},
    views=[LanceView("long_people", "SELECT id FROM people WHERE n > 1")],
)


def apply(declaration: Any, **arguments: Any) -> dict[str, Any]:
    done: dict[str, Any] = LanceApplyOperator(task_id="apply", declaration=declaration, **arguments).execute(
        run_context()
    )
    return done


class TestApply:
    def test_in_a_dag_twice_and_as_a_plan(self, people: SparkNamespace, run_dag: RunDag, new_dag: NewDag) -> None:
        asset = create_asset(authority="lake", table_id="people")
        with new_dag() as dag:
            plan = LanceApplyOperator(task_id="plan", declaration=PEOPLE, plan_only="{{ 1 == 1 }}")
            first = LanceApplyOperator(task_id="first", declaration=PEOPLE, outlets=[asset])
            plan >> first >> LanceApplyOperator(task_id="second", declaration=PEOPLE)
        run = run_dag(dag)
        assert run.state == "success"
        planned, done, again = (run.xcom(task) for task in ("plan", "first", "second"))
        assert (planned["applied"], planned["create"], planned["versions"]) == (False, 3, {})
        assert planned["changes"] == done["changes"]
        assert done["versions"] == {"people": 2, "long_people": 1}
        assert run.asset_extras("lance://lake/people") == [{"version": 2}]
        assert (again["changes"], again["applied"], again["versions"]) == ([], True, {})

    def test_the_plan_is_in_the_log(self, people: SparkNamespace, capsys: pytest.CaptureFixture[str]) -> None:
        apply(PEOPLE)
        changed = replace(PEOPLE, computed={"n": "length(text) * 2"})
        apply(changed)
        assert (
            "~ column people.n: expression is 'length(text)' there and 'length(text) * 2' here"
            in capsys.readouterr().out
        )
        apply(changed)
        assert "No changes: the namespace has 1 table and 1 view as declared." in capsys.readouterr().out

    def test_what_cannot_be_made_fails_without_another_try(self, people: SparkNamespace) -> None:
        wrong = replace(PEOPLE, schema={"id": "string", "text": "string", "new": "int64"})
        with pytest.raises(AirflowFailException) as failed:
            apply(wrong)
        assert "cannot be applied, and nothing was changed" in str(failed.value)
        assert "! column people.id: its type is int64 there and string here" in str(failed.value)
        fields = people.describe_table({"id": ["people"]}).var_schema.fields  # type: ignore[union-attr]
        assert [field.name for field in fields] == ["id", "text"]

    def test_a_wrong_rule_says_what_was_done_before(
        self, people: SparkNamespace, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(AirflowFailException, match="Did you mean 'length'"):
            apply([LanceTable("notes", schema={"text": "string"}, computed={"n": "lenght(text)"})])
        assert "Done before the failure: + table notes: text string" in capsys.readouterr().out
        assert apply([LanceTable("notes", schema={"text": "string"}, computed={"n": "length(text)"})])["create"] == 1

    def test_a_function_that_cannot_travel_names_its_table(self, people: SparkNamespace) -> None:
        import threading

        lock = threading.Lock()

        def locked(text: str) -> str:
            with lock:
                return text

        with pytest.raises(AirflowFailException, match="The table people: The column 'loud' cannot be declared"):
            apply(replace(PEOPLE, virtual={"loud": UdfColumn(locked, ["text"], "string")}))

    def test_a_file_is_read_beside_the_dag_and_checked_while_it_is_parsed(
        self, people: SparkNamespace, run_dag: RunDag, new_dag: NewDag, tmp_path: Path
    ) -> None:
        file = tmp_path / "people.yaml"
        file.write_text("table: people\ncomputed: {m: id + 1}\n")
        beside = os.path.relpath(file, Path(__file__).parent)
        with new_dag() as dag:
            first = LanceApplyOperator(task_id="apply", declaration=beside)
            first >> LanceApplyOperator(task_id="rendered", declaration=f"{tmp_path}/{{{{ 'people' }}}}.yaml")
        file.write_text("table: people\ncomputd: {}\n")
        with pytest.raises(DeclarationError, match="line 2: there is no key 'computd'"), new_dag():
            LanceApplyOperator(task_id="apply", declaration=beside)
        file.write_text("table: people\ncomputed: {m: id + 2}\n")
        run = run_dag(dag)
        assert run.xcom("apply")["changes"][0]["text"] == "id + 2"
        assert run.xcom("rendered")["changes"] == []

    def test_words_are_checked_while_the_dag_is_parsed(self) -> None:
        with pytest.raises(ValueError, match="`only` names"):
            LanceApplyOperator(task_id="x", declaration=PEOPLE, only=["column"])  # type: ignore[list-item]


class TestOtherServers:
    """pylance's own server has tables, columns and indices, and neither rules nor views."""

    NOTES = LanceTable(
        "declared_notes",
        schema={"id": "int64", "text": "string", "vector": "float32[4]", "price": "decimal128(10, 2)", "day": "date32"},
        indices=[LanceIndex("id", "BTREE")],
    )

    def test_tables_columns_and_indices(self, tables: str) -> None:
        assert apply(self.NOTES)["create"] == 2
        assert apply(self.NOTES)["changes"] == []
        more = replace(self.NOTES, schema={**(self.NOTES.schema or {}), "tags": "list<string>", "more": "float32[8]"})
        assert [change["name"] for change in apply(more)["changes"]] == ["tags", "more"]
        assert apply(more)["changes"] == []
        with pytest.raises(AirflowFailException, match="its type is decimal128\\(10, 2\\) there and double here"):
            apply(replace(more, schema={**(more.schema or {}), "price": "double"}))
        assert apply(self.NOTES, allow_drop=True)["drop"] == 2
        assert apply(self.NOTES)["changes"] == []

    def test_it_says_that_the_server_has_no_rules_and_no_views(self, tables: str) -> None:
        with pytest.raises(AirflowFailException, match="This namespace has no computed or virtual columns"):
            apply(LanceTable("declared_rules", schema={"id": "int64"}, computed={"n": "id + 1"}))
        with pytest.raises(
            AirflowFailException, match="! view declared_view: This namespace executes no jobs"
        ) as failed:
            apply(
                [LanceTable("declared_table", schema={"id": "int64"}), LanceView("declared_view", "SELECT id FROM x")]
            )
        assert "nothing was changed" in str(failed.value)

    def test_a_server_that_is_away_is_tried_again(self) -> None:
        with (
            connection("lance_default", rest_connection("http://127.0.0.1:9")),
            pytest.raises(AirflowException) as failed,
        ):
            apply(PEOPLE)
        assert not isinstance(failed.value, AirflowFailException)


def edges(dag: DAG) -> dict[str, set[str]]:
    """For each task of the group, those that it waits for."""
    return {
        task.task_id.partition(".")[2]: {up.partition(".")[2] for up in task.upstream_task_ids} for task in dag.tasks
    }


class TestTaskGroup:
    ARTICLES = LanceTable(
        "sales$articles",
        schema={"id": "int64", "text": "string"},
        computed={"b": "a + 1", "a": "length(text)"},
        views=[
            LanceView("second", "SELECT id FROM first JOIN sales.articles", promote="production"),
            LanceView("first", "SELECT id FROM `sales$articles`", checks=LanceChecks(min_rows=1), tags=["hourly"]),
        ],
        indices=[LanceIndex("id", "BTREE")],
        checks=LanceChecks(min_rows=1, not_null=["a"]),
        promote="production",
        tags=["nightly"],
    )

    def test_the_tasks_are_in_the_order_of_what_they_read(self, new_dag: NewDag) -> None:
        with new_dag() as dag:
            LanceTaskGroup(declaration=self.ARTICLES)
        assert edges(dag) == {
            "apply": set(),
            "backfill.sales.articles.a": {"apply"},
            "backfill.sales.articles.b": {"backfill.sales.articles.a"},
            "index.sales.articles": {"backfill.sales.articles.a", "backfill.sales.articles.b"},
            "check.sales.articles": {"index.sales.articles"},
            "refresh.first": {"check.sales.articles"},
            "check.first": {"refresh.first"},
            "refresh.second": {"check.sales.articles", "check.first"},
            "promote.sales.articles": {"check.sales.articles", "check.first", "refresh.second"},
            "promote.second": {"refresh.second"},
        }
        display = {task.task_id: task.task_display_name for task in dag.tasks}
        assert display["lance.backfill.sales.articles.a"] == "backfill sales$articles.a"

    @pytest.mark.parametrize(
        ("select", "exclude", "tasks"),
        [
            ("tag:hourly", None, {"apply": set(), "refresh.first": {"apply"}, "check.first": {"refresh.first"}}),
            (
                ["sales$articles.b", "second"],
                None,
                {
                    "apply": set(),
                    "backfill.sales.articles.b": {"apply"},
                    "refresh.second": {"backfill.sales.articles.b"},
                    "promote.second": {"refresh.second"},
                },
            ),
            (None, ["sales$articles+"], {}),
        ],
    )
    def test_select_and_exclude(self, new_dag: NewDag, select: Any, exclude: Any, tasks: dict[str, set[str]]) -> None:
        with new_dag() as dag:
            LanceTaskGroup(declaration=self.ARTICLES, select=select, exclude=exclude)
        assert edges(dag) == tasks

    def test_arguments_reach_the_operators(self, new_dag: NewDag) -> None:
        with new_dag() as dag:
            LanceTaskGroup(
                "fill",
                declaration=self.ARTICLES,
                apply=False,
                backfill_args={"cluster": "gpu", "retries": 4},
                refresh_args={"skip_if_unchanged": True, "on_conflict": "join"},
                asset_authority="lake",
                lance_conn_id="other",
                default_args={"retries": 2},
            )
        tasks: dict[str, Any] = {task.task_id: task for task in dag.tasks}
        assert "fill.apply" not in tasks
        backfill, refresh = tasks["fill.backfill.sales.articles.a"], tasks["fill.refresh.first"]
        assert (backfill.cluster, backfill.retries, backfill.on_conflict) == ("gpu", 4, "wait")
        assert (refresh.skip_if_unchanged, refresh.retries, refresh.on_conflict) == (True, 2, "join")
        assert [asset.uri for asset in backfill.outlets] == ["lance://lake/sales/articles"]
        assert {task.lance_conn_id for task in tasks.values()} == {"other"}

    def test_fifty_views_of_a_manifest_are_one_group(self, new_dag: NewDag, tmp_path: Path) -> None:
        views = {"v0": {"query": "SELECT id FROM t"}} | {
            f"v{n}": {"query": f"SELECT id FROM v{n - 1}"} for n in range(1, 50)
        }
        manifest = {"manifest": {"format": 1}, "tables": {"t": {"computed": {"n": "id + 1"}}}, "views": views}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with new_dag() as dag:
            LanceTaskGroup(declaration=tmp_path / "manifest.json")
        found = edges(dag)
        assert len(found) == 51
        assert found["backfill.t.n"] == set()
        assert found["refresh.v0"] == {"backfill.t.n"}
        assert all(found[f"refresh.v{n}"] == {f"refresh.v{n - 1}"} for n in range(1, 50))

    def test_odd_names_get_task_ids_of_their_own(self, new_dag: NewDag) -> None:
        views = [
            LanceView("a b", "SELECT 1 AS x FROM t"),
            LanceView("a_b", "SELECT 1 AS x FROM t"),
            LanceView("größe", "SELECT 1 AS x FROM t"),
        ]
        with new_dag() as dag:
            LanceTaskGroup(declaration=views, apply=False)
        assert sorted(edges(dag)) == ["refresh.a_b", "refresh.a_b_2", "refresh.größe"]

    def test_mistakes_are_found_while_the_dag_is_parsed(self, new_dag: NewDag, tmp_path: Path) -> None:
        with new_dag():
            with pytest.raises(DeclarationError, match="Did you mean 'second'"):
                LanceTaskGroup("a", declaration=self.ARTICLES, select="secnd")
            with pytest.raises(DeclarationError, match="There is no file"):
                LanceTaskGroup("b", declaration=tmp_path / "nothing.yaml")

    def test_it_is_serialized_with_its_dag(self, new_dag: NewDag) -> None:
        from airflow.serialization.serialized_objects import DagSerialization

        with new_dag() as dag:
            LanceTaskGroup(declaration=self.ARTICLES)
        assert DagSerialization.to_dict(dag) == DagSerialization.to_dict(dag)
        assert "0x" not in json.dumps(DagSerialization.to_dict(dag))
