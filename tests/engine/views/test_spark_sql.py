"""Views in Spark SQL over Lance tables: joins, aggregates, unions; columns and filters read no more than needed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas import types as pandas_types
from pyspark.sql.types import StructType

from airflow_provider_lance.definitions.arrow_types import arrow_schema as schema_of
from airflow_provider_lance.definitions.arrow_types import encode_schema
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.views import spark_plan, spark_view
from airflow_provider_lance.engine.views.spark_plan import TableReads, read_plan
from airflow_provider_lance.engine.views.spark_source import (
    LanceSource,
    lance_filter,
    readable_columns,
    spark_struct,
    spark_table,
)
from airflow_provider_lance.engine.views.spark_view import PlannedQuery, arrow_schema
from airflow_provider_lance.storage.table import TableRef
from tests.engine.view_world import World


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    world = World(tmp_path, spark)
    sales = [{"id": n, "shop": n % 4, "amount": n * 10, "note": "x" * 50} for n in range(40)]
    world.table("sales", pa.Table.from_pylist(sales), rows_per_file=7)
    shops = pa.table({"shop": [0, 1, 2, 9], "name": ["zero", "one", "two", "nine"]})
    world.table("shops", shops)
    return world


def test_a_group_by_is_computed_whole_and_then_by_the_groups_that_changed(world: World) -> None:
    definition = world.view("totals", "SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop")
    assert definition.format == 1000
    assert world.open("totals").schema.names == [], "the schema is settled by the first refresh"

    def expected() -> list[tuple[Any, ...]]:
        rows = world.open("sales").to_table().to_pylist()
        totals: Counter[int] = Counter()
        for row in rows:
            totals[row["shop"]] += row["amount"]
        counts = Counter(row["shop"] for row in rows)
        return sorted([(shop, counts[shop], totals[shop]) for shop in counts], key=repr)

    first = world.refresh("totals")
    assert (first["mode"], first["rows_written"]) == ("rebuild", 4)
    assert world.rows("totals") == expected()
    assert world.refresh("totals")["mode"] == "no_op"
    world.open("sales").delete("id < 10")
    second = world.refresh("totals", refresh_policy="incremental")
    assert (second["mode"], second["technique"], second["rows_deleted"]) == ("incremental", "affected keys", 4)
    assert world.rows("totals") == expected()
    world.open("sales").delete("id = 11")
    third = world.refresh("totals", refresh_policy="full")
    assert (third["mode"], third["reason"]) == ("rebuild", "a full refresh was asked for")
    assert world.rows("totals") == expected()


def test_a_join_follows_both_its_tables(world: World) -> None:
    world.view("named", "SELECT sales.id, shops.name FROM sales JOIN shops ON sales.shop = shops.shop")

    def expected() -> list[tuple[Any, ...]]:
        names = {row["shop"]: row["name"] for row in world.open("shops").to_table().to_pylist()}
        rows = world.open("sales").to_table().to_pylist()
        return sorted([(row["id"], names[row["shop"]]) for row in rows if row["shop"] in names], key=repr)

    world.refresh("named")
    assert world.rows("named") == expected()
    world.open("shops").update({"name": "'uno'"}, where="shop = 1")
    assert world.refresh("named", refresh_policy="incremental")["technique"] == "affected keys"
    assert world.rows("named") == expected()
    world.append("sales", world.open("sales").to_table(limit=3))
    assert world.refresh("named", refresh_policy="incremental")["technique"] == "appended rows"
    assert world.rows("named") == expected()
    assert world.refresh("named")["mode"] == "no_op"


def test_unions_distinct_subqueries_and_cases(world: World) -> None:
    world.view("all_shops", "SELECT DISTINCT shop FROM sales UNION SELECT shop FROM shops")
    world.refresh("all_shops")
    assert [row[0] for row in world.rows("all_shops")] == [0, 1, 2, 3, 9]
    world.view(
        "sizes",
        "WITH big AS (SELECT * FROM sales WHERE amount > 300) "
        "SELECT id, CASE WHEN amount > 350 THEN 'huge' ELSE 'big' END AS size FROM big "
        "WHERE shop IN (SELECT shop FROM shops)",
    )
    world.refresh("sizes")
    assert world.rows("sizes") == sorted(
        [(n, "huge" if n > 35 else "big") for n in range(31, 40) if n % 4 != 3], key=repr
    )


def test_types_that_spark_lacks_come_through(world: World) -> None:
    schema = pa.schema([("id", pa.uint64()), ("vector", pa.list_(pa.float32(), 2)), ("small", pa.uint8())])
    rows = [{"id": 2**63 + n, "vector": [n, n + 0.5], "small": 250} for n in range(3)]
    world.table("points", pa.Table.from_pylist(rows, schema=schema))
    world.view(
        "distinct_points",
        kind="query",
        source_query="SELECT DISTINCT id, vector, small FROM points",
        output_schema=encode_schema(schema),
    )
    world.refresh("distinct_points")
    view = world.open("distinct_points").to_table()
    assert view.schema.types == schema.types
    assert sorted(view.to_pylist(), key=repr) == rows


def test_a_star_inside_a_function_is_every_column(world: World) -> None:
    world.view("documents", "SELECT shop, to_json(struct(*)) AS document FROM shops ORDER BY shop")
    world.refresh("documents")
    assert world.rows("documents")[0] == (0, '{"shop":0,"name":"zero"}')


@pytest.mark.parametrize("groups", [11, 50, 51, 3000])
def test_decimals_come_through_whatever_the_number_of_rows(world: World, groups: int) -> None:
    amounts = [Decimal(number) / 4 for number in range(groups)]
    rows = {"customer": range(groups), "amount": pa.array(amounts, pa.decimal128(12, 2))}
    world.table("bills", pa.table(rows), rows_per_file=10_000)
    query = "SELECT customer, sum(amount) AS total, collect_list(struct(amount)) AS bills FROM bills GROUP BY customer"
    world.view("totals", query)
    world.refresh("totals")
    view = world.open("totals").to_table().sort_by("customer")
    assert view["total"].to_pylist() == amounts
    assert view["bills"].to_pylist() == [[{"amount": amount}] for amount in amounts]


BERLIN, MOMENT = pa.timestamp("us", "Europe/Berlin"), datetime(2024, 5, 6, 7, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.timestamp("us"), MOMENT.replace(tzinfo=None), pa.timestamp("us")),
        (pa.timestamp("ms", "UTC"), MOMENT, pa.timestamp("us", "UTC")),
        (BERLIN, MOMENT, pa.timestamp("us", "UTC")),
        (pa.duration("ms"), timedelta(hours=1), pa.duration("us")),
        (pa.time32("s"), time(1, 2, 3), pa.time64("ns")),
        (pa.date64(), date(2024, 5, 6), pa.date32()),
        (pa.decimal256(20, 2), Decimal("1.25"), pa.decimal128(20, 2)),
    ],
)
def test_times_of_every_unit_come_through(world: World, kind: pa.DataType, value: Any, stored: pa.DataType) -> None:
    world.table("events", pa.table({"id": [1], "at": pa.array([value], kind)}))
    world.view("newest", "SELECT id, max(at) AS at FROM events GROUP BY id")
    world.refresh("newest")
    assert world.open("newest").schema.field("at").type == stored
    assert world.rows("newest") == [(1, value)]


def test_instants_are_stored_in_the_time_zone_that_was_asked_for(world: World) -> None:
    world.table("events", pa.table({"id": [1], "at": pa.array([MOMENT], pa.timestamp("us", "UTC"))}))
    output = encode_schema(pa.schema([("at", BERLIN)]))
    world.view("newest", kind="query", source_query="SELECT max(at) AS at FROM events", output_schema=output)
    world.refresh("newest")
    assert world.open("newest").schema.field("at").type == BERLIN
    assert world.rows("newest") == [(MOMENT,)]


def test_what_spark_cannot_hold_is_refused_with_a_way_out(world: World) -> None:
    fine = pa.array([1_577_836_800_000_000_001], pa.timestamp("ns"))
    months = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    world.table("events", pa.table({"id": [1], "at": fine}))
    world.view("newest", "SELECT id, max(at) AS at FROM events GROUP BY id")
    with pytest.raises(JobError, match=r"column at has.* would lose data.* Cast it in a view of that table alone"):
        world.refresh("newest")
    world.view("rounded", "SELECT id, cast(at AS timestamp(6)) AS at FROM events")
    world.view("newest_rounded", "SELECT id, max(at) AS at FROM rounded GROUP BY id")
    world.refresh("rounded")
    assert world.refresh("newest_rounded")["rows_written"] == 1
    with pytest.raises(JobError, match=r"no type for column months \(month_day_nano_interval\)"):
        spark_struct(pa.schema([("months", months.type)]))


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(50, 2),
        pa.list_(pa.decimal256(40, 0)),
        pa.struct([("inner", pa.decimal256(60, 1))]),
        pa.list_(pa.struct([("inner", pa.month_day_nano_interval())])),
    ],
)
def test_a_type_that_spark_lacks_matters_only_where_its_column_is_read(world: World, kind: pa.DataType) -> None:
    source = pa.schema([("id", pa.int64()), ("wide", kind)])
    assert readable_columns(source) == ["id"]
    with pytest.raises(JobError, match=r"no type for column wide \(.*\)\. Cast it in a view of that table alone"):
        spark_struct(source)


def test_a_decimal_that_spark_cannot_hold_is_named_with_a_way_out(world: World) -> None:
    wide = pa.array([Decimal("1.25"), Decimal("2.50")], pa.decimal256(50, 2))
    world.table("prices", pa.table({"price": wide, "id": [1, 2]}))
    world.view("counted", "SELECT count(*) AS n, max(id) AS id FROM prices")
    world.refresh("counted")
    assert world.rows("counted") == [(2, 2)]
    world.view("total", "SELECT sum(price) AS total FROM prices")
    with pytest.raises(
        JobError, match=r"no type for column price \(decimal256\(50, 2\)\)\. Cast it in a view"
    ) as failed:
        world.refresh("total")
    assert failed.value.phase == "plan"
    world.view("narrow", "SELECT id, cast(price AS decimal(38, 2)) AS price FROM prices")
    world.view("narrow_total", "SELECT sum(price) AS total FROM narrow")
    world.refresh("narrow")
    world.refresh("narrow_total")
    assert world.rows("narrow_total") == [(Decimal("3.75"),)]


@pytest.mark.parametrize("version", ["4.0", "4.2"])
def test_types_are_the_same_with_every_spark(world: World, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 has other defaults and fewer arguments where Arrow types become Spark's, and back."""
    if version == "4.0":
        real_from, real_to = pandas_types.from_arrow_schema, pandas_types.to_arrow_schema
        older_from = lambda schema, prefer_timestamp_ntz=False: real_from(schema, prefer_timestamp_ntz)  # noqa: E731
        older_to = lambda schema: real_to(schema, timezone="UTC")  # noqa: E731
        monkeypatch.setattr(pandas_types, "from_arrow_schema", older_from)
        monkeypatch.setattr(pandas_types, "to_arrow_schema", older_to)
    kinds: dict[str, pa.DataType] = {"naive": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC")}
    fields = spark_struct(pa.schema(kinds))
    assert [field.dataType.typeName() for field in fields] == ["timestamp_ntz", "timestamp"]
    empty = world.make_spark().createDataFrame([], fields)
    assert dict(zip(empty.columns, arrow_schema(empty).types, strict=True)) == kinds


def test_an_output_schema_the_query_does_not_yield_is_refused(world: World) -> None:
    wrong = encode_schema(schema_of({"shop": "string", "n": "int64"}))
    query = "SELECT shop, count(*) AS n FROM sales GROUP BY shop"
    world.view("wrong", kind="query", source_query=query, output_schema=wrong)
    with pytest.raises(JobError, match="the view's columns are"):
        world.refresh("wrong")
    assert world.open("wrong").version == 1


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("WITH shops AS (SELECT * FROM shops WHERE shop > 1) SELECT count(*) AS n FROM shops", [(2,)]),
        (r"SELECT DISTINCT shop FROM shops WHERE name <> 'it\'s' AND shop > 1", [(2,), (9,)]),
        (r"SELECT shop FROM shops WHERE name = 't\u0077o' OR name = 'it\'s'", [(2,)]),
    ],
)
def test_sparks_own_names_and_strings_are_understood(world: World, query: str, rows: list[tuple[Any, ...]]) -> None:
    world.view("chosen", query)
    world.refresh("chosen")
    assert world.rows("chosen") == rows


