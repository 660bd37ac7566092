"""Query views: what is computed, why a view is rebuilt, who wins a race, and what a crash leaves behind."""

from __future__ import annotations

import datetime
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.engine.job.context import JobContext, JobError
from airflow_provider_lance.engine.views import job as refresh_module
from airflow_provider_lance.engine.views import query_view
from airflow_provider_lance.engine.views.job import run_refresh
from airflow_provider_lance.engine.views.publish import write_rows
from tests.engine.view_world import World, people

QUERY = "SELECT id, upper(text) AS shout FROM people WHERE id % 2 = 0"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.table("people", people(range(20)))
    world.view("view", QUERY)
    return world


def expected(world: World, source: str = "people") -> list[tuple[Any, ...]]:
    rows = world.open(source).to_table().to_pylist()
    return sorted([(row["id"], row["text"].upper()) for row in rows if row["id"] % 2 == 0], key=repr)


def test_first_refresh_then_nothing_then_only_the_change(world: World) -> None:
    first = world.refresh("view")
    assert (first["mode"], first["rows_written"], first["source_version"], first["version"]) == ("rebuild", 10, 1, 3)
    nothing = world.refresh("view")
    assert (nothing["mode"], nothing["rows_written"], nothing["version"]) == ("no_op", 0, 3)

    world.append("people", people([20, 21, 22]))
    world.open("people").update({"text": "'new'"}, where="id in (2, 3)")
    world.open("people").delete("id in (4, 5)")
    changed = world.refresh("view")
    assert (changed["mode"], changed["rows_written"], changed["rows_deleted"]) == ("incremental", 3, 2)
    assert (changed["source_version"], changed["version"]) == (4, 5)
    assert world.rows("view") == expected(world)
    assert world.metadata("view")["mv.view_version"] == "5"


def test_a_backfill_of_a_column_the_view_does_not_read_changes_nothing(world: World) -> None:
    world.refresh("view")
    world.open("people").add_columns({"extra": "score * 2"})
    result = world.refresh("view")
    assert (result["mode"], result["rows_written"], result["rows_deleted"]) == ("incremental", 0, 0)
    world.open("people").drop_columns(["text"])
    world.open("people").add_columns({"text": "cast(extra as string)"})
    result = world.refresh("view")
    assert result["mode"] == "rebuild"
    assert "column text of the source was replaced" in result["reason"]
    assert world.rows("view") == expected(world)


def test_rows_enter_and_leave_through_the_where_clause(world: World) -> None:
    world.view("high", "SELECT id FROM people WHERE score > 5")
    world.refresh("high")
    world.open("people").update({"score": "100.0"}, where="id = 1")
    world.open("people").update({"score": "0.0"}, where="id = 19")
    result = world.refresh("high")
    assert (result["mode"], result["rows_written"], result["rows_deleted"]) == ("incremental", 1, 1)
    assert [row[0] for row in world.rows("high")] == sorted([1, *range(11, 19)], key=lambda n: repr((n,)))


def test_values_that_were_updated_in_place_are_followed(world: World) -> None:
    world.refresh("view")
    world.update_in_place("people", "text", "said", 1, rows=2, offsets=True)
    said = world.refresh("view")
    assert (said["mode"], said["rows_written"], said["rows_deleted"]) == ("incremental", 1, 1)
    assert world.rows("view") == expected(world)

    world.update_in_place("people", "text", "unsaid", 2, rows=2, offsets=False)
    world.append("people", people([30, 31]))
    unsaid = world.refresh("view")
    # Nothing tells which rows of the fragment were updated: both that the view has count.
    assert (unsaid["mode"], unsaid["rows_written"], unsaid["rows_deleted"]) == ("incremental", 3, 2)
    assert world.rows("view") == expected(world)
    assert world.refresh("view")["mode"] == "no_op"


@pytest.mark.parametrize("compacted_before", [True, False])
def test_values_that_were_updated_in_place_are_not_lost_to_a_compaction(world: World, compacted_before: bool) -> None:
    world.refresh("view")
    if compacted_before:
        world.open("people").optimize.compact_files()
    world.update_in_place("people", "text", "unsaid", 0, rows=3, offsets=False)
    if not compacted_before:
        world.open("people").optimize.compact_files()
    result = world.refresh("view")
    if compacted_before:
        assert result["mode"] == "incremental"
    else:
        assert result["mode"] == "rebuild"
        assert "without saying which" in result["reason"]
    assert world.rows("view") == expected(world)


