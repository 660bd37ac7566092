"""Requests per second of our server beside pylance's own ``RestAdapter``, in one run on one machine, as a ratio.

    python benchmarks/server.py [--seconds 3] [--clients 8] [--soak-clients 200]

Both serve the same folder of tables and are asked by the same clients: processes that keep their connections open.
The second part is what pylance does not have: many clients that submit and describe jobs at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

CALLS = {
    "describe_table": ("POST", "/v1/table/t/describe", b"{}"),
    "count_rows": ("POST", "/v1/table/t/count_rows", b"{}"),
    "list_tables": ("GET", "/v1/namespace/$/table/list", b""),
    "list_tags": ("POST", "/v1/table/t/tags/list", b"{}"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--soak-clients", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "lake")
        root.mkdir()
        ours, process = start_ours(Path(folder), root)
        try:
            create_tables(ours, options.soak_clients)
            theirs, adapter = start_adapter(root)
            try:
                compare(ours, theirs, options)
            finally:
                adapter.kill()
                adapter.wait()
            jobs(ours, options.soak_clients)
        finally:
            process.terminate()
            process.wait()


def start_ours(folder: Path, root: Path) -> tuple[str, subprocess.Popen[str]]:
    command = [sys.executable, "-m", "airflow_provider_lance.cli", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--root", str(root), "--state-dir", str(folder / "state")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    assert process.stdout is not None
    return process.stdout.readline().split()[1], process


_ADAPTER = """
import sys, time
from lance.namespace import RestAdapter
adapter = RestAdapter("dir", {"root": sys.argv[1]}, port=0)
adapter.start()
print(f"ready http://127.0.0.1:{adapter.port}", flush=True)
time.sleep(3600)
"""


def start_adapter(root: Path) -> tuple[str, subprocess.Popen[str]]:
    # In a process of its own, as ours is; and Lance must not be loaded where the clients are forked.
    command = [sys.executable, "-c", _ADAPTER, str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process.stdout.readline().split()[1], process


def create_tables(url: str, columns: int) -> None:
    """A plain table for both servers, and a wide one whose every column is a job of its own."""
    from airflow_provider_lance.api.client import LanceClient

    rows = pa.table({"id": list(range(1000)), "text": ["x" * 20] * 1000})
    with LanceClient(url) as client:
        client.create_table({"id": ["t"]}, rows)
        client.create_table({"id": ["wide"]}, rows)
        added = [{"name": f"c{number}", "computed": f"length(text) + {number}"} for number in range(columns)]
        client.alter_table_add_columns({"id": ["wide"], "new_columns": added})


def compare(ours: str, theirs: str, options: argparse.Namespace) -> None:
    print(f"{'operation':<16}{'ours req/s':>12}{'RestAdapter':>14}{'ratio':>8}")
    for name, call in CALLS.items():
        rates = [rate(url, call, options.seconds, options.clients) for url in (ours, theirs)]
        print(f"{name:<16}{rates[0]:>12,.0f}{rates[1]:>14,.0f}{rates[0] / rates[1]:>8.2f}")


def rate(url: str, call: tuple[str, str, bytes], seconds: float, clients: int) -> float:
    with multiprocessing.get_context("fork").Pool(clients) as pool:
        counts = pool.starmap(_ask_for, [(url, call, seconds)] * clients, chunksize=1)
    return sum(counts) / seconds


def _ask_for(url: str, call: tuple[str, str, bytes], seconds: float) -> int:
    parts = urlsplit(url)
    method, path, body = call
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # the adapter closes a connection now and then; the next request opens another
            continue
        assert answer.status == 200, answer.status
        count += 1
    connection.close()
    return count


def jobs(url: str, clients: int) -> None:
    """Every client submits a job of its own column and describes it ten times."""
    parts = urlsplit(url)
    failures: list[str] = []
    ids: list[str] = []

    def one(number: int) -> None:
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)

        def post(path: str, body: dict[str, str]) -> dict[str, str]:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status not in {200, 202}:
                failures.append(f"{path}: {answer.status} {content[:200]!r}")
            return json.loads(content)

        job_id = post("/v1/table/wide/backfill_column", {"column": f"c{number}", "cluster": "external"})["job_id"]
        ids.append(job_id)
        for _ in range(10):
            assert post("/v1/jobs/describe", {"job_id": job_id})["job_state"] == "QUEUED"
        connection.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - began
    print(
        f"\n{clients} clients at once, each a submit and 10 describes: {len(set(ids))} jobs, {len(failures)} errors, "
        f"{clients * 11 / spent:,.0f} req/s"
    )
    assert not failures, failures[:3]
    assert len(set(ids)) == clients


if __name__ == "__main__":
    main()
