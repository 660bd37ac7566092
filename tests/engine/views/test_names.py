"""Names in Spark's queries: what the server refuses at once, and what it must leave to Spark. Spark is the judge."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_provider_lance.definitions.sql.spark_sql import Columns, SparkQuery
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from tests.engine.view_world import World, people

TABLES = {
    "people": "id BIGINT, Name STRING, team STRING, tags ARRAY<STRING>, s STRUCT<x: INT, y: STRUCT<z: INT>>, "
    "m MAP<STRING, INT>, ts TIMESTAMP, l ARRAY<STRUCT<k: INT, v: STRING>>",
    "orders": "id BIGINT, person BIGINT, amount DOUBLE, day DATE, team STRING",
    "ns.items": "id BIGINT, title STRING",
}
COLUMNS = {
    "people": Columns(("id", "Name", "team", "tags", "s", "m", "ts", "l"), ("x", "y", "z", "k", "v", "key", "value")),
    "orders": Columns(("id", "person", "amount", "day", "team")),
    "ns.items": Columns(("id", "title")),
}

VALID = [
    "SELECT NAME, Team FROM People",
    "SELECT p.id, o.amount FROM people p JOIN orders o ON p.id = o.person",
    "SELECT people.id, orders.amount FROM people JOIN orders ON people.id = orders.person",
    "SELECT id, title FROM ns.items JOIN orders USING (id)",
    "SELECT items.title FROM ns.items",
    "SELECT team, count(*) AS n FROM people GROUP BY team HAVING n > 1 ORDER BY n",
    "SELECT upper(team) AS t, count(*) AS n FROM people GROUP BY t",
    "SELECT team, count(*) AS n FROM people GROUP BY ALL",
    "SELECT team, id FROM people ORDER BY ALL",
    "SELECT id + 1 AS a, a * 2 AS b FROM people WHERE id > 1 ORDER BY b",
    "SELECT s.x, s.y.z, people.s.y FROM people",
    "SELECT p.s.x AS sx, p.m['k'] AS mk, p.m.k AS mk2 FROM people p",
    "SELECT l.k, l[0].v AS first FROM people",
    "SELECT transform(tags, t -> concat(t, Name)) AS u FROM people",
    "SELECT transform(tags, (t, i) -> concat(t, i)) AS u, filter(l, e -> e.k > 1) AS f FROM people",
    "SELECT aggregate(l, 0, (acc, e) -> acc + e.k, acc -> acc * 2) AS total FROM people",
    "SELECT id, tag FROM people LATERAL VIEW explode(tags) e AS tag",
    "SELECT id, e.tag FROM people LATERAL VIEW OUTER explode(tags) e AS tag WHERE e.tag <> ''",
    "SELECT id, mk, mv FROM people LATERAL VIEW explode(m) e AS mk, mv",
    "SELECT id, t.col FROM people, LATERAL explode(tags) AS t",
    "SELECT id, explode(tags) FROM people WHERE id > 1 ORDER BY col",
    "SELECT id, posexplode(tags) AS (p, c) FROM people",
    "SELECT id, k, v FROM people LATERAL VIEW inline(l) e",
    "SELECT id, stack(2, 'a', 1, 'b', 2) AS (label, number) FROM people",
    "SELECT * FROM (SELECT team, amount FROM orders) PIVOT (sum(amount) FOR team IN ('a' AS first, 'b'))",
    "SELECT first, b FROM (SELECT team, amount FROM orders) PIVOT (sum(amount) FOR team IN ('a' AS first, 'b'))",
    "SELECT id, what, much FROM orders UNPIVOT (much FOR what IN (amount AS a, person AS b))",
    "SELECT /*+ BROADCAST(o), REPARTITION(3) */ p.id FROM people p JOIN orders o ON p.id = o.person",
    "SELECT /*+ MERGE(orders) */ people.id FROM people JOIN orders ON people.id = orders.person",
    "WITH people AS (SELECT id AS renamed FROM people) SELECT renamed FROM people",
    "WITH c (a, b) AS (SELECT id, team FROM people) SELECT a, b FROM c",
    "WITH c AS (SELECT id AS k FROM people), d AS (SELECT k AS j FROM c) SELECT j FROM d JOIN c ON d.j = c.k",
    "WITH RECURSIVE n AS (SELECT 1 AS v FROM people UNION ALL SELECT v + 1 FROM n WHERE v < 3) SELECT v FROM n",
    "SELECT q.a FROM (SELECT id AS a FROM people) q",
    "SELECT x.a, x.b FROM (SELECT id, team FROM people) AS x (a, b)",
    "SELECT x.a FROM people AS x (a, b, c, d, e, f, g, h)",
    "SELECT v.a, p.team FROM VALUES (1, 2) AS v (a, b) JOIN people p ON p.id = v.a",
    "SELECT col1, team FROM VALUES (1, 2), (3, 4) JOIN people",
    "SELECT id FROM range(5) JOIN people USING (id)",
    "SELECT id FROM people p WHERE EXISTS (SELECT 1 FROM orders o WHERE o.person = p.id AND o.team = p.team)",
    "SELECT id, (SELECT max(amount) FROM orders WHERE person = people.id) AS best FROM people",
    "SELECT id FROM people WHERE id IN (SELECT person FROM orders WHERE Name <> '')",
    "SELECT id FROM people WHERE id NOT IN (SELECT person FROM orders)",
    "SELECT p.id, d.amount FROM people p, LATERAL (SELECT amount FROM orders o WHERE o.person = p.id) d",
    "SELECT id, sum(amount) OVER w AS total FROM orders WINDOW w AS (PARTITION BY team ORDER BY day)",
    "SELECT id, row_number() OVER (PARTITION BY team ORDER BY day) AS rn FROM orders QUALIFY rn = 1",
    "SELECT id FROM people UNION ALL SELECT person FROM orders",
    "(SELECT id FROM people) INTERSECT (SELECT person AS id FROM orders) ORDER BY id",
    "SELECT * FROM people NATURAL JOIN orders",
    "SELECT * EXCEPT (tags) FROM people WHERE id > 1 ORDER BY id",
    "SELECT p.*, o.amount AS amt FROM people p LEFT ANTI JOIN orders o2 ON p.id = o2.person CROSS JOIN orders o",
    "SELECT count(*) AS n, `count(1)` FROM (SELECT count(1) FROM people) GROUP BY 2",
    "SELECT `max(id)` FROM (SELECT team, max(id) FROM people GROUP BY team)",
    "SELECT named_struct('a', id, 'b', team).a AS v FROM people ORDER BY id",
    "SELECT struct(id AS q).q AS v, to_json(struct(*)) AS j FROM people ORDER BY id",
    'SELECT CASE WHEN team = "it\'s" THEN \'a\' ELSE "b" END AS c FROM people',
    r"SELECT DISTINCT id FROM people WHERE team <> 'it\'s -- id' AND Name <> r'\'",
    "SELECT date_trunc('month', ts) AS month, extract(YEAR FROM ts) AS y FROM people GROUP BY 1, 2",
    "SELECT ts + INTERVAL 1 DAY AS n, ts - INTERVAL '2' HOUR AS o FROM people ORDER BY id",
    "SELECT id FROM people TABLESAMPLE (100 PERCENT) REPEATABLE (3) WHERE people.id > 1",
    "SELECT x.id FROM people TABLESAMPLE (5 ROWS) x",
    "SELECT team, grouping(team) AS g, sum(amount) AS s FROM orders GROUP BY ROLLUP (team)",
    "SELECT team, day, sum(amount) AS s FROM orders GROUP BY GROUPING SETS ((team), (team, day))",
    "SELECT team, sum(amount) FILTER (WHERE day > DATE '2024-01-01') AS s FROM orders GROUP BY team",
    "SELECT id AS `a b`, team `c``d` FROM people ORDER BY `a b`",
    "SELECT /* id2 */ id -- nosuch\nFROM people /* nosuch /* nested */ */ ORDER BY id",
    "FROM people |> WHERE id > 1",
    "FROM people |> WHERE id > 1 |> SELECT id, team |> AGGREGATE count(*) AS n GROUP BY team |> ORDER BY n",
    "FROM people |> EXTEND id + 1 AS next |> SET team = 'x' |> DROP tags |> AS p |> WHERE p.next > 1 |> LIMIT 3",
    "FROM people |> JOIN orders ON people.id = person |> SELECT people.id, amount",
    "FROM people |> SELECT id |> UNION ALL (SELECT person FROM orders)",
    "SELECT id, team FROM people |> AGGREGATE max(id) AS m GROUP BY team AS t |> SELECT t, m",
    "SELECT id FROM people ORDER BY team, s.x DESC NULLS LAST LIMIT 5 OFFSET 1",
    "SELECT id, team FROM people DISTRIBUTE BY team SORT BY id",
    "SELECT id, team FROM people CLUSTER BY team",
    "SELECT first_value(id) IGNORE NULLS OVER (ORDER BY ts) AS f FROM people",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS p FROM orders GROUP BY team",
    "SELECT try_cast(team AS INT) AS a, team::string AS b FROM people ORDER BY id",
    "SELECT cast(s AS STRUCT<x: INT, q: STRUCT<z: INT>>).q.z AS c FROM people ORDER BY id",
    "SELECT id, current_date AS today, now() AS n, current_timestamp() AS c FROM people ORDER BY id",
    "SELECT from_json(team, 'a INT, b STRING').a AS v FROM people ORDER BY id",
    "SELECT j.a FROM (SELECT from_json(team, 'a INT') AS j FROM people)",
    "SELECT max_by(Name, id) AS n, any_value(team) AS t FROM people HAVING count(*) > 1",
    "SELECT a.id FROM people a, people b WHERE a.id = b.id AND a.team <=> b.team",
    "SELECT people.id FROM people JOIN (SELECT id AS oid FROM orders) people2 ON people.id = oid",
    "SELECT o.id FROM orders o WHERE o.id IN (SELECT o.k FROM (SELECT id AS k FROM people) o)",
    "WITH o AS (SELECT id AS k FROM people) SELECT o.k FROM o WHERE k IN (SELECT o.person FROM orders o)",
    "SELECT x.team FROM people x WHERE x.id IN (SELECT x.person FROM orders x)",
    "SELECT s.amount FROM orders s JOIN people p ON p.id = s.id WHERE p.s.x > 1",
]


@pytest.fixture(scope="module")
def views(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for number, columns in enumerate(TABLES.values()):
        session.createDataFrame([], columns).createOrReplaceTempView(f"v{number}")
    return session


def names(query: SparkQuery) -> dict[str, str]:
    """The temporary view for each table, whatever the case in which the query writes its name."""
    numbers = {name: f"v{number}" for number, name in enumerate(TABLES)}
    return {".".join(parts): numbers[".".join(parts).lower()] for parts in query.tables}


def columns(query: SparkQuery) -> dict[str, Columns]:
    return {".".join(parts): COLUMNS[".".join(parts).lower()] for parts in query.tables}


@pytest.mark.parametrize("sql", VALID)
def test_a_query_that_spark_can_plan_is_never_refused(views: SparkSession, sql: str) -> None:
    query = SparkQuery(sql)
    assert views.sql(query.renamed(names(query))).columns
    assert query.unknown_column(columns(query)) is None


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT id, nmae FROM people ORDER BY id", "no column 'nmae' (at line 1, column 12): people has id, Name"),
        (
            "SELECT p.id, o.amuont FROM people p JOIN orders o ON p.id = o.person",
            "orders has id, person, amount, day, team. Did you mean 'amount'?",
        ),
        ("SELECT p.id, p.amount FROM people p JOIN orders o ON p.id = o.person", "people has id, Name, team"),
        ("SELECT p.id FROM people p\nJOIN orders o ON p.id = o.persn", "line 2, column 25"),
        ("SELECT team, count(*) AS n FROM people GROUP BY taem", "'taem'"),
        ("SELECT DISTINCT id FROM people WHERE nosuch > 1", "people has id, Name, team, tags, s, m, ts, l."),
        ("SELECT id FROM people WHERE id IN (SELECT peson FROM orders)", "'peson'"),
        ("SELECT id FROM people p JOIN orders o USING (nosuch)", "'nosuch'"),
        ("WITH c AS (SELECT nosuch FROM people) SELECT * FROM c", "'nosuch'"),
        ("SELECT transform(tags, t -> concat(t, nosuch)) AS u FROM people", "'nosuch'"),
        ("FROM people |> WHERE nosuch > 1", "'nosuch'"),
        ("SELECT sum(nosuch) OVER (PARTITION BY team) AS n FROM people", "'nosuch'"),
    ],
)
def test_a_column_that_no_table_has_is_refused_with_those_there_are(
    views: SparkSession, sql: str, sentence: str
) -> None:
    query = SparkQuery(sql)
    with pytest.raises(AnalysisException):
        views.sql(query.renamed(names(query)))
    assert sentence in str(query.unknown_column(columns(query)))


def test_a_view_with_a_wrong_column_is_not_created(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("people", people(range(3)))
    world.table("orders", pa.table({"person": [1], "amount": [2.0]}))
    with pytest.raises(
        InvalidInputError, match=r"no column 'amuont' .*orders has person, amount. Did you mean 'amount'"
    ):
        world.view("view", "SELECT p.id, o.amuont FROM people p JOIN orders o ON p.id = o.person")
    with pytest.raises(InvalidInputError, match="no column 'txet'"):
        world.view("view", "SELECT CASE WHEN txet = '' THEN 1 END AS c FROM people")
    assert not Path(world.path("view")).exists()


def test_a_query_of_pipes_stores_every_column_that_it_yields(tmp_path: Path, spark: SparkSession) -> None:
    world = World(tmp_path, spark=spark)
    world.table("people", people(range(5)))
    definition = world.view("view", "FROM people |> WHERE id >= 3")
    assert isinstance(definition, ViewDefinition)
    assert definition.dialect == "spark"
    world.refresh("view")
    assert world.open("view").schema.names == ["id", "text", "score"]
    assert world.open("view").count_rows() == 2