def _recreated(world: World) -> None:
    shutil.rmtree(world.path("people"))
    world.table("people", people(range(3)))
    world.append("people", people([8]))


def _column_made_empty(world: World) -> None:
    """Neither commit touches a data file of the view."""
    world.open("view").drop_columns(["shout"])
    world.open("view").add_columns(pa.field("shout", pa.string()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.open("people").checkout_version(1).restore(), "restored to an older version"),
        (lambda w: lance.write_dataset(people([2, 4]), w.path("people"), mode="overwrite"), "overwritten"),
        (_recreated, "dropped and created again"),
        (
            lambda w: (
                w.open("people").delete("id = 0"),
                w.open("people").cleanup_old_versions(older_than=datetime.timedelta(0)),
            ),
            "cleaned up",
        ),
        (lambda w: w.open("view").delete("id = 0"), "the view itself was changed"),
        (_column_made_empty, "the view itself was changed"),
    ],
)
def test_a_view_is_rebuilt_for_a_reason(world: World, change: Callable[[World], object], reason: str) -> None:
    world.append("people", people([30]))
    world.refresh("view")
    change(world)
    world.append("people", people([50, 52]))
    result = world.refresh("view")
    assert result["mode"] == "rebuild"
    assert re.search(reason, result["reason"]), result
    assert world.rows("view") == expected(world)
    assert world.refresh("view")["mode"] == "no_op"


def test_a_source_without_stable_row_ids_is_rebuilt_each_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table("people", people(range(6)), stable=False)
    world.view("view", QUERY)
    world.refresh("view")
    world.append("people", people([6, 7]))
    result = world.refresh("view")
    assert (result["mode"], result["rows_written"]) == ("rebuild", 4)
    assert "no stable row ids" in result["reason"]
    assert world.rows("view") == expected(world)


def test_a_definition_that_no_longer_holds_is_refused_and_the_view_kept(world: World) -> None:
    world.refresh("view")
    before = world.rows("view")
    world.open("people").drop_columns(["text"])
    with pytest.raises(JobError, match="no longer holds over its source") as failed:
        world.refresh("view")
    assert not failed.value.retryable
    assert world.rows("view") == before
    world.open("people").add_columns({"text": "id"})
    with pytest.raises(JobError, match="no longer holds"):
        world.refresh("view")


def test_a_chosen_source_version_is_used_also_backwards(world: World) -> None:
    world.append("people", people([20]))
    world.append("people", people([22]))
    assert world.refresh("view", src_version=2)["source_version"] == 2
    assert world.refresh("view")["mode"] == "incremental"
    back = world.refresh("view", src_version=1)
    assert back["mode"] == "rebuild"
    assert len(world.rows("view")) == 10
    with pytest.raises(JobError, match="at version 99"):
        world.refresh("view", src_version=99)


def test_a_limit_takes_the_first_rows_and_appends_until_it_is_full(world: World) -> None:
    world.view("few", f"{QUERY} LIMIT 12")
    assert world.refresh("few")["rows_written"] == 10
    world.append("people", people(range(20, 30)))
    grown = world.refresh("few")
    assert (grown["mode"], grown["rows_written"]) == ("incremental", 2)
    world.append("people", people(range(30, 40)))
    assert world.refresh("few")["rows_written"] == 0
    world.open("people").delete("id = 0")
    rebuilt = world.refresh("few")
    assert (rebuilt["mode"], rebuilt["rows_written"]) == ("rebuild", 12)
    assert [row[0] for row in world.rows("few")] == sorted(range(2, 26, 2), key=lambda n: repr((n, f"T{n}")))


def test_views_over_views_in_a_chain_of_three(world: World) -> None:
    world.view("second", "SELECT id, shout FROM view WHERE id > 4")
    world.view("third", "SELECT concat(shout, '!') AS cry FROM second")
    chain = ("view", "second", "third")

    def settle() -> list[str]:
        modes = [world.refresh(name)["mode"] for name in chain]
        wanted = [(f"{text}!",) for number, text in expected(world) if number > 4]
        assert world.rows("third") == sorted(wanted, key=repr)
        return modes

    assert settle() == ["rebuild"] * 3
    world.append("people", people([100, 101]))
    world.open("people").update({"text": "'x'"}, where="id = 6")
    world.open("people").delete("id = 8")
    assert settle() == ["incremental"] * 3
    assert settle() == ["no_op"] * 3


