"""``make ui``: the embedded namespace and a whole Airflow with our DAGs, connections and demo data in place.

Prints both addresses; one Ctrl-C stops every process it started. Data and ports stay in ``.ui/`` (or
``$LANCE_UI_FOLDER``) for the next time. Everything listens on this machine only.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from local import HERE, Local, fail, remembered_port, stop_on_signals

from airflow_provider_lance.api.client import LanceClient

FOLDER = Path(os.environ.get("LANCE_UI_FOLDER") or HERE / ".ui")
LONG_ARTICLES = "SELECT id, upper(text) AS shout, text_length FROM articles WHERE text_length > 50"
COMPONENTS = {
    "scheduler": ["--skip-serve-logs"],
    "dag-processor": [],
    "triggerer": ["--skip-serve-logs"],
    "api-server": [],
}
console = Console()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    stop_on_signals()
    with Local(FOLDER) as local:
        with console.status("Starting the namespace …"):
            local.start_namespace(remembered_port(FOLDER, "namespace", 2333))
            seed(local.namespace_url)
        url = start_airflow(local)
        console.print(f"\n  Airflow     [link={url}]{url}[/link]   (no login: you are admin; this machine only)")
        jobs = f"{local.namespace_url}/ui"
        console.print(f"  Lance jobs  [link={jobs}]{jobs}[/link]")
        console.print(
            "\nTrigger any DAG there; [bold]lance_embed[/bold] and [bold]lance_backfill[/bold] are good first ones. "
            "The connection [bold]lance_default[/bold] is under Admin → Connections. Ctrl-C stops it all."
        )
        while all(child.poll() is None for child in local.children[-len(COMPONENTS) :]):
            time.sleep(0.5)
        ended = next(name for name, child in running(local) if child.poll() is not None)
        fail(f"Airflow's {ended} ended by itself:\n{log_end(ended)}")


def start_airflow(local: Local) -> str:
    """Start Airflow's components and wait for its API; every port is on loopback, because nobody has to log in.

    Not ``airflow standalone``: its scheduler and triggerer serve logs on all addresses.
    """
    url = f"http://127.0.0.1:{remembered_port(FOLDER, 'airflow', 8080)}"
    local.environment |= {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": url.rpartition(":")[2],
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
    }
    with console.status("Starting Airflow (half a minute) …"):
        local.prepare_airflow()
        add_connections(local)
        for name, arguments in COMPONENTS.items():
            local.start(name, [local.bin("airflow"), name, *arguments])
        until = time.monotonic() + 600
        while time.monotonic() < until and all(child.poll() is None for _, child in running(local)):
            try:
                with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=2) as answer:
                    if answer.status == 200:
                        return url
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
    fail(f"Airflow did not start:\n{log_end('api-server')}")


def running(local: Local) -> list[tuple[str, subprocess.Popen[bytes]]]:
    """Airflow's components, the last that were started."""
    return list(zip(COMPONENTS, local.children[-len(COMPONENTS) :], strict=True))


def log_end(name: str) -> str:
    return (FOLDER / f"{name}.log").read_text()[-2000:]


def add_connections(local: Local) -> None:
    """Connections in Airflow's database: unlike variables of the environment they can be seen and tested in the UI."""
    host, _, port = local.namespace_url.removeprefix("http://").partition(":")
    file = FOLDER / "connections.json"
    file.write_text(
        json.dumps(
            {
                "lance_default": {"conn_type": "lance", "host": host, "port": int(port), "schema": "http"},
                "spark_default": {"conn_type": "spark", "host": "local[*]"},
            }
        )
    )
    command = [local.bin("airflow"), "connections", "import", "--overwrite", str(file)]
    if local.start("connections", command).wait(600):
        fail(f"Airflow's connections could not be made:\n{log_end('connections')}")


def seed(url: str) -> None:
    """A table worth looking at, with a column that waits to be filled, and a view that waits for its first refresh."""
    with LanceClient(url) as client:
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
