"""``make ui``: the embedded namespace and a whole Airflow with DAGs, connections and sample tables in place.

Prints both addresses; one Ctrl-C stops every process it started. Data and ports stay in ``.ui/`` (or
``$LANCE_UI_FOLDER``) for the next time. Everything listens on this machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from local import HERE, Local, fail, remembered_port, stop_on_signals
from samples import create_tables, run_jobs

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import Job

FOLDER = Path(os.environ.get("LANCE_UI_FOLDER") or HERE / ".ui")
# A job that another start left unfinished is taken over a minute later.
SAMPLE_SECONDS = 120
COMPONENTS = {
    "scheduler": ["--skip-serve-logs"],
    "dag-processor": [],
    "triggerer": ["--skip-serve-logs"],
    "api-server": [],
}
console = Console()


def arguments() -> argparse.Namespace:
    """The options, which ``make ui`` gives as variables: ``make ui DAGS=~/dags CONFIG=server.toml``."""
    parser = argparse.ArgumentParser(prog="make ui", description="Airflow's UI and Lance's job pages on this machine.")
    parser.add_argument(
        "--dags", type=Path, default=os.environ.get("DAGS") or None, help="your folder of DAGs instead of the examples"
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("CONFIG") or None,
        help="TOML file of the server (docs/server.md)",
    )
    parser.add_argument(
        "--rows", type=int, default=os.environ.get("ROWS") or 100_000, help="rows of the sample table; 0: no samples"
    )
    options = parser.parse_args()
    if options.dags is not None and not options.dags.expanduser().is_dir():
        parser.error(f"DAGS={options.dags} is not a folder.")
    if options.config is not None and not options.config.expanduser().is_file():
        parser.error(f"CONFIG={options.config} is not a file.")
    options.dags = options.dags and options.dags.expanduser().resolve()
    options.config = options.config and options.config.expanduser().resolve()
    return options


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print what is being done, and how long it took."""
    began = time.monotonic()
    with console.status(f"{what} …"):
        yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    options = arguments()
    FOLDER.mkdir(parents=True, exist_ok=True)
    stop_on_signals()
    with Local(FOLDER, options.dags) as local:
        port = remembered_port(FOLDER, "namespace", 2333)
        with step("Starting the namespace server"):
            local.start_namespace(port, options.config)
        jobs: Future[list[Job]] = Future()
        if options.rows:
            with step("Creating sample tables"), LanceClient(local.namespace_url) as client:
                create_tables(client, options.rows)
            threading.Thread(target=finish_samples, args=(local.namespace_url, jobs), daemon=True).start()
        url = start_airflow(local)
        if options.rows:
            with step("Finishing the jobs of the sample tables"):
                tell_samples(jobs)
        pages = f"{local.namespace_url}/ui"
        print(f"\n  Airflow     {url}   (no login: you are admin; this machine only)")
        print(f"  Lance jobs  {pages}")
        print(f"  Tables      {local.bin('airflow-lance')} tables --url {local.namespace_url}")
        print(
            "\nThe connection lance_default is under Admin → Connections. "
            + (f"Your DAGs are those of {options.dags}." if options.dags else "Trigger lance_embed or lance_backfill.")
            + " Ctrl-C stops it all.",
            flush=True,
        )
        while all(child.poll() is None for child in local.children[-len(COMPONENTS) :]):
            time.sleep(0.5)
        ended = next(name for name, child in running(local) if child.poll() is not None)
        fail(f"Airflow's {ended} ended by itself:\n{log_end(ended)}")


def finish_samples(url: str, jobs: Future[list[Job]]) -> None:
    try:
        jobs.set_result(run_jobs(url, SAMPLE_SECONDS))
    except Exception as error:
        jobs.set_exception(error)


def tell_samples(jobs: Future[list[Job]]) -> None:
    """Say what became of the sample jobs. Airflow can be used whatever it is."""
    try:
        ended = jobs.result(SAMPLE_SECONDS + 30)
    except Exception as error:
        print(f"The sample jobs did not run: {error}", flush=True)
        return
    done = [job for job in ended if job.state is JobState.DONE]
    failed_rows = sum(int((job.result or {}).get("rows_failed") or 0) for job in done)
    print(f"Jobs of the sample tables: {len(done)} of 3 done, {failed_rows} failed rows in them.", flush=True)


def start_airflow(local: Local) -> str:
    """Start Airflow's components and wait for its API. Every port is on loopback, because there is no login.

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
    with step("Preparing Airflow's database and connections"):
        local.prepare_airflow()
        add_connections(local)
    with step("Starting Airflow"):
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
    """Store connections in Airflow's database; unlike variables of the environment they show in the UI."""
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


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        console.print("\nStopped.")
