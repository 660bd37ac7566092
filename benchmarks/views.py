"""Materialized views against their peers, in one run on one machine: ratios, not promises.

    python benchmarks/views.py [--rows 20000000] [--small 2000000] [--folder /tmp/bench-views]

Engine time only: the Spark session is started and its workers have imported Lance before the clock runs. Peers on the
same data in the same run: one pylance process (scanner → writer), LanceDB's in-process refresh, and for Spark SQL the
same query over Parquet in the same session. Figures are the best of ``--repeat`` runs and go to
``benchmarks/results/views.json`` as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.job.context import JobContext
from airflow_provider_lance.engine.spark.session import make_session
from airflow_provider_lance.engine.views.job import run_refresh
from airflow_provider_lance.storage.view_table import empty_view

QUERY = "SELECT id, upper(text) AS shout FROM {source} WHERE id % 2 = 0"
COLUMNS = {"id": "id", "shout": "upper(text)", "__source_row_id": "_rowid"}
ROWS_PER_FILE = 125_000
results: dict[str, Any] = {}


def rows(start: int, end: int) -> pa.Table:
    ids = np.arange(start, end)
    text = pc.binary_join_element_wise(
        pa.array(ids).cast(pa.string()), "lorem ipsum dolor sit amet " * 3 + "x" * 12, " "
    )
    return pa.table({"id": ids, "key": (ids * 7919) % 1000, "amount": ids / 3, "text": text})


class Bench:
    def __init__(self, folder: Path, repeat: int) -> None:
        self.folder, self.repeat = folder, repeat
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started = time.perf_counter()
        self.spark = make_session("bench", conf={"spark.ui.enabled": "false", "spark.driver.memory": "4g"})
        self.warm()
        results["session_seconds"] = round(time.perf_counter() - started, 1)

    def warm(self) -> None:
        """Every worker imports Lance before a clock runs; Spark ends workers that were idle for a minute."""
        cores = self.spark.sparkContext.defaultParallelism
        tasks = self.spark.sparkContext.parallelize(range(cores * 4), cores * 4)
        tasks.map(lambda _: __import__("lance").__name__).count()

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.lance")

    def make(self, name: str, count: int) -> None:
        for start in range(0, count, 2_000_000):
            mode = "append" if start else "create"
            data = rows(start, min(count, start + 2_000_000))
            lance.write_dataset(
                data, self.path(name), mode=mode, enable_stable_row_ids=True, max_rows_per_file=ROWS_PER_FILE
            )

    def view(self, name: str, query: str) -> None:
        shutil.rmtree(self.path(name), ignore_errors=True)
        definition = ViewDefinition.from_request({"query": query})
        empty, _ = empty_view(definition, lambda source: lance.dataset(self.path(source)))
        lance.write_dataset(empty, self.path(name), enable_stable_row_ids=True)

    def refresh(self, name: str, **request: Any) -> dict[str, Any]:
        definition = ViewDefinition.from_metadata(lance.dataset(self.path(name)).schema.metadata)
        assert definition is not None
        tables = {source: self.path(source) for source in definition.sources}
        spec = JobSpec("refresh_materialized_view", [name], self.path(name), request, tables=tables)
        return run_refresh(JobContext(spec, lambda: self.spark, job_id=name))

    def best(self, work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
        """Seconds of the fastest run. What earlier runs wrote is on disk before the clock starts."""
        seconds = []
        for _ in range(self.repeat):
            prepare()
            os.sync()
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
        return min(seconds)


def show(title: str, figures: dict[str, Any]) -> None:
    results[title] = figures
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<44} {value:>10.3f}" if isinstance(value, float) else f"  {name:<44} {value!s:>10}")


def full_refresh(bench: Bench, source: str) -> float:
    """Ours on Spark, one pylance process, LanceDB in process; each into an empty place."""

    def empty_view() -> None:
        bench.view("ours", QUERY.format(source=source))
        bench.warm()

    ours = bench.best(lambda: bench.refresh("ours", full=True, concurrency=os.cpu_count()), empty_view)

    def pylance() -> None:
        scanner = lance.dataset(bench.path(source)).scanner(columns=COLUMNS, filter="id % 2 = 0")
        lance.write_dataset(scanner.to_reader(), bench.path("plain"), enable_stable_row_ids=True)

    plain = bench.best(pylance, lambda: shutil.rmtree(bench.path("plain"), ignore_errors=True))
    database = lancedb.connect(str(bench.folder))

    def empty_theirs() -> None:
        shutil.rmtree(bench.path("theirs"), ignore_errors=True)
        database.create_materialized_view(
            "theirs", source, select={"id": "id", "shout": "upper(text)"}, where="id % 2 = 0", with_no_data=True
        )

    lancedb_seconds = bench.best(lambda: database.open_materialized_view("theirs").refresh(full=True), empty_theirs)
    count = lance.dataset(bench.path(source)).count_rows()
    assert lance.dataset(bench.path("ours")).count_rows() == lance.dataset(bench.path("theirs")).count_rows()
    show(
        f"full refresh of {count:,} rows",
        {
            "ours on Spark, seconds": ours,
            "one pylance process, seconds": plain,
            "LanceDB in process, seconds": lancedb_seconds,
            "ours, M rows/s": count / ours / 1e6,
            "speed relative to pylance (>= 0.9)": plain / ours,
            "speed relative to LanceDB (> 1)": lancedb_seconds / ours,
        },
    )
    return ours


def incremental(bench: Bench, source: str, full: float) -> None:
    """1 % appended, 0.1 % updated, 0.1 % deleted."""
    count = lance.dataset(bench.path(source)).count_rows()
    database = lancedb.connect(str(bench.folder))
    bench.refresh("ours")
    database.open_materialized_view("theirs").refresh()
    lance.write_dataset(rows(10**9, 10**9 + count // 100), bench.path(source), mode="append")
    lance.dataset(bench.path(source)).update({"text": "'updated'"}, where="id % 1000 = 8")
    lance.dataset(bench.path(source)).delete("id % 1000 = 16")
    bench.warm()
    started = time.perf_counter()
    result = bench.refresh("ours")
    ours = time.perf_counter() - started
    assert result["mode"] == "incremental", result
    started = time.perf_counter()
    theirs = database.open_materialized_view("theirs").refresh()
    show(
        f"refresh of {count:,} rows after 1 % appended, 0.1 % updated, 0.1 % deleted",
        {
            "ours, seconds": ours,
            "LanceDB in process, seconds": time.perf_counter() - started,
            "LanceDB's mode": theirs.mode,
            "share of the full refresh": ours / full,
        },
    )


def sweep(bench: Bench, source: str) -> None:
    """Cost follows the change: updates of 0.01 %, 0.1 %, 1 %, 10 % of the rows."""
    figures: dict[str, Any] = {}
    for every, name in ((10_000, "0.01 %"), (1_000, "0.1 %"), (100, "1 %"), (10, "10 %")):
        bench.refresh("ours")
        lance.dataset(bench.path(source)).update({"text": "'again'"}, where=f"id % {every} = 2")
        bench.warm()
        started = time.perf_counter()
        assert bench.refresh("ours")["mode"] == "incremental"
        figures[f"{name} updated, seconds"] = time.perf_counter() - started
    show("cost of an update by its size", figures)
    most = max(figures.values())
    for name, seconds in figures.items():
        print(f"  {name:<26} {'█' * max(1, round(40 * seconds / most))}")


def spark_sql(bench: Bench, source: str) -> None:
    """GROUP BY and a join through our data source, beside the same over Parquet in the same session."""
    count = lance.dataset(bench.path(source)).count_rows()
    keys = pa.table({"key": np.arange(1000), "name": [f"name {n}" for n in range(1000)]})
    small = pa.concat_tables([keys.set_column(0, "key", pa.array(np.arange(1000) + 1000 * n)) for n in range(10)])
    lance.write_dataset(small, bench.path("names"), enable_stable_row_ids=True)
    parquet = bench.folder / "parquet"
    parquet.mkdir()
    for number, fragment in enumerate(lance.dataset(bench.path(source)).get_fragments()):
        pq.write_table(fragment.to_table(), parquet / f"{number}.parquet")
    pq.write_table(small, bench.folder / "names.parquet")
    queries = {
        "GROUP BY 1,000 keys": f"SELECT key, count(*) AS n, sum(amount) AS total FROM {source} GROUP BY key",
        "join with 10,000 rows": f"SELECT s.key, n.name, s.amount FROM {source} s "
        "JOIN names n ON s.key = n.key WHERE s.id % 50 = 0",
    }
    session = bench.spark.newSession()
    session.read.parquet(str(parquet)).createOrReplaceTempView(source)
    session.read.parquet(str(bench.folder / "names.parquet")).createOrReplaceTempView("names")
    figures: dict[str, Any] = {}
    for name, query in queries.items():
        view = f"sql_{len(figures)}"
        bench.view(view, query)
        bench.refresh(view)
        ours = bench.best(lambda view=view: bench.refresh(view, full=True))

        def over_parquet(query: str = query) -> None:
            session.sql(query).write.mode("overwrite").parquet(str(bench.folder / "out.parquet"))

        over_parquet()
        theirs = bench.best(over_parquet)
        figures |= {f"{name}: ours": ours, f"{name}: Parquet": theirs, f"{name}: ratio (<= 1.5)": ours / theirs}
    show(f"Spark SQL over {count:,} rows, seconds", figures)


FOLLOWED = {
    "GROUP BY": "SELECT key, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM orders GROUP BY key",
    "join": "SELECT o.id, o.amount, c.name FROM orders o JOIN customers c ON o.customer = c.customer",
    "window": "SELECT id, key, place FROM (SELECT id, key, row_number() OVER (PARTITION BY key ORDER BY amount, id) "
    "AS place FROM orders) WHERE place <= 3",
}


def followed(bench: Bench, count: int) -> None:
    """Joins, GROUP BY and windows after changes of some keys, beside a rebuild and beside Spark over Parquet.

    A hundred rows have the same key. The changed keys are neighbours, and a tenth of their rows is updated.
    """
    keys, customers = max(1, count // 100), max(1, count // 200)
    parquet = bench.folder / "orders"
    parquet.mkdir()
    for start in range(0, count, 2_000_000):
        ids = np.arange(start, min(count, start + 2_000_000))
        data = pa.table(
            {"id": ids, "key": (ids * 7919) % keys, "customer": (ids * 104_729) % customers, "amount": ids % 1_000_003}
        )
        lance.write_dataset(
            data,
            bench.path("orders"),
            mode="append" if start else "create",
            enable_stable_row_ids=True,
            max_rows_per_file=ROWS_PER_FILE * 8,
        )
        pq.write_table(data, parquet / f"{start}.parquet")
    names = pa.table({"customer": np.arange(customers), "name": [f"customer {n}" for n in range(customers)]})
    lance.write_dataset(names, bench.path("customers"), enable_stable_row_ids=True)
    pq.write_table(names, bench.folder / "customers.parquet")
    session = bench.spark.newSession()
    session.read.parquet(str(parquet)).createOrReplaceTempView("orders")
    session.read.parquet(str(bench.folder / "customers.parquet")).createOrReplaceTempView("customers")
    rebuilds: dict[str, float] = {}
    out = str(bench.folder / "out.parquet")
    for name, query in FOLLOWED.items():
        bench.view(f"followed_{name[0]}", query)
        bench.refresh(f"followed_{name[0]}")
        bench.warm()
        rebuilds[name] = bench.best(lambda name=name: bench.refresh(f"followed_{name[0]}", full=True))
        theirs = bench.best(lambda query=query: session.sql(query).write.mode("overwrite").parquet(out))
        show(f"{name} over {count:,} rows, seconds", {"rebuild": rebuilds[name], "Spark over Parquet": theirs})
    for share in (0.0001, 0.001, 0.01, 0.1):
        orders = lance.dataset(bench.path("orders"))
        orders.update({"amount": "amount + 1"}, where=f"key < {max(1, int(keys * share))} AND id / {keys} % 10 = 3")
        for name in FOLLOWED:
            bench.warm()
            started = time.perf_counter()
            result = bench.refresh(f"followed_{name[0]}")
            seconds = time.perf_counter() - started
            show(
                f"{name} over {count:,} rows after a change of {share:.2%} of the keys",
                {
                    "seconds": seconds,
                    "share of a rebuild": seconds / rebuilds[name],
                    "mode": result["mode"],
                    "technique": result.get("technique"),
                    "source rows read": result.get("source_rows_read"),
                    "estimated": result.get("estimated"),
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--small", type=int, default=2_000_000)
    parser.add_argument("--followed", type=int, default=20_000_000, help="rows of the views that follow by keys")
    parser.add_argument("--only-followed", action="store_true", help="measure only these")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench-views"))
    options = parser.parse_args()
    bench = Bench(options.folder, options.repeat)
    try:
        if options.only_followed:
            followed(bench, options.followed)
            return
        bench.make("small", options.small)
        full = full_refresh(bench, "small")
        incremental(bench, "small", full)
        spark_sql(bench, "small")
        followed(bench, options.followed)
        bench.make("large", options.rows)
        full = full_refresh(bench, "large")
        incremental(bench, "large", full)
        sweep(bench, "large")
    finally:
        bench.spark.stop()
        shutil.rmtree(options.folder, ignore_errors=True)
    results["cores"] = os.cpu_count()
    target = Path(__file__).parent / "results" / "views.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=2))
    print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
