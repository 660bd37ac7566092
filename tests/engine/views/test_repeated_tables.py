"""Spark SQL views that read one table several times with different filters, compared with DuckDB over the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.engine.view_world import World

TABLES = ("t", "u", "part")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> World:
    """Two tables with nulls, deleted rows and several fragments, and a view of one of them."""
    world = World(tmp_path_factory.mktemp("repeated"), spark)
    rng = random.Random(7)
    for name, rows in (("t", 30), ("u", 20)):
        data = {
            "id": list(range(rows)),
            "k": [rng.choice([None, 0, 1, 2, 3]) for _ in range(rows)],
            "x": [rng.choice([None, *range(-5, 10)]) for _ in range(rows)],
            "s": [rng.choice([None, "a", "b", "it's"]) for _ in range(rows)],
        }
        world.table(name, pa.table(data), rows_per_file=7)
        world.open(name).delete("id % 9 = 4")
    world.view("part", "SELECT id, k, x, s FROM t WHERE id < 25")
    world.refresh("part")
    return world


def duckdb_rows(world: World, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name in TABLES:
            # Over registered Arrow tables DuckDB 2.0 loses rows of some outer joins; over its own tables it does not.
            rows = world.open(name).to_table(columns=["id", "k", "x", "s"])  # noqa: F841 - DuckDB finds it by its name
            database.execute(f"CREATE TABLE {name} AS FROM rows")
        return sorted(database.sql(query).fetchall(), key=repr)


def check(world: World, name: str, query: str) -> None:
    world.view(name, query)
    world.refresh(name)
    assert world.rows(name) == duckdb_rows(world, query), query


REPEATED = {
    "union": "SELECT id, x FROM t WHERE id < 3 UNION ALL SELECT id, x FROM t WHERE id >= 3",
    "three_way_union": "SELECT id FROM t WHERE id < 3 UNION ALL SELECT id FROM t WHERE id > 20 "
    "UNION ALL SELECT id FROM t WHERE k = 1",
    "self_join": "SELECT a.id AS a, b.id AS b FROM t a JOIN t b ON a.k = b.k WHERE a.id < 10 AND b.id > 20",
    "scalar_subqueries": "SELECT id, (SELECT count(*) FROM t WHERE id < 5) AS a, "
    "(SELECT count(*) FROM t WHERE id > 9) AS b FROM u WHERE id = 1 GROUP BY id",
    "exists_beside_exists": "SELECT id FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.k = u.k AND t.id < 9) "
    "AND NOT EXISTS (SELECT 1 FROM t WHERE t.k = u.k AND t.id > 25)",
    "not_in": "SELECT id FROM t WHERE id > 5 AND id NOT IN (SELECT id FROM t WHERE id > 10)",
    "cte_twice": "WITH c AS (SELECT id, k FROM t) SELECT a.id AS a, b.id AS b FROM c a JOIN c b ON a.k = b.k "
    "WHERE a.id < 10 AND b.id > 20",
    "except": "SELECT k FROM t WHERE id < 15 EXCEPT SELECT k FROM t WHERE id > 25",
    "over_a_view_of_it": "SELECT t.id, part.x FROM t JOIN part ON t.id = part.id WHERE t.id > 3 AND part.id < 9 "
    "UNION ALL SELECT id, x FROM part WHERE id > 20",
    "lateral": "SELECT a.id, b.n FROM t a, LATERAL (SELECT count(*) AS n FROM t b WHERE b.k = a.k AND b.id > 9) b "
    "WHERE a.id < 5",
    "recursive": "WITH RECURSIVE c AS (SELECT id, k FROM t WHERE id = 1 "
    "UNION ALL SELECT t.id, t.k FROM c JOIN t ON t.id = c.id + 2 WHERE t.id > 2) SELECT id, k FROM c",
}


@pytest.mark.parametrize("name", REPEATED)
def test_every_mention_of_a_table_keeps_its_own_filter(world: World, name: str) -> None:
    check(world, name, REPEATED[name])


class Queries:
    """Random queries with the columns ``id`` and ``x``, most of which mention a table more than once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = 0

    def query(self) -> str:
        shapes = [self.union, self.self_join, self.common, self.scalars, self.exists, self.member, self.set_operation]
        return self.rng.choice(shapes)(2)

    def rows(self, depth: int) -> str:
        shapes: list[Callable[[int], str]] = [self.plain]
        if depth > 0:
            shapes += [self.union, self.self_join, self.common, self.scalars, self.exists, self.member, self.grouped]
        return self.rng.choice(shapes)(depth)

    def name(self) -> str:
        self.names += 1
        return f"q{self.names}"

    def table(self) -> str:
        return self.rng.choice(["t", "t", "t", "u", "part"])

    def condition(self, alias: str) -> str:
        low = self.rng.randrange(30)
        one = self.rng.choice(
            [
                f"{alias}.id < {low}",
                f"{alias}.id >= {low}",
                f"{alias}.id IN ({low}, {low // 2}, 3)",
                f"{alias}.x > {low - 15}",
                f"{alias}.x IS NULL",
                f"{alias}.x IS NOT NULL",
                f"{alias}.id BETWEEN {low // 2} AND {low}",
            ]
        )
        return one if self.rng.random() < 0.7 else f"({one} {self.rng.choice(['AND', 'OR'])} {self.condition(alias)})"

    def on_columns(self, alias: str) -> str:
        """A condition on columns that only tables have, not the results of subqueries."""
        text = self.rng.choice(["s = 'a'", "s <> 'b'", "k = 2", "k IN (0, 1)", "k IS NULL"])
        return f"{alias}.{text}" if self.rng.random() < 0.4 else self.condition(alias)

    def plain(self, depth: int) -> str:
        name = self.name()
        return f"SELECT {name}.id, {name}.x FROM {self.table()} {name} WHERE {self.on_columns(name)}"

    def union(self, depth: int) -> str:
        word = self.rng.choice([" UNION ALL ", " UNION ALL ", " UNION "])
        parts = word.join(f"({self.rows(depth - 1)})" for _ in range(self.rng.choice([2, 2, 3])))
        return f"SELECT * FROM ({parts}) {self.name()}"

    def set_operation(self, depth: int) -> str:
        word = self.rng.choice(["EXCEPT", "INTERSECT"])
        return f"SELECT * FROM (({self.rows(depth - 1)}) {word} ({self.rows(depth - 1)})) {self.name()}"

    def self_join(self, depth: int) -> str:
        left, right = self.name(), self.name()
        table = self.table()
        kind = self.rng.choice(["JOIN", "JOIN", "LEFT JOIN", "FULL JOIN"])
        where = f"{self.condition(left)} AND {self.on_columns(right)}"
        on = f"{left}.k = {right}.k" + (f" AND {self.on_columns(right)}" if self.rng.random() < 0.5 else "")
        return f"SELECT {left}.id, {right}.x FROM {table} {left} {kind} {table} {right} ON {on} WHERE {where}"

    def common(self, depth: int) -> str:
        name, left, right = self.name(), self.name(), self.name()
        body = self.rows(depth - 1)
        if self.rng.random() < 0.5:
            use = (
                f"SELECT {left}.id, {right}.x FROM {name} {left} JOIN {name} {right} ON {left}.id = {right}.id "
                f"WHERE {self.condition(left)} AND {self.condition(right)}"
            )
        else:
            use = (
                f"SELECT {left}.id, {left}.x FROM {name} {left} WHERE {self.condition(left)} "
                f"UNION ALL SELECT {right}.id, {right}.x FROM {name} {right} WHERE {self.condition(right)}"
            )
        return f"WITH {name} AS ({body}) {use}"

    def scalars(self, depth: int) -> str:
        name, inner = self.name(), self.name()
        table = self.table()
        scalar = [
            f"coalesce((SELECT {what}({inner}.x) FROM {table} {inner} WHERE {self.on_columns(inner)}), 0)"
            for what in ("max", "count")
        ]
        source = f"({self.rows(depth - 1)})"
        return (
            f"SELECT {name}.id, {scalar[0]} + 100 * {scalar[1]} AS x FROM {source} {name} WHERE {self.condition(name)}"
        )

    def exists(self, depth: int) -> str:
        name, first, second = self.name(), self.name(), self.name()
        table = self.table()
        negated = self.rng.choice(["", "NOT "])
        return (
            f"SELECT {name}.id, {name}.x FROM {table} {name} WHERE {self.on_columns(name)} "
            f"AND EXISTS (SELECT 1 FROM {table} {first} WHERE {first}.k = {name}.k AND {self.on_columns(first)}) "
            f"AND {negated}EXISTS (SELECT 1 FROM {table} {second} WHERE {second}.k = {name}.k "
            f"AND {self.on_columns(second)})"
        )

    def member(self, depth: int) -> str:
        name, inner = self.name(), self.name()
        negated = self.rng.choice(["", "NOT "])
        column = self.rng.choice(["id", "x"])
        return (
            f"SELECT {name}.id, {name}.x FROM {self.table()} {name} WHERE {self.on_columns(name)} AND {name}.{column} "
            f"{negated}IN (SELECT {inner}.{column} FROM ({self.rows(depth - 1)}) {inner} WHERE {self.condition(inner)})"
        )

    def grouped(self, depth: int) -> str:
        name = self.name()
        return f"SELECT {name}.id % 5 AS id, sum({name}.x) AS x FROM ({self.rows(depth - 1)}) {name} GROUP BY 1"


def generated(seed: int, count: int) -> Iterator[str]:
    for number in range(count):
        yield Queries(random.Random(f"{seed}/{number}")).query()


def test_generated_queries_agree_with_duckdb(world: World) -> None:
    for number, query in enumerate(generated(1, 6)):
        check(world, f"generated_{number}", query)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_generated_queries_agree_with_duckdb(world: World) -> None:
    seed = random.SystemRandom().randrange(10**9)
    for number, query in enumerate(generated(seed, 500)):
        check(world, f"soak_{number}", query)
