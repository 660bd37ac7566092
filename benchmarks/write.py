"""Loading: rows from Parquet files into a Lance table, beside ``lance.write_dataset`` over the same files.

Both read with the same reader in one process, in turns, and the ratio of their times is printed. Ours also converts,
counts, commits with a key and looks for an earlier commit. ``--rows`` and ``--rounds`` make it shorter.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_lance.storage.commits import Committer
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.writes import Rows, append_rows, create_table, find_write, upsert_rows
from airflow_provider_lance.tasks.row_source import RowSource

_FILE_ROWS = 1_000_000


def make_files(folder: Path, rows: int) -> None:
    for number, start in enumerate(range(0, rows, _FILE_ROWS)):
        count = min(_FILE_ROWS, rows - start)
        ids = np.arange(start, start + count)
        table = pa.table({"id": ids, "x": np.sqrt(ids), "text": pa.array([f"row {n} of the benchmark" for n in ids])})
        pq.write_table(table, folder / f"part-{number:04d}.parquet")


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-write-"))
    try:
        files = folder / "in"
        files.mkdir()
        make_files(files, options.rows)
        run(folder, RowSource(path=f"{files}/*.parquet"), options.rows, options.rounds)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, source: RowSource, rows: int, rounds: int) -> None:
    theirs, ours = [], []
    for number in range(rounds):
        plain = str(folder / f"plain{number}.lance")
        theirs.append(seconds(lambda path=plain: lance.write_dataset(source.open(), path)))  # type: ignore[misc]
        shutil.rmtree(plain)
        committer = Committer(TableRef(str(folder / f"ours{number}.lance")))
        create_table(committer, Rows(lambda: source.open().schema.empty_table().to_reader()), "first")

        def write(committer: Committer = committer) -> None:
            assert find_write(committer.table.open(), "key", 0) is None
            append_rows(committer, Rows(source.open), "key")

        ours.append(seconds(write))
        assert committer.table.open().count_rows() == rows
        if number < rounds - 1:
            shutil.rmtree(committer.table.location)
    plain_seconds, our_seconds = statistics.median(theirs), statistics.median(ours)
    ids = np.arange(0, rows, max(1, rows // 10_000))
    changed = pa.table({"id": ids, "text": ["changed"] * len(ids)})
    upsert = seconds(lambda: upsert_rows(committer, Rows(changed.to_reader), ["id"], "upsert"))
    print(f"{rows:,} rows from Parquet, {rounds} rounds, median seconds")
    print(f"  lance.write_dataset   {plain_seconds:6.2f}")
    print(f"  append_rows           {our_seconds:6.2f}")
    print(f"  append_rows has {plain_seconds / our_seconds:.2f} of the speed of lance.write_dataset")
    print(f"  an upsert of {len(ids):,} rows by id takes {upsert:.2f} s, {upsert / our_seconds:.2f} of the load's time")


if __name__ == "__main__":
    main()
