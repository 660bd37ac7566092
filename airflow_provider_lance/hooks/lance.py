"""``LanceNamespaceHook``: from an Airflow connection to a Lance namespace.

Only this module reads a ``lance`` connection. Operators use ``call``, which takes and returns plain dicts and raises
:class:`WireError`. Users who want the whole API use :meth:`LanceNamespaceHook.get_conn`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.credentials import without_credentials
from airflow_provider_lance.api.errors import DIFFERING_FIELDS, WireError
from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, Identifier, join_id, parse_id
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.operations import OPERATIONS, unknown_operation
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.api.settings import InvalidSettingsError, Settings
from airflow_provider_lance.api.versions import WITH_VERSION, version_of
from airflow_provider_lance.configuration import DEFAULT_CONNECTION
from airflow_provider_lance.hooks.table_use import TableUse, observe, table_use

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection
    from lance_namespace import LanceNamespace

    from airflow_provider_lance.api.arrow import ArrowData
    from airflow_provider_lance.api.client import AsyncLanceClient

REST = "rest"


@dataclass(frozen=True)
class ResolvedConnection:
    """A ``lance`` connection with its extras read: where the namespace is, or which implementation it is."""

    implementation: str
    settings: Settings | None
    properties: dict[str, str] = field(repr=False)  # there may be credentials among them
    delimiter: str
    job_url: str | None
    asset_authority: str | None = None

    @property
    def default_authority(self) -> str:
        """What assets call this namespace where nobody chose a name: its host, or its implementation."""
        return (urlsplit(self.settings.base_url).netloc if self.settings is not None else self.implementation).lower()

    def link(self, job_id: str, page: str | None = None) -> str | None:
        """The address of a job's page: the connection's ``job_url``, or else the ``page`` that the server named."""
        if self.job_url is not None:
            return self.job_url.replace("{job_id}", quote(job_id, safe="")) or None
        return f"{self.settings.base_url}/{page.lstrip('/')}" if page and self.settings is not None else None

    @classmethod
    def read(cls, connection: Connection, extra: Mapping[str, Any]) -> ResolvedConnection:
        """Read an Airflow connection and its decoded extra."""
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
            delimiter=str(extra.get("delimiter") or DEFAULT_DELIMITER),
            job_url=None if job_url is None else str(job_url),
            asset_authority=str(extra.get("asset_authority") or "").strip().lower() or None,
        )


@dataclass(frozen=True)
class TableAccess:
    """Where a table's files are and how they are opened. Its credentials are for the process that opens them only."""

    location: str
    version: int | None
    columns: tuple[str, ...] = ()
    managed: bool = False
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


