"""The history of a table: the commits of real tables, of branches, and of versions that were cleaned up."""

from __future__ import annotations

import datetime
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.storage.history import read_commit, read_each, read_transaction, read_transactions
from airflow_provider_lance.storage.table import TableRef, field_ids
from tests.columns_in_place import replace_column


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    table = TableRef(str(tmp_path / "numbers.lance"))
    lance.write_dataset(pa.table({"id": range(10), "text": ["a"] * 10}), table.location, max_rows_per_file=5)
    return table


def append(table: TableRef, count: int = 1) -> None:
    rows = pa.table({"id": [100], "text": ["b"]})
    for _ in range(count):
        lance.write_dataset(rows, table.open(), mode="append")


def operations(dataset: lance.LanceDataset, after: int = 0) -> list[str | None]:
    transactions = read_transactions(dataset, after)
    return [None if found is None else type(found.operation).__name__ for _, found in transactions]


def test_each_version_has_its_operation(table: TableRef) -> None:
    append(table)
    table.open().delete("id = 3")
    table.open().update({"text": "'c'"}, where="id = 4")
    table.open().add_columns({"twice": "id * 2"})
    table.open().create_scalar_index("id", "BTREE")
    assert operations(table.open()) == ["Overwrite", "Append", "Delete", "Update", "Merge", "CreateIndex"]
    assert operations(table.open(), after=4) == ["Merge", "CreateIndex"]
    assert operations(table.open(3)) == ["Overwrite", "Append", "Delete"]


def test_a_commit_has_its_properties_and_the_fields_that_it_replaced(table: TableRef) -> None:
    dataset = table.open()
    transaction = lance.Transaction(1, lance.LanceOperation.Append([]), transaction_properties={"job_id": "j"})
    lance.LanceDataset.commit(dataset, transaction)
    commit = read_commit(table.open(), 2)
    assert commit is not None
    assert (commit.operation, dict(commit.properties), commit.replaced) == ("Append", {"job_id": "j"}, frozenset())

    dataset = table.open()
    replace_column(dataset, "text", {dataset.get_fragments()[0]: pa.array(["x"] * 5)})
    commit = read_commit(table.open(), 3)
    assert commit is not None
    assert commit.operation == "DataReplacement"
    assert commit.replaced == field_ids(table.open(), ["text"])


@pytest.mark.parametrize("versions", [15, 16, 40])
def test_many_versions_come_in_their_order(table: TableRef, versions: int) -> None:
    append(table, versions - 1)
    dataset = table.open()
    assert dataset.version == versions
    assert operations(dataset) == ["Overwrite"] + ["Append"] * (versions - 1)
    counts = dict(read_each(dataset, range(1, versions + 1), lambda at, version: at.checkout_version(version).version))
    assert counts == {version: version for version in range(1, versions + 1)}


def test_an_error_of_a_reader_reaches_the_caller(table: TableRef) -> None:
    append(table, 20)

    def read(_: lance.LanceDataset, version: int) -> int:
        if version == 17:
            raise LookupError("version 17")
        return version

    with pytest.raises(LookupError, match="version 17"):
        list(read_each(table.open(), range(1, 21), read))


def test_versions_that_were_cleaned_up_have_no_commit(table: TableRef) -> None:
    append(table, 3)
    table.open().cleanup_old_versions(older_than=datetime.timedelta(0))
    append(table)
    dataset = table.open()
    assert [read_commit(dataset, version) is None for version in range(1, 6)] == [True, True, True, False, False]
    assert operations(dataset, after=2) == [None, "Append", "Append"]


def test_a_version_that_never_was_has_no_commit(table: TableRef) -> None:
    assert read_commit(table.open(), 99) is None


@pytest.mark.parametrize("commits", [1, 30])
def test_a_branch_has_its_own_history(table: TableRef, commits: int) -> None:
    append(table)
    table.open().create_branch("dev")
    branch = TableRef(table.location, "dev")
    table.open().delete("id = 1")
    append(branch, commits)
    dataset = branch.open()
    # The branch begins with the version that it was cut from; earlier ones are in the history of main only.
    assert operations(dataset) == [None, "Clone"] + ["Append"] * commits
    assert operations(table.open()) == ["Overwrite", "Append", "Delete"]


def test_a_compaction_that_rewrote_an_index_can_be_read(table: TableRef) -> None:
    table.open().create_scalar_index("id", "BTREE")
    table.open().delete("id = 2")
    table.open().optimize.compact_files()
    dataset = table.open()
    found = [read_transaction(dataset, version) for version in range(1, dataset.version + 1)]
    rewrites = [one.operation for one in found if one and isinstance(one.operation, lance.LanceOperation.Rewrite)]
    assert len(rewrites) == 1
    assert rewrites[0].rewritten_indices, "the case that pylance 14 cannot read by itself"
