"""Users' ``async def`` functions inside a Spark worker: an event loop for each, and a limit on calls at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_lance.engine.functions.guarded_call import too_long

if TYPE_CHECKING:
    from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy

_T = TypeVar("_T")


class EventLoop:
    """An event loop in a thread of its own. It stays while a function is loaded, because clients belong to a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="function-loop").start()

    def run(self, awaitable: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class AsyncFunction:
    """A coroutine function that is called like a plain one, or for many rows at once."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        loop: EventLoop,
        max_concurrency: int,
        timeout: float | None,
    ) -> None:
        self._function = function
        self._loop = loop
        self._timeout = timeout
        self.max_concurrency = max_concurrency
        self._slots = asyncio.Semaphore(max_concurrency)

    def __call__(self, *arguments: object) -> Any:
        return self._loop.run(self._call(arguments))

    def map(self, rows: Iterable[tuple[object, ...]], policy: ErrorPolicy) -> list[tuple[Any, Exception | None]]:
        """The result or the error of each row, in their order.

        The calls end as soon as one row fails in a way that fails the job; rows that were not called have no result.
        """
        return self._loop.run(self._map(list(rows), policy))

    async def _map(self, rows: list[tuple[object, ...]], policy: ErrorPolicy) -> list[tuple[Any, Exception | None]]:
        outcomes: list[tuple[Any, Exception | None]] = [(None, None)] * len(rows)

        async def one(number: int) -> None:
            try:
                outcomes[number] = await self._with_retries(rows[number], policy), None
            except Exception as error:
                outcomes[number] = None, error
                if policy.decide(error, policy.retries) == "fail":
                    raise

        tasks = [asyncio.create_task(one(number)) for number in range(len(rows))]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return outcomes

    async def _with_retries(self, arguments: tuple[object, ...], policy: ErrorPolicy) -> Any:
        attempt = 0
        while True:
            try:
                return await self._call(arguments)
            except Exception as error:
                decision = policy.decide(error, attempt)
                if isinstance(decision, str):
                    raise
            await asyncio.sleep(decision)
            attempt += 1

    async def _call(self, arguments: tuple[object, ...]) -> Any:
        async with self._slots:
            if self._timeout is None:
                return await self._function(*arguments)
            limit = asyncio.timeout(self._timeout)
            try:
                async with limit:
                    return await self._function(*arguments)
            except TimeoutError:
                if limit.expired():
                    raise too_long(self._timeout) from None
                raise
