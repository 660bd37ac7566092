"""Both dialects of CreateMaterializedView, what is refused, and what is written for LanceDB to read."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from airflow_provider_lance.definitions.arrow_types import encode_schema
from airflow_provider_lance.definitions.refresh_request import RefreshRequest
from airflow_provider_lance.definitions.sql.lance_sql import read_select
from airflow_provider_lance.definitions.sql.spark_sql import SparkQuery
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from tests.engine.view_world import World, create_view, people

OUTPUT = encode_schema(pa.schema([("id", pa.int64())]))
UDTF = base64.b64encode(b"{}").decode()


def spec(**changes: Any) -> dict[str, Any]:
    base = {
        "kind": "chunker",
        "udtf": UDTF,
        "udtf_sha": hashlib.sha256(UDTF.encode()).hexdigest(),
        "udtf_name": "f",
        "udtf_version": "1",
        "input_columns": ["id"],
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def request(**changes: Any) -> dict[str, Any]:
    base = {"kind": "query", "source_query": "SELECT id FROM people", "output_schema": OUTPUT}
    return base | changes


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.table("people", people(range(6)))
    return world


@pytest.mark.parametrize(
    ("sql", "canonical"),
    [
        ("select id from people;", "SELECT id FROM people"),
        (
            "SELECT id x, upper( text )  AS Shout FROM people -- why",
            "SELECT id AS x, upper( text ) AS `Shout` FROM people",
        ),
        (
            'SELECT "id" FROM "people" WHERE "text" = \'it\'\'s; FROM\'',
            "SELECT id FROM people WHERE text = 'it''s; FROM'",
        ),
        ("SELECT extract(year from d) AS y FROM a.b LIMIT 5", "SELECT extract(year from d) AS y FROM a.b LIMIT 5"),
        ("SELECT a IS DISTINCT FROM b AS c FROM People", "SELECT a IS DISTINCT FROM b AS c FROM `People`"),
        (
            "SELECT ts + interval '1' day AS next, ts - interval '2 days' ago FROM t",
            "SELECT ts + interval '1' day AS next, ts - interval '2 days' AS ago FROM t",
        ),
        ("SELECT id::int AS i, NOT ok AS bad, s.a FROM t", "SELECT id::int AS i, NOT ok AS bad, s.a AS a FROM t"),
    ],
)
def test_queries_of_lancedbs_grammar_are_taken_apart(sql: str, canonical: str) -> None:
    select = read_select(sql)
    assert select is not None
    assert select.to_sql() == canonical
    assert read_select(canonical) == select, "the canonical text reads back as itself"


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT a.x FROM t1 a JOIN ns.t2 ON a.id = t2.id GROUP BY 1", ["t1", "ns.t2"]),
        (
            "WITH c AS (SELECT * FROM base) SELECT * FROM c, (SELECT 1 z FROM deep) d, other o",
            ["base", "deep", "other"],
        ),
        ("SELECT id FROM p WHERE k IN (SELECT k FROM keys) UNION ALL SELECT id FROM q", ["p", "keys", "q"]),
        ("SELECT x FROM (t1 JOIN t2 USING (id)), range(5)", ["t1", "t2"]),
        ("WITH t AS (SELECT * FROM t) SELECT count(*) AS n FROM t", ["t"]),
        ("WITH a AS (SELECT 1 AS x FROM b), b (y) AS (SELECT x FROM a) SELECT * FROM b", ["b"]),
        ("SELECT * FROM (WITH a AS (SELECT * FROM deep) SELECT * FROM a) s JOIN a ON true", ["deep", "a"]),
        ("WITH RECURSIVE n AS (SELECT 1 AS x FROM t UNION ALL SELECT x + 1 FROM n) SELECT x FROM n", ["t"]),
        (r"SELECT DISTINCT id FROM t WHERE a <> 'it\'s' AND b <> r'\' AND id IN (SELECT id FROM u)", ["t", "u"]),
        ("SELECT DISTINCT trim(both 'x' from y) FROM `team$people`", ["team$people"]),
    ],
)
def test_tables_of_any_query_are_found(sql: str, tables: list[str]) -> None:
    assert [".".join(parts) for parts in SparkQuery(sql).tables] == tables
    assert ViewDefinition.from_request({"query": sql}).sources == tuple(tables)


def test_a_name_of_a_with_hides_a_table_only_where_it_holds() -> None:
    query = SparkQuery("WITH t AS (SELECT * FROM t) SELECT count(*) AS n FROM t")
    assert query.renamed({"t": "v0"}) == ("WITH t AS (SELECT * FROM v0 AS `t`) SELECT count(*) AS n FROM t")


def test_tables_are_renamed_and_keep_their_alias() -> None:
    sql = "SELECT people.id, o.x FROM people JOIN ns.orders o ON people.id = o.id WHERE id IN (SELECT id FROM people)"
    assert SparkQuery(sql).renamed({"people": "v0", "ns.orders": "v1"}) == (
        "SELECT people.id, o.x FROM v0 AS `people` JOIN v1 o ON people.id = o.id "
        "WHERE id IN (SELECT id FROM v0 AS `people`)"
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"query": "DROP TABLE people"}, "must be a SELECT"),
        ({"query": "SELECT id + 1 FROM people"}, "needs a name"),
        ({"query": "SELECT ts + interval '1' day FROM people"}, "needs a name"),
        ({"query": "SELECT a.id, b.x AS y, b.ID FROM a JOIN b ON a.k = b.k"}, "same name: id"),
        ({"query": "SELECT 'unclosed FROM people"}, "an unclosed ' at line 1, column 8"),
        ({"query": "SELECT id FORM people"}, "is 'FORM' meant as FROM. at line 1, column 11"),
        ({"query": "SELECT id\nFROM people GROUP id"}, "at line 2, column"),
        ({"query": "SELECT id FROM people WHERE"}, "missing beside 'WHERE' at line 1, column 23"),
        (request(source_query="SELECT id FORM people"), "meant as FROM"),
        ({"query": "SELECT id, id FROM people"}, "same name"),
        ({"query": "SELECT id AS __source_row_id FROM people"}, "view's own column"),
        ({"query": "SELECT *, id FROM people"}, "only column"),
        ({"query": "SELECT id FROM people; DELETE FROM people"}, "more than one statement"),
        ({"query": "SELECT id FROM people", "kind": "query"}, "one dialect"),
        ({"query": "SELECT id FROM people", "surprise": 1}, "unknown fields"),
        ({"query": "SELECT id FROM people", "with_no_data": "yes"}, "true or false"),
        (request(kind="table"), "kind must be one of"),
        (request(output_schema="???"), "not a base64"),
        (request(source_query=""), "source_query is required"),
        (request(udtf_spec=spec()), "must be null"),
        (request(kind="chunker"), "udtf_spec is required"),
        (request(kind="udtf", udtf_spec=spec()), "must match"),
        (request(kind="chunker", udtf_spec=spec(udtf_sha="0" * 64)), "not the SHA-256"),
        (request(kind="chunker", udtf_spec=spec(input_columns=None)), "input_columns is required"),
        (request(kind="chunker", udtf_spec=spec(partition_by="id")), "batch functions"),
        (request(kind="chunker", udtf_spec=spec(num_cpus=-1)), "not negative"),
        (request(kind="chunker", udtf_spec=spec(manifest="[]")), "JSON object"),
        (request(kind="chunker", udtf_spec=spec(manifest="{}", manifest_checksum="0")), "manifest_checksum"),
        (request(kind="udtf", udtf_spec=spec(kind="udtf", batch=True)), "belongs to chunkers"),
        (request(kind="udtf", udtf_spec=spec(kind="udtf", error_handling={"mode": "hope"})), "mode"),
        (request(kind="chunker", source_query="SELECT a.id FROM a JOIN b", udtf_spec=spec()), "one table"),
        (request(kind="udtf", source_query="SELECT a.id FROM a JOIN b", udtf_spec=spec(kind="udtf")), "one table"),
        (request(kind="chunker", source_query="SELECT id FROM a LIMIT 3", udtf_spec=spec()), "LIMIT"),
    ],
)
def test_bad_definitions_are_refused_with_a_sentence(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as refused:
        ViewDefinition.from_request(body)
    assert refused.value.code == 13


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT nosuch AS x FROM people", "nosuch"),
        ("SELECT nofunc(id) AS x FROM people", "nofunc"),
        ("SELECT random() AS x FROM people", "random"),
        ("SELECT id FROM people WHERE text", "boolean"),
        ("SELECT id FROM people WHERE now() > 1", "now"),
    ],
)
def test_a_definition_that_does_not_hold_over_its_source_creates_nothing(world: World, query: str, error: str) -> None:
    with pytest.raises(InvalidInputError, match=error):
        world.view("view", query)
    assert not Path(world.path("view")).exists()


def test_the_output_schema_is_checked_against_the_query(world: World) -> None:
    wrong = encode_schema(pa.schema([("id", pa.int32())]))
    with pytest.raises(
        InvalidInputError, match=r"output_schema says \(id: int32\), but the query yields \(id: int64\)"
    ):
        world.view("view", **request(output_schema=wrong))
    definition = world.view("view", **request(source_query=json.dumps({"query": "SELECT id FROM people"})))
    assert (definition.format, definition.query) == (1, "SELECT id FROM people")


def test_table_functions_are_checked_against_their_source(world: World) -> None:
    with pytest.raises(TableColumnNotFoundError, match="nosuch"):
        world.view("view", **request(kind="chunker", udtf_spec=spec(input_columns=["nosuch"])))
    definition = world.view("view", **request(kind="scalar_udtf", udtf_spec=spec(kind="scalar_udtf")))
    assert (definition.kind, definition.format) == ("chunker", 1000)


def test_what_lance_sql_cannot_say_becomes_a_spark_view(world: World) -> None:
    definition = world.view("view", "SELECT CASE WHEN id > 1 THEN 1 ELSE 2 END AS c FROM people")
    assert (definition.dialect, definition.format) == ("spark", 1000)


def test_an_opaque_query_is_kept_and_its_refresh_refused(world: World) -> None:
    blob = base64.b64encode(b"\x00plan").decode()
    definition = world.view("view", **request(source_query=blob))
    assert definition.query == blob
    with pytest.raises(InvalidInputError, match="without understanding"):
        RefreshRequest.parse(definition, {})


def test_a_star_is_written_out_and_definitions_survive_the_disk(world: World) -> None:
    stored = world.view("view", "SELECT * FROM people WHERE id > 2", auto_refresh=True)
    assert stored.query == "SELECT id, text, score FROM people WHERE id > 2"
    read = ViewDefinition.from_metadata(world.open("view").schema.metadata)
    assert read == stored
    assert stored.describe()["projections"][1] == {"output_column": "text", "expression": "text"}
    over = world.view("over", "SELECT * FROM view")
    assert over.query == "SELECT id, text, score FROM view", "the row ids of a view are its own"


@pytest.mark.parametrize("word", ["cluster", "distribute", "qualify", "sort", "window", "offset"])
def test_columns_named_like_clauses_are_quoted_and_read_back(tmp_path: Path, word: str) -> None:
    world = World(tmp_path)
    world.table("words", pa.table({"id": [1, 2], word: ["a", "b"]}))
    assert world.view("all", "SELECT * FROM words").query == f"SELECT id, `{word}` FROM words"
    world.view("some", f"SELECT id AS `{word}` FROM words WHERE `{word}` <> 'a'")
    for name in ("all", "some"):
        world.refresh(name)
        assert lancedb.connect(str(world.root)).open_materialized_view(name).refresh().mode == "no_op"
    assert (world.rows("all"), world.rows("some")) == ([(1, "a"), (2, "b")], [(2,)])


def test_a_definition_that_would_not_be_read_back_creates_nothing(world: World) -> None:
    definition = ViewDefinition.from_request({"query": "SELECT id FROM people"})
    with pytest.raises(InvalidInputError, match="would not be read back"):
        create_view(world.path("view"), replace(definition, query="SELECT text FROM people"), world.open)
    assert not Path(world.path("view")).exists()


def test_lancedb_lists_every_view_and_reads_ours(world: World) -> None:
    world.table("orders", people(range(3)))
    world.view("plain", "SELECT id, upper(text) AS Shout FROM people WHERE (id > 2) LIMIT 3")
    world.view("joined", "SELECT p.id FROM people p JOIN orders o ON p.id = o.id")
    world.view("chunks", **request(kind="chunker", udtf_spec=spec()))
    database = lancedb.connect(str(world.root))
    assert sorted(database.list_materialized_views()) == ["chunks", "joined", "plain"]
    view = database.open_materialized_view("plain")
    assert view.definition.query == "SELECT id, upper(text) AS `Shout` FROM people WHERE (id > 2) LIMIT 3"
    assert view.refresh().rows_written == 3
    with pytest.raises(Exception, match="1000"):
        database.open_materialized_view("joined").refresh()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"concurrency": 0}, "at least 1"),
        ({"source_task_size": -5}, "at least 1"),
        ({"max_rows_per_fragment": "many"}, "whole number"),
        ({"src_version": True}, "whole number"),
        ({"output_limit": 5}, "chunker views"),
        ({"manifest": "{}"}, "no function"),
        ({"full": "yes"}, "true or false"),
        ({"fast": True}, "unknown fields"),
    ],
)
def test_refresh_requests_that_cannot_be_honoured_are_refused(body: dict[str, Any], sentence: str) -> None:
    definition = ViewDefinition.from_request({"query": "SELECT id FROM people"})
    with pytest.raises(InvalidInputError, match=sentence):
        RefreshRequest.parse(definition, body)
    joined = ViewDefinition.from_request({"query": "SELECT a.id FROM a JOIN b ON a.id = b.id"})
    for refused in ({"source_task_size": 5}, {"src_version": 3}):
        with pytest.raises(InvalidInputError):
            RefreshRequest.parse(joined, refused)


def test_the_definition_module_imports_nothing_heavy() -> None:
    code = (
        "import sys, airflow_provider_lance.definitions.view_definition;"
        "print([m for m in ('pyspark', 'lance', 'pyarrow', 'lance_namespace', 'sqlglot') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("query", "foreign"),
    [
        ("SELECT id FROM t", False),
        ("SELECT id % 2 AS k, count(*) AS n FROM t GROUP BY id % 2", False),
        ("SELECT a.id FROM a JOIN b USING (id)", False),
        ("SELECT id % 2 AS k, count(*) AS reflected FROM t GROUP BY id % 2", False),
        ("SELECT reflect('java.lang.System', 'getProperty', 'x') AS p, count(*) AS n FROM t GROUP BY id", True),
        ("SELECT JAVA_METHOD('java.lang.System', 'gc') AS p, count(*) AS n FROM t GROUP BY id", True),
        ("SELECT try_reflect('a.B', 'c') AS p, count(*) AS n FROM t GROUP BY id", True),
    ],
)
def test_a_query_that_calls_java_counts_as_the_code_of_a_user(query: str, foreign: bool) -> None:
    assert bool(ViewDefinition.from_request({"id": ["v"], "query": query}).user_code) is foreign


def test_a_views_function_is_the_code_of_a_user() -> None:
    one, other = (
        ViewDefinition.from_request(
            {
                "id": ["v"],
                "kind": "chunker",
                "source_query": "SELECT id FROM t",
                "output_schema": OUTPUT,
                "udtf_spec": spec(udtf=text, udtf_sha=hashlib.sha256(text.encode()).hexdigest()),
            }
        ).user_code
        for text in (UDTF, base64.b64encode(b"[]").decode())
    )
    assert one
    assert one != other
