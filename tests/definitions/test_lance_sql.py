"""Lance's SQL as the parser reads it, and Lance's planner as the judge of what was read."""

from __future__ import annotations

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.expressions import check_expression, check_filter, expression_inputs
from airflow_provider_lance.definitions.sql.lance_sql import looks_like_sql, read_expression, read_select
from airflow_provider_lance.definitions.sql.text import SqlError

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "b": pa.string(),
    "t2": pa.string(),
    "end": pa.string(),
    "list": pa.int64(),
    "select": pa.int64(),
    "s": pa.struct([("x", pa.int64()), ("y z", pa.int64())]),
    "l": pa.list_(pa.int64()),
    "m": pa.map_(pa.string(), pa.int64()),
    "it's": pa.int64(),
}
SCHEMA = pa.schema(COLUMNS)


@pytest.mark.parametrize(
    ("expression", "inputs"),
    [
        ("""concat(b, "it's ", t2, ' end')""", ("b", "t2")),
        ("""concat(b, 'say "', t2, '" end')""", ("b", "t2")),
        ("""concat("b", b, 't2')""", ("b",)),
        ("""concat(b, 'it''s -- t2', "/* t2 */")""", ("b",)),
        ("concat(b, /* t2, */ `end`) -- t2", ("b", "end")),
        ("b || -- '\n t2", ("b", "t2")),
        ("`it's` + 1", ("`it's`",)),
        ("s['x'] + s.`y z`", ("s.x", "s.`y z`")),
        ("""s["x"] + list""", ("list", "s.x")),
        ("l[id]", ("id", "l")),
        ("get_field(s, 'x')", ("s",)),
        ("list < 3 AND ID > 1", ("id", "list")),
        ("id + select", ("id", "`select`")),
        ("named_struct('t2', b)", ("b",)),
        ("(s).x", ("s.x",)),
        ("array_has(l, 3)", ("l",)),
        ("b LIKE '%\\' AND t2 <> ''", ("b", "t2")),
        ("cast(b as date) = date '2020-01-01'", ("b",)),
        ("x'ff' = cast(b as binary)", ("b",)),
    ],
)
def test_inputs_are_the_columns_over_which_lance_plans_the_expression(expression: str, inputs: tuple[str, ...]) -> None:
    assert {path.replace("`", "") for path in expression_inputs(SCHEMA, expression)} == {
        path.replace("`", "") for path in inputs
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id < 50) OR (id > 150", r"unexpected '\)' at line 1, column 8"),
        ("id < 50)", r"unexpected '\)' at line 1, column 8"),
        ("(id < 50", r"an unclosed \( at line 1, column 1"),
        ("id < 50; drop table t", "more than one statement at line 1, column 8"),
        ("id < 50, id > 3", "unexpected ',' after one expression at line 1, column 8"),
        ("id < 50 x", "unexpected 'x' at line 1, column 9"),
        ("id < 50 AS x", "unexpected 'AS' at line 1, column 9"),
        ("id < 50 ORDER BY id", "unexpected 'ORDER' at line 1, column 9"),
        ("id < 50\nLIMIT 1", "unexpected 'LIMIT' at line 2, column 1"),
        ("id < 50 UNION SELECT 1", "unexpected 'UNION' at line 1, column 9"),
        ("DISTINCT id < 50", "unexpected 'DISTINCT' at line 1, column 1"),
        ("id <", "missing beside '<' at line 1, column 4"),
        ("b = 'x", "an unclosed ' at line 1, column 5"),
        ('b = "x', 'an unclosed " at line 1, column 5'),
        ("b = 'it\\'s'", "an unclosed ' at line 1, column 11"),
        ("`b = 'x'", "an unclosed ` at line 1, column 1"),
        ("id < 50 /* why", r"an unclosed /\* at line 1, column 9"),
        ("id < 50 /* a /* b */ c */", "unexpected 'c'"),
        ("-- nothing", "no SQL in the text"),
        ("   ", "no SQL in the text"),
        ("b = ?", r"Lance's SQL has no '\?' at line 1, column 5"),
        ("b = $1", r"Lance's SQL has no '\$1' at line 1, column 5"),
        ("b = r'x'", "Lance's SQL has no \"r'x'\" at line 1, column 5"),
        ("b = N'x'", "Lance's SQL has no \"N'x'\" at line 1, column 5"),
        ("*", "not an expression"),
        ("id < 50\x00", "unexpected"),
    ],
)
def test_what_is_not_one_expression_is_refused_at_its_place(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        check_filter(SCHEMA, text)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("id < 50 -- comment", "id < 50"),
        ("id < 50 /* a */ AND -- b\n id > 3;", "id < 50 AND id > 3"),
        ("  id  <  50  ", "id  <  50"),
        ("b <> '-- no' AND t2 <> \"/* no */\"", "b <> '-- no' AND t2 <> \"/* no */\""),
        ("id < /*+ no hint */ 50", "id < 50"),
    ],
)
def test_comments_are_left_out_and_strings_kept(text: str, clean: str) -> None:
    assert read_expression(text).text == clean
    check_filter(SCHEMA, f"({read_expression(text).text}) AND id >= 0")


