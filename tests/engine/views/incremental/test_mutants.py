"""The comparison with Spark notices every safety rule that is switched off: each mutant leaves wrong rows in a view."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.engine.views import spark_view
from airflow_provider_lance.engine.views.incremental import affected, key_values, lineage, spark_tree
from airflow_provider_lance.engine.views.incremental.affected import Sources
from airflow_provider_lance.engine.views.incremental.changed_rows import ChangedRows, read_changed_rows
from airflow_provider_lance.engine.views.incremental.key_values import KeySet
from airflow_provider_lance.engine.views.incremental.query_tree import Joining, Reference, Uniting
from airflow_provider_lance.engine.views.incremental.view_rows import KeepKeys
from airflow_provider_lance.engine.views.spark_plan import each, expression_id
from tests.engine.view_world import World
from tests.engine.views.incremental.oracle import SCHEMA, Oracle

VIEWS = {
    "groups": "SELECT k, count(*) AS n, sum(n) AS total FROM t GROUP BY k",
    "floats": "SELECT d, count(*) AS n FROM t GROUP BY d",
    "pairs": "SELECT a.id, a.k, b.id AS other FROM u a JOIN u b ON a.k = b.n",
    "padded": "SELECT t.id, v.s FROM t LEFT JOIN v ON t.k = v.k",
    "padded_keys": "SELECT v.id AS other, t.n FROM t LEFT JOIN v ON t.k = v.k",
    "places": "SELECT id, k, rank() OVER (PARTITION BY k ORDER BY n, id) AS place FROM t",
    "branches": "SELECT b.id FROM (SELECT id, k FROM t UNION ALL SELECT id, k FROM u) b JOIN v ON b.k = v.k",
    "added": "SELECT w.id, w.n FROM w UNION ALL SELECT id, n FROM x",
    "counted": "SELECT k, s, count(*) AS n FROM w GROUP BY k, s",
    "largest": "SELECT k, max(n) AS most FROM t GROUP BY k",
}


def rows(*values: tuple[int | float | str | None, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in values], schema=SCHEMA)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> World:
    """Views that were refreshed, and their tables with a change of each kind since then."""
    world = World(tmp_path_factory.mktemp("mutants"), spark)
    first = [(1, 1, "a", 0.0, 1), (2, 2, "b", 1.5, 2), (3, None, None, None, 3), (4, 1, "a", -0.0, 4)]
    world.table("t", rows(*first, (6, 5, "e", 2.5, 5)))
    world.table("u", rows((11, 1, "a", 0.0, 1), (12, 2, "b", 1.5, 1), (13, 1, "c", None, 2), (14, 3, None, None, 3)))
    world.table("v", rows((1, 1, "x", 0.0, 1), (2, 2, "y", 1.5, 2), (3, 3, "z", 2.5, 3)))
    world.table("x", rows((1, 1, "a", 0.0, 1)))
    world.table("w", rows((1, 1, "a", 0.0, 1), (2, 2, "b", 1.5, 2)))
    for name, query in VIEWS.items():
        world.view(name, query)
        world.refresh(name)
    world.open("t").update({"k": "2", "n": "9"}, where="id = 1")
    world.open("t").delete("id IN (2, 6)")
    world.append("t", rows((5, None, "c", -0.0, 7)))
    world.open("u").update({"n": "3"}, where="id = 13")
    world.open("v").update({"k": "1", "s": "'new'"}, where="id = 2")
    world.append("w", rows((3, 1, "a", 0.0, 5)))
    return world


Mutant = Callable[[pytest.MonkeyPatch], None]


def without_old_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangedRows, "both", lambda self: self.new)


def without_deletes(patch: pytest.MonkeyPatch) -> None:
    def read(source: Any, changes: Any, *more: Any) -> ChangedRows:
        return read_changed_rows(source, replace(changes, deleted=np.empty(0, np.uint64)), *more)

    patch.setattr(spark_view, "read_changed_rows", read)


def without_null_keys(patch: pytest.MonkeyPatch) -> None:
    whole = KeySet.of

    def of(columns: Any) -> KeySet:
        kept = whole(columns)
        table = pa.table(list(kept.columns), names=[str(at) for at in range(len(kept.columns))]).drop_null()
        return KeySet(tuple(table.columns))

    patch.setattr(KeySet, "of", of)


def floats_as_bits(patch: pytest.MonkeyPatch) -> None:
    def bits(column: Any) -> Any:
        chunks = [chunk.view(pa.int64()) for chunk in column.cast(pa.float64()).chunks]
        return pa.chunked_array(chunks, pa.int64())

    patch.setattr(key_values, "_float_bits", bits)


def no_filter_on_top(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeepKeys, "__call__", lambda self, batch: batch)


def _passing_all(plan: Any, child: Any) -> Mapping[int, Reference]:
    numbers = [expression_id(one) for one in each(plan.child().output())]
    return {number: Reference(number) for number in numbers}


def windows_pass_all_columns(patch: pytest.MonkeyPatch) -> None:
    node = spark_tree._Reader._window
    patch.setattr(
        spark_tree._Reader,
        "_window",
        lambda self, plan, child: replace(node(self, plan, child), columns=_passing_all(plan, child)),
    )


def outer_joins_as_inner(patch: pytest.MonkeyPatch) -> None:
    node = spark_tree._Reader._join

    def inner(self: Any, plan: Any) -> Any:
        joined = node(self, plan)
        return replace(joined, inner=True) if isinstance(joined, Joining) else joined

    patch.setattr(spark_tree._Reader, "_join", inner)


def one_place_of_a_table(patch: pytest.MonkeyPatch) -> None:
    def first(self: Sources) -> list[int]:
        numbers = {table: number for number, table in reversed(list(enumerate(self.lineage.tables)))}
        return [number for table, number in numbers.items() if table in self.changed]

    patch.setattr(affected.Sources, "changed_occurrences", property(first))


def one_branch_of_a_union(patch: pytest.MonkeyPatch) -> None:
    union = lineage._Walk._union

    def first(self: Any, node: Uniting) -> Any:
        facts = union(self, node)
        for number, holders in facts.holders.items():
            facts.holders[number] = {
                frozenset([min(together)]): {min(together): holder[min(together)]}
                for together, holder in holders.items()
            }
        return facts

    patch.setattr(lineage._Walk, "_union", first)


def unions_are_linear(patch: pytest.MonkeyPatch) -> None:
    union = lineage._Walk._union

    def linear(self: Any, node: Uniting) -> Any:
        return replace(union(self, node), linear=frozenset(range(len(self.tables))))

    patch.setattr(lineage._Walk, "_union", linear)


def groups_are_linear(patch: pytest.MonkeyPatch) -> None:
    valued = lineage._valued
    patch.setattr(lineage, "_valued", lambda below, columns, _: valued(below, columns, below.linear))


def no_rows_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spark_view, "delete_keys", lambda *_: ([], [], 0))


MUTANTS: dict[str, tuple[Mutant, str]] = {
    "without old values": (without_old_values, "groups"),
    "without deletes": (without_deletes, "groups"),
    "without null keys": (without_null_keys, "groups"),
    "floats as bits": (floats_as_bits, "floats"),
    "no filter on top": (no_filter_on_top, "pairs"),
    "windows pass all columns": (windows_pass_all_columns, "places"),
    "outer joins as inner joins": (outer_joins_as_inner, "padded_keys"),
    "one place of a table": (one_place_of_a_table, "pairs"),
    "one branch of a union": (one_branch_of_a_union, "branches"),
    "unions are linear": (unions_are_linear, "added"),
    "groups are linear": (groups_are_linear, "counted"),
    "no rows deleted": (no_rows_deleted, "largest"),
}


def refreshed(changed: World, path: Path, view: str) -> tuple[World, dict[str, Any]]:
    shutil.copytree(changed.root, path / "world")
    world = World(path / "world", changed.make_spark())
    return world, world.refresh(view, refresh_policy="incremental")


def check(world: World, view: str, result: Mapping[str, Any]) -> None:
    Oracle(world, world.make_spark(), tables=("t", "u", "v", "w", "x")).check(view, VIEWS[view], result, view)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name: str, changed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, view = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutate(patch)
        world, result = refreshed(changed, tmp_path, view)
    assert result["mode"] == "incremental", result
    with pytest.raises(AssertionError, match="SELECT"):
        check(world, view, result)


@pytest.mark.parametrize("view", sorted({view for _, view in MUTANTS.values()} - {"padded_keys"} | {"padded"}))
def test_nothing_is_noticed_without_a_mutant(view: str, changed: World, tmp_path: Path) -> None:
    world, result = refreshed(changed, tmp_path, view)
    assert result["mode"] == "incremental", result
    check(world, view, result)
