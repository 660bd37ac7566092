"""The two drivers of the protocol: a blocking and an async HTTP client that speak plain dicts.

Light on purpose: triggers wait for jobs with :class:`AsyncWire` inside Airflow's event loop, where importing the
generated models would stall every other trigger. ``client.py`` adds the models on top.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.operations import OPERATIONS, Operation
from airflow_provider_lance.api.protocol import Effect, Flow, Gather, Protocol, Reply, Send, Sleep
from airflow_provider_lance.api.settings import Settings

_THROWN = (httpx.RequestError, WireError)


class _Wire:
    """What both share: settings, the protocol, and which flow an operation takes."""

    def __init__(self, settings: Settings | str) -> None:
        self.settings = Settings(settings) if isinstance(settings, str) else settings
        self.protocol = Protocol(self.settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.base_url!r}, {self.settings.auth_kind})"

    def _flow(self, name: str, fields: Mapping[str, Any], data: Any = None) -> Flow:
        operation = OPERATIONS[name]
        if operation.name == "create_empty_table":
            return self.protocol.create_empty_table(fields)
        if operation.submits_job:
            return self.protocol.submit(operation, fields)
        return self.protocol.call(operation, fields, data)


class Pages:
    """Walks a paginated listing: which request comes next, and which rows an answer holds."""

    def __init__(self, operation: Operation, fields: Mapping[str, Any]) -> None:
        assert operation.items is not None, f"{operation.name} is not a listing"
        self.items = operation.items
        self.fields: dict[str, Any] | None = dict(fields)
        self._seen: set[str] = set()

    def rows(self, value: Mapping[str, Any]) -> list[Any]:
        """The rows of this page (a map's entries as pairs); prepares the next page's fields."""
        token = value.get("page_token")
        if token and token not in self._seen:  # a server that repeats a token would never end
            self._seen.add(token)
            self.fields = {**(self.fields or {}), "page_token": token}
        else:
            self.fields = None
        rows = value.get(self.items) or []
        return list(rows.items()) if isinstance(rows, Mapping) else list(rows)


class Wire(_Wire):
    """The blocking client. Thread-safe, as ``httpx.Client`` is; close it, or use it as a context manager."""

    def __init__(self, settings: Settings | str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(settings)
        self._sleep = sleep
        self._http = httpx.Client(**self.settings.httpx_arguments)

    def call(self, name: str, fields: Mapping[str, Any], data: Any = None) -> Reply:
        """Run one operation by its name; raises :class:`WireError`."""
        return self.drive(self._flow(name, fields, data))

    def rows(self, name: str, fields: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Every row of a listing, page by page."""
        pages = Pages(OPERATIONS[name], fields or {})
        while pages.fields is not None:
            yield from pages.rows(self.call(name, pages.fields).value)

    def job(self, job_id: str) -> Job:
        return Job.from_wire(self.drive(self.protocol.describe_job(job_id)), job_id)

    def jobs(self, job_ids: Sequence[str]) -> dict[str, Job | WireError]:
        """Several jobs at once; ids the server does not know are absent, what cannot be read is its error."""
        return _seen(self.drive(self.protocol.describe_jobs(job_ids)))

    def drive(self, flow: Flow) -> Any:
        try:
            effect = next(flow)
            while True:
                thrown: Exception | None = None
                answer: Any = None
                try:
                    answer = self._perform(effect)
                except _THROWN as error:
                    thrown = error.with_traceback(None)
                effect = flow.throw(thrown) if thrown is not None else flow.send(answer)
        except StopIteration as stop:
            return stop.value

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return self._http.send(effect.request)
        if isinstance(effect, Sleep):
            return self._sleep(effect.seconds)
        return [self._settle(flow) for flow in effect.flows]

    def _settle(self, flow: Flow) -> Any:
        try:
            return self.drive(flow)
        except WireError as error:
            return error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWire(_Wire):
    """The async client, for one event loop; close it, or use it as an async context manager."""

    def __init__(self, settings: Settings | str) -> None:
        super().__init__(settings)
        self._http = httpx.AsyncClient(**self.settings.httpx_arguments)

    async def call(self, name: str, fields: Mapping[str, Any], data: Any = None) -> Reply:
        """Run one operation by its name; raises :class:`WireError`."""
        return await self.drive(self._flow(name, fields, data))

    async def rows(self, name: str, fields: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
        """Every row of a listing, page by page."""
        pages = Pages(OPERATIONS[name], fields or {})
        while pages.fields is not None:
            for row in pages.rows((await self.call(name, pages.fields)).value):
                yield row

    async def job(self, job_id: str) -> Job:
        return Job.from_wire(await self.drive(self.protocol.describe_job(job_id)), job_id)

    async def jobs(self, job_ids: Sequence[str]) -> dict[str, Job | WireError]:
        """Several jobs at once; ids the server does not know are absent, what cannot be read is its error."""
        return _seen(await self.drive(self.protocol.describe_jobs(job_ids)))

    async def drive(self, flow: Flow) -> Any:
        try:
            effect = next(flow)
            while True:
                thrown: Exception | None = None
                answer: Any = None
                try:
                    answer = await self._perform(effect)
                except _THROWN as error:
                    thrown = error.with_traceback(None)
                effect = flow.throw(thrown) if thrown is not None else flow.send(answer)
        except StopIteration as stop:
            return stop.value

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return await self._http.send(effect.request)
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        return await self._gather(effect)

    async def _gather(self, effect: Gather) -> list[Any]:
        slots = asyncio.Semaphore(effect.limit)

        async def settle(flow: Flow) -> Any:
            async with slots:
                try:
                    return await self.drive(flow)
                except WireError as error:
                    return error

        return await asyncio.gather(*(settle(flow) for flow in effect.flows))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _seen(found: Mapping[str, Any]) -> dict[str, Job | WireError]:
    return {
        job_id: body if isinstance(body, WireError) else Job.from_wire(body, job_id) for job_id, body in found.items()
    }
