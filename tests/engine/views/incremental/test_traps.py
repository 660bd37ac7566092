"""Changes that a refresh by key gets wrong if it forgets something, each one alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.engine.job.context import JobError, SilentReporter
from airflow_provider_lance.engine.views import job
from airflow_provider_lance.engine.views.incremental import spark_tree
from airflow_provider_lance.engine.views.job import run_refresh
from tests.engine.view_world import World
from tests.engine.views.incremental.oracle import NAN, rows_of

KEYS = "affected keys"


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    world = World(tmp_path, spark)
    orders = {
        "id": list(range(12)),
        "shop": pa.array([n % 4 for n in range(12)], pa.int64()),
        "customer": pa.array([n % 5 for n in range(12)], pa.int64()),
        "amount": pa.array([10 * n for n in range(12)], pa.int64()),
        "day": pa.array([date(2024, 1 + n % 3, 1 + n) for n in range(12)]),
    }
    world.table("orders", pa.table(orders))
    world.table("customers", pa.table({"customer": [0, 1, 2, 3, 7], "name": ["a", "b", "c", "d", "z"]}))
    return world


def refreshed(world: World, view: str, technique: str | None = KEYS) -> dict[str, Any]:
    """Refresh by what changed and compare with a rebuild of the same query."""
    result = world.refresh(view, refresh_policy="incremental")
    assert (result["mode"], result.get("technique")) == ("incremental", technique), result
    compare(world, view)
    return result


def compare(world: World, view: str) -> None:
    found = rows_of(world.open(view).to_table())
    version = world.open(view).version
    world.refresh(view, full=True)
    assert found == rows_of(world.open(view).to_table())
    assert world.open(view).version > version


def view(world: World, query: str, name: str = "view") -> None:
    world.view(name, query)
    world.refresh(name)


def test_the_group_that_a_row_leaves_is_computed_again(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n, sum(amount) AS total FROM orders GROUP BY shop")
    world.open("orders").update({"shop": "2"}, where="id = 1")
    result = refreshed(world, "view")
    assert (result["key"], result["keys"], result["rows_deleted"]) == (["shop"], 2, 2)
    assert result["rows_read"] == {"orders": 6}
    assert set(result["estimated"]) == {"incremental", "rebuild"}


def test_a_group_without_rows_goes_and_a_new_one_comes(world: World) -> None:
    view(world, "SELECT shop, max(amount) AS most FROM orders GROUP BY shop")
    world.open("orders").delete("shop = 3")
    world.open("orders").update({"shop": "9"}, where="id = 0")
    refreshed(world, "view")
    assert (9, 0) in world.rows("view")


def test_a_partner_and_its_row_change_in_one_interval(world: World) -> None:
    view(world, "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer")
    world.open("customers").delete("customer = 1")
    world.open("orders").update({"customer": "2"}, where="id = 1")
    assert refreshed(world, "view")["key"] == ["id"]
    assert (1, "c") in world.rows("view")
    assert (6, None) in world.rows("view")


def test_a_partner_that_comes_replaces_the_row_without_one(world: World) -> None:
    view(world, "SELECT o.id, c.name, c.customer FROM orders o LEFT JOIN customers c ON o.customer = c.customer")
    world.append("customers", pa.table({"customer": [4], "name": ["e"]}))
    assert refreshed(world, "view")["key"] == ["id"], "a column of the right side is no key"
    assert (4, "e", 4) in world.rows("view")


def test_the_only_partner_goes(world: World) -> None:
    view(world, "SELECT o.id, c.customer AS partner FROM orders o LEFT JOIN customers c ON o.customer = c.customer")
    world.open("customers").delete("customer = 3")
    refreshed(world, "view")
    assert (3, None) in world.rows("view")


def test_a_left_join_without_a_column_of_its_left_side_is_rebuilt(world: World) -> None:
    view(world, "SELECT c.customer, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer")
    world.open("customers").delete("customer = 3")
    result = world.refresh("view", refresh_policy="incremental")
    assert result["mode"] == "rebuild"
    assert "no column of the view says which rows" in result["reason"]


def test_a_table_that_is_read_twice_gives_each_place_its_rows(world: World) -> None:
    view(
        world,
        "SELECT a.id, b.id AS other, count(*) OVER (PARTITION BY a.shop) AS n "
        "FROM orders a JOIN orders b ON a.shop = b.customer WHERE a.id < 9",
    )
    query = "SELECT a.shop, sum(b.amount) AS total FROM orders a JOIN orders b ON a.id = b.shop GROUP BY a.shop"
    view(world, query, "totals")
    world.open("orders").update({"amount": "amount + 1", "shop": "shop + 1"}, where="id = 2")
    world.refresh("view", refresh_policy="incremental")
    compare(world, "view")
    assert refreshed(world, "totals")["key"] == ["shop"]


def test_a_table_that_the_optimizer_drops_is_no_change(world: World) -> None:
    query = "SELECT DISTINCT o.shop FROM orders o LEFT JOIN customers c ON o.customer = c.customer"
    view(world, query)
    world.open("customers").delete("customer = 3")
    refreshed(world, "view", "nothing that the query reads changed")


def test_a_change_of_a_column_that_is_not_read_costs_nothing(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").update({"amount": "amount + 1"}, where="id < 5")
    result = refreshed(world, "view", "nothing that the query reads changed")
    assert result["rows_written"] == 0


def test_compactions_and_metadata_need_no_spark(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").optimize.compact_files()
    without = World(world.root)
    result = without.refresh("view")
    assert result["technique"] == "nothing that the query reads changed"
    assert without.refresh("view")["mode"] == "no_op"


@pytest.mark.parametrize("value", [None, NAN, -0.0, 0.0, 1.5])
def test_floats_that_spark_calls_equal_are_one_key(world: World, value: float | None) -> None:
    rows = {"x": pa.array([None, NAN, 0.0, -0.0, 1.5, 1.5, None], pa.float64()), "n": list(range(7))}
    world.table("points", pa.table(rows))
    view(world, "SELECT x, count(*) AS n, sum(n) AS total FROM points GROUP BY x")
    world.append("points", pa.table({"x": pa.array([value], pa.float64()), "n": [100]}))
    refreshed(world, "view")


def test_text_of_equal_floats_is_no_key(world: World) -> None:
    world.table("points", pa.table({"x": [0.0, 1.5], "n": [1, 2]}))
    view(
        world, "SELECT CAST(x AS string) AS text, count(*) AS n FROM (SELECT x, n FROM points GROUP BY x, n) GROUP BY x"
    )
    world.append("points", pa.table({"x": [-0.0], "n": [3]}))
    assert world.refresh("view", refresh_policy="incremental")["mode"] == "rebuild"
    assert len(world.rows("view")) == 2


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(10, 2)),
        pa.array([1, None, 2**63], pa.uint64()),
        pa.array([b"a", None, b"\x00"]),
        pa.array([True, None, False]),
        pa.array([1_700_000_000_000_000, None, 0], pa.timestamp("us", "UTC")),
        pa.array([1_700_000_000_000, None, 0], pa.timestamp("ms")),
        pa.array([date(2024, 1, 1), None, date(1969, 1, 1)]),
        pa.array(["", None, "é"], pa.large_string()),
        pa.array([1.5, None, NAN], pa.float32()),
        pa.array(["x", None, "y"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_keys_of_every_type(world: World, values: pa.Array[Any]) -> None:
    world.table("typed", pa.table({"k": values, "n": [1, 2, 3]}))
    view(world, "SELECT k, sum(n) AS n FROM typed GROUP BY k")
    for row in range(3):
        world.append("typed", pa.table({"k": values.slice(row, 1), "n": [10]}))
        result = world.refresh("view", refresh_policy="incremental")
        assert (result["technique"], result["rows_deleted"], result["rows_written"]) == (KEYS, 1, 1)
        compare(world, "view")


def test_nested_columns_and_collations_are_no_keys(world: World) -> None:
    world.table("nested", pa.table({"p": [{"a": 1}, {"a": 2}], "n": [1, 2]}))
    view(world, "SELECT p, count(*) AS n FROM nested GROUP BY p")
    view(world, "SELECT lower(name) COLLATE UTF8_LCASE AS name, count(*) AS n FROM customers GROUP BY 1", "collated")
    world.append("nested", pa.table({"p": [{"a": 1}], "n": [5]}))
    world.append("customers", pa.table({"customer": [9], "name": ["A"]}))
    for name in ("view", "collated"):
        assert world.refresh(name, refresh_policy="incremental")["mode"] == "rebuild"


def test_groups_by_an_expression_are_evaluated_by_spark(world: World) -> None:
    view(world, "SELECT date_trunc('MONTH', day) AS month, sum(amount) AS total FROM orders GROUP BY 1")
    world.open("orders").update({"day": "date '2024-02-20'"}, where="id = 0")
    result = refreshed(world, "view")
    assert (result["key"], result["keys"]) == (["month"], 2)


def test_windows_are_computed_again_by_partition(world: World) -> None:
    view(
        world,
        "SELECT id, shop, place FROM (SELECT *, row_number() OVER (PARTITION BY shop ORDER BY amount, id) AS place "
        "FROM orders) WHERE place <= 2",
    )
    world.open("orders").delete("id = 1")
    result = refreshed(world, "view")
    assert (result["key"], result["rows_deleted"], result["rows_written"]) == (["shop"], 2, 2)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.customer WHERE amount > 20",
        "SELECT o.id, n FROM orders o LATERAL VIEW explode(sequence(0, o.shop)) AS n",
        "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer",
    ],
)
def test_added_rows_need_no_old_values_and_no_deletes(world: World, query: str) -> None:
    view(world, query)
    more = world.open("orders").to_table(filter="id >= 8")
    world.append("orders", pa.concat_tables([more, more]))
    result = refreshed(world, "view", "appended rows")
    assert result["rows_deleted"] == 0
    assert result["rows_read"]["orders"] == 8
    assert "key" not in result


def test_added_rows_of_one_branch_do_not_add_the_other_branch_again(world: World) -> None:
    view(world, "SELECT id, amount FROM orders WHERE amount > 20 UNION ALL SELECT customer, 0 FROM customers")
    world.append("orders", world.open("orders").to_table(filter="id >= 8"))
    assert refreshed(world, "view")["key"] == ["id"]


def test_added_rows_of_the_side_that_is_padded_replace_rows(world: World) -> None:
    view(world, "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer")
    world.append("customers", pa.table({"customer": [4], "name": ["e"]}))
    assert refreshed(world, "view")["rows_deleted"] == 2


def test_a_join_by_two_columns_is_followed_by_both(world: World) -> None:
    view(world, "SELECT a.id, b.amount FROM orders a JOIN orders b ON a.shop = b.shop AND a.customer = b.customer")
    world.open("orders").update({"amount": "5"}, where="id = 3")
    result = refreshed(world, "view")
    assert (result["keys"], result["rows_read"]) == (1, {"orders": 1})


def test_views_over_views_follow_the_change(world: World) -> None:
    view(world, "SELECT customer, shop, sum(amount) AS total FROM orders GROUP BY customer, shop", "first")
    view(world, "SELECT customer, max(total) AS most FROM first GROUP BY customer", "second")
    view(world, "SELECT most % 2 AS even, count(*) AS n FROM second GROUP BY 1", "third")
    for step in range(3):
        world.open("orders").update({"amount": "amount + 100"}, where=f"id = {step}")
        for name in ("first", "second", "third"):
            result = world.refresh(name, refresh_policy="incremental")
            assert result["mode"] == "incremental", result
    for name in ("first", "second", "third"):
        compare(world, name)


def test_all_fragments_replaced_by_key_are_still_followed(world: World) -> None:
    world.table("few", pa.table({"k": [1, 1], "n": [1, 2]}))
    view(world, "SELECT k, sum(n) AS n FROM few GROUP BY k", "first")
    view(world, "SELECT n, count(*) AS c FROM first GROUP BY n", "second")
    world.append("few", pa.table({"k": [1], "n": [5]}))
    for name in ("first", "second"):
        assert world.refresh(name, refresh_policy="incremental")["technique"] == KEYS
    assert world.rows("second") == [(8, 1)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (
            "SELECT shop, count(*) AS n, rand() AS r FROM orders GROUP BY shop",
            r"rand\(.*\) gives another value each time",
        ),
        ("SELECT id FROM orders WHERE day > current_date() - 7 GROUP BY id", "the moment or the user"),
        ("SELECT count(*) AS n FROM orders", "an aggregate without GROUP BY reads all rows"),
        ("SELECT id, sum(amount) OVER () AS n FROM orders", "a window without PARTITION BY reads all rows"),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop ORDER BY n", "ORDER BY keeps the rows"),
        ("SELECT DISTINCT shop FROM orders LIMIT 2", "LIMIT chooses among all rows"),
        ("SELECT o.id FROM orders o FULL JOIN customers c ON o.customer = c.customer", "a FULL JOIN"),
        ("SELECT id, (SELECT max(amount) FROM orders) AS m FROM orders", "a subquery yields one value"),
        ("SELECT shop, sum(amount) AS n FROM orders GROUP BY ROLLUP (shop)", "no column of the view"),
    ],
)
def test_what_cannot_be_followed_is_rebuilt_with_its_reason(world: World, query: str, reason: str) -> None:
    view(world, query)
    world.open("orders").delete("id = 2")
    result = world.refresh("view", refresh_policy="incremental")
    assert result["mode"] == "rebuild"
    assert re.search(reason, result["reason"]), result["reason"]
    world.open("orders").delete("id = 3")
    with pytest.raises(JobError, match="refresh_policy incremental_strict forbids that"):
        world.refresh("view", refresh_policy="incremental_strict")


def test_a_table_that_did_not_change_is_in_nobodys_way(world: World) -> None:
    view(world, "SELECT id, amount, (SELECT count(*) FROM customers) AS n FROM orders")
    world.open("orders").delete("id = 2")
    refreshed(world, "view")


def test_a_source_without_stable_row_ids_is_named(world: World) -> None:
    world.table("loose", pa.table({"k": [1, 2]}), stable=False)
    view(world, "SELECT l.k, count(*) AS n FROM loose l JOIN orders o ON l.k = o.shop GROUP BY l.k")
    world.open("orders").delete("id = 2")
    result = world.refresh("view", refresh_policy="incremental")
    assert result["reason"].startswith("loose: the source has no stable row ids")


def test_old_values_that_were_cleaned_up_lead_to_a_rebuild(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").update({"shop": "2"}, where="id = 1")
    world.open("orders").cleanup_old_versions(timedelta(0), delete_unverified=True)
    result = world.refresh("view", refresh_policy="incremental")
    assert (result["mode"], "cleaned up" in result["reason"]) == ("rebuild", True)
    compare(world, "view")


def test_a_plan_that_cannot_be_read_is_a_rebuild(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("Spark has another plan now")

    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").delete("id = 2")
    monkeypatch.setattr(spark_tree, "read_tree", fail)
    result = world.refresh("view", refresh_policy="incremental")
    assert result["reason"] == "the change could not be followed: Spark has another plan now"
    compare(world, "view")


def test_the_cheaper_way_is_taken_unless_the_policy_says_otherwise(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    rows = pa.table(
        {
            "id": range(100, 300_100),
            "shop": pa.array([n % 3 for n in range(300_000)], pa.int64()),
            "customer": pa.nulls(300_000, pa.int64()),
            "amount": pa.nulls(300_000, pa.int64()),
            "day": pa.nulls(300_000, pa.date32()),
        }
    )
    lance.write_dataset(rows, world.path("orders"), mode="append")
    world.refresh("view", full=True)
    world.refresh("view", full=True)
    world.open("orders").update({"shop": "0"}, where="id % 1000 = 0")
    planned = world.refresh("view", refresh_policy="incremental")
    assert planned["estimated"]["incremental"] > 1
    world.open("orders").update({"shop": "1"}, where="id % 1000 = 0")
    result = world.refresh("view")
    if planned["estimated"]["rebuild"] < planned["estimated"]["incremental"]:
        assert result["mode"] == "rebuild"
        assert "so computing all rows is cheaper" in result["reason"]
        assert result["keys"] == 2
    compare(world, "view")


def planned(world: World, name: str) -> dict[str, Any]:
    context = world.context(name)
    spec = replace(context.spec, options={**context.spec.options, "plan": "true"})
    return run_refresh(replace(context, spec=spec))


def test_a_plan_says_how_each_source_will_be_followed_before_there_are_rows(world: World) -> None:
    world.view("view", "SELECT o.id, c.name, (SELECT max(amount) FROM orders) AS m FROM orders o, customers c")
    world.view("totals", "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    follows = planned(world, "view")["plan"]["follows"]
    assert "a subquery yields one value for all rows" in follows["orders"]["reason"]
    assert follows["customers"] == {"technique": KEYS, "key": ["name"]}
    assert planned(world, "totals")["plan"]["follows"] == {"orders": {"technique": KEYS, "key": ["shop"]}}
    assert world.open("totals").version == 1


def test_a_plan_says_the_keys_that_are_affected(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").update({"shop": "2"}, where="id = 1")
    version = world.open("view").version
    plan = planned(world, "view")
    assert (plan["key"], plan["keys"], plan["source_rows_read"]) == (["shop"], 2, 6)
    assert world.open("view").version == version


def test_a_view_that_could_never_follow_is_refused_by_its_first_refresh(world: World) -> None:
    world.view("view", "SELECT count(*) AS n FROM orders", refresh_policy="incremental_strict")
    with pytest.raises(JobError, match=r"Changes of orders can never be followed.*aggregate without GROUP BY"):
        world.refresh("view")
    assert world.open("view").version == 1
    world.view("totals", "SELECT shop, count(*) AS n FROM orders GROUP BY shop", refresh_policy="incremental_strict")
    assert world.refresh("totals")["mode"] == "rebuild"
    world.open("orders").delete("id = 1")
    assert world.refresh("totals")["technique"] == KEYS


class Moving(SilentReporter):
    """Does something at the moment when a refresh has computed its rows and is about to commit them."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action: Callable[[], object] | None = action

    def check_commit(self) -> None:
        action, self.action = self.action, None
        if action is not None:
            action()


