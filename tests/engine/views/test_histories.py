"""After every step of a random history the view equals its query run from scratch, whoever refreshes it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.views import job as refresh_module
from tests.columns_in_place import replace_column
from tests.engine.view_world import World, people

SHOUT = (
    "SELECT id, upper(text) AS shout, note FROM people WHERE id % 3 <> 1 AND score < 900 AND note IS NULL OR note < 5"
)


class Crash(Exception):
    """Stands for the driver's death."""


def expected(world: World) -> list[tuple[Any, ...]]:
    rows = world.open("people").to_table(columns=["id", "text", "score", "note"]).to_pylist()
    kept = [
        row
        for row in rows
        if (row["note"] < 5 if row["note"] is not None else row["id"] % 3 != 1 and row["score"] < 900)
    ]
    return sorted([(row["id"], row["text"].upper(), row["note"]) for row in kept], key=repr)


def noted(ids: Iterable[int], tag: str = "t") -> pa.Table:
    """People with a column to be filled: ``note``, which the view reads."""
    rows = people(ids, tag)
    return rows.append_column("note", pa.nulls(len(rows), pa.int64()))


class History:
    """Random changes of the source and the view. ``next_id`` only grows, so every row can be told apart."""

    def __init__(self, world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.random, self.monkeypatch = world, random.Random(seed), monkeypatch
        world.table("people", noted(range(20)))
        self.next_id, self.columns = 20, 0
        self.log: list[str] = []

    @property
    def source(self) -> lance.LanceDataset:
        return self.world.open("people")

    def append(self) -> None:
        count = self.random.randint(1, 9)
        rows = noted(range(self.next_id, self.next_id + count))
        for column in self.source.schema.names[4:]:
            rows = rows.append_column(column, [[None] * count])
        self.world.append("people", rows.cast(self.source.schema))
        self.next_id += count

    def update_values(self) -> None:
        self.source.update({"text": f"'u{self.random.random()}'"}, where=f"id % 5 = {self.random.randrange(5)}")

    def update_membership(self) -> None:
        """Rows enter and leave through the where clause."""
        score = self.random.choice(["950.0", "1.0"])
        self.source.update({"score": score}, where=f"id % 4 = {self.random.randrange(4)}")

    def merge_insert(self) -> None:
        ids = [self.random.randrange(self.next_id), self.next_id]
        self.next_id += 1
        if len(self.source.schema.names) == 4:
            (self.source.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()).execute(
                noted(ids, tag="m")
            )

    def delete(self) -> None:
        self.source.delete(f"id % 7 = {self.random.randrange(7)} AND id > {self.random.randrange(self.next_id)}")

    def compact(self) -> None:
        self.source.optimize.compact_files(target_rows_per_fragment=self.random.choice([8, 1000]))

    def backfill_unread(self) -> None:
        self.columns += 1
        self.source.add_columns({f"extra{self.columns}": "id + 1"})

    def backfill_read(self) -> None:
        """New files in place for some fragments, as a backfill makes them."""
        source = self.source
        fragments = source.get_fragments()
        chosen = self.random.sample(fragments, self.random.randint(0, len(fragments)))
        replace_column(source, "note", {part: self.notes(part.physical_rows) for part in chosen})

    def update_in_place(self) -> None:
        fragments = self.source.get_fragments()
        if fragments:
            chosen, rows = self.random.randrange(len(fragments)), self.random.randint(1, 3)
            self.world.update_in_place("people", "text", f"p{self.random.random()}", chosen, rows=rows, offsets=True)

    def notes(self, count: int) -> pa.Int64Array:
        return pa.array(self.random.choices([None, *range(10)], k=count), pa.int64())

    def drop_unread(self) -> None:
        names = self.source.schema.names[4:]
        if names:
            self.source.drop_columns([self.random.choice(names)])

    def restore(self) -> None:
        versions = [entry["version"] for entry in self.source.versions()]
        candidate = self.source.checkout_version(self.random.choice(versions))
        candidate.restore()  # type: ignore[no-untyped-call]

    def index(self) -> None:
        self.source.create_scalar_index("id", "BTREE", replace=True)

    def compact_view(self) -> None:
        self.world.open("view").optimize.compact_files()

    def step(self) -> None:
        changes = [self.append] * 3 + [self.update_values, self.update_membership, self.delete, self.compact] * 2
        changes += [self.backfill_read, self.update_in_place] * 2 + [
            self.merge_insert,
            self.backfill_unread,
            self.drop_unread,
        ]
        changes += [self.restore, self.index, self.overwrite]
        for change in self.random.choices(changes, k=self.random.randint(1, 3)):
            self.log.append(change.__name__)
            change()
        if self.random.random() < 0.15:
            self.log.append("compact_view")
            self.compact_view()

    def overwrite(self) -> None:
        rows = noted(range(self.next_id, self.next_id + 5))
        lance.write_dataset(rows, self.world.path("people"), mode="overwrite", max_rows_per_file=4)
        self.next_id += 5

    def crash(self) -> None:
        """Our refresh dies after its rows are committed and before its bookmark is."""

        def die(*_: object) -> int:
            raise Crash

        self.append()
        with self.monkeypatch.context() as patch:
            patch.setattr(refresh_module, "write_bookmark", die)
            with pytest.raises(Crash):
                self.world.refresh("view", full=self.random.random() < 0.5)


def run_history(world: World, seed: int, monkeypatch: pytest.MonkeyPatch, steps: int) -> set[str]:
    history = History(world, seed, monkeypatch)
    world.view("view", SHOUT)
    database = lancedb.connect(str(world.root))
    modes = set()
    for _ in range(steps):
        history.step()
        who = history.random.random()
        if who < 0.2:
            history.log.append("LanceDB")
            modes.add(f"LanceDB {database.open_materialized_view('view').refresh().mode}")
        else:
            if who < 0.35:
                history.log.append("crash")
                history.crash()
                assert world.rows("view") == expected(world), history.log
                history.append()
            result = world.refresh("view")
            history.log.append(str(result))
            modes.add(result["mode"])
        assert world.rows("view") == expected(world), history.log
        # Nothing is left to do, and doing nothing makes no version.
        version = world.open("view").version
        assert world.refresh("view")["mode"] == "no_op", history.log
        assert world.open("view").version == version
    return modes


@pytest.mark.parametrize("seed", range(8))
def test_view_equals_its_query_after_every_step(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = run_history(World(tmp_path), seed, monkeypatch, steps=8)
    assert "incremental" in modes


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_view_equals_its_query_through_long_histories(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "incremental" in run_history(World(tmp_path), seed, monkeypatch, steps=40)
