"""The names that are found in SQL without a parser, beside those that the parser finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.definitions.sql.names import column_names, same_query, table_names
from airflow_provider_lance.definitions.sql.spark_sql import SparkQuery
from airflow_provider_lance.definitions.view_definition import ViewDefinition

QUERIES = {
    "SELECT * FROM people WHERE id > 1": [("people",)],
    "select a.id from people a join v on a.id = v.id": [("people",), ("v",)],
    "SELECT 1 FROM `team$people` p, team.other": [("team$people",), ("team", "other")],
    "SELECT 1 FROM a JOIN b ON a.x = b.x, c": [("a",), ("b",), ("c",)],
    "WITH a AS (SELECT * FROM a), b AS (SELECT 1 FROM a) SELECT * FROM b": [("a",)],
    "SELECT extract(year FROM day) FROM t WHERE a IS DISTINCT FROM b": [("t",)],
    "SELECT (SELECT max(id) FROM w) FROM (SELECT 1 FROM q, r) s LEFT JOIN t USING (id)": [
        ("w",),
        ("q",),
        ("r",),
        ("t",),
    ],
    "SELECT 'x FROM y', \"FROM z\" FROM t -- FROM u\n /* FROM v */": [("t",)],
    "SELECT x FROM a UNION ALL SELECT y FROM b ORDER BY 1, 2": [("a",), ("b",)],
    "SELECT * FROM a WHERE id IN (SELECT id FROM b)": [("a",), ("b",)],
    "FROM t SELECT a": [("t",)],
    "SELECT trim(BOTH 'x' FROM name), substring(name FROM 2) FROM t": [("t",)],
    "SELECT 'it\\'s FROM x' FROM t": [("t",)],
    "SELECT a FROM (b JOIN c ON b.i = c.i), d": [("b",), ("c",), ("d",)],
    "SELECT explode(x) FROM t LATERAL VIEW explode(y) z AS w": [("t",)],
}


@pytest.mark.parametrize("query", QUERIES)
def test_tables_are_found_where_the_parser_finds_them(query: str) -> None:
    assert table_names(query) == QUERIES[query]
    assert set(SparkQuery(query).tables) == set(table_names(query))


names = st.sampled_from(["a", "b", "c_1", "team.people", "`x$y`", "`from`"])
columns = st.sampled_from(["id", "x.id", "count(*)", "extract(year FROM day)", "'FROM q'", "f(a, b)"])


def queries() -> st.SearchStrategy[str]:
    tables = st.one_of(names, st.builds("{} t{}".format, names, st.integers(1, 9)))
    return st.recursive(
        st.builds("SELECT {} AS p FROM {}".format, columns, tables),
        lambda inner: st.one_of(
            st.builds("SELECT p, {} AS q FROM ({}) AS s".format, columns, inner),
            st.builds("SELECT {} AS q FROM {} JOIN ({}) AS u ON 1 = 1, {}".format, columns, tables, inner, names),
            st.builds("WITH w AS ({}) SELECT p FROM w".format, inner),
            st.builds("SELECT id FROM {} WHERE id IN ({})".format, names, inner),
            st.builds("{} UNION ALL {}".format, inner, inner),
            st.builds("SELECT ({}) AS q, {} AS r FROM {}".format, inner, columns, tables),
        ),
        max_leaves=6,
    )


@given(queries())
def test_tables_of_generated_queries(query: str) -> None:
    assert set(table_names(query)) == set(SparkQuery(query).tables)


def test_columns_are_words_that_are_no_string_no_function_and_no_field() -> None:
    expression = "upper(text) || `odd name` || 'b' || meta.title /* c */ || length -- d"
    assert column_names(expression) == ["text", "odd name", "meta", "length"]


@pytest.mark.parametrize(
    "query",
    [
        "select  id , upper(text) shout\nfrom people where id>1 ;",
        "SELECT id, Name, `Name` AS n FROM People",
        "SELECT * FROM people -- all of it",
        "SELECT id FROM team.people WHERE text = 'it''s' LIMIT 5",
        "SELECT a.id FROM people a JOIN other b ON a.id = b.id",
        'SELECT "order" FROM people',
        "SELECT id AS `x y` FROM `a b`",
    ],
)
def test_a_query_equals_what_the_server_stores_of_it(query: str) -> None:
    stored = ViewDefinition.from_request({"query": query}).with_columns(["id", "text"]).query
    assert same_query(stored, query)


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        ("SELECT id FROM t", "SELECT id, text FROM t"),
        ("SELECT id AS Shout FROM t", "SELECT id AS shout FROM t"),
        ("SELECT id FROM t WHERE a = 'X'", "SELECT id FROM t WHERE a = 'x'"),
        ("SELECT id + 1 AS n FROM t", "SELECT * FROM t"),
        ("SELECT id FROM t WHERE id > 1", "SELECT * FROM t"),
    ],
)
def test_other_queries_differ(stored: str, declared: str) -> None:
    assert not same_query(stored, declared)