def test_two_columns_of_one_name_are_refused(world: World) -> None:
    join = "FROM sales JOIN shops ON sales.shop = shops.shop"
    with pytest.raises(InvalidInputError, match=r"same name: shop\. Name them apart"):
        world.view("joined", f"SELECT sales.shop, shops.shop {join}")
    world.view("joined", f"SELECT * {join}")
    with pytest.raises(JobError, match=r"same name: shop\. Name them apart"):
        world.refresh("joined")


def test_a_query_spark_cannot_plan_fails_with_its_sentence(world: World) -> None:
    world.view("typo", "SELECT nosuch(shop) AS s, count(*) AS n FROM sales GROUP BY shop")
    with pytest.raises(JobError, match="nosuch") as failed:
        world.refresh("typo")
    assert failed.value.phase == "plan"


def test_fragments_are_partitions_and_filters_are_pushed_down(world: World, spark: SparkSession) -> None:
    dataset = world.open("sales")
    table = TableRef(world.path("sales"), storage_options={"secret_access_key": "hidden"})
    frame = spark_table(spark, LanceSource.of(table, dataset, ["id", "shop"], partitions=3), push_filters=True)
    assert frame.columns == ["id", "shop"]
    assert frame.rdd.getNumPartitions() == 3
    chosen = frame.where("id >= 30 AND shop IN (1, 2) AND shop IS NOT NULL AND id % 2 = 0")
    assert sorted(row.id for row in chosen.collect()) == [30, 34, 38]
    plan = chosen._jdf.queryExecution().toString()
    assert "hidden" not in plan