def test_of_two_refreshes_at_once_one_starts_over(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").delete("id = 1")

    def other() -> None:
        world.open("orders").delete("id = 2")
        World(world.root, world.make_spark()).refresh("view", refresh_policy="incremental")

    world.reporter = Moving(other)
    result = world.refresh("view", refresh_policy="incremental")
    assert any("starting over" in str(event["message"]) for event in world.reporter.events)
    assert result["mode"] in ("no_op", "incremental")
    compare(world, "view")


def test_a_source_that_moves_during_a_refresh_is_read_at_one_version(world: World) -> None:
    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    world.open("orders").delete("id = 1")
    world.reporter = Moving(lambda: world.open("orders").update({"shop": "3"}, where="id < 6"))
    first = world.refresh("view", refresh_policy="incremental")
    assert first["rows_written"] == 1
    assert sum(row[1] for row in world.rows("view")) == 11
    refreshed(world, "view")


@pytest.mark.parametrize("fault", ["write_rows", "write_bookmark"])
def test_a_refresh_that_dies_between_its_steps_is_made_good(
    world: World, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> int:
        raise KeyboardInterrupt

    view(world, "SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    before = world.rows("view")
    world.open("orders").update({"shop": "2"}, where="id = 1")
    with monkeypatch.context() as patch:
        patch.setattr(job, fault, die)
        with pytest.raises(KeyboardInterrupt):
            world.refresh("view", refresh_policy="incremental")
    assert (world.rows("view") == before) == (fault == "write_rows")
    result = world.refresh("view", refresh_policy="incremental")
    assert (result["rows_written"], result["rows_deleted"], result["technique"]) == (2, 2, KEYS)
    compare(world, "view")
