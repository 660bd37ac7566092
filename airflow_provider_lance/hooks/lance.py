"""``LanceNamespaceHook``: from an Airflow connection to a Lance namespace.

The one place that reads a ``lance`` connection. Operators speak to any namespace through ``call``
(plain dicts in and out, :class:`WireError` on failure); people who want the whole API take :meth:`get_conn`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_lance.api.errors import DIFFERING_FIELDS, INTERNAL, INVALID_INPUT, UNSUPPORTED, WireError
from airflow_provider_lance.api.ids import Identifier, parse_id
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.operations import OPERATIONS, unknown_operation
from airflow_provider_lance.api.settings import InvalidSettingsError, Settings
from airflow_provider_lance.api.vended import without_credentials
from airflow_provider_lance.api.versions import WITH_VERSION, version_of
from airflow_provider_lance.api.wire import Wire
from airflow_provider_lance.configuration import DEFAULT_CONNECTION

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from airflow_provider_lance.api.client import AsyncLanceClient

REST = "rest"


@dataclass(frozen=True)
class ResolvedConnection:
    """A ``lance`` connection with its extras read: where the namespace is, or which implementation it is."""

    implementation: str
    settings: Settings | None
    properties: dict[str, str] = field(repr=False)  # of an implementation: credentials may be among them
    delimiter: str
    job_url: str | None  # ``None``: not configured
    asset_authority: str | None = None

    def link(self, job_id: str, page: str | None = None) -> str | None:
        """The page of a job, where there is one: the configured one, or ``page`` of the server's answer."""
        if self.job_url is not None:
            return self.job_url.replace("{job_id}", quote(job_id, safe="")) or None
        return f"{self.settings.base_url}/{page.lstrip('/')}" if page and self.settings is not None else None

    @classmethod
    def read(cls, connection: Any, extra: Mapping[str, Any]) -> ResolvedConnection:
        """From an Airflow connection and its decoded extra."""
        implementation = str(extra.get("impl") or REST)
        properties = extra.get("properties") or {}
        if isinstance(properties, str):
            try:
                properties = json.loads(properties)
            except ValueError:
                raise InvalidSettingsError("`properties` is not valid JSON.") from None
        if not isinstance(properties, Mapping):
            raise InvalidSettingsError("`properties` must be a JSON object of strings.")
        settings = None
        job_url = extra.get("job_url")
        if implementation == REST:
            settings = Settings.from_connection(
                host=connection.host,
                port=connection.port,
                schema=connection.schema,
                login=connection.login,
                password=connection.password,
                extra=extra,
                credentials_place=f"the password of connection {connection.conn_id!r}",
            )
        return cls(
            implementation=implementation,
            settings=settings,
            properties={str(key): str(value) for key, value in properties.items()},
            delimiter=str(extra.get("delimiter") or "$"),
            job_url=None if job_url is None else str(job_url),
            asset_authority=str(extra.get("asset_authority") or "").strip().lower() or None,
        )


