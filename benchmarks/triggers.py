"""A thousand waiting triggers in one event loop: requests and CPU per interval, and the delay from DONE to the event.

Beside them, in the same run and against the same server, a naive trigger that polls its own job every interval.
The server runs in a process of its own, so the CPU figures are the triggerer's alone.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="lance-bench-"))

JOBS = int(os.environ.get("JOBS", "1000"))
INTERVAL = float(os.environ.get("INTERVAL", "5"))
INTERVALS = 3


def serve(pipe: Any) -> None:
    """The test's jobs server; answers commands of the benchmark over a pipe."""
    from tests.airflow.jobs_server import JobsServer

    with JobsServer() as server:
        ids = [server.add("t", "RUNNING").job_id for _ in range(JOBS)]
        pipe.send((server.url, ids))
        while (command := pipe.recv()) != "stop":
            if command == "count":
                pipe.send(len(server.requests))
            elif command == "finish":
                for job in ids:
                    server.finish(job, result={"rows_assigned": 1})
                pipe.send(time.time())
            elif command == "again":
                for job in ids:
                    server.finish(job, state="RUNNING", result=None)
                pipe.send(True)


async def naive(job_id: str, settings: Any) -> float:
    """What most providers do: one client, one request per task and interval."""
    from airflow_provider_lance.api.http.wire import AsyncWire

    async with AsyncWire(settings) as wire:
        while True:
            if (await wire.job(job_id)).state.terminal:
                return time.time()
            await asyncio.sleep(INTERVAL)


async def shared(job_id: str) -> float:
    from airflow_provider_lance.triggers.job import LanceJobTrigger

    async for _ in LanceJobTrigger(job_id=job_id, poll_interval=INTERVAL).run():
        return time.time()
    raise AssertionError


async def measure(pipe: Any, tasks: list[Any]) -> dict[str, float]:
    waiting = [asyncio.create_task(task) for task in tasks]
    await asyncio.sleep(2 * INTERVAL)  # settled: everybody has been looked at
    pipe.send("count")
    requests, cpu = pipe.recv(), time.process_time()
    await asyncio.sleep(INTERVALS * INTERVAL)
    pipe.send("count")
    requests, cpu = pipe.recv() - requests, time.process_time() - cpu
    pipe.send("finish")
    done = pipe.recv()
    ends = await asyncio.gather(*waiting)
    delays = sorted(end - done for end in ends)
    return {
        "requests per interval": requests / INTERVALS,
        "CPU ms per interval": cpu * 1000 / INTERVALS,
        "median delay s": statistics.median(delays),
        "longest delay s": delays[-1],
    }


def main() -> int:
    from airflow_provider_lance.api.settings import Settings

    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    url, ids = mine.recv()
    os.environ["AIRFLOW_CONN_LANCE_DEFAULT"] = json.dumps({"conn_type": "lance", "host": url})
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "ERROR")
    ours = asyncio.run(measure(mine, [shared(job) for job in ids]))
    mine.send("again")
    mine.recv()
    settings = Settings(url)
    theirs_ = asyncio.run(measure(mine, [naive(job, settings) for job in ids]))
    mine.send("stop")
    print(f"{JOBS:,} waiting triggers, interval {INTERVAL:g} s")
    print(f"{'':24}{'shared':>10}{'naive':>10}{'ratio':>8}")
    for name, value in ours.items():
        other = theirs_[name]
        print(f"{name:24}{value:10.2f}{other:10.2f}{other / value if value else float('inf'):8.1f}")
    return 0 if ours["requests per interval"] <= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
