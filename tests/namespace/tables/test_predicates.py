"""SQL of clients: one expression that does all it says, or a refusal with its place and nothing done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance_namespace
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from airflow_provider_lance.namespace import SparkNamespace
from tests.namespace.people import make_namespace, queried, stream

ROWS = pa.table({"id": list(range(10)), "text": [f"it's {number}" for number in range(10)], "from": [1] * 10})


@pytest.fixture
def namespace(tmp_path: Path) -> SparkNamespace:
    namespace = make_namespace(tmp_path)
    namespace.create_table(lance_namespace.CreateTableRequest(id=["t"]), stream(ROWS))
    return namespace


def count(namespace: SparkNamespace, predicate: str) -> Any:
    return namespace.count_table_rows(lance_namespace.CountTableRowsRequest(id=["t"], predicate=predicate)).count


def delete(namespace: SparkNamespace, predicate: str) -> Any:
    return namespace.delete_from_table({"id": ["t"], "predicate": predicate}).num_deleted_rows


def update(namespace: SparkNamespace, predicate: str) -> Any:
    return namespace.update_table({"id": ["t"], "predicate": predicate, "updates": [["text", "'x'"]]}).updated_rows


def query(namespace: SparkNamespace, predicate: str) -> Any:
    data = namespace.query_table({"id": ["t"], "vector": {}, "k": 100, "filter": predicate})
    return queried(data.data).num_rows


def merge(namespace: SparkNamespace, predicate: str) -> Any:
    request = {
        "id": ["t"],
        "on": ["id"],
        "when_not_matched_by_source_delete": True,
        "when_not_matched_by_source_delete_filt": predicate,
    }
    return namespace.merge_insert_into_table(request, stream(ROWS.slice(9))).num_deleted_rows


EVERYWHERE = pytest.mark.parametrize("act", [count, delete, update, query, merge])


@EVERYWHERE
@pytest.mark.parametrize(
    ("predicate", "place"),
    [
        ("id < 3) OR (id > 7", "line 1, column 7"),
        ("id < 3; DROP TABLE t", "line 1, column 7"),
        ("id < 3, id > 7", "line 1, column 7"),
        ("text = 'x", "line 1, column 8"),
        ("id < 3 /* why", "line 1, column 8"),
    ],
)
def test_more_or_less_than_one_expression_is_refused(
    namespace: SparkNamespace, act: Callable[..., Any], predicate: str, place: str
) -> None:
    with pytest.raises(InvalidInputError, match=place):
        act(namespace, predicate)
    left = namespace.query_table({"id": ["t"], "vector": {}, "k": 100}).data
    assert queried(left).to_pylist() == ROWS.to_pylist()


@EVERYWHERE
@pytest.mark.parametrize(
    "predicate",
    [
        "id < 3 -- OR id > 7",
        "id < 3 /* OR id > 7 */",
        "/* why */ id < 3;",
        """id < 3 AND text <> "it's 8 -- " """,
        "id < 3 AND `from` = 1",
    ],
)
def test_comments_and_quotes_do_not_change_what_is_selected(
    namespace: SparkNamespace, act: Callable[..., Any], predicate: str
) -> None:
    assert act(namespace, predicate) == 3


@pytest.mark.parametrize("predicate", ["id < 3 ORDER BY id", "id < 3 x", "id < 3 LIMIT 1", "id < 3 AS y"])
def test_what_lance_would_ignore_is_refused_with_its_place(namespace: SparkNamespace, predicate: str) -> None:
    for act in (count, delete, update, query):
        with pytest.raises(InvalidInputError, match="line 1, column 8"):
            act(namespace, predicate)


def test_a_column_called_like_a_keyword_needs_no_quotes(namespace: SparkNamespace) -> None:
    assert count(namespace, "from = 1") == 10


def test_the_value_of_an_update_and_of_a_column_is_one_expression(namespace: SparkNamespace) -> None:
    for wrong in ("'x') || ('y'", "'x', text", "'x' y"):
        with pytest.raises(InvalidInputError, match="line 1, column"):
            namespace.update_table({"id": ["t"], "predicate": "id = 1", "updates": [["text", wrong]]})
        with pytest.raises(InvalidInputError, match="line 1, column"):
            namespace.alter_table_add_columns({"id": ["t"], "new_columns": [{"name": "n", "expression": wrong}]})
        with pytest.raises(InvalidInputError, match="line 1, column"):
            namespace.alter_table_add_columns({"id": ["t"], "new_columns": [{"name": "n", "computed": wrong}]})


def test_a_view_over_a_table_that_is_not_there_gets_names_like_it(namespace: SparkNamespace) -> None:
    namespace.create_table(lance_namespace.CreateTableRequest(id=["orders"]), stream(ROWS))
    for sql in ("SELECT id FROM ordres", "SELECT a.id FROM t a JOIN ordres b ON a.id = b.id"):
        with pytest.raises(TableNotFoundError, match=r"no table ordres. Did you mean 'orders'"):
            namespace.create_materialized_view({"id": ["v"], "query": sql})
