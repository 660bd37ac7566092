"""The namespace that a command looks at: a server over REST, or a folder through a namespace in this process.

Operations are called by their names in ``api.operations``; answers are plain dicts. Both kinds raise ``WireError``,
whose ``reason`` names near names where a table or namespace was mistyped.
"""

from __future__ import annotations

import abc
import argparse
import difflib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id, parse_id
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.cli.arguments import DEFAULT_URL, UsageError, read_key, read_pairs, server_url

if TYPE_CHECKING:
    import pyarrow as pa
    from lance_namespace import LanceNamespace

    from airflow_provider_lance.api.arrow import ArrowData
    from airflow_provider_lance.api.http.wire import Wire
    from airflow_provider_lance.api.settings import Settings

#: Errors of the namespace as a whole, which would meet every other request as well.
_OF_ALL = frozenset(
    {ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.THROTTLING, ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED}
)
# A person waits for the answer: three tries take less than a second, the client's usual six take five.
_TRIES = 3


def connect(options: argparse.Namespace) -> Connection:
    """The namespace that a command line names."""
    if options.root is None:
        if options.storage_option:
            raise UsageError("--storage-option belongs to --root; a server has storage options of its own.")
        return connect_server(options)
    if options.key or options.key_file:
        raise UsageError("--key and --key-file belong to --url; a folder asks for no key.")
    return FolderConnection(options.root, read_pairs("--storage-option", options.storage_option))


def connect_server(options: argparse.Namespace) -> ServerConnection:
    """The server that a command line names; jobs need one."""
    if options.root is not None:
        raise ValueError(
            f"A folder runs no jobs. Start a server for it with `airflow-lance serve --root {options.root}`, and give "
            f"`--url {DEFAULT_URL}` instead of --root."
        )
    from airflow_provider_lance.api.http.retry import RetryPolicy
    from airflow_provider_lance.api.settings import Settings

    key, place = read_key(options)
    url = server_url(options)
    # `localhost:2333` has a port, which Settings takes for a part of the host's name.
    has_port = "://" not in url and urlsplit(f"//{url}").netloc.rpartition("]")[2].count(":") == 1
    return ServerConnection(
        Settings.from_connection(
            host=f"http://{url}" if has_port else url,
            password=key,
            credentials_place=place,
            retry=RetryPolicy(attempts=_TRIES),
        )
    )


class Connection(abc.ABC):
    """A namespace. ``place`` says where it is, for messages."""

    place: str

    def call(self, operation: str, **fields: object) -> JsonObject:
        """Run an operation; fields that are ``None`` are left out."""
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            return self.request(operation, given)
        except WireError as error:
            self._explain(error, given)
            raise

    def listing(self, operation: str, **fields: object) -> Iterator[Any]:
        """Every row of a listing, page by page."""
        from airflow_provider_lance.api.http.wire import Pages

        pages = Pages(OPERATIONS[operation], {name: value for name, value in fields.items() if value is not None})
        while pages.fields is not None:
            yield from pages.rows(self.call(operation, **pages.fields))

    @abc.abstractmethod
    def query(self, **fields: object) -> pa.Table:
        """Run ``query_table``."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the connection holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def request(self, operation: str, fields: JsonObject, data: ArrowData | None = None) -> JsonObject:
        """Run an operation, with Arrow data where it takes some; an error is as the namespace sent it."""

    def _explain(self, error: WireError, fields: JsonObject) -> None:
        """Reword an error about a name that does not exist, with the names that look like it."""
        named = parse_id(fields.get("id"))
        if error.code == ErrorCode.TABLE_NOT_FOUND and named:
            self._name_near(error, "table", join_id(named), "list_all_tables", {})
        elif error.code == ErrorCode.NAMESPACE_NOT_FOUND and named:
            self._name_near(error, "namespace", named[-1], "list_namespaces", {"id": named[:-1]})
        elif error.code == ErrorCode.TABLE_TAG_NOT_FOUND and fields.get("tag"):
            self._name_near(error, "tag", str(fields["tag"]), "list_table_tags", {"id": named})

    def _name_near(self, error: WireError, kind: str, name: str, listing: str, fields: JsonObject) -> None:
        from airflow_provider_lance.api.http.wire import Pages

        names: list[str] = []
        pages = Pages(OPERATIONS[listing], fields)
        try:
            while pages.fields is not None:
                rows = pages.rows(self.request(listing, dict(pages.fields)))
                names += [row[0] if isinstance(row, tuple) else str(row) for row in rows]
        except WireError:
            return
        if name not in names:  # otherwise something else is missing, and the error says what
            error.reason = no_such(kind, name, names)


class ServerConnection(Connection):
    """A namespace server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.place = settings.base_url

    @cached_property
    def wire(self) -> Wire:
        from airflow_provider_lance.api.http.wire import Wire

        return Wire(self.settings)

    def query(self, **fields: object) -> pa.Table:
        from airflow_provider_lance.api.arrow import read_arrow

        return read_arrow(self.call("query_table", **fields)["data"])

    def close(self) -> None:
        self.wire.close()

    def request(self, operation: str, fields: JsonObject, data: ArrowData | None = None) -> JsonObject:
        value = self.wire.call(operation, fields, data).value
        return value if isinstance(value, dict) else {"data": value}

    def _explain(self, error: WireError, fields: JsonObject) -> None:
        super()._explain(error, fields)
        row = OPERATIONS.get(error.operation)
        if error.status is None and error.reason.startswith("No answer: "):
            error.reason = f"{self.place} gave no answer: {error.reason.removeprefix('No answer: ')}"
            if self.place == DEFAULT_URL:
                error.reason += " Name another server with --url, or a folder with --root."
        elif error.code == ErrorCode.UNSUPPORTED and error.route_missing and row is not None and row.about_jobs:
            error.reason = (
                f"{self.place} executes no jobs; backfills and views need a server that does, such as `airflow-lance "
                "serve`."
            )


