"""How fast a backfill is, beside its peers and in the same run; figures are ratios, because machines are busy.

    python benchmarks/backfill.py [--rows 8000000] [--only throughput,function,memory,fragments,cold]

Contestants take turns on columns of the same table and the best of ``--rounds`` counts. The yardstick is a writer of
two plain processes (scan with pylance, one column file per fragment, one commit): what the machine gives without Spark.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error")

import lance
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.definitions.column_rules import computed_field, virtual_column_entry, virtual_fields
from airflow_provider_lance.definitions.functions.envelope import wrap
from airflow_provider_lance.engine.backfill.job import run_backfill
from airflow_provider_lance.engine.job.context import JobContext, SilentReporter
from airflow_provider_lance.engine.spark.session import make_session
from airflow_provider_lance.engine.spark.submit_command import submit_command, submit_environment

EXPRESSION = "length(text)"
COLUMNS = iter(range(10_000))


# --- the table and the contestants -----------------------------------------------------------------------------------


def make_table(uri: str, rows: int, fragments: int) -> None:
    """Ids and texts of about 100 bytes."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 100_000):
            ids = np.arange(start, min(rows, start + 100_000))
            text = pc.binary_join_element_wise(pa.array(ids).cast(pa.string()), pa.scalar("x" * 95), "-")
            yield pa.record_batch({"id": ids, "text": text})

    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    per_file = -(-rows // fragments)
    lance.write_dataset(batches(), uri, schema=schema, max_rows_per_file=per_file, max_rows_per_group=per_file)


def declare(uri: str, *, function: Callable[..., Any] | None = None, call: str = "scalar") -> str:
    name = f"c{next(COLUMNS)}"
    dataset = lance.dataset(uri)
    if function is None:
        dataset.add_columns(computed_field(dataset.schema, name, EXPRESSION))
    else:
        entry = virtual_column_entry(wrap(function, call=call), inputs=["text"], outputs={name: pa.int64()})
        dataset.add_columns(virtual_fields(dataset.schema, entry))
    return name


def engine(spark: Any, uri: str, column: str, **request: Any) -> dict[str, Any]:
    spec = JobSpec("backfill_column", ["t"], uri, {"column": column, **request})
    return run_backfill(JobContext(spec, lambda: spark, SilentReporter(), job_id=uuid.uuid4().hex))


def vectorised(batch: pa.RecordBatch) -> pa.Array:
    return pc.utf8_length(batch.column(0)).cast(pa.int64())


def heavy(text: str) -> int:
    digest = text.encode()
    for _ in range(20):
        digest = hashlib.sha256(digest).digest()
    return digest[0]


def write_fragments(uri: str, version: int, ids: list[int], column: str, kind: str) -> list[Any]:
    """The yardstick's worker: one column file per fragment."""
    dataset = lance.dataset(uri, version=version)
    schema = pa.schema([dataset.schema.field(column).remove_metadata()])
    groups = []
    for number in ids:
        fragment = dataset.get_fragment(number)
        name = f"{uuid.uuid4().hex}.lance"
        columns: Any = {column: EXPRESSION} if kind == "sql" else ["text"]
        with LanceFileWriter(f"{uri}/data/{name}", schema, version=dataset.data_storage_version) as writer:
            for batch in fragment.scanner(columns=columns, with_row_address=True).to_batches():
                if kind == "sql":
                    array = batch.column(0)
                elif kind == "vectorised":
                    array = vectorised(batch)
                else:
                    array = pa.array([heavy(text) for text in batch.column(0).to_pylist()], pa.int64())
                writer.write_batch(pa.RecordBatch.from_arrays([array], schema=schema))
        groups.append((number, DataFile.create(dataset, name)))
    return groups


def plain(pool: ProcessPoolExecutor, processes: int, uri: str, column: str, kind: str) -> None:
    dataset = lance.dataset(uri)
    ids = [fragment.fragment_id for fragment in dataset.get_fragments()]
    parts = [ids[at::processes] for at in range(processes)]
    done = [pool.submit(write_fragments, uri, dataset.version, part, column, kind) for part in parts]
    groups = [LanceOperation.DataReplacementGroup(number, file) for one in done for number, file in one.result()]
    lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, LanceOperation.DataReplacement(groups)))


