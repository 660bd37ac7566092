"""Views read the rows as they are, also where a scalar index of their source still finds values that were replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.engine.view_functions import COUNTS, WORDS, function_view
from tests.engine.view_world import World
from tests.stale_index import INDEX_TYPES, KEPT, OLD, IndexType, condition, stale_table


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    return World(tmp_path, spark)


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_a_query_view(tmp_path: Path, index_type: IndexType) -> None:
    world = World(tmp_path)
    stale_table(world.path("source"), index_type)
    world.view("chosen", f"SELECT id, word FROM source WHERE {condition(index_type, OLD)}")
    world.refresh("chosen")
    assert sorted(row[0] for row in world.rows("chosen")) == list(KEPT)


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_a_table_function(world: World, index_type: IndexType) -> None:
    stale_table(world.path("source"), index_type)
    query = f"SELECT id, word AS team FROM source WHERE {condition(index_type, OLD)}"
    world.view("counts", **function_view("udtf", "count_members", COUNTS, query, partition_by="team"))
    world.refresh("counts")
    assert world.rows("counts") == [(OLD, len(KEPT), list(KEPT))]


def test_a_chunker(world: World) -> None:
    stale_table(world.path("source"), "BTREE")
    query = f"SELECT id, word FROM source WHERE {condition('BTREE', OLD)}"
    world.view("words", **function_view("chunker", "split_words", WORDS, query, inputs=["id", "word"]))
    world.refresh("words")
    assert sorted(row[0] for row in world.rows("words")) == list(KEPT)


def test_a_spark_view_whose_filter_is_pushed_down(world: World) -> None:
    stale_table(world.path("source"), "BTREE")
    world.view("counted", f"SELECT word, count(*) AS n FROM source WHERE {condition('BTREE', OLD)} GROUP BY word")
    world.refresh("counted")
    assert world.rows("counted") == [(OLD, len(KEPT))]
