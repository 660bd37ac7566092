"""``make demo``: start the embedded namespace and run the quickstart DAG through real Airflow and real Spark.

Everything it writes is in ``.demo/``; every process it starts is gone when it ends, also after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from local import Local, fail, stop_on_signals

from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.jobs import Job

HERE = Path(__file__).resolve().parent.parent
FOLDER = HERE / ".demo"
DAG_ID = "lance_quickstart"
VIEW = "quickstart_long_articles"
STEPS = {
    "create_empty_table": "create an empty table",
    "load": "load generated articles",
    "declare_column": "declare a computed column",
    "backfill_column": "backfill it on Spark",
    "create_view": "create a view with its data",
    "append": "append 1 % more",
    "backfill_new_rows": "backfill the new rows",
    "refresh_view": "refresh the view for that",
    "stage": "stage a version unseen",
    "create_version": "publish it",
    "move_tag": "move the tag 'production'",
}
console = Console()


def main() -> None:
    rows = os.environ.get("ROWS", "1000000")
    if not rows.isdigit() or int(rows) < 1000:
        fail(f"ROWS is {rows!r}; give a whole number of at least 1000, as in: make demo ROWS=200000")
    stop_on_signals()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    began = time.monotonic()
    with Local(FOLDER) as local:
        with console.status("Starting the namespace and Airflow's database …"):
            url = local.start_namespace()
            local.environment["AIRFLOW_CONN_LANCE_DEFAULT"] = json.dumps({"conn_type": "lance", "host": url})
            local.prepare_airflow()
        console.print(f"Namespace at {local.namespace_url}, Airflow home in {local.airflow_home.relative_to(HERE)}")
        run = local.start(
            "dag", [local.bin("airflow"), "dags", "test", DAG_ID, "--conf", json.dumps({"rows": int(rows)})]
        )
        with Wire(local.namespace_url) as wire, progress_bars() as show:
            while run.poll() is None:
                show(task_rows(local), live_jobs(wire))
                time.sleep(0.5)
            show(task_rows(local), live_jobs(wire))
        tasks = task_rows(local)
        failed = [name for name, task in tasks.items() if task["state"] == "failed"]
        if run.returncode or not tasks:
            lines = (FOLDER / "dag.log").read_text().splitlines()
            said = [line for line in lines if "No tasks to run" not in line and "[info " not in line]
            console.print("\n".join(said[-40:]), markup=False, highlight=False)
            fail(f"The pipeline failed at {', '.join(failed) or 'its start'}. The whole log is in .demo/dag.log")
        summary(tasks, results(local))
        console.print(f"\nThe first rows of the view [bold]{VIEW}[/bold]:\n")
        sys.stdout.flush()
        subprocess.run([local.bin("airflow-lance"), "head", VIEW, "-n", "5", "--url", local.namespace_url], check=True)
    tables = (FOLDER / "tables").relative_to(HERE)
    console.print(f"\nDone in {time.monotonic() - began:.0f} s. dags/lance_quickstart.py is the DAG you just saw.")
    print(f"Try next: make ui, or {Path(local.bin('airflow-lance'))} tables --root {tables} (also: show, head, query)")


@contextlib.contextmanager
def progress_bars() -> Iterator[Any]:
    """Show one line per step, with a moving bar for jobs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        shown: dict[str, Any] = {}

        def show(tasks: dict[str, dict[str, Any]], jobs: list[Job]) -> None:
            for name, label in STEPS.items():
                state = tasks.get(name, {}).get("state")
                if state in {None, "scheduled", "queued"}:
                    continue
                if name not in shown:
                    shown[name] = bars.add_task(label, total=None, note="")
                if state in {"success", "skipped", "failed", "upstream_failed"}:
                    bars.update(shown[name], total=1, completed=1, note="" if state == "success" else state)
                    bars.stop_task(shown[name])
                elif jobs:
                    progress = jobs[0].progress
                    if progress is not None:
                        known = progress.fraction > 0
                        bars.update(
                            shown[name],
                            total=1 if known else None,
                            completed=progress.fraction,
                            note=progress.describe(),
                        )

        yield show


def live_jobs(wire: Wire) -> list[Job]:
    answer = wire.call("list_jobs", {"state": ["QUEUED", "RUNNING"]}).value
    return [Job.from_wire(row) for row in answer.get("jobs") or []]


def task_rows(local: Local) -> dict[str, dict[str, Any]]:
    query = "select task_id, state, start_date, end_date from task_instance where dag_id = ?"
    return {row["task_id"]: row for row in read(local, query)}


def results(local: Local) -> dict[str, dict[str, Any]]:
    found = {}
    for row in read(local, "select task_id, value from xcom where dag_id = ? and key = 'return_value'"):
        value = row["value"]
        while isinstance(value, str):
            value = json.loads(value)
        found[row["task_id"]] = value if isinstance(value, dict) else {}
    return found


def read(local: Local, query: str) -> list[dict[str, Any]]:
    """Query Airflow's database read-only; the result is empty until the database exists."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{local.airflow_home}/airflow.db?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(query, (DAG_ID,))]
    except sqlite3.OperationalError:
        return []


def summary(tasks: dict[str, dict[str, Any]], returned: dict[str, dict[str, Any]]) -> None:
    table = Table(title="What happened")
    for name, justify in (
        ("step", "left"),
        ("rows", "right"),
        ("version", "right"),
        ("seconds", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name, label in STEPS.items():
        value = returned.get(name, {})
        result = value.get("result") or value
        rows = next(
            (result[key] for key in ("rows_assigned", "rows_written", "rows") if result.get(key) is not None), None
        )
        version = next((v for v in (value.get("version"), result.get("published_version")) if v is not None), None)
        rows_text = f"{rows:,}" if isinstance(rows, int) else ""
        table.add_row(
            label, rows_text, str(version or ""), f"{seconds(tasks.get(name, {})):.1f}", result.get("mode") or ""
        )
    console.print()
    console.print(table)


def seconds(task: dict[str, Any]) -> float:
    from datetime import datetime

    if not task.get("start_date") or not task.get("end_date"):
        return 0.0
    return (datetime.fromisoformat(task["end_date"]) - datetime.fromisoformat(task["start_date"])).total_seconds()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("Stopped.")
