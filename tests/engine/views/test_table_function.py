"""Batch table functions: partitions in, rows out, whole or not at all."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError
from pyspark.sql import SparkSession

from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.views import table_function_view as udtf_module
from airflow_provider_lance.engine.views.table_function_view import equal_keys, table_inputs, take_rows
from tests.columns_in_place import replace_column
from tests.engine.view_functions import COUNTS, function_view
from tests.engine.view_world import World


def udtf(function: str = "count_members", query: str = "SELECT id, team FROM members", **spec: Any) -> dict[str, Any]:
    return function_view("udtf", function, COUNTS, query, **spec)


def expected(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    teams = defaultdict(list)
    for row in rows:
        teams[row["team"]].append(row["id"])
    return sorted([(team, len(ids), sorted(ids)) for team, ids in teams.items()], key=repr)


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    world = World(tmp_path, spark)
    rows = [{"id": n, "team": None if n % 11 == 0 else f"team{n % 5}", "age": n} for n in range(60)]
    world.table("members", pa.Table.from_pylist(rows), rows_per_file=16)
    return world


@pytest.mark.parametrize("partition", [{}, {"partition_by": "team"}])
def test_each_partition_is_seen_whole_and_once(world: World, partition: dict[str, str]) -> None:
    world.view("counts", **udtf(**partition))
    world.open("members").delete("id % 7 = 0")
    result = world.refresh("counts")
    assert result["mode"] == "rebuild"
    assert world.rows("counts") == expected(world.open("members").to_table().to_pylist())
    assert world.refresh("counts")["mode"] == "no_op"
    world.open("members").update({"team": "'team1'"}, where="id < 20")
    again = world.refresh("counts")
    assert (again["mode"], again["rows_deleted"]) == ("rebuild", result["rows_written"])
    assert world.rows("counts") == expected(world.open("members").to_table().to_pylist())


def test_where_and_limit_apply_before_partitions(world: World) -> None:
    world.view("counts", **udtf(query="SELECT id, team FROM members WHERE age >= 10 LIMIT 30", partition_by="team"))
    world.refresh("counts")
    rows = [row for row in world.open("members").to_table().to_pylist() if row["age"] >= 10][:30]
    assert world.rows("counts") == expected(rows)


def test_partitions_of_a_vector_index_cover_every_row_once(world: World) -> None:
    vectors = np.random.default_rng(1).random((600, 8), dtype=np.float32)
    table = pa.table(
        {
            "id": range(600),
            "team": ["all"] * 600,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
        }
    )
    world.table("points", table, rows_per_file=200)
    query = "SELECT id, team, vector FROM points"
    request = udtf(query=query, partition_by_indexed_column="vector", inputs=["id", "team"])
    with pytest.raises(InvalidInputError, match="has no IVF index"):
        world.view("clusters", **request)
    world.open("points").create_index("vector", "IVF_FLAT", num_partitions=3)
    world.view("clusters", **request)
    world.refresh("clusters")
    rows = world.open("clusters").to_table().to_pylist()
    assert len(rows) == 3
    assert sorted(number for row in rows for number in row["ids"]) == list(range(600))

    lance.write_dataset(table.slice(0, 5), world.path("points"), mode="append")
    with pytest.raises(JobError, match="5 rows of the source are not in the index"):
        world.refresh("clusters")


def test_rows_without_a_vector_are_a_partition_of_their_own(world: World) -> None:
    vectors = np.random.default_rng(1).random((300, 4), dtype=np.float32).tolist()
    rows = {"id": range(300), "team": ["all"] * 300}
    lists = [None if number % 10 == 0 else vector for number, vector in enumerate(vectors)]
    world.table("points", pa.table(rows | {"vector": pa.array(lists, pa.list_(pa.float32(), 4))}), rows_per_file=100)
    world.open("points").create_index("vector", "IVF_FLAT", num_partitions=2)
    world.open("points").delete("id in (0, 5)")
    query = "SELECT id, team, vector FROM points WHERE id < 290"
    world.view("clusters", **udtf(query=query, partition_by_indexed_column="vector", inputs=["id", "team"]))
    world.refresh("clusters")
    found = sorted((row["ids"] for row in world.open("clusters").to_table().to_pylist()), key=len)
    assert found[0] == list(range(10, 290, 10))
    assert sorted(number for ids in found for number in ids) == [n for n in range(290) if n not in (0, 5)]


def test_an_empty_source_has_no_partition(world: World) -> None:
    world.open("members").delete("true")
    for name, spec in (("whole", {}), ("parts", {"partition_by": "team"})):
        world.view(name, **udtf(**spec))
        assert world.refresh(name)["rows_written"] == 0


def test_keys_are_computed_for_selected_rows_only(world: World) -> None:
    query = "SELECT id, team, 10 / age AS share FROM members WHERE age <> 0"
    world.view("shares", **udtf(query=query, partition_by="share", inputs=["id", "team"]))
    world.refresh("shares")
    rows = [row for row in world.open("members").to_table().to_pylist() if row["age"]]
    parts = [expected([row for row in rows if 10 // row["age"] == share]) for share in {10 // r["age"] for r in rows}]
    assert world.rows("shares") == sorted([row for part in parts for row in part], key=repr)


def test_a_key_that_is_no_single_value_is_refused_when_the_view_is_made(world: World) -> None:
    world.table("boxed", pa.table({"id": [1, 2], "team": ["a", "b"], "box": [{"x": 1}, {"x": 2}]}))
    query = "SELECT id, team, box FROM boxed"
    with pytest.raises(InvalidInputError, match=r"partition_by 'box' is of type struct.* such as a field of it"):
        world.view("boxes", **udtf(query=query, partition_by="box"))
    world.view("boxes", **udtf(query=query, partition_by="box.x", inputs=["id", "team"]))
    world.refresh("boxes")
    assert world.rows("boxes") == [("a", 1, [1]), ("b", 1, [2])]


@pytest.mark.parametrize(("function", "error"), [("misspell", "yielded member;"), ("fraction", "7.5 is not a whole")])
def test_rows_that_the_columns_cannot_hold_fail_the_refresh(world: World, function: str, error: str) -> None:
    world.view("wrong", **udtf(function))
    with pytest.raises(JobError, match=error):
        world.refresh("wrong")
    assert world.open("wrong").version == 1


def test_a_poisoned_partition_fails_the_refresh_or_is_skipped(world: World) -> None:
    world.open("members").update({"team": "'poison'"}, where="id = 3")
    world.view("strict", **udtf(partition_by="team"))
    with pytest.raises(JobError, match="poison"):
        world.refresh("strict")
    assert world.open("strict").version == 1, "a failed refresh leaves the view as it was"

    world.view("lenient", **udtf(partition_by="team", error_handling={"mode": "skip"}))
    result = world.refresh("lenient")
    assert result["rows_failed"] == 1
    rows = [row for row in world.open("members").to_table().to_pylist() if row["team"] != "poison"]
    assert world.rows("lenient") == expected(rows)


def test_a_flaky_partition_is_tried_again(world: World, tmp_path: Path) -> None:
    world.open("members").update({"team": f"'{tmp_path}'"})
    world.view(
        "flaky", **udtf("fail_first_time", error_handling={"mode": "retry", "max_attempts": 2, "backoff": "fixed"})
    )
    world.refresh("flaky")
    assert world.rows("flaky", "team", "members") == [("ok", 60)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [({"num_gpus": 1}, "GPUs per task"), ({"num_cpus": 64}, "64 CPUs"), ({"memory": 1 << 60}, "bytes")],
)
def test_resources_the_cluster_does_not_have_are_refused(world: World, spec: dict[str, Any], message: str) -> None:
    world.view("greedy", **udtf(**spec))
    with pytest.raises(JobError, match=message):
        world.refresh("greedy")


def test_an_index_that_lists_a_row_twice_is_refused(world: World) -> None:
    vectors = np.random.default_rng(1).random((600, 8), dtype=np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    world.table("points", pa.table({"id": range(600), "team": ["all"] * 600, "vector": lists}), rows_per_file=200)
    world.open("points").create_index("vector", "IVF_FLAT", num_partitions=3)
    query = "SELECT id, team, vector FROM points"
    world.view("clusters", **udtf(query=query, partition_by_indexed_column="vector", inputs=["id", "team"]))
    first = world.open("points").get_fragments()[0]
    replace_column(world.open("points"), "vector", {first: lists.slice(200, 200)})
    world.open("points").optimize.optimize_indices(num_indices_to_merge=0)
    with pytest.raises(JobError, match=r"rows in two of its lists.* create the index anew"):
        world.refresh("clusters")


def test_equal_numbers_are_one_partition(world: World) -> None:
    other_nan = np.frombuffer(np.uint64(0xFFF8000000000001).tobytes(), np.float64)[0]
    keys = [0.0, 1.5, -0.0, None, float("nan"), other_nan, None, -1.5, 1.5]
    world.table("measured", pa.table({"id": range(9), "team": ["all"] * 9, "key": pa.array(keys, pa.float64())}))
    query = "SELECT id, team, key FROM measured"
    world.view("groups", **udtf(query=query, partition_by="key", inputs=["id", "team"]))
    world.refresh("groups")
    assert sorted(row[2] for row in world.rows("groups")) == [[0, 2], [1, 8], [3, 6], [4, 5], [7]]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_keys_are_spelled_one_way_whatever_their_width(kind: pa.DataType) -> None:
    numbers = [np.float16(number) for number in (0.0, -0.0, float("nan"), 1.5)]
    found = equal_keys(pa.chunked_array([pa.array([*numbers, None], pa.float16()).cast(kind)]))
    assert [repr(value.as_py()) for value in found] == ["0.0", "0.0", "nan", "1.5", "None"]


def test_a_partition_in_many_pieces_loses_no_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udtf_module, "TAKE_ROWS", 7)
    dataset = world.open("members")
    dataset.delete("id % 7 = 0")
    dataset = world.open("members")
    table = dataset.to_table(columns={"number": "id", "row_id": "_rowid"})
    taken = take_rows(dataset, table["row_id"].to_numpy()[::-1], {"id": "id", "box": "named_struct('age', age)"})
    assert len(taken.to_batches()) > 1
    inputs = table_inputs(taken, ("box.age", "id"))
    assert inputs["id"].to_pylist() == table["number"].to_pylist()[::-1]
    assert inputs["box.age"].to_pylist() == inputs["id"].to_pylist()
    gone = np.array([*table["row_id"].to_pylist(), 10**6], np.uint64)
    with pytest.raises(RuntimeError, match="found 51 of the 52 rows"):
        take_rows(dataset, gone, {"id": "id"})
