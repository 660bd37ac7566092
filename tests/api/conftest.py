"""Both clients behind one interface: a test written once runs through the sync and the async one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_lance.api.client import AsyncLanceClient, LanceClient
from airflow_provider_lance.api.retry import RetryPolicy
from airflow_provider_lance.api.settings import Settings
from tests.api.fault_server import FaultServer

QUICK = RetryPolicy(attempts=4, first_delay=0.01, longest_delay=0.05, total_seconds=10)


class Both:
    """``client(...)`` makes a client whose methods block, whichever kind is underneath."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self._clients: list[Any] = []

    def __call__(self, settings: Settings | str, **changes: Any) -> Any:
        if isinstance(settings, str):
            settings = Settings(settings, **{"retry": QUICK, **changes})
        elif changes:
            settings = replace(settings, **changes)
        client: Any = LanceClient(settings) if self._loop is None else AsyncLanceClient(settings)
        self._clients.append(client)
        return client if self._loop is None else _Blocking(client, self._loop)

    def close(self) -> None:
        for client in self._clients:
            if self._loop is None:
                client.close()
            else:
                self._loop.run_until_complete(client.aclose())
        if self._loop is not None:
            self._loop.close()


class _Blocking:
    def __init__(self, client: AsyncLanceClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if name in {"iterate", "rows"}:
            return lambda *args: self._loop.run_until_complete(_collect(value(*args)))
        if callable(value) and name not in {"drive"}:
            return lambda *args, **kwargs: self._loop.run_until_complete(value(*args, **kwargs))
        return value


async def _collect(rows: Any) -> list[Any]:
    return [row async for row in rows]


@pytest.fixture(params=["sync", "async"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    made = Both(request.param)
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def connect(both: Both, server: FaultServer) -> Callable[..., Any]:
    return lambda **changes: both(server.url, **changes)
