"""Views in Spark SQL over Lance tables: joins, aggregates, unions; columns and filters read no more than needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.datasource import LanceSource, lance_filter, spark_table
from airflow_provider_lance.engine.table import TableRef
from airflow_provider_lance.engine.view_definition import encode_schema
from tests.engine.view_world import World


@pytest.fixture
def world(tmp_path: Path, spark: Any) -> World:
    world = World(tmp_path, spark)
    sales = [{"id": n, "shop": n % 4, "amount": n * 10, "note": "x" * 50} for n in range(40)]
    world.table("sales", pa.Table.from_pylist(sales), rows_per_file=7)
    shops = pa.table({"shop": [0, 1, 2, 9], "name": ["zero", "one", "two", "nine"]})
    world.table("shops", shops)
    return world


def test_a_group_by_is_rebuilt_when_its_source_moves(world: World) -> None:
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
    second = world.refresh("totals")
    assert (second["mode"], second["rows_deleted"]) == ("rebuild", 4)
    assert "Spark SQL" in second["reason"]
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
    assert world.refresh("named")["mode"] == "rebuild"
    assert world.rows("named") == expected()
    world.append("sales", world.open("sales").to_table(limit=3))
    assert world.refresh("named")["mode"] == "rebuild"
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


def test_an_output_schema_the_query_does_not_yield_is_refused(world: World) -> None:
    wrong = encode_schema(pa.schema([("shop", pa.string()), ("n", pa.int64())]))
    query = "SELECT shop, count(*) AS n FROM sales GROUP BY shop"
    world.view("wrong", kind="query", source_query=query, output_schema=wrong)
    with pytest.raises(JobError, match="the view's columns are"):
        world.refresh("wrong")
    assert world.open("wrong").version == 1


def test_a_query_spark_cannot_plan_fails_with_its_sentence(world: World) -> None:
    world.view("typo", "SELECT nosuch, count(*) AS n FROM sales GROUP BY nosuch")
    with pytest.raises(JobError, match="nosuch") as failed:
        world.refresh("typo")
    assert failed.value.phase == "plan"


def test_fragments_are_partitions_and_filters_are_pushed_down(world: World, spark: Any) -> None:
    dataset = world.open("sales")
    table = TableRef(world.path("sales"), storage_options={"secret_access_key": "hidden"})
    frame = spark_table(spark, LanceSource.of(table, dataset, ["id", "shop"], partitions=3))
    assert frame.columns == ["id", "shop"]
    assert frame.rdd.getNumPartitions() == 3
    chosen = frame.where("id >= 30 AND shop IN (1, 2) AND shop IS NOT NULL AND id % 2 = 0")
    assert sorted(row.id for row in chosen.collect()) == [30, 34, 38]
    plan = chosen._jdf.queryExecution().toString()
    assert "hidden" not in plan


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
