"""Chunker views: any number of rows per source row, recomputed for changed rows only."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.engine.job.context import JobError
from tests.engine.view_functions import WORDS, function_view
from tests.engine.view_world import World

DOCS = arrow_schema({"id": "int64", "text": "string", "note": "string"})


def docs(texts: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(texts), "text": list(texts.values()), "note": ["n"] * len(texts)}, schema=DOCS)


def chunker(function: Callable[..., object] | str = "split_words", **spec: Any) -> dict[str, Any]:
    return function_view(
        "chunker", function, WORDS, "SELECT * FROM docs WHERE id < 1000", inputs=["id", "text"], **spec
    )


def expected(world: World) -> list[tuple[Any, ...]]:
    rows = world.open("docs").to_table(columns=["id", "text"]).to_pylist()
    return sorted(
        [(r["id"], n, word) for r in rows if r["id"] < 1000 for n, word in enumerate(r["text"].split())], key=repr
    )


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    world = World(tmp_path, spark)
    world.table("docs", docs({1: "one two three", 2: "", 3: "four", 4: "five six", 5: "seven"}), rows_per_file=2)
    return world


@pytest.mark.parametrize(
    ("function", "batch"),
    [
        ("split_words", False),
        ("split_words_batched", True),
        ("split_words_arrow", True),
        (lambda doc, text: [(doc, n, word) for n, word in enumerate(text.split())], False),
    ],
)
def test_rows_expand_and_follow_their_source(world: World, function: Callable[..., object] | str, batch: bool) -> None:
    world.view("words", **chunker(function, batch=batch))
    first = world.refresh("words")
    assert (first["mode"], first["rows_written"]) == ("rebuild", 7)
    assert world.rows("words") == expected(world)

    world.open("docs").update({"text": "'changed now'"}, where="id = 1")
    world.open("docs").delete("id = 3")
    world.append("docs", docs({6: "eight nine", 2000: "not in the view"}))
    second = world.refresh("words")
    assert (second["mode"], second["rows_written"], second["rows_deleted"]) == ("incremental", 4, 4)
    assert world.rows("words") == expected(world)


def test_a_column_the_function_does_not_read_changes_nothing(world: World) -> None:
    world.view("words", **chunker())
    world.refresh("words")
    world.open("docs").add_columns({"other": "id * 2"})
    result = world.refresh("words")
    assert (result["mode"], result["rows_written"], result["rows_deleted"]) == ("incremental", 0, 0)


def test_output_limit_cuts_the_view_and_lifting_it_brings_the_rows_back(world: World) -> None:
    world.view("words", **chunker())
    assert world.refresh("words", output_limit=4)["rows_written"] == 4
    assert len(world.rows("words")) == 4
    assert set(world.rows("words")) <= set(expected(world))
    assert world.refresh("words", output_limit=4)["mode"] == "no_op"

    lifted = world.refresh("words")
    assert lifted["mode"] == "rebuild"
    assert "cut to 4 rows" in lifted["reason"]
    assert world.rows("words") == expected(world)
    assert world.refresh("words", output_limit=100)["mode"] == "no_op"

    world.append("docs", docs({7: "a b c d e"}))
    grown = world.refresh("words", output_limit=9)
    assert (grown["mode"], grown["rows_written"]) == ("incremental", 2)
    assert len(world.rows("words")) == 9


def test_small_source_tasks_and_threads_give_the_same_rows(world: World) -> None:
    world.view("words", **chunker())
    world.refresh("words", source_task_size=1, concurrency=2, intra_applier_concurrency=2, max_rows_per_fragment=2)
    assert world.rows("words") == expected(world)
    assert max(fragment.physical_rows for fragment in world.open("words").get_fragments()) <= 2


def test_a_failing_row_fails_the_job_or_is_left_out(world: World) -> None:
    world.append("docs", docs({9: "boom"}))
    world.view("strict", **chunker())
    with pytest.raises(JobError, match="boom"):
        world.refresh("strict")
    assert world.open("strict").version == 1

    world.view("lenient", **chunker(on_error="null"))
    result = world.refresh("lenient")
    assert result["rows_failed"] == 1
    assert world.rows("lenient") == [row for row in expected(world) if row[2] != "boom"]


@pytest.mark.parametrize("wrong", ["fraction", "decimal", "type", "short", "key"])
def test_a_row_that_the_columns_cannot_hold_is_a_failed_row(world: World, wrong: str) -> None:
    world.append("docs", docs({9: wrong}))
    world.view("strict", **chunker("pairs"))
    with pytest.raises(JobError, match="the view's function failed"):
        world.refresh("strict")
    assert world.open("strict").version == 1

    world.view("lenient", **chunker("pairs", on_error="null"))
    assert world.refresh("lenient")["rows_failed"] == 1
    texts = {row["id"]: row["text"] for row in world.open("docs").to_table().to_pylist() if row["text"] != wrong}
    pairs = [row for doc, text in texts.items() for row in ((doc, 0, text), (doc, None, text))]
    assert world.rows("lenient") == sorted(pairs, key=repr)


@pytest.mark.parametrize(("function", "error"), [("pairs_batched", "1.75"), ("pairs_arrow", "position, word")])
def test_a_batch_that_the_columns_cannot_hold_is_a_failed_batch(world: World, function: str, error: str) -> None:
    world.append("docs", docs({9: "fraction"}))
    world.view("strict", **chunker(function, batch=True))
    with pytest.raises(JobError, match=error):
        world.refresh("strict")
    world.view("lenient", **chunker(function, batch=True, on_error="null"))
    result = world.refresh("lenient", source_task_size=1)
    assert result["rows_failed"] + result["rows_written"] // 2 == 6


def test_foreign_envelopes_and_forbidden_pickles_are_refused_with_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = chunker()
    foreign = "eyJub3QiOiAib3VycyJ9"
    request["udtf_spec"] |= {"udtf": foreign, "udtf_sha": hashlib.sha256(foreign.encode()).hexdigest()}
    world.view("foreign", **request)
    with pytest.raises(JobError, match="envelope of another system"):
        world.refresh("foreign")

    world.view("pickled", **chunker(lambda doc, text: []))
    monkeypatch.setenv("LANCE_UDF_PICKLES", "forbid")
    with pytest.raises(JobError, match="pickled functions are not allowed"):
        world.refresh("pickled")


def test_a_manifest_is_checked_where_the_function_runs(world: World) -> None:
    world.view("words", **chunker())
    with pytest.raises(JobError, match="no no-such-package"):
        world.refresh("words", manifest='{"name": "m", "pip": ["no-such-package>=1"]}')
    with pytest.raises(JobError, match="head_image"):
        world.refresh("words", manifest='{"head_image": "x"}')
    assert world.refresh("words", manifest='{"name": "m", "pip": ["pyarrow>=1"]}')["rows_written"] == 7


@pytest.mark.parametrize("seed", range(2))
def test_a_chunker_equals_its_expansion_after_every_step(world: World, seed: int) -> None:
    random_ = random.Random(seed)
    world.view("words", **chunker())
    next_id = 10
    for _ in range(8):
        step = random_.choice(["append", "update", "delete", "compact", "restore", "unread"])
        source = world.open("docs")
        if step == "append":
            rows = docs({next_id + n: " ".join("w" * random_.randrange(4)) for n in range(3)})
            world.append("docs", rows)
            next_id += 3
        elif step == "update":
            source.update({"text": f"'u {random_.random()}'"}, where=f"id % 3 = {random_.randrange(3)}")
        elif step == "delete":
            source.delete(f"id % 5 = {random_.randrange(5)}")
        elif step == "compact":
            source.optimize.compact_files()
        elif step == "unread":
            source.update({"note": "'x'"}, where="id % 2 = 0")
        else:
            source.checkout_version(random_.randint(1, source.version)).restore()  # type: ignore[no-untyped-call]
        world.refresh("words")
        assert world.rows("words") == expected(world), step
