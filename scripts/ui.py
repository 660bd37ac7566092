"""``make ui``: the embedded namespace and ``airflow standalone`` with our DAGs, connections and demo data in place.

Prints both addresses; one Ctrl-C stops every process it started. Data stays in ``.ui/`` (or ``$LANCE_UI_FOLDER``) for
the next time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from local import HERE, Local, fail, free_port, stop_on_signals

from airflow_provider_lance.api.client import LanceClient

FOLDER = Path(os.environ.get("LANCE_UI_FOLDER") or HERE / ".ui")
LONG_ARTICLES = "SELECT id, upper(text) AS shout, text_length FROM articles WHERE text_length > 50"
console = Console()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    stop_on_signals()
    with Local(FOLDER) as local:
        with console.status("Starting the namespace …"):
            local.start_namespace()
            seed(local)
        url = start_airflow(local)
        console.print(f"\n  Airflow     [link={url}]{url}[/link]   (no login: you are admin)")
        jobs = f"{local.namespace_url}/ui"
        console.print(f"  Lance jobs  [link={jobs}]{jobs}[/link]")
        console.print(
            "\nTrigger [bold]lance_backfill[/bold] or [bold]lance_quickstart[/bold] there. Ctrl-C stops it all."
        )
        while all(child.poll() is None for child in local.children[-1:]):
            time.sleep(0.5)
        fail(f"Airflow ended by itself:\n{(FOLDER / 'airflow.log').read_text()[-2000:]}")


def start_airflow(local: Local) -> str:
    port = free_port()
    url = f"http://localhost:{port}"
    settings = {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[*]"}',
    }
    child = local.start("airflow", [local.bin("airflow"), "standalone"], **settings)
    with console.status("Starting Airflow (half a minute) …"):
        until = time.monotonic() + 180
        while time.monotonic() < until and child.poll() is None:
            try:
                with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=2) as answer:
                    if answer.status == 200:
                        return url
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
    fail(f"Airflow did not start:\n{(FOLDER / 'airflow.log').read_text()[-2000:]}")


def seed(local: Local) -> None:
    """A table worth looking at, with a column that waits to be filled, and a view that waits for its first refresh."""
    with LanceClient(local.namespace_url) as client:
        there = client.list_tables({"id": []}).tables
        if "articles" not in there:
            rows = int(os.environ.get("ROWS", "100000"))
            client.create_table({"id": "articles"}, quickstart().articles(0, rows))
            client.alter_table_add_columns(
                {"id": "articles", "new_columns": [{"name": "text_length", "computed": "length(text)"}]}
            )
        if "long_articles" not in there:
            client.create_materialized_view({"id": "long_articles", "query": LONG_ARTICLES, "with_no_data": True})


def quickstart() -> Any:
    """The example DAG's own generator of articles."""
    spec = importlib.util.spec_from_file_location("lance_quickstart", HERE / "dags" / "lance_quickstart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("\nStopped.")
