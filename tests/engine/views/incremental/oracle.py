"""Views compared with Spark and DuckDB over the newest tables, after random changes of the tables."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb
import lance
import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.engine.spark.arrow_frames import arrow_frame
from airflow_provider_lance.engine.views.spark_source import spark_struct
from tests.engine.view_world import World
from tests.engine.views.incremental.queries import TABLES

SCHEMA = arrow_schema({"id": "int64", "k": "int64", "s": "string", "d": "float64", "n": "int64"})
NAN = float("nan")
Row = tuple[Any, ...]


class Histories:
    """Random changes of the tables ``t``, ``u`` and ``v``, with null keys, NaN, -0.0 and duplicates."""

    def __init__(self, world: World, rng: random.Random, rows: int = 14) -> None:
        self.world, self.rng, self.next_id = world, rng, 0
        self.log: list[str] = []
        for name in TABLES:
            world.table(name, self.rows(rows), rows_per_file=5)

    def rows(self, count: int) -> pa.Table:
        rng = self.rng
        rows = [
            {
                "id": self.next_id + at,
                "k": rng.choice([None, 0, 1, 2, 3, 4, 5, 6, 7]),
                "s": rng.choice([None, "", "a", "b", "c", "ab"]),
                "d": rng.choice([None, 0.0, -0.0, NAN, 1.5, 2.5]),
                "n": rng.choice([None, 0, 1, 2, 3, 4, 5]),
            }
            for at in range(count)
        ]
        self.next_id += count
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def open(self, name: str) -> lance.LanceDataset:
        return self.world.open(name)

    def change(self) -> None:
        """One to three changes of one table or of several."""
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            name = self.rng.choice(TABLES)
            change = self.rng.choice(
                [
                    self.append,
                    self.append,
                    self.update_key,
                    self.update_key,
                    self.update_value,
                    self.delete,
                    self.delete,
                ]
                if self.rng.random() < 0.7
                else [self.merge, self.same_value, self.compact, self.swap, self.in_place]
            )
            self.log.append(f"{change.__name__} {name}")
            change(name)

    def some(self) -> str:
        return f"id % 7 = {self.rng.randrange(7)}"

    def append(self, name: str) -> None:
        self.world.append(name, self.rows(self.rng.randint(1, 4)))

    def update_key(self, name: str) -> None:
        column, value = self.rng.choice(
            [("k", "1"), ("k", "8"), ("k", "NULL"), ("s", "'b'"), ("s", "NULL"), ("d", "-0.0"), ("d", "2.5")]
        )
        self.open(name).update({column: value}, where=self.some())

    def update_value(self, name: str) -> None:
        self.open(name).update({"n": self.rng.choice(["n + 1", "NULL", "7"])}, where=self.some())

    def delete(self, name: str) -> None:
        self.open(name).delete(self.some())

    def same_value(self, name: str) -> None:
        self.open(name).update({"n": "n"}, where=self.some())

    def swap(self, name: str) -> None:
        """Rows are deleted and the same values are inserted again."""
        rows = self.open(name).to_table(filter="id % 5 = 0")
        self.open(name).delete("id % 5 = 0")
        if len(rows):
            self.world.append(name, rows)

    def merge(self, name: str) -> None:
        rows = self.rows(3)
        ids = self.open(name).to_table(columns=["id"])["id"].to_pylist()
        if ids:
            mixed = [self.rng.choice(ids), *rows["id"].to_pylist()[1:]]
            rows = rows.set_column(0, "id", pa.array(mixed))
        merge = self.open(name).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows)

    def compact(self, name: str) -> None:
        self.open(name).optimize.compact_files(target_rows_per_fragment=1000)

    def in_place(self, name: str) -> None:
        if self.open(name).get_fragments():
            self.world.update_in_place(name, "s", "c", 0, rows=2, offsets=True)


@dataclass
class Oracle:
    """Runs a query over the newest tables elsewhere, and counts what the refreshes did."""

    world: World
    spark: SparkSession
    techniques: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tables: tuple[str, ...] = TABLES

    def runs(self, query: str) -> bool:
        """Whether Spark can plan and run the query at all: its optimizer fails on some unions."""
        try:
            self.by_spark(query)
        except Exception:
            return False
        return True

    def check(self, view: str, query: str, result: Mapping[str, Any], log: object) -> None:
        self.techniques[result.get("technique", result["mode"])] += 1
        if result["mode"] == "rebuild":
            self.reasons[result["reason"]] += 1
        found = rows_of(self.world.open(view).to_table())
        assert found == self.by_spark(query), f"{query}\n{result}\n{log}"
        by_duckdb = self.by_duckdb(query)
        assert by_duckdb is None or found == by_duckdb, f"DuckDB differs: {query}\n{result}\n{log}"

    def by_spark(self, query: str) -> Counter[Row]:
        session = self.spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        for name in self.tables:
            table = self.world.open(name).to_table()
            arrow_frame(session, table, spark_struct(table.schema)).createOrReplaceTempView(name)
        return rows_of(session.sql(query).toArrow())

    def by_duckdb(self, query: str) -> Counter[Row] | None:
        with duckdb.connect() as database:
            for name in self.tables:
                rows = self.world.open(name).to_table()  # noqa: F841 - DuckDB finds it by its name
                database.execute(f"CREATE TABLE {name} AS FROM rows")
            try:
                return rows_of(database.sql(query).to_arrow_table())
            except (duckdb.BinderException, duckdb.NotImplementedException):
                return None  # some correlated subqueries are beyond it


def rows_of(table: pa.Table) -> Counter[Row]:
    """The rows as a multiset, with one representation of -0.0 and NaN."""
    columns = [table[name].to_pylist() for name in table.column_names if name != "__source_row_id"]
    return Counter(tuple(map(_plain, row)) for row in zip(*columns, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value