def test_lancedb_continues_ours_and_we_continue_lancedbs(world: World) -> None:
    database = lancedb.connect(str(world.root))
    theirs = database.create_materialized_view(
        "theirs", "people", select={"id": "id", "shout": "upper(text)"}, where="id % 2 = 0"
    )
    world.refresh("view")
    for name, other in (("view", database.open_materialized_view("view")), ("theirs", theirs)):
        other.refresh()
        world.append("people", people([40, 41]))
        assert other.refresh().mode == "incremental"
        assert world.refresh(name)["mode"] == "no_op"
        world.append("people", people([42]))
        world.open("people").delete("id = 2")
        assert world.refresh(name)["mode"] == "incremental"
        assert other.refresh().mode == "no_op"
        assert world.rows(name) == expected(world)


def test_a_view_may_be_compacted_and_indexed_between_refreshes(world: World) -> None:
    world.refresh("view")
    world.append("people", people([20, 22]))
    world.refresh("view")
    world.open("view").optimize.compact_files()
    world.open("view").create_scalar_index("id", "BTREE")
    world.open("people").update({"text": "'y'"}, where="id = 20")
    result = world.refresh("view")
    assert (result["mode"], result["rows_written"], result["rows_deleted"]) == ("incremental", 1, 1)
    assert world.rows("view") == expected(world)