@pytest.mark.parametrize("literal", ["?", "$a", ":a", "N'x'", "r'x'", "b'x'", "$$x$$"])
def test_no_text_makes_lances_planner_panic(literal: str) -> None:
    """A panic of Rust code is no Exception: it would pass every handler of a server."""
    dataset = lance.write_dataset(pa.table({"b": ["x"]}), "memory://")
    with pytest.raises(BaseException, match="not yet implemented"):
        dataset.scanner(columns={"x": literal}).to_table()
    with pytest.raises(InvalidInputError):
        expression_inputs(SCHEMA, literal)


def test_long_conditions_are_read_too() -> None:
    alternatives = " OR ".join(f"id = {number}" for number in range(1500))
    assert expression_inputs(SCHEMA, alternatives) == ("id",)
    values = f"id IN ({', '.join(map(str, range(10_000)))})"
    assert check_filter(SCHEMA, values) == ("id",)
    with pytest.raises(InvalidInputError, match="an unclosed"):
        check_filter(SCHEMA, values[:-1])
    with pytest.raises(InvalidInputError, match=r"not valid|Expected"):
        check_filter(SCHEMA, f"{values} LIMIT 1")


def test_names_in_strings_are_no_names() -> None:
    check_expression(SCHEMA, """concat(b, "now()", 'current_date', "_rowid")""")
    with pytest.raises(InvalidInputError, match="another value"):
        check_expression(SCHEMA, """concat(b, "it's ", now())""")
    with pytest.raises(InvalidInputError, match="rows move"):
        check_expression(SCHEMA, "`_rowid`")


def test_double_quotes_are_names_in_lancedbs_queries_and_strings_in_lances_expressions() -> None:
    select = read_select('SELECT "t2", concat(b, \'"\') AS q FROM people WHERE "b" = \'x\'')
    assert select is not None
    assert [item.expression for item in select.items] == ["t2", "concat(b, '\"')"]
    assert select.filter == "b = 'x'"
    assert read_expression('"t2"').paths == ()


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT id, FROM people", "empty column"),
        ("SELECT id AS 'x' FROM people", "not a string"),
        ("SELECT id FROM people LIMIT 2 + 1", "plain `LIMIT n` at line 1, column 29"),
    ],
)
def test_a_query_of_lancedbs_grammar_that_is_wrong_is_refused(sql: str, reason: str) -> None:
    with pytest.raises(SqlError, match=reason):
        read_select(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT id FROM people",
        "SELECT id FROM people p",
        "SELECT p.* FROM p",
        "SELECT id FROM people ORDER BY id",
        "SELECT id FROM a, b",
        "SELECT id FROM range(3)",
        "FROM people |> SELECT id",
        "SELECT id FROM people |> WHERE id > 1",
        r"SELECT id FROM people WHERE b = 'it\'s'",
    ],
)
def test_queries_beyond_lancedbs_grammar_are_left_to_spark(sql: str) -> None:
    assert read_select(sql) is None


def test_an_opaque_text_is_told_from_sql_with_a_mistake() -> None:
    assert looks_like_sql("SELECT id FORM people")
    assert looks_like_sql("SELECT 'unclosed FROM people")
    assert looks_like_sql("FROM people |> WHERE id > 1")
    for text in ("c2VsZWN0", "SELECTabc=", '{"select": 1}', "", "select", "selection of things"):
        assert not looks_like_sql(text), text