async def resolve_async(lance_conn_id: str) -> ResolvedConnection:
    """Read a connection without blocking the event loop of a triggerer."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

    connection = await get_async_connection(lance_conn_id)
    return ResolvedConnection.read(connection, await get_async_extra_dejson(connection))


class LanceNamespaceHook(BaseHook):
    """A Lance namespace behind an Airflow connection of type ``lance``.

    The fields of the connection are documented in ``docs/connection.md``.

    :param lance_conn_id: The id of the connection.
    :param logger_name: The name of the hook's logger, as for every Airflow hook.
    """

    conn_name_attr = "lance_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "lance"
    hook_name = "Lance Namespace"

    def __init__(self, lance_conn_id: str = default_conn_name, logger_name: str | None = None) -> None:
        super().__init__(logger_name=logger_name)
        self.lance_conn_id = lance_conn_id
        # What a task asks on its own behalf, besides what its user wants to know, is no lineage.
        self.reports_lineage = True

    @cached_property
    def resolved(self) -> ResolvedConnection:
        """The connection as it was read last."""
        return self._resolve()

    def _resolve(self) -> ResolvedConnection:
        connection = self.get_connection(self.lance_conn_id)
        return ResolvedConnection.read(connection, connection.extra_dejson)

    @property
    def speaks_rest(self) -> bool:
        """Whether the namespace is a server, which a trigger can ask. An implementation runs in the own process."""
        return self.resolved.settings is not None

    @cached_property
    def _wire(self) -> Wire | None:
        return Wire(self.resolved.settings) if self.resolved.settings is not None else None

    @cached_property
    def _namespace(self) -> LanceNamespace:
        return self._connect()

    def get_conn(self) -> LanceNamespace:
        """Connect to the namespace. The tables that are opened and changed through it become the task's lineage.

        :return: A ``lance_namespace.LanceNamespace``: the REST client of this package, or the implementation that the
            connection names.
        """
        return self.get_observed_conn(self.report_use)

    def get_observed_conn(self, note: Callable[[TableUse], None]) -> LanceNamespace:
        """Connect to the namespace, and have ``note`` called for each call that opens or changes a table.

        :param note: The function that is called with the :class:`TableUse`.
        """
        namespace = self._connect()
        observe(namespace, self.parse_id, note)
        return namespace

    def report_use(self, use: TableUse, authority: str | None = None) -> None:
        """Tell Airflow's lineage collector that the task has opened or changed a table.

        :param use: The table, and whether it was changed.
        :param authority: What assets call the namespace. By default it is the connection's ``asset_authority``, or
            else the host.
        """
        if not self.reports_lineage:
            return
        from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

        collector = get_hook_lineage_collector()  # type: ignore[no-untyped-call]
        add = collector.add_output_asset if use.changes else collector.add_input_asset
        authority = authority or self.resolved.asset_authority or self.resolved.default_authority
        add(context=self, scheme="lance", asset_kwargs={"authority": authority, "table_id": list(use.table_id)})

    def _connect(self) -> LanceNamespace:
        resolved = self.resolved
        if resolved.settings is not None:
            from airflow_provider_lance.api.client import LanceClient

            return LanceClient(resolved.settings)
        from lance_namespace import connect

        return connect(resolved.implementation, resolved.properties)

    async def get_async_conn(self) -> AsyncLanceClient:
        """Connect to a namespace server with the client whose methods are awaited.

        :return: The client, which the caller closes with ``aclose()``.
        """
        import asyncio

        resolved = await resolve_async(self.lance_conn_id)
        if resolved.settings is None:
            raise InvalidSettingsError(
                f"The connection {self.lance_conn_id!r} uses the implementation {resolved.implementation!r}, which "
                "lives in this process: there is no async client for it. Use get_conn()."
            )
        # Importing the generated models takes a second, during which the event loop must not stand still.
        client = await asyncio.to_thread(_async_client)
        return client(resolved.settings)

    def parse_id(self, identifier: Identifier) -> list[str]:
        """Split an identifier on the connection's delimiter.

        :param identifier: The identifier of a namespace, table or view, as a string or as the list of its parts.
        :return: The list of its parts.
        """
        return parse_id(identifier, self.resolved.delimiter)

    def join_id(self, parts: Sequence[str]) -> str:
        """Join an identifier with the connection's delimiter, for messages.

        :param parts: The parts of the identifier.
        """
        return join_id(parts, self.resolved.delimiter)

    def call(self, operation: str, fields: Mapping[str, object], data: ArrowData | None = None) -> JsonObject:
        """Run an operation of the Lance namespace API.

        :param operation: The operation's name, such as ``"create_table_tag"``; ``api.operations.OPERATIONS`` has all.
        :param fields: The request's fields. Its ``id`` may be a string or a list.
        :param data: The Arrow data, for the operations that take some.
        :return: The answer as a dict without credentials.
        """
        answer = self._call(operation, fields, data)
        use = table_use(OPERATIONS[operation], fields, answer, self.parse_id)
        if use is not None:
            self.report_use(use)
        return {key: item for key, item in without_credentials(answer).items() if item is not None}

    def _call(self, operation: str, fields: Mapping[str, object], data: ArrowData | None = None) -> JsonObject:
        """The answer of an operation with everything in it."""
        if operation not in OPERATIONS:
            raise WireError(unknown_operation(operation), code=ErrorCode.UNSUPPORTED, operation=operation)
        if self._wire is not None:
            value = self._wire.call(operation, fields, data).value
        else:
            value = self._call_in_process(operation, dict(fields), data)
        return value if isinstance(value, dict) else {} if value is None else {"value": value}

    def table_access(self, table_id: list[str]) -> TableAccess:
        """Find out how this process can open a table's files itself, with credentials of the namespace.

        :param table_id: The parts of the table's identifier.
        :return: The place of the table's files, its version and columns, and the credentials that open it.
        """
        answer = self._call("describe_table", {"id": table_id, **WITH_VERSION})
        fields = (answer.get("schema") or {}).get("fields") or []
        return TableAccess(
            location=str(answer.get("location") or ""),
            version=version_of(answer),
            columns=tuple(str(field.get("name")) for field in fields),
            managed=bool(answer.get("managed_versioning")),
            storage_options={str(key): str(value) for key, value in (answer.get("storage_options") or {}).items()},
        )

    def job(self, job_id: str) -> Job:
        """Describe a job. A job that the namespace does not know raises a ``WireError`` with status 404.

        :param job_id: The job's id.
        """
        if self._wire is not None:
            return self._wire.job(job_id)
        return Job.from_wire(self.call("describe_job", {"job_id": job_id}), job_id)

    def find_job(self, job_id: str) -> Job | None:
        """Describe a job.

        :param job_id: The job's id.
        :return: The job, or ``None`` if the namespace does not know it.
        """
        try:
            return self.job(job_id)
        except WireError as error:
            if error.missing:
                return None
            raise

    def job_link(self, job_id: str, job: Job | None = None) -> str | None:
        """The address of a job's page: the connection's ``job_url``, or else the page that the server names.

        :param job_id: The job's id.
        :param job: The job, if it is known. Without it the server is asked, unless the connection has a ``job_url``.
        :return: The address, or ``None`` where there is no page.
        """
        if self.resolved.job_url is None and job is None:
            with contextlib.suppress(WireError):  # a link is not worth a failure
                job = self.find_job(job_id)
        return self.resolved.link(job_id, job.page if job is not None else None)

    def cancel_job(self, job_id: str) -> bool:
        """Ask the namespace to end a job. A job that has ended stays as it is.

        :param job_id: The job's id.
        :return: Whether the namespace knows the job.
        """
        try:
            self.call("cancel_job", {"job_id": job_id})
        except WireError as error:
            if error.missing:
                return False
            raise
        return True

    def current_version(self, table_id: list[str], branch: str | None = None) -> int | None:
        """The newest version of a table or branch.

        :param table_id: The table's identifier, as the list of its parts.
        :param branch: The branch. ``None`` is the main branch.
        :return: The version, or ``None`` for a table that was only declared.
        """
        return version_of(self.call("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION}))

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection for the *Test* button of Airflow's form.

        :return: Whether the namespace answered, and a sentence that says what was reached.
        """
        try:
            resolved = self.resolved
            answer = self.call("list_tables", {"id": [], "limit": 1000})
        except (WireError, InvalidSettingsError) as error:
            return False, str(error)
        except Exception as error:  # an implementation may raise anything
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
        """Close the HTTP connections. The hook opens new ones when it is used again."""
        wire = self.__dict__.pop("_wire", None)
        if wire is not None:
            wire.close()

    def reread(self) -> None:
        """Read the connection again, because its credentials may have been rotated."""
        self.close()
        # The attribute is replaced and never removed: a signal handler may read it, and must not ask Airflow for it.
        self.__dict__["resolved"] = self._resolve()

    def _call_in_process(self, operation: str, fields: JsonObject, data: ArrowData | None) -> object:
        newer_name = OPERATIONS[operation].replaced_by
        if newer_name is not None:  # pylance's implementations know only the newer name
            try:
                return self._run_in_process(newer_name, fields, data)
            except WireError as error:
                if error.code != ErrorCode.UNSUPPORTED:
                    raise
        return self._run_in_process(operation, fields, data)

    def _run_in_process(self, operation: str, fields: JsonObject, data: ArrowData | None) -> object:
        from lance_namespace.errors import LanceNamespaceError

        from airflow_provider_lance.api.client import read_request

        implementation = self.resolved.implementation
        detail = f"{operation} of the implementation {implementation!r}, connection {self.lance_conn_id!r}"
        method = getattr(self._namespace, operation, None)
        if method is None:
            raise WireError(
                f"The implementation {implementation!r} of the connection {self.lance_conn_id!r} has no {operation}.",
                code=ErrorCode.UNSUPPORTED,
                operation=operation,
            )
        if "id" in fields:
            fields["id"] = self.parse_id(fields["id"])
        given = {key: value for key, value in fields.items() if value is not None}
        row = OPERATIONS[operation]
        differing: Sequence[str] | None = None
        instance: str | None = None
        cause: Exception | None = None
        try:
            request = given if row.jobs_api else read_request(row, given)
            answer = method(request, _ipc(data)) if data is not None else method(request)
        except (LanceNamespaceError, NotImplementedError) as error:
            reason, code = str(error) or operation, int(getattr(error, "code", ErrorCode.UNSUPPORTED))
            instance, differing = getattr(error, "instance", None), getattr(error, DIFFERING_FIELDS, None)
        except ValueError as error:
            reason, code = str(error), ErrorCode.INVALID_INPUT
        except Exception as error:  # an implementation in Rust raises errors without a class of its own
            reason, code, cause = str(error) or type(error).__name__, ErrorCode.INTERNAL, error
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


def _async_client() -> type[AsyncLanceClient]:
    from airflow_provider_lance.api.client import AsyncLanceClient

    return AsyncLanceClient


def _ipc(data: ArrowData) -> bytes:
    from airflow_provider_lance.api.arrow import ArrowBody

    return b"".join(ArrowBody(data))
