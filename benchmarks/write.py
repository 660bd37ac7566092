"""Loading: rows from Parquet files into a Lance table, beside ``lance.write_dataset`` over the same files.

All ways take turns, and the ratios of their best and median times are printed. ``lance.write_dataset`` and
``append_rows`` read with the same reader in one process; ours also converts, commits with a key and looks for an
earlier commit. The job runs in a Spark session that is there already, on ``--cores`` cores. ``--rows`` and ``--rounds``
make it shorter.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.engine.job.context import JobContext
from airflow_provider_lance.engine.spark.session import make_session
from airflow_provider_lance.engine.write.job import run_write
from airflow_provider_lance.storage.commits import Committer
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.writes import Rows, append_rows, create_table, find_write, upsert_rows
from airflow_provider_lance.tasks.row_source import RowSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lance-write-"))
    try:
        files = folder / "in"
        files.mkdir()
        make_files(files, options.rows)
        run(folder, f"{files}/*.parquet", options.rows, options.rounds, options.cores)
    finally:
        shutil.rmtree(folder)


def run(folder: Path, path: str, rows: int, rounds: int, cores: int) -> None:
    source = RowSource(path=path)
    spark = make_session("benchmark", master=f"local[{cores}]", conf={"spark.ui.enabled": "false"}, data_in_jvm=False)
    table = TableRef(str(folder / "table.lance"))
    ways: dict[str, Callable[[], object]] = {
        "lance.write_dataset": lambda: lance.write_dataset(
            source.open(), table.location, mode="append", enable_stable_row_ids=True
        ),
        "append_rows": lambda: append(Committer(table), source),
        "job on Spark": lambda: write_by_job(spark, table, path),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    # The first job of a session starts the Python workers, which import Lance.
    write_by_job(spark, table, path)
    for number in range(rounds):
        # Each begins as often as the others: the disk still writes what the one before has left in memory.
        names = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in names:
            shutil.rmtree(table.location)
            create_table(Committer(table), Rows(lambda: source.open().schema.empty_table().to_reader()), "first")
            times[name].append(seconds(ways[name]))
            assert table.open().count_rows() == rows
    spark.stop()
    ids = np.arange(0, rows, max(1, rows // 10_000))
    changed = pa.table({"id": ids, "text": ["changed"] * len(ids)})
    upsert = seconds(lambda: upsert_rows(Committer(table), Rows(changed.to_reader), ["id"], "upsert"))
    print(f"{rows:,} rows from Parquet, {rounds} rounds, {cores} cores for Spark, seconds: best and median")
    for name, found in times.items():
        print(f"  {name:<22}{min(found):6.2f}{statistics.median(found):7.2f}")
    theirs = times.pop("lance.write_dataset")
    for name, found in times.items():
        best, median = min(theirs) / min(found), statistics.median(theirs) / statistics.median(found)
        print(f"  {name} has {best:.2f} times the speed of lance.write_dataset by the best, {median:.2f} by the median")
    print(f"  an upsert of {len(ids):,} rows by id takes {upsert:.2f} s")


def append(committer: Committer, source: RowSource) -> None:
    assert find_write(committer.table.open(), "key", 0) is None
    append_rows(committer, Rows(source.open), "key")


def write_by_job(spark: SparkSession, table: TableRef, path: str) -> None:
    spec = JobSpec("write", ["table"], table.location, request={"path": path})
    run_write(JobContext(spec=spec, make_spark=lambda: spark, driver_rows=0))


if __name__ == "__main__":
    main()