@pytest.fixture(scope="module")
def planning_session(spark: SparkSession) -> SparkSession:
    return spark.newSession()


EVERYTHING = {"id", "team", "big", "more"}


@pytest.mark.parametrize(
    ("query", "columns", "once"),
    [
        ("SELECT team, count(*) FROM t GROUP BY team", {"team"}, True),
        ("SELECT count(*) FROM t", set(), True),
        ("SELECT ID * 2 AS d FROM t", {"id"}, True),
        ("SELECT * FROM (SELECT id, team FROM t WHERE more > 1) WHERE id > 2", {"id", "team", "more"}, True),
        ("SELECT t.* FROM t JOIN u ON t.id = u.id", EVERYTHING, True),
        ("SELECT DISTINCT * FROM t", EVERYTHING, True),
        ("SELECT id, to_json(struct(*)) AS j FROM t ORDER BY id", EVERYTHING, True),
        ("SELECT id FROM u UNION ALL SELECT team FROM t", {"team"}, True),
        ("SELECT * FROM u UNION ALL SELECT * FROM t", EVERYTHING, True),
        ("SELECT big.inner FROM t", {"big"}, True),
        ("SELECT u.id FROM u NATURAL JOIN (SELECT id, team FROM t)", {"id", "team"}, True),
        ("SELECT id, sum(more) OVER (PARTITION BY team ORDER BY id) FROM t", {"id", "team", "more"}, True),
        ("SELECT id, e FROM t LATERAL VIEW explode(array(team, more)) AS e LIMIT 3", {"id", "team", "more"}, True),
        ("SELECT id FROM t UNION ALL SELECT team FROM t", {"id", "team"}, False),
        ("SELECT (SELECT max(id) FROM t), (SELECT max(team) FROM t) FROM u", {"id", "team"}, False),
        ("WITH c AS (SELECT * FROM t) SELECT a.id FROM c a JOIN c b ON a.team = b.team", {"id", "team"}, False),
        ("WITH c AS (SELECT id, rand() AS r FROM t) SELECT a.id FROM c a JOIN c b USING (id)", {"id"}, False),
        ("SELECT id FROM t WHERE false UNION ALL SELECT team FROM t", {"team"}, False),
        (
            "WITH RECURSIVE c AS (SELECT 1L AS id UNION ALL SELECT t.id FROM c JOIN t ON team = c.id) SELECT * FROM c",
            EVERYTHING,
            False,
        ),
    ],
)
def test_the_plan_tells_the_columns_and_how_often_a_table_is_read(
    planning_session: SparkSession, query: str, columns: set[str], once: bool
) -> None:
    fields = StructType.fromDDL("id long, team long, big struct<inner: string>, more long")
    assert isinstance(fields, StructType)
    reads = read_plan(planning_session, query, {"u": fields, "t": fields})
    assert reads["t"] == TableReads(frozenset(columns), once)