class FolderConnection(Connection):
    """A folder or bucket of tables. It is read by the namespace that ``airflow-lance serve`` serves."""

    def __init__(self, root: str, storage_options: dict[str, str]) -> None:
        self.place = root
        self._check_exists(root)
        self._properties = {"root": root, **{f"storage.{name}": value for name, value in storage_options.items()}}

    @staticmethod
    def _check_exists(root: str) -> None:
        """The namespace would create a local folder that is not there."""
        path = unquote(urlsplit(root).path) if root.startswith("file:") else root
        if "://" in path:
            return
        if not os.path.isdir(path):
            raise ValueError(f"There is no folder {root}.")
        if os.path.isdir(os.path.join(path, "_versions")):
            parent, name = os.path.split(os.path.abspath(path))
            raise ValueError(
                f"{root} is a table, not a folder of tables: give --root {parent} and the table's name "
                f"{name.removesuffix('.lance')}."
            )

    @cached_property
    def _namespace(self) -> LanceNamespace:
        from lance_namespace import connect

        return connect("airflow_provider_lance.namespace.SparkNamespace", self._properties)

    def query(self, **fields: object) -> pa.Table:
        from airflow_provider_lance.api.arrow import read_arrow

        return read_arrow(bytes(self.call("query_table", **fields)["data"]))

    def close(self) -> None:
        """A folder holds nothing open."""

    def request(self, operation: str, fields: JsonObject, data: ArrowData | None = None) -> JsonObject:
        from lance_namespace.errors import LanceNamespaceError

        from airflow_provider_lance.api.arrow import ArrowBody

        body = () if data is None else (b"".join(ArrowBody(data)),)
        try:
            answer = getattr(self._namespace, operation)(fields, *body)
        except LanceNamespaceError as error:
            code = ErrorCode(int(error.code))
            raise WireError(str(error), code=code, operation=operation) from None
        return answer.to_dict() if hasattr(answer, "to_dict") else {"data": answer}


def concerns_one(error: WireError) -> bool:
    """Whether an error is about one table or version, so that the others can still be shown."""
    return error.code not in _OF_ALL


def no_such(kind: str, name: str, names: Sequence[str]) -> str:
    """One sentence for a name that does not exist, and a question where some of ``names`` look like it."""
    lower = {known.lower(): known for known in names}
    # A shell replaces the end of an unquoted `sales$orders`, and people leave the namespace out.
    near = [known for known in names if known.startswith(name) or known.endswith(f"${name}")]
    near = near or [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.6)]
    return f"There is no {kind} {name}." + (f" Did you mean {' or '.join(near[:2])}?" if near else "")
