"""What the client costs: describe_table against pylance's REST server, ours beside bare httpx and pylance's own client.

    python benchmarks/client.py [--sequential 2000] [--concurrent 200]

The three take turns in small blocks, so that a busy machine slows all of them alike; figures are medians of blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa
from lance.namespace import RestAdapter, RestNamespace
from lance_namespace import DescribeTableRequest
from rich.console import Console
from rich.table import Table

from airflow_provider_lance.api.client import AsyncLanceClient, LanceClient

BLOCK = 100


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def take_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds per block: the median over the rounds, each after one unmeasured round."""
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(timed(work))
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequential", type=int, default=2000)
    parser.add_argument("--concurrent", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, RestAdapter("dir", {"root": root}, port=0) as adapter:
        url = f"http://127.0.0.1:{adapter.port}"
        request = DescribeTableRequest(id=["t"])
        with LanceClient(url) as ours, httpx.Client() as bare:
            ours.create_table({"id": "t"}, pa.table({"a": [1]}))
            peer = RestNamespace(uri=url)
            path = f"{url}/v1/table/t/describe"
            body = b"{}"
            headers = {"content-type": "application/json"}

            def sequential(call: Callable[[], object]) -> Callable[[], None]:
                return lambda: [call() for _ in range(BLOCK)] and None

            blocks = take_turns(
                {
                    "bare httpx": sequential(lambda: bare.post(path, content=body, headers=headers).json()),
                    "airflow-provider-lance": sequential(lambda: ours.describe_table(request)),
                    "lance.namespace.RestNamespace": sequential(lambda: peer.describe_table(request)),
                },
                rounds=max(3, options.sequential // BLOCK),
            )
            report("sequential describe_table", blocks, BLOCK)

        loop = asyncio.new_event_loop()
        waiting, bare_async = AsyncLanceClient(url), httpx.AsyncClient()
        pool = ThreadPoolExecutor(16)

        async def ours_at_once() -> None:
            await asyncio.gather(*(waiting.describe_table(request) for _ in range(options.concurrent)))

        async def bare_at_once() -> None:
            async def one() -> object:
                return (await bare_async.post(path, content=body, headers=headers)).json()

            await asyncio.gather(*(one() for _ in range(options.concurrent)))

        blocks = take_turns(
            {
                "bare httpx": lambda: loop.run_until_complete(bare_at_once()),
                "airflow-provider-lance": lambda: loop.run_until_complete(ours_at_once()),
                "lance.namespace.RestNamespace": lambda: list(
                    pool.map(lambda _: peer.describe_table(request), range(options.concurrent))
                ),
            },
            rounds=10,
        )
        report(f"{options.concurrent} describe_table at once", blocks, options.concurrent)
        loop.run_until_complete(waiting.aclose())
        loop.run_until_complete(bare_async.aclose())
        pool.shutdown()


def report(title: str, blocks: dict[str, float], count: int) -> None:
    table = Table(title=title)
    table.add_column("client")
    table.add_column("ms each", justify="right")
    table.add_column("of bare httpx", justify="right")
    for name, seconds in blocks.items():
        table.add_row(name, f"{1000 * seconds / count:.2f}", f"{seconds / blocks['bare httpx']:.2f} ×")
    Console().print(table)


if __name__ == "__main__":
    main()