def test_a_plan_that_is_not_understood_costs_speed_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(*_: object) -> object:
        raise AttributeError("no such method in this Spark")

    monkeypatch.setattr(spark_plan, "_reads", renamed)
    world.view("chosen", "SELECT a.id, b.name FROM sales a JOIN shops b USING (shop) WHERE a.id > 35 AND b.shop < 2")
    world.refresh("chosen")
    assert world.rows("chosen") == [(36, "zero"), (37, "one")]


def test_filters_are_not_pushed_where_the_plan_that_runs_scans_a_table_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"sales": TableReads(frozenset(["id"]), once=True)}
    monkeypatch.setattr(PlannedQuery, "reads", lambda _, source: wrong[source])
    world.view("ends", "SELECT id FROM sales WHERE id < 2 UNION ALL SELECT id FROM sales WHERE id > 37")
    world.refresh("ends")
    assert world.rows("ends") == [(0,), (1,), (38,), (39,)]


def test_a_column_that_was_not_planned_fails_instead_of_being_null(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"sales": TableReads(frozenset(["id"]), once=True)}
    monkeypatch.setattr(PlannedQuery, "reads", lambda _, source: wrong[source])
    world.view("amounts", "SELECT id, max(amount) AS amount FROM sales GROUP BY id")
    with pytest.raises(JobError, match="column amount was planned as one that is not read"):
        world.refresh("amounts")


