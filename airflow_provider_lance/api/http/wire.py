"""The two clients of the protocol: a blocking and an async one, which take and return plain dicts.

They import no models: triggers wait for jobs with :class:`AsyncWire` inside Airflow's event loop, where that import
would block every other trigger for a second. ``client.py`` adds the models.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.http.protocol import Effect, Flow, Gather, Protocol, Reply, Sleep
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.operations import OPERATIONS, Operation
from airflow_provider_lance.api.plain_data import Fields, JsonObject
from airflow_provider_lance.api.settings import Settings

if TYPE_CHECKING:
    from airflow_provider_lance.api.arrow import ArrowData

_Value = TypeVar("_Value")


class _Wire:
    """The settings and the protocol, which both clients have."""

    def __init__(self, settings: Settings | str) -> None:
        self.settings = Settings(settings) if isinstance(settings, str) else settings
        self.protocol = Protocol(self.settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.base_url!r}, {self.settings.auth_kind})"


class Pages:
    """Walks a paginated listing: which request comes next, and which rows an answer holds."""

    def __init__(self, operation: Operation, fields: Fields) -> None:
        assert operation.items is not None, f"{operation.name} is not a listing"
        self.items = operation.items
        self.fields: Fields | None = fields
        self._seen: set[str] = set()

    def rows(self, value: JsonObject) -> list[Any]:
        """The rows of this page (a map's entries as pairs); prepares the next page's fields."""
        token = value.get("page_token")
        if token and token not in self._seen:  # a server that repeats a token would never end
            self._seen.add(token)
            self.fields = {**(self.fields or {}), "page_token": token}
        else:
            self.fields = None
        rows = value.get(self.items) or []
        return list(rows.items()) if isinstance(rows, dict) else list(rows)


class Wire(_Wire):
    """The blocking client. Thread-safe, as ``httpx.Client`` is; close it, or use it as a context manager."""

    def __init__(self, settings: Settings | str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(settings)
        self._sleep = sleep
        self._http = httpx.Client(**self.settings.httpx_arguments)

    def call(self, name: str, fields: Fields, data: ArrowData | None = None) -> Reply:
        """Run one operation by its name; raises :class:`WireError`."""
        return self.drive(self.protocol.run(OPERATIONS[name], fields, data))

    def rows(self, name: str, fields: Fields | None = None) -> Iterator[Any]:
        """Every row of a listing, page by page."""
        pages = Pages(OPERATIONS[name], fields or {})
        while pages.fields is not None:
            yield from pages.rows(self.call(name, pages.fields).value)

    def job(self, job_id: str) -> Job:
        return Job.from_wire(self.drive(self.protocol.describe_job(job_id)), job_id)

    def jobs(self, job_ids: Sequence[str]) -> dict[str, Job | WireError]:
        """Several jobs at once, without ids that the server does not know; a job that cannot be read has its error."""
        return _read_jobs(self.drive(self.protocol.describe_jobs(job_ids)))

    def drive(self, flow: Flow[_Value]) -> _Value:
        """Run a flow of the protocol to its end."""
        outcome: object = None
        try:
            while True:
                outcome = self._perform(flow.send(outcome))
        except StopIteration as stop:
            value: _Value = stop.value
            return value

    def _perform(self, effect: Effect) -> object:
        if isinstance(effect, Sleep):
            self._sleep(effect.seconds)
            return None
        if isinstance(effect, Gather):
            return [self._value_or_error(flow) for flow in effect.flows]
        try:
            return self._http.send(effect.request)
        except (httpx.RequestError, WireError) as error:  # a WireError comes from the token endpoint
            return error.with_traceback(None)

    def _value_or_error(self, flow: Flow[_Value]) -> _Value | WireError:
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

    async def call(self, name: str, fields: Fields, data: ArrowData | None = None) -> Reply:
        """Run one operation by its name; raises :class:`WireError`."""
        return await self.drive(self.protocol.run(OPERATIONS[name], fields, data))

    async def rows(self, name: str, fields: Fields | None = None) -> AsyncIterator[Any]:
        """Every row of a listing, page by page."""
        pages = Pages(OPERATIONS[name], fields or {})
        while pages.fields is not None:
            for row in pages.rows((await self.call(name, pages.fields)).value):
                yield row

    async def job(self, job_id: str) -> Job:
        return Job.from_wire(await self.drive(self.protocol.describe_job(job_id)), job_id)

    async def jobs(self, job_ids: Sequence[str]) -> dict[str, Job | WireError]:
        """Several jobs at once, without ids that the server does not know; a job that cannot be read has its error."""
        return _read_jobs(await self.drive(self.protocol.describe_jobs(job_ids)))

    async def drive(self, flow: Flow[_Value]) -> _Value:
        """Run a flow of the protocol to its end."""
        outcome: object = None
        try:
            while True:
                outcome = await self._perform(flow.send(outcome))
        except StopIteration as stop:
            value: _Value = stop.value
            return value

    async def _perform(self, effect: Effect) -> object:
        if isinstance(effect, Sleep):
            await asyncio.sleep(effect.seconds)
            return None
        if isinstance(effect, Gather):
            slots = asyncio.Semaphore(effect.limit)
            return await asyncio.gather(*(self._value_or_error(flow, slots) for flow in effect.flows))
        try:
            return await self._http.send(effect.request)
        except (httpx.RequestError, WireError) as error:  # a WireError comes from the token endpoint
            return error.with_traceback(None)

    async def _value_or_error(self, flow: Flow[_Value], slots: asyncio.Semaphore) -> _Value | WireError:
        async with slots:
            try:
                return await self.drive(flow)
            except WireError as error:
                return error

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _read_jobs(found: Mapping[str, JsonObject | WireError]) -> dict[str, Job | WireError]:
    return {
        job_id: body if isinstance(body, WireError) else Job.from_wire(body, job_id) for job_id, body in found.items()
    }
