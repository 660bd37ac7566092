"""Names from anywhere: refused or safe, and never a file outside of the root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from airflow_provider_lance.api.operations import OPERATIONS, Body
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.requests.identifiers import check_identifier
from tests.namespace.people import PEOPLE, files_below, make_namespace, stream

NASTY = [
    "..",
    ".",
    "../outside",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "%2e%2e%2foutside",
    "a$b",
    "",
    " ",
    " a",
    "a ",
    ".hidden",
    "__manifest",
    "x" * 10_000,
    "é",
    "a\u202eb",
    "~root",
    "a?b",
    "a#b",
    "*",
    "file:///etc",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[SparkNamespace, Path]:
    """A root two folders below a place that must stay as it is."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("keep out")
    namespace = make_namespace(outside / "deep" / "root")
    namespace.create_namespace({"id": ["team"]})
    return namespace, outside


def outside_of_root(outside: Path) -> set[str]:
    root = str(outside / "deep" / "root")
    return {path for path in files_below(outside) if not path.startswith(root)}


@pytest.mark.parametrize("name", NASTY, ids=[repr(name)[:30] for name in NASTY])
def test_a_nasty_name_is_refused_by_every_operation(world: tuple[SparkNamespace, Path], name: str) -> None:
    namespace, outside = world
    before = files_below(outside)
    for operation in OPERATIONS.values():
        if not operation.takes_id or operation.path.startswith("/v1/transaction"):
            continue
        for table_id in ([name], ["team", name]):
            request: dict[str, Any] = {"id": table_id} | _required(operation.name)
            arguments = (request, stream(PEOPLE)) if operation.body is Body.ARROW else (request,)
            with pytest.raises(InvalidInputError, match=r"part of the id|own name|longer|missing"):
                getattr(namespace, operation.name)(*arguments)
    assert files_below(outside) == before


def _required(name: str) -> dict[str, Any]:
    """What a request must have to be looked at."""
    fields: dict[str, dict[str, Any]] = {
        "register_table": {"location": "x.lance"},
        "restore_table": {"version": 1},
        "rename_table": {"new_table_name": "x"},
        "create_table_version": {"version": 1, "manifest_path": "x"},
        "batch_delete_table_versions": {"ranges": [{"start_version": 1, "end_version": 2}]},
        "alter_table_alter_columns": {"alterations": [{"path": "id"}]},
        "alter_table_add_columns": {"new_columns": [{"name": "x", "expression": "1"}]},
        "alter_table_drop_columns": {"columns": ["id"]},
        "alter_table_backfill_columns": {"column": "id"},
        "update_field_metadata": {"updates": [{"path": "id", "metadata": {}}]},
        "update_table": {"updates": [["id", "1"]]},
        "delete_from_table": {"predicate": "true"},
        "write_table": {"path": "x.parquet"},
        "create_function": {"artifact": {}, "signature": {}, "runtime": {}},
        "drop_function": {"version": "1"},
        "create_secret": {"value": "x"},
        "alter_secret": {"value": "x"},
        "create_table_index": {"column": "id", "index_type": "BTREE"},
        "create_table_scalar_index": {"column": "id", "index_type": "BTREE"},
        "describe_table_index_stats": {"index_name": "x"},
        "drop_table_index": {"index_name": "x"},
        "explain_table_query_plan": {"query": {"k": 1, "vector": []}},
        "create_materialized_view": {"query": "SELECT id FROM t"},
    }
    tag = {"tag": "x"}
    fields |= {"get_table_tag_version": tag, "delete_table_tag": tag}
    fields |= {"create_table_tag": tag | {"version": 1}, "update_table_tag": tag | {"version": 1}}
    fields |= {"create_table_branch": {"name": "x"}, "delete_table_branch": {"name": "x"}}
    return fields.get(name, {})


@given(name=st.text(min_size=1, max_size=40))
@example(name="a%2F..%2F..%2Fb")
@example(name="a.lance")
@example(name="nul")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_name_is_refused_or_makes_a_table_that_is_found_again(
    world: tuple[SparkNamespace, Path], name: str
) -> None:
    namespace, outside = world
    before = outside_of_root(outside)
    for table_id in ([name], ["team", name]):
        try:
            namespace.create_table({"id": table_id}, stream(PEOPLE))
        except (InvalidInputError, TableAlreadyExistsError):
            continue
        assert namespace.describe_table({"id": table_id}).version == 1
        assert namespace.count_table_rows({"id": table_id}).count == 3
        assert name in namespace.list_tables({"id": table_id[:-1]}).tables
        namespace.drop_table({"id": table_id})
        with pytest.raises(TableNotFoundError):
            namespace.describe_table({"id": table_id})
    assert outside_of_root(outside) == before


@given(
    name=st.text("aA0_+=@-.:, ", min_size=1, max_size=12).filter(lambda text: text.strip(" .:,") == text),
)
@settings(max_examples=25)
def test_every_allowed_character_survives(world: tuple[SparkNamespace, Path], name: str) -> None:
    namespace, _ = world
    for table_id in ([name], ["team", name]):
        namespace.create_table({"id": table_id, "mode": "overwrite"}, stream(PEOPLE))
        assert namespace.describe_table({"id": table_id}).var_schema is not None
        assert name in namespace.list_tables({"id": table_id[:-1]}).tables
        assert namespace.query_table({"id": table_id, "k": 1}).data
        namespace.drop_table({"id": table_id})


@pytest.mark.parametrize("field", ["tag", "branch"])
@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "a\0b", "x" * 5000])
def test_tags_and_branches_touch_nothing_outside(world: tuple[SparkNamespace, Path], field: str, name: str) -> None:
    namespace, outside = world
    namespace.create_table({"id": ["tagged"], "mode": "overwrite"}, stream(PEOPLE))
    before = outside_of_root(outside)
    calls: list[Callable[[], object]] = (
        [
            lambda: namespace.create_table_tag({"id": ["tagged"], "tag": name, "version": 1}),
            lambda: namespace.get_table_tag_version({"id": ["tagged"], "tag": name}),
            lambda: namespace.describe_table({"id": ["tagged"], "tag": name}),
        ]
        if field == "tag"
        else [
            lambda: namespace.create_table_branch({"id": ["tagged"], "name": name}),
            lambda: namespace.count_table_rows({"id": ["tagged"], "branch": name}),
            lambda: namespace.describe_table({"id": ["tagged"], "branch": name}),
            lambda: namespace.list_table_versions({"id": ["tagged"], "branch": name}),
            lambda: namespace.insert_into_table({"id": ["tagged"], "branch": name}, stream(PEOPLE)),
        ]
    )
    for call in calls:
        with pytest.raises(LanceNamespaceError) as caught:
            call()
        assert caught.value.code not in {0, 18}, caught.value
    assert outside_of_root(outside) == before


def test_a_namespace_that_does_not_exist(world: tuple[SparkNamespace, Path]) -> None:
    namespace, _ = world
    with pytest.raises(NamespaceNotFoundError):
        namespace.declare_table({"id": ["nowhere", "t"]})


@pytest.mark.parametrize("name", [":a", "a:", ",a", "a,", " a", "a ", ".a"])
def test_the_refusal_says_what_may_not_stand_at_the_ends(name: str) -> None:
    sentence = "a space, a colon or a comma is neither the first nor the last character, and a dot is not the first"
    with pytest.raises(InvalidInputError, match=sentence):
        check_identifier([name])
    assert check_identifier(["a:b, c.d."]) == ["a:b, c.d."]
