"""Both clients behind one interface: a test written once runs through the sync and the async one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Protocol, cast

import pytest

from airflow_provider_lance.api.client import AsyncLanceClient, LanceClient
from airflow_provider_lance.api.http.retry import RetryPolicy
from airflow_provider_lance.api.settings import Settings
from tests.api.fault_server import FaultServer

QUICK = RetryPolicy(attempts=4, first_delay=0.01, longest_delay=0.05, total_seconds=10)


class Both:
    """Makes clients whose methods block, over the sync or the async one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self._close = contextlib.ExitStack()

    def __call__(self, settings: Settings | str, **changes: Any) -> LanceClient:
        if isinstance(settings, str):
            settings = Settings(settings, **{"retry": QUICK, **changes})
        elif changes:
            settings = replace(settings, **changes)
        if self._loop is None:
            client = LanceClient(settings)
            self._close.callback(client.close)
            return client
        waiting = AsyncLanceClient(settings)
        self._close.callback(lambda loop: loop.run_until_complete(waiting.aclose()), self._loop)
        return cast("LanceClient", _Blocking(waiting, self._loop))

    def close(self) -> None:
        self._close.close()
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
        if callable(value):
            return lambda *args, **kwargs: self._loop.run_until_complete(value(*args, **kwargs))
        return value


async def _collect(rows: AsyncIterator[object]) -> list[object]:
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


class Connect(Protocol):
    def __call__(self, **changes: Any) -> LanceClient: ...


@pytest.fixture
def connect(both: Both, server: FaultServer) -> Connect:
    return lambda **changes: both(server.url, **changes)
