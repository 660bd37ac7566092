"""``LanceClient`` and ``AsyncLanceClient``: the wire with the spec's request and response models.

Every operation of the table is a method with the name ``lance_namespace.LanceNamespace`` gives it. ``LanceClient``
*is* a ``LanceNamespace``, also for pylance's ``namespace_client``; the async client has the same methods to await.
Errors are the classes of ``lance_namespace.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from lance_namespace import LanceNamespace
from lance_namespace.errors import InvalidInputError
from pydantic import BaseModel, ValidationError

from airflow_provider_lance.api.arrow import read_arrow
from airflow_provider_lance.api.errors import WireError, junk_answer_error, lance_error
from airflow_provider_lance.api.models import CreateMaterializedViewQueryRequest, model
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, Operation
from airflow_provider_lance.api.protocol import Reply
from airflow_provider_lance.api.wire import AsyncWire, Wire

if TYPE_CHECKING:
    import pyarrow as pa


class LanceClient(Wire, LanceNamespace):
    """A Lance namespace over REST.

    >>> with LanceClient("http://localhost:2333") as client:
    ...     client.describe_table({"id": ["images"]}).version

    A request is the spec's model or a plain dict of its fields. Arrow data (``create_table``, ``insert_into_table``,
    ``merge_insert_into_table``) is a table, a reader, an iterator of batches or IPC bytes.
    """

    def namespace_id(self) -> str:
        database = f", database={self.settings.database!r}" if self.settings.database else ""
        return f"LanceClient({self.settings.base_url!r}{database})"

    def query_arrow(self, request: Any) -> pa.Table:
        """``query_table`` with the answer decoded."""
        return read_arrow(cast("bytes", self.query_table(request).data or b""))

    def iterate(self, name: str, request: Any = None) -> Iterator[Any]:
        """Every row of a listing (``"list_tables"``, ``"list_table_versions"``, ``"list_jobs"`` …), page by page."""
        operation = OPERATIONS[name]
        try:
            yield from self.rows(name, _fields(operation, request))
        except WireError as error:
            failure = lance_error(error)
        else:
            return
        raise failure


class AsyncLanceClient(AsyncWire):
    """The same operations to ``await``; for one event loop."""

    async def query_arrow(self, request: Any) -> pa.Table:
        """``query_table`` with the answer decoded."""
        response = await self.query_table(request)
        return read_arrow(response.data or b"")

    async def iterate(self, name: str, request: Any = None) -> AsyncIterator[Any]:
        """Every row of a listing, page by page."""
        operation = OPERATIONS[name]
        try:
            async for row in self.rows(name, _fields(operation, request)):
                yield row
        except WireError as error:
            failure = lance_error(error)
        else:
            return
        raise failure

    if TYPE_CHECKING:  # the methods below are made from the operation table

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def _sync_method(operation: Operation) -> Callable[..., Any]:
    def method(self: LanceClient, request: Any = None, request_data: Any = None) -> Any:
        fields = _fields(operation, request)
        try:
            reply = self.call(operation.name, fields, request_data)
        except WireError as error:
            failure = lance_error(error)
        else:
            return _response(operation, reply)
        raise failure  # outside of the except block: no chained frame that could show a secret

    return method


def _async_method(operation: Operation) -> Callable[..., Any]:
    async def method(self: AsyncLanceClient, request: Any = None, request_data: Any = None) -> Any:
        fields = _fields(operation, request)
        try:
            reply = await self.call(operation.name, fields, request_data)
        except WireError as error:
            failure = lance_error(error)
        else:
            return _response(operation, reply)
        raise failure

    return method


def _fields(operation: Operation, request: Any) -> dict[str, Any]:
    """The request's fields as plain data; a dict is checked against the model but sent as it is.

    pylance's Rust side hands over a dict subclass, and dicts may carry fields the generated models lack.
    """
    if request is None:
        request = {}
    if isinstance(request, Mapping):
        fields = dict(request)
        if isinstance(fields.get("on"), str):  # one merge key, as the spec had it before it took several
            fields["on"] = [fields["on"]]
        if operation.request is not None:
            identifier = fields.get("id")
            read_request(operation, {**fields, "id": None} if isinstance(identifier, str) else fields)
        return fields
    if isinstance(request, BaseModel):
        return request.to_dict() if hasattr(request, "to_dict") else request.model_dump(exclude_none=True)
    raise InvalidInputError(f"{operation.name} takes a {operation.request} or a dict, not {type(request).__name__}.")


def read_request(operation: Operation, fields: dict[str, Any]) -> Any:
    """The request's fields, checked, as the model of the dialect they are in; ``InvalidInputError`` in one sentence."""
    assert operation.request is not None
    kind = model(operation.request)
    if operation.name == "create_materialized_view" and "query" in fields:
        kind = CreateMaterializedViewQueryRequest
    try:
        return kind.from_dict(fields)
    except ValidationError as error:
        problem = validation_sentence(error)
    except ValueError as error:  # the generated one-of wrappers raise these
        problem = str(error)
    raise InvalidInputError(f"{operation.name}: {problem}")


def validation_sentence(error: ValidationError) -> str:
    """Pydantic's findings in one sentence: ``version must be greater than or equal to 0``."""
    found = [
        f"{'.'.join(str(step) for step in item['loc']) or 'the request'}: {item['msg'][:1].lower()}{item['msg'][1:]}"
        for item in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _response(operation: Operation, reply: Reply) -> Any:
    if operation.answer is Answer.ARROW_STREAM:
        return read_arrow(reply.value)
    if operation.answer is Answer.TEXT or operation.response is None:
        return reply.value
    kind = model(operation.response)
    if operation.answer is Answer.ARROW_FILE:
        value: dict[str, Any] = {"data": reply.value}
    else:
        value = reply.value or {}
    try:
        response = kind.from_dict(value)
    except ValidationError as error:
        problem = validation_sentence(error)
    except (TypeError, ValueError, AttributeError) as error:
        problem = str(error)
    else:
        # The spec's convention for responses, as pylance's own client has it: headers as ``header.<name>``.
        response.context = {f"header.{key}": text for key, text in reply.headers.items() if key != "set-cookie"}
        return response
    import httpx

    raise lance_error(junk_answer_error(operation, "", httpx.Response(reply.status, headers=reply.headers), problem))


def _attach() -> None:
    for operation in OPERATIONS.values():
        sync, waiting = _sync_method(operation), _async_method(operation)
        for target, method in ((LanceClient, sync), (AsyncLanceClient, waiting)):
            method.__name__ = operation.name
            method.__qualname__ = f"{target.__name__}.{operation.name}"
            data = " with Arrow data" if operation.body is Body.ARROW else ""
            method.__doc__ = (
                f"{operation.summary}{data}: ``{operation.method} {operation.path}``.\n\n"
                f"Takes a ``{operation.request}`` or a dict, returns {operation.response or 'plain data'}."
            )
            setattr(target, operation.name, method)


_attach()
