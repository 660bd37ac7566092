"""Declarations that are repeated: equal ones are left alone, different ones fail with both texts or replace."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import lance
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_lance.functions import UdfColumn
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from tests.airflow.test_hard_times import run_context

pytestmark = [pytest.mark.usefixtures("airflow_home"), pytest.mark.timeout(120)]


def shorten(text: str) -> int:
    return min(len(text), 3)


def count(text: str) -> int:
    return len(text)


def declare(if_exists: Any = "fail", **columns: Any) -> dict[str, Any]:
    task = LanceAddColumnsOperator(task_id="declare", table_id="people", if_exists=if_exists, **columns)
    answer: dict[str, Any] = task.execute(run_context())
    return answer


def location(namespace: Any) -> str:
    return str(namespace.describe_table({"id": ["people"]}).location)


def metadata(namespace: Any, column: str) -> dict[str, str]:
    field = lance.dataset(location(namespace)).schema.field(column)
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}


class TestComputed:
    def test_an_equal_rule_is_left_alone(self, people: SparkNamespace) -> None:
        version = declare(computed={"n": "length(text)"})["version"]
        for if_exists in ("skip", "replace"):
            again = declare(if_exists, computed={"n": " length(text)\n"})
            assert again == {"table_id": ["people"], "added": [], "replaced": [], "version": version}

    def test_a_different_rule_fails_with_both_texts(self, people: SparkNamespace) -> None:
        declare(computed={"n": "length(text)"})
        with pytest.raises(AirflowFailException) as failed:
            declare("skip", computed={"n": "length(text) * 100", "m": "id + 1"})
        assert "expression is 'length(text)' there and 'length(text) * 100' here" in str(failed.value)
        assert "if_exists='replace'" in str(failed.value)
        assert "m" not in lance.dataset(location(people)).schema.names

    def test_replace_changes_it_and_adds_the_others(self, people: SparkNamespace) -> None:
        declare(computed={"n": "length(text)"})
        done = declare("replace", computed={"n": "length(text) * 100", "m": "id + 1"})
        assert (done["added"], done["replaced"]) == (["m"], ["n"])
        assert metadata(people, "n")["computed_column.expression"] == "length(text) * 100"
        assert declare("skip", computed={"n": "length(text) * 100"})["version"] == done["version"]

    def test_a_column_without_a_rule_is_never_taken(self, people: SparkNamespace) -> None:
        for if_exists, sentence in [("skip", "no rule: it is a plain column"), ("replace", "has no rule that could")]:
            with pytest.raises(AirflowFailException, match=sentence):
                declare(if_exists, computed={"text": "cast(id as string)"})

    def test_a_type_that_cannot_keep_the_values_is_refused(self, people: SparkNamespace) -> None:
        declare(computed={"n": "length(text)"})
        with pytest.raises(AirflowFailException, match="is of type int32 and its new rule gives string"):
            declare("replace", computed={"n": "upper(text)"})

    def test_an_expression_has_no_rule_to_compare(self, people: SparkNamespace) -> None:
        declare(expressions={"twice": "id * 2"}, computed={"n": "length(text)"})
        assert declare("skip", expressions={"twice": "id * 3"})["added"] == []
        with pytest.raises(AirflowFailException, match="there is no rule to replace"):
            declare("replace", expressions={"n": "id * 3"})


class TestFunctions:
    def udf(self, function: Any = count, **fields: Any) -> dict[str, UdfColumn]:
        return {"size": UdfColumn(function, **{"inputs": ["text"], "type": "int64", **fields})}

    @pytest.mark.parametrize("function", ["tests.engine.functions:length", count, shorten])
    def test_the_same_function_is_equal(self, people: SparkNamespace, function: Any) -> None:
        declare(virtual=self.udf(function))
        assert declare("skip", virtual=self.udf(function))["added"] == []

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"version": "2"}, "udf_version is '1' there and '2' here"),
            ({"function": shorten}, "udf_name is 'count' there and 'shorten' here"),
            ({"options": {"on_error": "null"}}, "on_error is 'fail' there and 'null' here"),
            ({"inputs": ["id"]}, "input_columns is"),
            ({"type": "int32"}, "outputs is"),
        ],
    )
    def test_what_counts_as_changed(self, people: SparkNamespace, changed: dict[str, Any], said: str) -> None:
        declare(virtual=self.udf())
        with pytest.raises(AirflowFailException) as failed:
            declare("skip", virtual=self.udf(**changed))
        assert said in str(failed.value)
        if "type" in changed:
            with pytest.raises(AirflowFailException, match="type int64 and its new rule gives int32"):
                declare("replace", virtual=self.udf(**changed))
            return
        assert declare("replace", virtual=self.udf(**changed))["replaced"] == ["size"]
        assert declare("skip", virtual=self.udf(**changed))["added"] == []

    def test_a_changed_constant_of_the_file_is_a_changed_function(self, people: SparkNamespace) -> None:
        def of_dag_file(limit: int) -> Any:
            module = ModuleType(f"unusual_prefix_{'a' * 40}_dag")
            module.__file__ = "/dags/dag.py"
            sys.modules[module.__name__] = module
            text = f"LIMIT = {limit}\ndef shorten(text: str) -> int:\n    return min(len(text), LIMIT)\n"
            exec(compile(text, "dag.py", "exec"), module.__dict__)
            return module.shorten

        declare(virtual=self.udf(of_dag_file(3)))
        assert declare("skip", virtual=self.udf(of_dag_file(3)))["added"] == []
        with pytest.raises(AirflowFailException, match="function is 'the pickle"):
            declare("skip", virtual=self.udf(of_dag_file(4)))

    def test_a_rule_becomes_a_function(self, people: SparkNamespace) -> None:
        declare(computed={"size": "length(text) + id"})
        assert declare("replace", virtual=self.udf())["replaced"] == ["size"]
        assert not [key for key in metadata(people, "size") if key.startswith("computed_")]