@pytest.mark.parametrize("moment", ["write_rows", "write_bookmark"])
@pytest.mark.parametrize("full", [False, True])
def test_a_crash_before_either_commit_is_made_good_by_the_next_refresh(
    world: World, moment: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.refresh("view")
    before = world.rows("view")
    world.append("people", people([20, 22]))
    world.open("people").delete("id = 0")

    def die(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(refresh_module, moment, die)
        with pytest.raises(KeyboardInterrupt):
            world.refresh("view", full=full)
    assert world.rows("view") == (before if moment == "write_rows" else expected(world))
    result = world.refresh("view")
    assert world.rows("view") == expected(world)
    assert result["rows_written"] == (11 if full and moment == "write_bookmark" else 2)
    if moment == "write_bookmark":
        assert "interrupted between its two commits" in result["reason"]
    assert world.refresh("view")["mode"] == "no_op"


def test_many_refreshes_at_once_never_double_a_row(world: World) -> None:
    world.refresh("view")
    for round_ in range(3):
        world.append("people", people(range(100 * (round_ + 1), 100 * (round_ + 1) + 50)))
        start = threading.Barrier(4)
        outcomes: list[dict[str, Any]] = []

        def one(start: threading.Barrier = start, outcomes: list[dict[str, Any]] = outcomes) -> None:
            context = world.context("view")
            start.wait()
            outcomes.append(run_refresh(context))

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 4
        assert world.rows("view") == expected(world)
        assert sorted(outcome["rows_written"] for outcome in outcomes if outcome["mode"] == "incremental")[0] == 25


def test_lancedb_committing_first_makes_ours_start_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.refresh("view")
    world.append("people", people([20, 22]))
    beaten: list[Any] = []

    def beaten_to_it(*arguments: Any) -> int:
        if not beaten:
            beaten.append(lancedb.connect(str(world.root)).open_materialized_view("view").refresh())
        return write_rows(*arguments)

    monkeypatch.setattr(refresh_module, "write_rows", beaten_to_it)
    assert world.refresh("view")["mode"] == "no_op"
    assert beaten[0].rows_written == 2
    assert world.rows("view") == expected(world)
    assert any("starting over" in str(event["message"]) for event in world.reporter.events)
    leftovers = [path.name for path in Path(world.path("view"), "_versions").iterdir() if ".manifest-" in path.name]
    assert not leftovers, "a refused commit leaves no staged manifest behind"


def test_rows_that_another_system_added_twice_are_noticed_and_rebuilt(world: World) -> None:
    """LanceDB computes while ours commits; then its commit is rebased onto ours instead of being refused."""
    world.refresh("view")
    world.append("people", people([20, 22]))
    behind = world.open("view")
    rows = pa.table({"id": [20, 22], "shout": ["T20", "T22"], "__source_row_id": [20, 21]}, schema=behind.schema)
    new = lance.fragment.write_fragments(rows.replace_schema_metadata(None), world.path("view"))
    world.refresh("view")
    operation = lance.LanceOperation.Update(new_fragments=new, updated_fragments=[], removed_fragment_ids=[])
    head = lance.LanceDataset.commit(world.path("view"), operation, read_version=behind.version)
    bookmark: dict[str, str | None] = {"mv.source_version": "2", "mv.view_version": str(head.version + 1)}
    update = lance.LanceOperation.UpdateMap(bookmark)
    lance.LanceDataset.commit(
        world.path("view"),
        lance.LanceOperation.UpdateConfig(schema_metadata_updates=update),
        read_version=head.version,
    )
    assert len(world.rows("view")) == 14, "two rows are there twice"
    result = world.refresh("view")
    assert result["mode"] == "rebuild"
    assert "rows are there twice" in result["reason"]
    assert world.rows("view") == expected(world)


def test_max_rows_per_fragment_and_full(world: World) -> None:
    world.refresh("view", max_rows_per_fragment=3)
    sizes = [fragment.physical_rows for fragment in world.open("view").get_fragments()]
    assert sum(sizes) == 10
    assert max(sizes) <= 3
    full = world.refresh("view", full=True)
    assert (full["mode"], full["rows_written"], full["rows_deleted"]) == ("rebuild", 10, 10)
    assert world.rows("view") == expected(world)


def test_spark_and_driver_compute_the_same_view(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, spark)
    world.table("people", people(range(3000)), rows_per_file=250)
    world.view("view", QUERY)
    monkeypatch.setattr(query_view.QueryView, "runs_in_driver", False)
    result = world.refresh("view", concurrency=2, intra_applier_concurrency=2, source_task_size=100)
    assert result["rows_written"] == 1500
    assert world.rows("view") == expected(world)
    rows = world.open("view").to_table()
    assert rows["id"] == rows.sort_by("id")["id"], "the view keeps its source's order"
    world.open("people").update({"text": "'u'"}, where="id % 10 = 0")
    world.append("people", people(range(3000, 3100)))
    result = world.refresh("view")
    assert (result["mode"], result["rows_written"], result["rows_deleted"]) == ("incremental", 350, 300)
    assert world.rows("view") == expected(world)
    assert world.reporter.latest.rows_done


def test_wide_types_survive(tmp_path: Path) -> None:
    world = World(tmp_path)
    vectors = pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2))
    tags = pa.array([["a"], None, []], pa.list_(pa.string()))
    nested = pa.array([{"a": 1}, {"a": None}, {"a": 3}], pa.struct([("a", pa.uint64())]))
    table = pa.table({"id": [1, 2, 3], "vector": vectors, "tags": tags, "nested": nested, "raw": [b"x", None, b"z"]})
    world.table("people", table)
    world.view("view", "SELECT *  FROM people WHERE id < 3")
    world.refresh("view")
    assert world.open("view").to_table(columns=table.column_names).to_pylist() == table.slice(0, 2).to_pylist()
    world.view("inner", "SELECT nested.a AS a, md5(cast(id as string)) AS h FROM people")
    assert world.refresh("inner")["rows_written"] == 3


def test_a_table_that_is_no_view_is_refused(world: World) -> None:
    spec = JobSpec("refresh_materialized_view", ["people"], world.path("people"))
    with pytest.raises(JobError, match="not a materialized view"):
        run_refresh(JobContext(spec, world.make_spark))


def test_a_rebuild_keeps_the_indices_of_its_view(world: World) -> None:
    world.view("copy", "SELECT id, text FROM people")
    world.refresh("copy")
    world.open("copy").create_scalar_index("id", "BTREE")
    world.append("people", people(range(500, 510)))
    assert world.refresh("copy", full=True)["mode"] == "rebuild"
    assert [index.name for index in world.open("copy").describe_indices()] == ["id_idx"]
    assert world.open("copy").to_table(filter="id = 505")["text"].to_pylist() == ["t505"]
    assert world.rows("copy") == world.rows("people", "id", "text")
