"""Random queries over random histories: after every refresh the view has the rows that Spark and DuckDB compute."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.engine.view_world import World
from tests.engine.views.incremental.oracle import Histories, Oracle
from tests.engine.views.incremental.queries import generated


def run(path: Path, spark: SparkSession, seed: int, queries: int, steps: int = 3) -> Oracle:
    """Views of several queries over the same tables, refreshed and compared after each step."""
    rng = random.Random(seed)
    world = World(path, spark)
    history = Histories(world, rng)
    oracle = Oracle(world, spark)
    views = {f"view{number}": query for number, query in enumerate(generated(seed, queries)) if oracle.runs(query)}
    for view, query in views.items():
        world.view(view, query)
        oracle.check(view, query, world.refresh(view, refresh_policy="incremental"), "first")
    for _ in range(steps):
        history.change()
        for view, query in views.items():
            oracle.check(view, query, world.refresh(view, refresh_policy="incremental"), history.log)
    return oracle


def test_random_queries_follow_random_histories(tmp_path: Path, spark: SparkSession) -> None:
    oracle = run(tmp_path, spark, seed=3, queries=12, steps=2)
    assert oracle.techniques["affected keys"] > 5
    assert "the change could not be followed" not in " ".join(oracle.reasons)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_random_queries_follow_random_histories(tmp_path: Path, spark: SparkSession) -> None:
    seed = random.SystemRandom().randrange(10**9)
    for round_ in range(100):
        run(tmp_path / str(round_), spark, seed=seed + round_, queries=10, steps=4)
