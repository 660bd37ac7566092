"""Metadata operators and table sensors in real DAGs, against pylance's own namespace server."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.operators.check import LanceTableCheckOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.operation import LanceOperator
from airflow_provider_lance.operators.table import (
    LanceCreateEmptyTableOperator,
    LanceCreateTableOperator,
    LanceDropTableOperator,
)
from airflow_provider_lance.operators.tag import (
    LanceCreateTagOperator,
    LanceDeleteTagOperator,
    LanceUpdateTagOperator,
)
from airflow_provider_lance.sensors.table import LanceTableExistsSensor, LanceTableVersionSensor, LanceTagSensor
from tests.airflow.conftest import NewDag, RunDag

pytestmark = [pytest.mark.usefixtures("tables"), pytest.mark.timeout(90)]


QUICK: dict[str, Any] = {"timeout": 5, "poke_interval": 0.2}
WANTED = {"column_names": ["twice"]}


def three_rows() -> Any:
    import pyarrow as pa

    return pa.table({"id": [1, 2, 3], "text": ["a", "bb", None]})


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def test_a_table_from_nothing_to_a_moved_tag(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    asset = create_asset(authority="test", table_id=[table])
    with new_dag() as dag:
        create = LanceCreateTableOperator(task_id="create", table_id=table, data=three_rows, outlets=[asset])
        exists = LanceTableExistsSensor(task_id="exists", table_id=[table], with_data=True, **QUICK)
        tag = LanceCreateTagOperator(task_id="tag", table_id=table, tag="production")
        more = LanceOperator(
            task_id="more", operation="insert_into_table", request={"id": table, "mode": "append"}, data=three_rows
        )
        newer = LanceTableVersionSensor(
            task_id="newer", table_id=table, newer_than="{{ ti.xcom_pull('tag')['version'] }}", **QUICK
        )
        move = LanceUpdateTagOperator(task_id="move", table_id=table, tag="production", version="latest")
        moved = LanceTagSensor(task_id="moved", table_id=table, tag="production", moved_from=tag.output, **QUICK)
        back = LanceUpdateTagOperator(
            task_id="back", table_id=table, tag="production", version="{{ ti.xcom_pull('move')['previous_version'] }}"
        )
        delete = LanceDeleteTagOperator(task_id="delete", table_id=table, tag="production")
        drop = LanceDropTableOperator(task_id="drop", table_id=table)
        create >> exists >> tag >> more >> newer >> move >> moved >> back >> delete >> drop
    run = run_dag(dag)
    assert run.state == "success"
    assert run.xcom("create")["version"] == 1
    assert run.xcom("create")["table_id"] == [table]
    assert run.xcom("exists") == {"table_id": [table], "version": 1}
    assert run.xcom("tag") == {"table_id": [table], "tag": "production", "version": 1, "previous_version": None}
    assert run.xcom("newer")["version"] == 2
    assert run.xcom("move") == {"table_id": [table], "tag": "production", "version": 2, "previous_version": 1}
    assert run.xcom("moved") == {"table_id": [table], "tag": "production", "version": 2}
    assert run.xcom("back")["version"] == 1
    assert run.xcom("delete")["previous_version"] == 1
    assert run.xcom("drop") == {"table_id": [table], "dropped": True}
    assert run.asset_extras(f"lance://test/{table}") == [{"version": 1, "rows": 3}]


def test_choices_for_what_is_there_or_missing(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    with new_dag() as dag:
        declare = LanceCreateEmptyTableOperator(task_id="declare", table_id=table)
        again = LanceCreateEmptyTableOperator(task_id="again", table_id=table, if_exists="skip")
        create = LanceCreateTableOperator(
            task_id="create", table_id=table, schema={"id": "int64 not null", "vector": "float32[4]"}, if_exists="skip"
        )
        skip = LanceCreateTableOperator(task_id="skip", table_id=table, data=three_rows, if_exists="skip")
        over = LanceCreateTableOperator(task_id="over", table_id=table, data=three_rows, if_exists="overwrite")
        tag = LanceUpdateTagOperator(task_id="tag", table_id=table, tag="a", create_if_missing=True)
        copy = LanceCreateTagOperator(task_id="copy", table_id=table, tag="b", version="a")
        keep = LanceCreateTagOperator(task_id="keep", table_id=table, tag="b", version="a", if_exists="skip")
        gone = LanceDeleteTagOperator(task_id="gone", table_id=table, tag="nope", if_missing="skip")
        drop = LanceDropTableOperator(task_id="drop", table_id=table)
        twice = LanceDropTableOperator(task_id="twice", table_id=table, if_missing="skip")
        declare >> again >> create >> skip >> over >> tag >> copy >> keep >> gone >> drop >> twice
    run = run_dag(dag)
    assert run.state == "success"
    assert run.xcom("declare")["created"] is True
    assert run.xcom("again")["created"] is False
    assert run.xcom("create")["created"] is True
    assert run.xcom("skip")["created"] is False
    assert run.xcom("over")["version"] > run.xcom("create")["version"]
    assert run.xcom("copy")["version"] == run.xcom("tag")["version"]
    assert run.xcom("keep")["version"] == run.xcom("copy")["version"]
    assert run.xcom("gone")["deleted"] is False
    assert run.xcom("twice")["dropped"] is False


def test_skip_accepts_only_what_was_declared(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    def late(kind: Any, name: str, **arguments: Any) -> Any:
        return kind(task_id=name, table_id=table, if_exists="skip", trigger_rule="all_done", **arguments)

    with new_dag() as dag:
        create = LanceCreateTableOperator(task_id="create", table_id=table, data=three_rows)
        tag = LanceCreateTagOperator(task_id="tag", table_id=table, tag="a")
        more = LanceAddColumnsOperator(task_id="more", table_id=table, expressions={"twice": "id * 2"})
        same = late(LanceCreateTableOperator, "same", schema={"id": "int64", "text": "string"})
        other = late(LanceCreateTableOperator, "other", schema={"id": "int32", "words": "string"})
        there = late(LanceCreateTagOperator, "there", tag="a", version=1)
        moved = late(LanceCreateTagOperator, "moved", tag="a", version=2)
        create >> tag >> more >> same >> other >> there >> moved
    run = run_dag(dag)
    states = {name: run.task_state(name) for name in ("same", "other", "there", "moved")}
    assert states == {"same": "success", "other": "failed", "there": "success", "moved": "failed"}


def test_columns_are_added_once(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    with new_dag() as dag:
        create = LanceCreateTableOperator(task_id="create", table_id=table, data=three_rows)
        add = LanceAddColumnsOperator(task_id="add", table_id=table, expressions={"twice": "id * 2"})
        again = LanceAddColumnsOperator(
            task_id="again", table_id=table, expressions={"twice": "id * 2"}, if_exists="skip"
        )
        query = LanceOperator(
            task_id="query",
            operation="query_table",
            request={"id": table, "vector": {}, "k": 10, "columns": WANTED},
        )
        create >> add >> again >> query
    run = run_dag(dag)
    assert run.state == "success"
    assert run.xcom("add")["added"] == ["twice"]
    assert run.xcom("again")["added"] == []
    assert sorted(row["twice"] for row in run.xcom("query")["rows"]) == [2, 4, 6]


@pytest.mark.parametrize(
    ("checks", "problem"),
    [
        ({"min_rows": 3, "max_rows": 3, "predicate": "id > 0"}, None),
        ({"min_rows": 4}, "3 rows, at least 4 expected"),
        ({"max_rows": 2}, "3 rows, at most 2 expected"),
        ({"not_null": ["id", "text"]}, "1 of 3 values of text are null, at most 0 allowed"),
        ({"not_null": {"text": 0.5}}, None),
        ({"predicate": "length(text) < 2"}, "2 of 3 rows violate length(text) < 2"),
    ],
)
def test_a_check_says_its_figures(
    run_dag: RunDag, new_dag: NewDag, table: str, checks: dict[str, Any], problem: str | None
) -> None:
    with new_dag() as dag:
        create = LanceCreateTableOperator(task_id="create", table_id=table, data=three_rows)
        check = LanceTableCheckOperator(task_id="check", table_id=table, retries=3, **checks)
        create >> check
    run = run_dag(dag)
    if problem is None:
        assert run.state == "success"
        assert run.xcom("check")["rows"] == 3
        assert run.xcom("check")["problems"] == []
    else:
        assert run.task_state("check") == "failed"
        assert run.instance("check").try_number == 1  # the same table gives the same figures: no retries
        assert run.xcom("check", "figures")["problems"] == [problem]


def test_a_failed_check_can_skip_what_follows(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    with new_dag() as dag:
        create = LanceCreateTableOperator(task_id="create", table_id=table, data=three_rows)
        check = LanceTableCheckOperator(task_id="check", table_id=table, min_rows=4, on_failure="skip_task")
        tag = LanceUpdateTagOperator(task_id="tag", table_id=table, tag="production", create_if_missing=True)
        create >> check >> tag
    run = run_dag(dag)
    assert run.task_state("check") == "skipped"
    assert run.task_state("tag") == "skipped"


def test_a_missing_table_fails_with_a_sentence(
    run_dag: RunDag, new_dag: NewDag, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with new_dag() as dag:
        LanceUpdateTagOperator(task_id="tag", table_id=table, tag="production", version=1)
        LanceDropTableOperator(task_id="drop", table_id=table)
    run = run_dag(dag)
    assert run.task_state("tag") == "failed"
    assert run.task_state("drop") == "failed"


def test_sensors_defer_and_time_out(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    with new_dag() as dag:
        LanceTableExistsSensor(
            task_id="soft", table_id=table, deferrable=True, timeout=1, soft_fail=True, poke_interval=0.2
        )
        LanceTableVersionSensor(task_id="hard", table_id=table, min_version=1, timeout=0.5, poke_interval=0.2)
    run = run_dag(dag)
    assert run.task_state("soft") == "skipped"
    assert run.task_state("hard") == "failed"


@pytest.mark.parametrize("table_id", ["a$$b", ""])
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_of_no_table_fails_for_good(run_dag: RunDag, new_dag: NewDag, table_id: str, deferrable: bool) -> None:
    with new_dag() as dag:
        LanceTableExistsSensor(
            task_id="wait", table_id=table_id, deferrable=deferrable, retries=2, retry_delay=timedelta(0), **QUICK
        )
    run = run_dag(dag)
    assert run.task_state("wait") == "failed"
    assert run.instance("wait").try_number == 1


def test_templates_reach_ids_and_requests(run_dag: RunDag, new_dag: NewDag, table: str) -> None:
    with new_dag(params={"table": table}) as dag:
        create = LanceCreateTableOperator(task_id="create", table_id=["{{ params.table }}"], data=three_rows)
        describe = LanceOperator(
            task_id="describe",
            operation="describe_table",
            request={"id": "{{ params.table }}", "load_detailed_metadata": True},
        )
        create >> describe
    run = run_dag(dag)
    assert run.state == "success"
    assert run.xcom("describe")["version"] == 1
    assert "storage_options" not in run.xcom("describe")


def test_an_unknown_operation_is_refused_while_parsing() -> None:
    with pytest.raises(ValueError, match="Did you mean create_table_index"):
        LanceOperator(task_id="x", operation="create_table_indx")
    with pytest.raises(ValueError, match="takes Arrow data"):
        LanceOperator(task_id="x", operation="insert_into_table")