def test_only_columns_that_are_read_leave_the_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = []

    def remember(session: SparkSession, source: LanceSource, *, push_filters: bool) -> DataFrame:
        sources.append((source.schema.names, push_filters))
        return spark_table(session, source, push_filters=push_filters)

    monkeypatch.setattr(spark_view, "spark_table", remember)
    world.table("odd", pa.table({"a b": [1, 2], "more": [3, 4], "note": ["x", "y"], "shop": [0, 1]}))
    query = "SELECT * FROM (SELECT `a b`, more AS t FROM odd WHERE shop > 0) q JOIN shops ON q.t > shops.shop"
    world.view("chosen", query)
    world.refresh("chosen")
    assert world.rows("chosen") == [(2, 4, 0, "zero"), (2, 4, 1, "one"), (2, 4, 2, "two")]
    assert sources == [(["a b", "more", "shop"], True), (["shop", "name"], True)]


@pytest.mark.parametrize(
    ("name", "value", "condition"),
    [
        ("EqualTo", 5, "n = 5"),
        ("GreaterThan", 5, "n > 5"),
        ("In", (1, 2), "n IN (1, 2)"),
        ("EqualTo", "it's", None),
        ("EqualTo", None, None),
    ],
)
def test_only_filters_both_sides_agree_on_are_pushed(name: str, value: Any, condition: str | None) -> None:
    from pyspark.sql import datasource

    made = getattr(datasource, name)(("n",), value)
    assert lance_filter(made, pa.schema([("n", pa.int64())])) == condition
    assert lance_filter(datasource.EqualTo(("t",), "it's"), pa.schema([("t", pa.string())])) == "t = 'it''s'"
    assert lance_filter(datasource.EqualTo(("f",), 1.5), pa.schema([("f", pa.float64())])) is None


def test_empty_sources_make_empty_views_that_fill_later(world: World) -> None:
    world.open("sales").delete("true")
    world.view("totals", "SELECT shop, sum(amount) AS total FROM sales GROUP BY shop")
    world.view("plain", "SELECT id, amount FROM sales")
    for name, columns in (("totals", ["shop", "total"]), ("plain", ["id", "amount", "__source_row_id"])):
        assert world.refresh(name)["rows_written"] == 0
        assert world.open(name).schema.names == columns
        assert world.refresh(name)["mode"] == "no_op"
    world.append("sales", pa.table({"id": [1], "shop": [7], "amount": [5], "note": ["n"]}))
    for name, rows in (("totals", [(7, 5)]), ("plain", [(1, 5)])):
        world.refresh(name)
        assert world.rows(name) == rows
    world.open("sales").delete("true")
    for name in ("totals", "plain"):
        assert world.refresh(name)["rows_deleted"] == 1
        assert world.rows(name) == []
