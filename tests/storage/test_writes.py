"""Rows written into tables: what is stored afterwards, and that a repeated write changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.storage import writes
from airflow_provider_lance.storage.commits import Committer
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.writes import (
    Rows,
    RowsDoNotFitError,
    append_rows,
    create_table,
    find_write,
    replace_rows,
    replace_table,
    upsert_rows,
)


def rows_of(table: pa.Table, batch_rows: int = 3) -> Rows:
    return Rows(lambda: table.to_reader(batch_rows), max_rows_per_file=5)


def people(*ids: int, text: str = "t") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{text}{number}" for number in ids]})


def stored(committer: Committer) -> list[tuple[object, ...]]:
    table = committer.table.open().to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.fixture
def committer(tmp_path: Path) -> Committer:
    return Committer(TableRef(str(tmp_path / "t.lance")))


@pytest.fixture
def filled(committer: Committer) -> Committer:
    """A table with seven rows and a column with a rule, which no write knows."""
    create_table(committer, rows_of(people(*range(7))), "first")
    committer.table.open().add_columns(pa.field("n", pa.int64(), metadata={"rule": "length(text)"}))
    return committer


def test_a_created_table_has_stable_row_ids_and_its_key(committer: Committer) -> None:
    result = create_table(committer, rows_of(people(*range(7))), "first")
    dataset = committer.table.open()
    assert (result.version, result.inserted) == (dataset.version, 7)
    assert dataset.has_stable_row_ids
    assert len(dataset.get_fragments()) == 2
    found = find_write(dataset, "first", 0)
    assert found is not None
    assert (found.version, found.inserted, found.repeated) == (1, 7, True)


def test_appended_rows_may_lack_columns_and_keep_the_rules(filled: Committer) -> None:
    result = append_rows(filled, rows_of(people(10, 11)), "k")
    assert (result.inserted, result.updated, result.deleted) == (2, 0, 0)
    assert stored(filled)[-2:] == [(10, "t10", None), (11, "t11", None)]
    assert filled.table.open().schema.field("n").metadata == {b"rule": b"length(text)"}


def test_columns_come_in_any_order_and_narrower_types(filled: Committer) -> None:
    table = pa.table({"text": pa.array(["x"], pa.large_string()), "id": pa.array([70], pa.int8())})
    append_rows(filled, rows_of(table), "k")
    assert (70, "x", None) in stored(filled)


def test_replacing_rows_keeps_schema_rules_and_older_versions(filled: Committer) -> None:
    before = filled.table.open().version
    result = replace_rows(filled, rows_of(people(1, 2, text="new")), "k")
    assert (result.inserted, result.deleted) == (2, 7)
    assert stored(filled) == [(1, "new1", None), (2, "new2", None)]
    assert filled.table.open().schema.field("n").metadata == {b"rule": b"length(text)"}
    assert filled.table.open(before).count_rows() == 7


def test_replacing_the_table_takes_the_schema_of_the_rows(filled: Committer) -> None:
    result = replace_table(filled, rows_of(pa.table({"other": [1.5, 2.5]})), "k")
    assert (result.inserted, result.deleted) == (2, 7)
    assert filled.table.open().schema.names == ["other"]
    assert filled.table.open().has_stable_row_ids
    assert stored(filled) == [(1.5,), (2.5,)]


def test_an_upsert_updates_inserts_and_leaves_the_rest(filled: Committer) -> None:
    result = upsert_rows(filled, rows_of(people(5, 6, 7, text="new")), ["id"], "k")
    assert (result.inserted, result.updated) == (1, 2)
    assert [row[1] for row in stored(filled)] == ["t0", "t1", "t2", "t3", "t4", "new5", "new6", "new7"]


def test_an_upsert_refuses_a_key_that_occurs_twice_in_the_rows(filled: Committer) -> None:
    before = filled.table.open().version
    with pytest.raises(RowsDoNotFitError, match=r"1 keys occur more than once in the rows, such as \{'id': 90\}"):
        upsert_rows(filled, rows_of(people(90, 90, 91)), ["id"], "k")
    assert filled.table.open().version == before


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            pa.table({"id": pa.array([1], pa.int64()), "txt": ["x"]}),
            "The table has no column 'txt'; it has id, text, n",
        ),
        (pa.table({"id": ["one"], "text": ["x"]}), "The column 'id' is int64 in the table, and the rows have string"),
        (pa.table({"id": [2**63 - 1], "n": [1.5]}), "The column 'n' is int64 in the table, and the rows have double"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(filled: Committer, table: pa.Table, told: str) -> None:
    before = filled.table.open().version
    with pytest.raises(RowsDoNotFitError) as refused:
        append_rows(filled, rows_of(table), "k")
    assert told in str(refused.value)
    assert filled.table.open().version == before


def test_a_column_that_cannot_be_null_is_named(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])
    committer = Committer(TableRef(str(tmp_path / "t.lance")))
    create_table(committer, rows_of(pa.table({"id": [1], "x": [1]}, schema=schema)), "first")
    with pytest.raises(RowsDoNotFitError, match="The rows have no column 'id', which cannot be null"):
        append_rows(committer, rows_of(pa.table({"x": [1]})), "k")
    with pytest.raises(RowsDoNotFitError, match="'id' cannot be null in the table, and a row has no value for it"):
        append_rows(committer, rows_of(pa.table({"id": pa.array([None], pa.int64())})), "k")


def test_a_commit_is_found_again_by_its_key_only(filled: Committer) -> None:
    before = filled.table.open().version
    done = append_rows(filled, rows_of(people(10)), "mine")
    append_rows(filled, rows_of(people(11)), "other")
    found = find_write(filled.table.open(), "mine", before)
    assert found is not None
    assert (found.version, found.inserted, found.repeated) == (done.version, 1, True)
    assert find_write(filled.table.open(), "nobody's", 0) is None
    assert find_write(filled.table.open(), "mine", done.version) is None


@pytest.mark.parametrize("write", [replace_rows, lambda c, r, k: upsert_rows(c, r, ["id"], k)])
def test_a_writer_that_lost_a_race_writes_again(
    filled: Committer, monkeypatch: pytest.MonkeyPatch, write: Callable[[Committer, Rows, str], object]
) -> None:
    """Between staging and commit another writer updates the rows that this one replaces."""
    opened = 0

    def open_and_be_overtaken() -> pa.RecordBatchReader:
        nonlocal opened
        opened += 1
        if opened == 1:
            lance.dataset(filled.table.location).update({"text": "'theirs'"}, where="id = 3")
        return people(3, text="ours").to_reader()

    # The dataset is opened before the rows are: what the other writer does then comes in between.
    write(filled, Rows(open_and_be_overtaken), "k")
    assert opened == 2
    assert (3, "ours3", None) in stored(filled)


def test_files_of_a_lost_race_are_removed(filled: Committer) -> None:
    calls = 0

    def reader() -> pa.RecordBatchReader:
        nonlocal calls
        calls += 1
        if calls == 1:
            lance.dataset(filled.table.location).delete("id = 3")
        return people(3, text="ours").to_reader()

    replace_rows(filled, Rows(reader), "k")
    there = {path.name for path in Path(filled.table.location, "data").glob("*.lance")}
    dataset = filled.table.open()
    known = {
        file.path.rsplit("/", 1)[-1]
        for version in dataset.versions()
        for fragment in dataset.checkout_version(version["version"]).get_fragments()
        for file in fragment.data_files()
    }
    assert there == known


def test_random_writes_agree_with_a_dict(committer: Committer) -> None:
    """An oracle in plain Python: a dict by id for upserts, a list for appends."""
    rng = random.Random(5)
    create_table(committer, rows_of(people(0)), "first")
    expected = {0: "t0"}
    for step in range(40):
        ids = rng.sample(range(60), rng.randint(1, 12))
        table = people(*ids, text=f"s{step}-")
        match rng.choice(["upsert", "upsert", "replace", "append"]):
            case "upsert":
                upsert_rows(committer, rows_of(table), ["id"], str(step))
                expected |= {number: f"s{step}-{number}" for number in ids}
            case "replace":
                replace_rows(committer, rows_of(table), str(step))
                expected = {number: f"s{step}-{number}" for number in ids}
            case _:
                new = [number for number in ids if number not in expected] or [100 + step]
                append_rows(committer, rows_of(people(*new, text="a")), str(step))
                expected |= {number: f"a{number}" for number in new}
        assert stored(committer) == sorted(expected.items()), step


def test_no_other_attempt_is_made_after_an_unclear_commit(filled: Committer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that was sent twice could be stored twice: only the next try, which looks first, may repeat it."""
    sent = 0

    def lost(*args: object, **kwargs: object) -> None:
        nonlocal sent
        sent += 1
        raise OSError("the answer was lost")

    monkeypatch.setattr(lance.LanceDataset, "commit", lost)
    with pytest.raises(OSError, match="the answer was lost"):
        append_rows(filled, rows_of(people(10)), "k")
    assert sent == 1
    assert writes.find_write(filled.table.open(), "k", 0) is None