def best(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest of some rounds in which everybody takes turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(work())
    return {name: min(values) for name, values in seconds.items()}


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def report(title: str, seconds: dict[str, float], rows: int, yardstick: str) -> None:
    print(f"\n{title}")
    for name, value in sorted(seconds.items(), key=lambda pair: pair[1]):
        ratio = seconds[yardstick] / value
        print(f"  {name:<42} {value:8.2f} s {rows / value / 1e6:8.2f} M rows/s {ratio:6.2f} x {yardstick}")


# --- the sections ----------------------------------------------------------------------------------------------------


def throughput(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, _pool(2) as pool:
        uri = f"{folder}/t.lance"
        make_table(uri, options.rows, options.fragments)

        def ours(kind: str) -> float:
            column = declare(uri) if kind == "sql" else declare(uri, function=vectorised, call="batch")
            return timed(lambda: engine(spark, uri, column))

        def two(kind: str) -> float:
            column = declare(uri) if kind == "sql" else declare(uri, function=vectorised, call="batch")
            return timed(lambda: plain(pool, 2, uri, column, kind))

        def one_process() -> float:
            name = f"c{next(COLUMNS)}"
            return timed(lambda: lance.dataset(uri).add_columns({name: EXPRESSION}))

        for kind in ("sql", "vectorised"):
            ours(kind), two(kind)  # both warm
        # Engine and yardstick by themselves: what the others do in this process would fall on whoever comes next.
        seconds = best({"engine": lambda: ours("sql"), "two processes": lambda: two("sql")}, options.rounds)
        vector = best(
            {"engine": lambda: ours("vectorised"), "two processes": lambda: two("vectorised")}, options.rounds
        )
        peers: dict[str, Callable[[], float]] = {"pylance add_columns, one process": one_process}
        if importlib.util.find_spec("lancedb"):
            peers["LanceDB refresh_column, in process"] = lambda: _lancedb(uri)
        seconds |= best(peers, options.rounds)
        if importlib.util.find_spec("lance_ray"):
            # Last: Ray's processes stay, and would take the cores of the others.
            seconds |= best({"lance-ray add_columns": lambda: _lance_ray(uri)}, options.rounds)
            _stop_ray()
        report(
            f"SQL expression, {options.rows:,} rows, {options.fragments} fragments",
            seconds,
            options.rows,
            "two processes",
        )
        report("Vectorised function", vector, options.rows, "two processes")
        return {
            "sql_ratio": seconds["two processes"] / seconds["engine"],
            "vectorised_ratio": vector["two processes"] / vector["engine"],
            "seconds": {**seconds, **{f"vectorised {key}": value for key, value in vector.items()}},
        }


def _lancedb(uri: str) -> float:
    import lancedb

    column = declare(uri)
    table = lancedb.connect(str(Path(uri).parent)).open_table("t")
    return timed(lambda: table.refresh_column(column))


def _lance_ray(uri: str) -> float:
    import lance_ray
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    name = f"c{next(COLUMNS)}"

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({name: pc.utf8_length(batch.column("text"))})

    return timed(lambda: lance_ray.add_columns(uri, transform=transform, read_columns=["text"], concurrency=2))


def _stop_ray() -> None:
    import ray

    ray.shutdown()


def function(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    rows = options.rows // 20
    with tempfile.TemporaryDirectory() as folder, _pool(2) as pool:
        uri = f"{folder}/t.lance"
        make_table(uri, rows, 16)

        def ours() -> float:
            column = declare(uri, function=heavy)
            return timed(lambda: engine(spark, uri, column))

        def by_hand(processes: int) -> float:
            column = declare(uri, function=heavy)
            return timed(lambda: plain(pool, processes, uri, column, "heavy"))

        ours(), by_hand(2)
        # What two processes reach is the limit: two cores that share one are no two.
        seconds = best(
            {"engine": ours, "one process": lambda: by_hand(1), "two processes": lambda: by_hand(2)}, options.rounds
        )
        report(f"CPU-heavy Python function, {rows:,} rows", seconds, rows, "one process")
        return {
            "cpu_ratio": seconds["one process"] / seconds["engine"],
            "cpu_limit": seconds["one process"] / seconds["two processes"],
            "seconds": seconds,
        }


class Memory:
    """The largest resident size of any Python worker of Spark, sampled while a job runs."""

    def __enter__(self) -> Memory:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.1):
            for child in me.children(recursive=True):
                try:
                    if "pyspark.daemon" in " ".join(child.cmdline()):
                        self.peak = max(self.peak, child.memory_info().rss)
                except psutil.Error:
                    continue

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def memory(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    print("\nWorker memory")
    for rows in (options.rows // 8, options.rows):
        with tempfile.TemporaryDirectory() as folder:
            uri = f"{folder}/t.lance"
            make_table(uri, rows, max(4, rows // 125_000))
            column = declare(uri)
            with Memory() as peak:
                engine(spark, uri, column)
            found[f"{rows:,} rows of text"] = peak.peak >> 20
    with tempfile.TemporaryDirectory() as folder:
        uri = f"{folder}/t.lance"
        blobs = 400

        def batches() -> Iterator[pa.RecordBatch]:
            for _ in range(0, blobs, 20):
                yield pa.record_batch({"text": pa.array([os.urandom(1 << 20) for _ in range(20)], pa.large_binary())})

        schema = pa.schema([("text", pa.large_binary())])
        lance.write_dataset(batches(), uri, schema=schema, max_rows_per_file=200)
        column = declare(uri, function=len)
        with Memory() as peak:
            engine(spark, uri, column)
        found[f"{blobs} blobs of 1 MB"] = peak.peak >> 20
    for name, megabytes in found.items():
        print(f"  {name:<30} {megabytes:6d} MB")
    return {"worker_megabytes": found}


def fragments(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    print("\nMany fragments of 10 rows: the driver's cost")
    print(f"  {'fragments':>9} {'whole job':>10} {'per fragment':>13} {'nothing to do':>14} {'driver grew by':>15}")
    found = []
    for count in (16, 256, 4096):
        with tempfile.TemporaryDirectory() as folder:
            uri = f"{folder}/t.lance"
            make_table(uri, count * 10, count)
            column = declare(uri)
            before = psutil.Process().memory_info().rss
            seconds = timed(partial(engine, spark, uri, column))
            again = timed(partial(engine, spark, uri, column))
            grown = (psutil.Process().memory_info().rss - before) >> 20
        found.append({"fragments": count, "seconds": seconds, "again": again, "megabytes": grown})
        per = seconds / count * 1000
        print(f"  {count:>9} {seconds:>9.2f}s {per:>10.2f} ms {again:>13.2f}s {grown:>12} MB")
    longest = max(entry["seconds"] for entry in found)
    for entry in found:
        print(f"  {entry['fragments']:>9} {'█' * max(1, round(50 * entry['seconds'] / longest))}")
    return {"fragments": found}


def cold(_: Any, options: argparse.Namespace) -> dict[str, Any]:
    """spark-submit to DONE on a small table; the tuned command against Spark's own defaults, taking turns."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"{folder}/t.lance"
        make_table(uri, 100_000, 4)
        environment = {**os.environ, **submit_environment(), "PYTHONPATH": str(Path(__file__).parents[1])}

        def submit(tuned: bool) -> float:
            spec = {
                "job_type": "backfill_column",
                "location": uri,
                "table_id": ["t"],
                "request": {"column": declare(uri)},
            }
            path = Path(folder, "spec.json")
            path.write_text(json.dumps(spec))
            command = submit_command(["--spec", str(path)], master="local[2,4]")
            if not tuned:
                command = [command[0], "--master", "local[2,4]", *command[-3:]]
                command[3:3] = ["--conf", "spark.python.unix.domain.socket.enabled=false"]
            return timed(lambda: subprocess.run(command, env=environment, capture_output=True, check=True))

        submit(tuned=True)
        time.sleep(6)  # the archive is written at exit and used once it has settled
        rounds = max(2, min(3, options.rounds))
        seconds = best({"tuned": lambda: submit(True), "defaults": lambda: submit(False)}, rounds)
    report("Cold job, 100,000 rows, spark-submit to DONE", seconds, 100_000, "defaults")
    print(f"  tuned takes {seconds['tuned'] / seconds['defaults']:.2f} of the time")
    return {"cold_ratio": seconds["tuned"] / seconds["defaults"], "seconds": seconds}


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


SECTIONS = {"throughput": throughput, "function": function, "memory": memory, "fragments": fragments, "cold": cold}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--fragments", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--output", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args()
    chosen = options.only.split(",")
    spark = None
    if chosen != ["cold"]:
        # As the server starts a backfill: its rows never enter the JVM.
        spark = make_session("benchmark", master="local[2,4]", data_in_jvm=False)
        spark.sparkContext.setLogLevel("OFF")
    results = {}
    for name in chosen:
        if name == "cold" and spark is not None:
            spark.stop()
        results[name] = SECTIONS[name](spark, options)
        sys.stdout.flush()
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