async def resolve_async(lance_conn_id: str) -> ResolvedConnection:
    """The connection, read without blocking the event loop; for triggers."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

    connection = await get_async_connection(lance_conn_id)
    return ResolvedConnection.read(connection, await get_async_extra_dejson(connection))


class LanceNamespaceHook(BaseHook):
    """A Lance namespace behind an Airflow connection of type ``lance``.

    :param lance_conn_id: the connection; see the connection page of the documentation for its fields.
    """

    conn_name_attr = "lance_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "lance"
    hook_name = "Lance Namespace"

    def __init__(self, lance_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lance_conn_id = lance_conn_id

    @cached_property
    def resolved(self) -> ResolvedConnection:
        return self._resolve()

    def _resolve(self) -> ResolvedConnection:
        connection = self.get_connection(self.lance_conn_id)
        return ResolvedConnection.read(connection, connection.extra_dejson)

    @property
    def speaks_rest(self) -> bool:
        """Whether the namespace is a server, so that triggers can wait for it without a worker."""
        return self.resolved.settings is not None

    @cached_property
    def _wire(self) -> Wire | None:
        return Wire(self.resolved.settings) if self.resolved.settings is not None else None

    @cached_property
    def _namespace(self) -> LanceNamespace:
        return self.get_conn()

    def get_conn(self) -> LanceNamespace:
        """The namespace with its whole API: our REST client, or the implementation the connection names."""
        resolved = self.resolved
        if resolved.settings is not None:
            from airflow_provider_lance.api.client import LanceClient

            return LanceClient(resolved.settings)
        from lance_namespace import connect

        return connect(resolved.implementation, resolved.properties)

    async def get_async_conn(self) -> AsyncLanceClient:
        """The REST client to ``await``; close it with ``aclose()``. Only for REST connections."""
        import asyncio
        import importlib

        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            raise InvalidSettingsError(
                f"The connection {self.lance_conn_id!r} uses the implementation {resolved.implementation!r}, which "
                "lives in this process: there is no async client for it. Use get_conn()."
            )
        # Importing the generated models takes a second: not inside of a running event loop.
        client = await asyncio.to_thread(importlib.import_module, "airflow_provider_lance.api.client")
        return client.AsyncLanceClient(resolved.settings)

    def parse_id(self, identifier: Identifier) -> list[str]:
        """An identifier as the list of its parts; a string is split on the connection's delimiter."""
        return parse_id(identifier, self.resolved.delimiter)

    def call(self, operation: str, fields: Mapping[str, Any], data: Any = None) -> dict[str, Any]:
        """Run an operation by its name and return its answer as a dict, without credentials in it.

        :param operation: a name of ``api.operations.OPERATIONS``, such as ``"create_table_tag"``.
        :param fields: the request's fields; ``id`` may be a string or a list.
        :param data: Arrow data, for the operations that take it.
        """
        if operation not in OPERATIONS:
            raise WireError(unknown_operation(operation), code=UNSUPPORTED, operation=operation)
        if self._wire is not None:
            value = self._wire.call(operation, fields, data).value
        else:
            value = self._call_in_process(operation, dict(fields), data)
        value = value if isinstance(value, dict) else {} if value is None else {"value": value}
        return {key: item for key, item in without_credentials(value).items() if item is not None}

    def job(self, job_id: str) -> Job:
        """A job as it is now; ``WireError`` with status 404 if the namespace does not know it."""
        if self._wire is not None:
            return self._wire.job(job_id)
        return Job.from_wire(self.call("describe_job", {"job_id": job_id}), job_id)

    def find_job(self, job_id: str) -> Job | None:
        """The same, with ``None`` for an unknown job."""
        try:
            return self.job(job_id)
        except WireError as error:
            if error.missing:
                return None
            raise

    def job_link(self, job_id: str, job: Job | None = None) -> str | None:
        """The page of a job: what the connection's ``job_url`` says, else where the server itself says it has one.

        A server is asked only where nothing is configured; ``job`` saves the question.
        """
        if self.resolved.job_url is None and job is None:
            with contextlib.suppress(WireError):  # a link is not worth a failure
                job = self.find_job(job_id)
        return self.resolved.link(job_id, job.page if job is not None else None)

    def cancel_job(self, job_id: str) -> bool:
        """Ask for a job's end; ``False`` if the namespace does not know it. A finished job stays as it is."""
        try:
            self.call("cancel_job", {"job_id": job_id})
        except WireError as error:
            if error.missing:
                return False
            raise
        return True

    def current_version(self, table_id: list[str], branch: str | None = None) -> int | None:
        """A table's newest version; ``None`` for a table that was only declared."""
        return version_of(self.call("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION}))

    def test_connection(self) -> tuple[bool, str]:
        """What the *Test* button says: what was reached, with which credentials, and what is there."""
        try:
            resolved = self.resolved
            answer = self.call("list_tables", {"id": [], "limit": 1000})
        except (WireError, InvalidSettingsError) as error:
            return False, str(error)
        except Exception as error:  # an implementation of somebody else's
            return False, f"{type(error).__name__}: {error}"
        tables = len(answer.get("tables") or [])
        count = f"{'more than ' if answer.get('page_token') else ''}{tables} table{'' if tables == 1 else 's'}"
        where = (
            f"{resolved.settings.base_url} with {resolved.settings.auth_kind}"
            if resolved.settings is not None
            else f"the in-process implementation {resolved.implementation!r}"
        )
        return True, f"Reached {where}: {count} in the root namespace."

    def close(self) -> None:
        """Give the HTTP connections back; the hook can be used again."""
        wire = self.__dict__.pop("_wire", None)
        if wire is not None:
            wire.close()

    def reread(self) -> None:
        """Read the connection again: its credentials may have been rotated."""
        self.close()
        # Never absent in between: a signal handler may ask for it, and must not ask Airflow.
        self.__dict__["resolved"] = self._resolve()

    def _call_in_process(self, operation: str, fields: dict[str, Any], data: Any) -> Any:
        if operation == "create_empty_table":
            # The newer name of the same; pylance's implementations have only that.
            try:
                return self._run_in_process("declare_table", fields, data)
            except WireError as error:
                if error.code != UNSUPPORTED:
                    raise
        return self._run_in_process(operation, fields, data)

    def _run_in_process(self, operation: str, fields: dict[str, Any], data: Any) -> Any:
        from lance_namespace.errors import LanceNamespaceError

        from airflow_provider_lance.api.client import read_request

        implementation = self.resolved.implementation
        detail = f"{operation} of the implementation {implementation!r}, connection {self.lance_conn_id!r}"
        method = getattr(self._namespace, operation, None)
        if method is None:
            raise WireError(
                f"The implementation {implementation!r} of the connection {self.lance_conn_id!r} has no {operation}.",
                code=UNSUPPORTED,
                operation=operation,
            )
        if "id" in fields:
            fields["id"] = self.parse_id(fields["id"])
        given = {key: value for key, value in fields.items() if value is not None}
        row = OPERATIONS[operation]
        differing: Any = None
        instance: str | None = None
        cause: Exception | None = None
        try:
            request = read_request(row, given) if row.request and not row.path.startswith("/v1/jobs") else given
            answer = method(request, _ipc(data)) if data is not None else method(request)
        except (LanceNamespaceError, NotImplementedError) as error:
            reason, code = str(error) or operation, int(getattr(error, "code", UNSUPPORTED))
            instance, differing = getattr(error, "instance", None), getattr(error, DIFFERING_FIELDS, None)
        except ValueError as error:
            reason, code = str(error), INVALID_INPUT
        except Exception as error:  # of the implementation: a binding's error has no class of its own
            reason, code, cause = str(error) or type(error).__name__, INTERNAL, error
        else:
            return answer.to_dict() if hasattr(answer, "to_dict") else answer
        reason = reason.removeprefix(f"{operation}: ")
        raise WireError(
            f"{operation}: {reason}",
            code=code,
            operation=operation,
            instance=instance,
            differing_fields=None if differing is None else tuple(differing),
            reason=reason,
            detail=detail,
        ) from cause


def _ipc(data: Any) -> bytes:
    from airflow_provider_lance.api.arrow import ArrowBody

    return b"".join(ArrowBody(data))
