"""Arguments as templates, mapped tasks and typos leave them, against pylance's own namespace server."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_lance.operators.check import LanceTableCheckOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.job import LanceCancelJobOperator
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
from airflow_provider_lance.operators.version import LanceCreateTableVersionOperator
from airflow_provider_lance.sensors.table import LanceTableVersionSensor, LanceTagSensor
from airflow_provider_lance.tasks.templating import as_mapping, as_version, parse_literal
from tests.airflow.conftest import NewDag, RunDag

pytestmark = [pytest.mark.usefixtures("airflow_home", "tables"), pytest.mark.timeout(90)]
CONTEXT: Any = {"ti": SimpleNamespace(xcom_push=lambda **_: None, map_index=-1), "outlet_events": {}}


def odd_rows() -> Any:
    import pyarrow as pa

    return pa.table({"my-col": [1, None, 3], "Order": ["a", "b", None], "nested": [{"a b": 1}, {"a b": None}, None]})


@pytest.fixture
def table() -> str:
    name = f"r{uuid.uuid4().hex[:8]}"
    LanceCreateTableOperator(task_id="create", table_id=name, data=odd_rows).execute(CONTEXT)
    return name


@pytest.mark.parametrize(
    ("not_null", "nulls"),
    [
        ("my-col", {"my-col": 1}),
        (["my-col", "Order"], {"my-col": 1, "Order": 1}),
        ("['my-col', 'Order']", {"my-col": 1, "Order": 1}),
        ('{"my-col": 2}', {"my-col": 1}),
        ("nested.a b", {"nested.a b": 2}),
        ("`my-col`", {"`my-col`": 1}),
        ("", {}),
    ],
)
def test_columns_to_check_are_names_not_expressions(table: str, not_null: Any, nulls: dict[str, int]) -> None:
    check = LanceTableCheckOperator(
        task_id="check", table_id=table, not_null=not_null, max_nulls=5, predicate="None", branch="", version="None"
    )
    figures = check.execute(CONTEXT)
    assert (figures["nulls"], figures["rows"], figures["violations"]) == (nulls, 3, None)


def test_dicts_may_come_as_the_text_a_template_makes_of_them(table: str) -> None:
    assert parse_literal("{'a': [1, None]}") == {"a": [1, None]}
    assert parse_literal('{"a": null}') == {"a": None}
    assert parse_literal("{not a dict") == "{not a dict"
    assert as_mapping("m", " None ") is None
    assert as_version("v", "{'table_id': ['t'], 'version': 7}") == 7
    assert as_version("v", "") is None
    with pytest.raises(AirflowFailException, match="`m` must be a dict, not 'x'"):
        as_mapping("m", "x")
    with pytest.raises(AirflowFailException, match=r"`v` must be a version number.*has none"):
        as_version("v", {"table_id": ["t"]})

    new = f"{table}x"
    LanceCreateTableOperator(task_id="create", table_id=new, schema='{"id": "int64"}').execute(CONTEXT)
    tagged = LanceCreateTagOperator(
        task_id="tag", table_id=new, tag="a", version=str({"table_id": [new], "version": 1})
    ).execute(CONTEXT)
    assert tagged["version"] == 1
    again = LanceUpdateTagOperator(task_id="tag", table_id=new, tag="a", version=tagged).execute(CONTEXT)
    assert again["version"] == 1
    added = LanceAddColumnsOperator(
        task_id="add", table_id=new, expressions="{'twice': 'id * 2'}", branch="None"
    ).execute(CONTEXT)
    assert added["added"] == ["twice"]
    with pytest.raises(AirflowFailException, match="`staged` must be a dict"):
        LanceCreateTableVersionOperator(task_id="v", table_id=new, staged="nothing").execute(CONTEXT)
    empty = LanceOperator(task_id="count", operation="count_table_rows", request=f"{{'id': '{new}'}}").execute(CONTEXT)
    assert empty == {"count": 0}


def test_sensors_take_what_is_empty_for_not_given(table: str) -> None:
    cases: list[dict[str, Any]] = [{"min_version": ""}, {"min_version": "None"}, {"newer_than": "{'version': 0}"}]
    for arguments in cases:
        found = LanceTableVersionSensor(task_id="wait", table_id=table, branch="None", **arguments).poke(CONTEXT)
        assert isinstance(found, PokeReturnValue)
        assert found.xcom_value == {"table_id": [table], "version": 1}
    LanceCreateTagOperator(task_id="tag", table_id=table, tag="a").execute(CONTEXT)
    assert LanceTagSensor(task_id="wait", table_id=table, tag="a", version="", moved_from="None").poke(CONTEXT)


@pytest.mark.parametrize(
    ("operator", "arguments", "says"),
    [
        (LanceCreateEmptyTableOperator, {"if_exists": "ignore"}, "if_exists is 'fail' or 'skip', not 'ignore'"),
        (LanceAddColumnsOperator, {"if_exists": "ignore", "computed": {"a": "b"}}, "if_exists is"),
        (LanceCreateTableVersionOperator, {"if_exists": "ignore", "staged": {}}, "if_exists is"),
        (LanceDropTableOperator, {"if_missing": "ignore"}, "if_missing is"),
        (LanceCreateTagOperator, {"if_exists": "ignore", "tag": "a"}, "if_exists is 'fail', 'skip' or 'move', not"),
        (LanceDeleteTagOperator, {"if_missing": "ignore", "tag": "a"}, "if_missing is"),
    ],
)
def test_a_misspelt_choice_is_refused_while_parsing(operator: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        operator(task_id="x", table_id="t", **arguments)
    with pytest.raises(ValueError, match="if_missing is"):
        LanceCancelJobOperator(task_id="x", job_id="j", if_missing="ignore")  # type: ignore[arg-type]


def test_a_request_may_come_from_another_task(table: str) -> None:
    from airflow.sdk import DAG

    with DAG("requests"):
        first = LanceOperator(task_id="first", operation="describe_table", request="{{ params.request }}")
        second = LanceOperator(task_id="second", operation="describe_table", request=first.output)
    assert second.upstream_task_ids == {"first"}


def test_a_data_frame_keeps_its_columns(table: str) -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2, 3]})
    frame = frame[frame["a"] > 1]
    create = LanceCreateTableOperator(task_id="create", table_id=f"{table}p", data=lambda: frame)
    create.execute(CONTEXT)
    described = create.hook.call("describe_table", {"id": f"{table}p", "load_detailed_metadata": True})
    assert [field["name"] for field in described["schema"]["fields"]] == ["a"]


def test_a_table_that_somebody_else_created_meanwhile_is_skipped_too(table: str) -> None:
    late = LanceCreateTableOperator(task_id="create", table_id=table, data=odd_rows, if_exists="skip")
    answer = late.hook.call
    first = iter([True])

    def unseen(operation: str, fields: Any, data: Any = None) -> Any:
        if operation == "describe_table" and next(first, False):
            return {}  # declared only, as far as this look shows
        return answer(operation, fields, data)

    late.hook.call = unseen  # type: ignore[method-assign]
    assert late.execute(CONTEXT) == {
        "table_id": [table],
        "created": False,
        "version": 1,
        "location": answer("describe_table", {"id": table})["location"],
    }


def test_credentials_are_dropped_at_any_depth() -> None:
    from airflow_provider_lance.tasks.job_outcome import public_result

    vended = {"storage_options": {"key": "hush"}, "location": "s3://b"}
    shown = public_result({"results": [{"declare_table": vended}], "rows": 3})
    assert shown == {"results": [{"declare_table": {"location": "s3://b"}}], "rows": 3}


def test_sql_and_dicts_are_shown_as_what_they_are() -> None:
    """Airflow shows a rendered field as JSON or SQL only where the operator says so."""
    import importlib

    from airflow.sdk import BaseOperator

    from airflow_provider_lance.get_provider_info import get_provider_info

    sql, mappings = {"where", "query", "source_query", "predicate"}, set(_MAPPINGS)
    for entry in get_provider_info()["operators"]:
        for module in entry["python-modules"]:
            for found in vars(importlib.import_module(module)).values():
                if not (isinstance(found, type) and found.__module__ == module and issubclass(found, BaseOperator)):
                    continue
                fields, shown = set(found.template_fields), found.template_fields_renderers
                wanted = {**dict.fromkeys(fields & sql, "sql"), **dict.fromkeys(fields & mappings, "json")}
                assert {name: shown.get(name) for name in wanted} == wanted, found.__name__
                if fields & sql:
                    assert ".sql" in found.template_ext, found.__name__


_MAPPINGS = (
    "computed",
    "expressions",
    "metadata",
    "properties",
    "request",
    "request_context",
    "schema",
    "spec",
    "staged",
    "udtf_spec",
    "virtual",
)


def test_sql_comes_from_a_file_that_is_a_template(
    run_dag: RunDag, new_dag: NewDag, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "least.sql").write_text("`my-col` >= {{ params.least }} -- the smallest\n")
    (tmp_path / "double.sql").write_text("`my-col` * {{ params.factor }}\n")
    with new_dag(template_searchpath=[str(tmp_path)], params={"least": 2, "factor": 2}) as dag:
        add = LanceAddColumnsOperator(task_id="add", table_id=table, expressions={"twice": "double.sql"})
        check = LanceTableCheckOperator(task_id="check", table_id=table, predicate="least.sql")
        add >> check
    run = run_dag(dag)
    assert (run.task_state("add"), run.task_state("check")) == ("success", "failed")
    assert run.xcom("check", "figures")["violations"] == 2
    assert f"{table}: version 2 has 3 rows, 2 rows that violate the predicate." in capsys.readouterr().out
