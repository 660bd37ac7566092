"""Random tables, deletions and writers; the column always equals a plain Python loop over the table."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.backfills import Interleaving, assert_filled, backfill, declare, declare_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Row = dict[str, Any]
ROW = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-1000, 1000),
        "s": st.none() | st.text(alphabet="aé ✓", max_size=6),
        "n": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.none() | st.booleans()}),
        "l": st.none() | st.lists(st.integers(0, 9), max_size=3),
    }
)
FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("a", pa.int64()),
    pa.field("s", pa.string()),
    pa.field("n", pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.bool_())])),
    pa.field("l", pa.list_(pa.int64())),
]
SCHEMA = pa.schema(FIELDS)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "task_size": st.integers(1, 40),
        "checkpoint_size": st.integers(1, 20),
        "commit_granularity": st.integers(1, 3),
        "concurrency": st.integers(1, 2),
        "intra_applier_concurrency": st.integers(1, 3),
    },
)
EXPRESSIONS: dict[str, Callable[[Row], object]] = {
    "a + length(s)": lambda r: None if r["a"] is None or r["s"] is None else r["a"] + len(r["s"]),
    "coalesce(n.x, a, -1)": lambda r: next((v for v in ((r["n"] or {}).get("x"), r["a"], -1) if v is not None), None),
    "upper(s)": lambda r: None if r["s"] is None else r["s"].upper(),
}
OUT = pa.struct([("v", pa.list_(pa.int64())), ("t", pa.string())])


def function(a: int | None, s: str | None, x: int | None) -> Row | None:
    return None if a is None else {"v": [a, x], "t": s}


def expected(row: Row) -> Row | None:
    return function(row["a"], row["s"], (row["n"] or {}).get("x"))


def write(uri: str, rows: list[Row], sizes: list[int]) -> None:
    """Fragments of the given sizes, in order; what is left over is one more."""
    position = 0
    for index, size in enumerate([*sizes, len(rows)]):
        part = rows[position : position + size]
        position += size
        if part or index == 0:
            table = pa.Table.from_pylist(part, schema=SCHEMA)
            lance.write_dataset(table, uri, mode="create" if index == 0 else "append", data_storage_version="2.2")


SLOW = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
SOAK = settings(SLOW, max_examples=200, derandomize=False)


def check(
    spark: SparkSession,
    rows: list[Row],
    sizes: list[int],
    dropped: list[int],
    expression: str,
    request: dict[str, Any],
    seed: int,
    driver_rows: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder, "t.lance"))
        write(uri, [{"id": number, **row} for number, row in enumerate(rows)], sizes)
        declare(lance.dataset(uri), "e", expression)
        declare_function(lance.dataset(uri), function, ["a", "s", "n.x"], {"f": OUT})
        if dropped:
            lance.dataset(uri).delete(f"id IN ({', '.join(map(str, dropped))})")
        backfill(spark, uri, "e", driver_rows=driver_rows, reporter=Interleaving(*writers(uri, seed)), **request)
        backfill(spark, uri, "f", reporter=Interleaving(*writers(uri, seed)), **request)
        # Whatever the writers did, one more quiet run leaves nothing behind, and a further one has nothing to do.
        backfill(spark, uri, "e", driver_rows=driver_rows)
        assert backfill(spark, uri, "f")["rows_remaining"] == 0
        if lance.dataset(uri).count_rows():
            assert_filled(uri, "e", EXPRESSIONS[expression])
            assert_filled(uri, "f", expected)
        assert backfill(None, uri, "f")["rows_assigned"] == backfill(None, uri, "e")["rows_assigned"] == 0


def writers(uri: str, seed: int) -> list[Callable[[], None]]:
    """Two other writers, each doing one thing between computing and committing."""
    generator = random.Random(seed)

    def update() -> None:
        lance.dataset(uri).update({"a": "a + 1", "s": "'changed'"}, where=f"id % 5 = {generator.randrange(5)}")

    def delete() -> None:
        lance.dataset(uri).delete(f"id % 7 = {generator.randrange(7)}")

    def compact() -> None:
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=generator.choice([20, 100]))

    def append() -> None:
        rows = [{"id": 1000 + i, "a": i, "s": "new", "n": {"x": i, "y": True}, "l": [i]} for i in range(3)]
        lance.write_dataset(pa.Table.from_pylist(rows, schema=SCHEMA), uri, mode="append")

    return generator.choices([update, delete, compact, append], k=2)


CASES = {
    "rows": st.lists(ROW, max_size=80),
    "sizes": st.lists(st.integers(1, 30), max_size=4),
    "dropped": st.lists(st.integers(0, 79), max_size=20, unique=True),
    "expression": st.sampled_from(sorted(EXPRESSIONS)),
    "request": REQUEST,
    "seed": st.integers(0, 2**32),
    "driver_rows": st.sampled_from([0, 20, 1000]),  # on Spark, by the number of rows, in the driver
}


@SLOW
@given(**CASES)
def test_any_table_equals_the_plain_loop(spark: SparkSession, **case: Any) -> None:
    check(spark, **case)


@pytest.mark.soak
@SOAK
@given(**CASES)
def test_many_tables_equal_the_plain_loop(spark: SparkSession, **case: Any) -> None:
    check(spark, **case)
