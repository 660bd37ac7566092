"""The tables under one root: where each of them is, and how it is opened.

pylance's directory namespace looks for a root-level table in ``<name>.lance`` only. There it misses the table's
properties, and it misses tables that were registered from another directory. A second directory namespace on the same
root that reads nothing but the list of tables finds those. All other modules locate and open tables here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from lance_namespace import (
    DeregisterTableRequest,
    DescribeTableRequest,
    DescribeTableResponse,
    LanceNamespace,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    TableExistsRequest,
)
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, join_id
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.storage.table import TableFiles, TableRef

if TYPE_CHECKING:
    import lance

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

_DIRECTORY = re.compile(r"[A-Za-z0-9_.+=@:,$ -]{1,250}")
_HASHED = re.compile(r"[0-9a-f]{8}_(.+)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True)
class TablePlace:
    """Where a table is. A table that is ``only_declared`` has a name and a place, but no version yet."""

    id: tuple[str, ...]
    location: str
    properties: dict[str, str] = field(default_factory=dict)
    only_declared: bool = False

    @property
    def name(self) -> str:
        return join_id(self.id)

    @property
    def path(self) -> str:
        """The directory as Lance names paths inside an object store: no scheme, no bucket, no leading slash."""
        parts = urlsplit(self.location) if _URL.match(self.location) else None
        return (unquote(parts.path) if parts else self.location).strip("/")


class Catalog:
    """The tables of one root. Threads may share it: pylance's objects are thread-safe, as is the cache here."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None, **properties: str) -> None:
        import lance

        self.root = plain_location(root)
        self.storage_options = dict(storage_options or {})
        self.session = lance.Session()  # type: ignore[attr-defined]
        if self.is_local:
            os.makedirs(self.root, exist_ok=True)
        settings = {f"storage.{key}": value for key, value in self.storage_options.items()}
        settings |= {"table_version_tracking_enabled": "true", **properties, "root": self.root}
        self._vends = any(key.startswith(("credential_vendor.", "vend_input_")) for key in properties)
        self._directory = _directory_namespace(self.session, settings)
        self._listed = _directory_namespace(self.session, settings | {"dir_listing_enabled": "false"})
        self._unlisted = _directory_namespace(self.session, settings | {"manifest_enabled": "false"})
        # The version of the list of tables, and the properties that were read of it by the names of root-level tables.
        self._properties: tuple[int, dict[str, dict[str, str]]] = (0, {})

    @property
    def is_local(self) -> bool:
        return not _URL.match(self.root)

    def run(self, operation: Callable[[LanceNamespace, _Request], _Response], request: _Request) -> _Response:
        """Run an operation of pylance's namespace, which is given as a method of ``LanceNamespace``."""
        response: _Response = self.call(operation.__name__, request)
        return response

    def run_with_data(
        self, operation: Callable[[LanceNamespace, _Request, bytes], _Response], request: _Request, data: bytes
    ) -> _Response:
        """Run an operation that takes an Arrow IPC stream beside its request."""
        response: _Response = self.call(operation.__name__, request, data)
        return response

    def call(self, name: str, request: Any, data: bytes | None = None) -> Any:
        """Run an operation of pylance's namespace by its name."""
        try:
            return _invoke(self._directory, name, request, data)
        except TableNotFoundError:
            if len(request.id or []) != 1 or not self.is_listed(request.id):
                raise
            return _invoke(self._listed, name, request, data)

    def deregister(self, table_id: list[str]) -> None:
        """Free a table's name and keep its data."""
        place = self.locate(table_id)
        if self.is_listed(table_id):
            _invoke(self._listed, "deregister_table", DeregisterTableRequest(id=table_id))
        if self.in_own_directory(place):
            # The table is no longer listed, but its directory is still found by its name until pylance marks it.
            _invoke(self._unlisted, "deregister_table", DeregisterTableRequest(id=table_id))

    def in_own_directory(self, place: TablePlace) -> bool:
        """Whether this is a root-level table that is found by its directory's name."""
        return len(place.id) == 1 and place.location == f"{self.root}/{place.id[0]}.lance"

    def directory_name(self, location: str) -> str:
        """The name of the directory below the root that a location is; ``InvalidInputError`` for any other place.

        It must be directly below the root, because pylance looks for ``a%2Fb`` where a table is at ``a/b``, and drops
        the table's entry but not its data.
        """
        inside = plain_location(location) if _URL.match(location) or os.path.isabs(location) else location
        name = inside.removeprefix(f"{self.root}/").rstrip("/")
        if not _DIRECTORY.fullmatch(name) or name != name.strip() or name in {".", "..", "__manifest"}:
            raise InvalidInputError(
                f"The location {location[:200]!r} cannot hold a table: name a directory directly below the root, with "
                "ASCII letters, digits, spaces inside and any of _ - . + = @ : , $."
            )
        return name

    def owner_of(self, directory: str) -> list[str] | None:
        """The id of the table that a directory belongs to by its name, whether or not that table exists."""
        if directory.endswith(".lance"):
            return [directory.removesuffix(".lance")]
        hashed = _HASHED.fullmatch(directory)
        return hashed[1].split(DEFAULT_DELIMITER) if hashed else None

    def hide(self, directory: str) -> None:
        """Keep a directory ``<name>.lance`` from being found by that name, since it is registered under another."""
        name = directory.removesuffix(".lance")
        with contextlib.suppress(TableNotFoundError):  # The directory is hidden already.
            _invoke(self._unlisted, "deregister_table", DeregisterTableRequest(id=[name]))

    def locate(self, table_id: list[str], *, check_declared: bool = False, properties: bool = False) -> TablePlace:
        """Where a table is; ``TableNotFoundError`` if there is none of that name.

        ``check_declared`` and, at the root, ``properties`` each cost a request to the storage.
        """
        request = DescribeTableRequest(id=table_id, check_declared=check_declared)
        found: DescribeTableResponse | None = None
        for namespace in (self._directory, self._listed) if len(table_id) == 1 else (self._directory,):
            with contextlib.suppress(TableNotFoundError):
                found = _invoke(namespace, "describe_table", request)
                break
        if found is None:
            raise TableNotFoundError(f"There is no table {join_id(table_id)}.")
        known = found.properties
        if known is None and properties and len(table_id) == 1:
            known = self._listed_properties(table_id[0])
        return TablePlace(
            tuple(table_id),
            plain_location(found.location or ""),
            dict(known or {}),
            only_declared=bool(found.is_only_declared),
        )

    def _listed_properties(self, name: str) -> dict[str, str]:
        """The properties that the list of tables has for a root-level table.

        pylance answers this with a query that takes longer than the rest of a describe. Opening the list to compare
        its version takes a fiftieth of that.
        """
        import lance

        location, options = f"{self.root}/__manifest", self.storage_options or None
        try:
            version = int(lance.dataset(location, storage_options=options, session=self.session).version)
        except ValueError:  # There is no list before the first table is listed.
            return {}
        if self._properties[0] != version:
            self._properties = (version, {})
        known = self._properties[1]
        if name not in known:
            try:
                answer: DescribeTableResponse = _invoke(self._listed, "describe_table", DescribeTableRequest(id=[name]))
            except TableNotFoundError:
                return {}
            # The list may have got a newer version since it was opened, never an older one. The next call sees that.
            known[name] = dict(answer.properties or {})
        return known[name]

    def find(self, table_id: list[str]) -> TablePlace | None:
        """Where a table is, whether it is only declared, and its properties; None if there is no such table."""
        try:
            return self.locate(table_id, check_declared=True, properties=True)
        except TableNotFoundError:
            return None

    def table(self, table_id: list[str], branch: str | None = None) -> TableRef:
        """A table as the functions of ``storage`` take it."""
        return TableRef(self.locate(table_id).location, branch, dict(self.storage_options))

    def open(
        self,
        table_id: list[str],
        *,
        version: int | None = None,
        branch: str | None = None,
        tag: str | None = None,
        place: TablePlace | None = None,
    ) -> lance.LanceDataset:
        """Open a table at its newest or the named version, branch or tag; each missing one has its own error."""
        import lance

        if tag is not None and (version is not None or branch is not None):
            raise InvalidInputError("Name a tag, or a version and a branch, not both.")
        place = place or self.locate(table_id)
        branch = other_branch(branch)
        options = self.storage_options or None
        try:
            head = lance.dataset(place.location, storage_options=options, session=self.session)
        except ValueError as error:
            if "was not found" not in str(error):
                raise
            raise TableNotFoundError(f"Table {place.name} is declared, but has no data yet.") from None
        if tag is not None and tag not in head.tags.list():
            raise TableTagNotFoundError(f"Table {place.name} has no tag {tag!r}.")
        if branch is not None and branch not in head.branches.list():
            raise TableBranchNotFoundError(f"Table {place.name} has no branch {branch!r}.")
        if tag is None and branch is None and (version is None or version == head.version):
            return head
        try:
            return head.checkout_version(tag if tag is not None else (branch, version))
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            raise TableVersionNotFoundError(f"Table {place.name} has no version {version}.") from None

    def files(self, place: TablePlace, branch: str | None = None) -> TableFiles:
        """The small files of a table or of one of its branches."""
        return TableRef(place.location, other_branch(branch), dict(self.storage_options)).files()

    def vended(self, table_id: list[str]) -> dict[str, str] | None:
        """Temporary credentials for one table, where a credential vendor is configured; never the server's own."""
        if not self._vends:
            return None
        request = DescribeTableRequest(id=table_id, vend_credentials=True)
        return self.run(LanceNamespace.describe_table, request).storage_options

    def require_namespace(self, namespace_id: list[str]) -> None:
        """``NamespaceNotFoundError`` unless it exists: pylance would create tables in one that does not."""
        if not namespace_id:
            return
        try:
            _invoke(self._directory, "namespace_exists", NamespaceExistsRequest(id=namespace_id))
        except NamespaceNotFoundError:
            raise NamespaceNotFoundError(f"There is no namespace {join_id(namespace_id)}.") from None

    def table_names(self, namespace_id: list[str], *, include_declared: bool | None = None) -> list[str]:
        """The names of all tables in a namespace, in order."""
        names: set[str] = set()
        for namespace in (self._directory,) if namespace_id else (self._directory, self._listed):
            request = ListTablesRequest(id=namespace_id, include_declared=include_declared)
            while True:
                answer = namespace.list_tables(request)
                names.update(answer.tables)
                if not answer.page_token:
                    break
                request.page_token = answer.page_token
        return sorted(names)

    def namespace_names(self, namespace_id: list[str]) -> list[str]:
        """The names of all namespaces in a namespace, in order."""
        names: set[str] = set()
        request = ListNamespacesRequest(id=namespace_id)
        while True:
            answer = self._directory.list_namespaces(request)
            names.update(answer.namespaces)
            if not answer.page_token:
                return sorted(names)
            request.page_token = answer.page_token

    def is_listed(self, table_id: list[str]) -> bool:
        """Whether the list of tables has the table, and not only its directory."""
        try:
            _invoke(self._listed, "table_exists", TableExistsRequest(id=table_id))
        except TableNotFoundError:
            return False
        return True


def names_branch(branch: str | None) -> bool:
    """Whether a request's ``branch`` is another one than main."""
    return branch not in {None, "", "main"}


def other_branch(branch: str | None) -> str | None:
    """A request's ``branch``, or None where it is main."""
    return branch if names_branch(branch) else None


def plain_location(location: str) -> str:
    """A local location as an absolute path, any other as its URI; neither ends with a slash."""
    if location.startswith("file:"):
        location = unquote(urlsplit(location).path)
    if not _URL.match(location):
        location = os.path.abspath(location)
    return location.rstrip("/") or "/"


def _directory_namespace(session: object, settings: Mapping[str, str]) -> LanceNamespace:
    from lance.namespace import DirectoryNamespace

    return DirectoryNamespace(session=session, **settings)  # type: ignore[no-untyped-call]


def _invoke(namespace: LanceNamespace, name: str, request: Any, data: bytes | None = None) -> Any:
    method = getattr(namespace, name)
    operation = OPERATIONS[name]
    if operation.pylance_takes_dict:
        return model(operation.response or "").from_dict(method(request.to_dict()))
    return method(request) if data is None else method(request, data)
