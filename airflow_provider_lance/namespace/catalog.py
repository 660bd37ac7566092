"""The tables under one root: pylance's directory namespace, asked so that it finds every one of them.

pylance looks for a root-level table in ``<name>.lance`` only, and there overlooks its properties and tables that were
registered from elsewhere. A second look at the same root that trusts its list alone finds those. Everything
else in this package asks here where a table is and opens it here.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

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
from airflow_provider_lance.engine.table import TableFiles, TableRef

if TYPE_CHECKING:
    import lance

_DIRECTORY = re.compile(r"[A-Za-z0-9_.+=@:,$ -]{1,250}")
_HASHED = re.compile(r"[0-9a-f]{8}_(.+)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# pylance's binding takes plain dicts for these, models for the rest; it answers in kind.
_PLAIN = frozenset({"create_table_version", "describe_table_version", "batch_delete_table_versions"})


@dataclass(frozen=True)
class TablePlace:
    """Where a table is. ``only_declared``: it has a name and a place, but no version yet."""

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
    """One root. Thread-safe: pylance's objects are, and what is remembered here is replaced as a whole."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None, **properties: str) -> None:
        import lance
        from lance.namespace import DirectoryNamespace

        self.root = plain_location(root)
        self.storage_options = dict(storage_options or {})
        self.session = lance.Session()
        if self.is_local:
            os.makedirs(self.root, exist_ok=True)
        settings = {f"storage.{key}": value for key, value in self.storage_options.items()}
        settings |= {"table_version_tracking_enabled": "true", **properties, "root": self.root}
        self._vends = any(key.startswith(("credential_vendor.", "vend_input_")) for key in properties)
        self._directory = DirectoryNamespace(session=self.session, **settings)
        self._listed = DirectoryNamespace(session=self.session, **{**settings, "dir_listing_enabled": "false"})
        self._bare = DirectoryNamespace(session=self.session, **{**settings, "manifest_enabled": "false"})
        self._remembered: tuple[int, dict[str, dict[str, str]]] = (0, {})

    @property
    def is_local(self) -> bool:
        return not _URL.match(self.root)

    def call(self, name: str, request: Any, data: bytes | None = None) -> Any:
        """Run one operation on pylance's namespace."""
        try:
            return _invoke(self._directory, name, request, data)
        except TableNotFoundError:
            if len(request.id or []) != 1 or not self.is_listed(request.id):
                raise
            return _invoke(self._listed, name, request, data)

    def forget(self, table_id: list[str]) -> Any:
        """Deregister a table: its name is free, its data stays."""
        place = self.locate(table_id)
        if self.is_listed(table_id):
            answer = _invoke(self._listed, "deregister_table", model("DeregisterTableRequest")(id=table_id))
        if self.in_own_directory(place):
            # The list forgot it, the directory is still there to be found: pylance's marker hides it.
            answer = _invoke(self._bare, "deregister_table", model("DeregisterTableRequest")(id=table_id))
        return answer

    def in_own_directory(self, place: TablePlace) -> bool:
        """Whether this is a root-level table that is found by its directory's name."""
        return len(place.id) == 1 and place.location == f"{self.root}/{place.id[0]}.lance"

    def directory_name(self, location: str) -> str:
        """The name of the directory below the root that a location is; ``InvalidInputError`` for any other place.

        Directly below: pylance looks for ``a%2Fb`` where a table is at ``a/b``, and drops its row but not its data.
        """
        inside = plain_location(location) if _URL.match(location) or os.path.isabs(location) else location
        name = inside.removeprefix(f"{self.root}/").rstrip("/")
        if not _DIRECTORY.fullmatch(name) or name != name.strip() or name in {".", "..", "__manifest"}:
            raise InvalidInputError(
                f"The location {location[:200]!r} cannot hold a table: name a directory directly below the root, with "
                "ASCII letters, digits, spaces inside and any of _ - . + = @ : , $."
            )
        return name

    def owner(self, directory: str) -> list[str] | None:
        """Whose directory that is by its name, whether or not there is such a table."""
        if directory.endswith(".lance"):
            return [directory.removesuffix(".lance")]
        hashed = _HASHED.fullmatch(directory)
        return hashed[1].split(DEFAULT_DELIMITER) if hashed else None

    def hide(self, directory: str) -> None:
        """Keep a directory ``<name>.lance`` from being found under that name: it is registered under another one."""
        name = directory.removesuffix(".lance")
        with contextlib.suppress(TableNotFoundError):  # hidden already
            _invoke(self._bare, "deregister_table", model("DeregisterTableRequest")(id=[name]))

    def locate(self, table_id: list[str], *, check_declared: bool = False, properties: bool = False) -> TablePlace:
        """Where a table is; ``TableNotFoundError`` if there is none of that name.

        Whether it is only declared and, at the root, its properties cost a look of their own: ask for them.
        """
        request = model("DescribeTableRequest")(id=table_id, check_declared=check_declared)
        try:
            found = _invoke(self._directory, "describe_table", request)
        except TableNotFoundError:
            if len(table_id) != 1:
                raise TableNotFoundError(f"There is no table {join_id(table_id)}.") from None
            found = None
        if found is None:
            try:
                found = _invoke(self._listed, "describe_table", request)
            except TableNotFoundError:
                raise TableNotFoundError(f"There is no table {join_id(table_id)}.") from None
        known = found.properties
        if known is None and properties and len(table_id) == 1:
            known = self._listed_properties(table_id[0])
        return TablePlace(
            tuple(table_id),
            plain_location(found.location),
            dict(known or {}),
            only_declared=bool(found.is_only_declared),
        )

    def _listed_properties(self, name: str) -> dict[str, str]:
        """The properties the namespace's list has of a root-level table.

        That look is a query of pylance's and takes longer than all the rest of a describe; opening the list to see
        whether it is still the same version takes a fiftieth of it.
        """
        import lance

        location, options = f"{self.root}/__manifest", self.storage_options or None
        try:
            version = int(lance.dataset(location, storage_options=options, session=self.session).version)
        except ValueError:  # nothing was ever listed
            return {}
        if self._remembered[0] != version:
            self._remembered = (version, {})
        remembered = self._remembered[1]
        if name not in remembered:
            try:
                answer = _invoke(self._listed, "describe_table", model("DescribeTableRequest")(id=[name]))
            except TableNotFoundError:
                return {}
            # Of a newer version than was looked at it may be, of an older one never: the next look drops it.
            remembered[name] = dict(answer.properties or {})
        return remembered[name]

    def find(self, table_id: list[str]) -> TablePlace | None:
        """The same with everything there is to know, or None."""
        try:
            return self.locate(table_id, check_declared=True, properties=True)
        except TableNotFoundError:
            return None

    def table(self, table_id: list[str], branch: str | None = None) -> TableRef:
        """A table as the engine's functions take it."""
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
        branch = branch if names_branch(branch) else None
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
        """The small files of a table, on whatever storage it is."""
        return TableRef(place.location, branch, dict(self.storage_options)).files()

    def vended(self, table_id: list[str]) -> dict[str, str] | None:
        """Temporary credentials for one table, where a credential vendor is configured; never our own."""
        if not self._vends:
            return None
        request = model("DescribeTableRequest")(id=table_id, vend_credentials=True)
        return self.call("describe_table", request).storage_options

    def require_namespace(self, namespace_id: list[str]) -> None:
        """``NamespaceNotFoundError`` unless it exists: pylance would create tables in one that does not."""
        if not namespace_id:
            return
        try:
            _invoke(self._directory, "namespace_exists", model("NamespaceExistsRequest")(id=namespace_id))
        except NamespaceNotFoundError:
            raise NamespaceNotFoundError(f"There is no namespace {join_id(namespace_id)}.") from None

    def listing(self, name: str, namespace_id: list[str], **fields: Any) -> list[str]:
        """Every name in a namespace (``list_tables`` or ``list_namespaces``), in order."""
        views = [self._directory, self._listed] if name == "list_tables" and not namespace_id else [self._directory]
        names: set[str] = set()
        for view in views:
            request = model(OPERATIONS[name].request or "")(id=namespace_id, **fields)
            while True:
                answer = _invoke(view, name, request)
                names.update(answer.tables if name == "list_tables" else answer.namespaces)
                if not answer.page_token:
                    break
                request.page_token = answer.page_token
        return sorted(names)

    def is_listed(self, table_id: list[str]) -> bool:
        """Whether the namespace's own list has the table, and not only its directory."""
        try:
            _invoke(self._listed, "table_exists", model("TableExistsRequest")(id=table_id))
        except TableNotFoundError:
            return False
        return True


def names_branch(branch: str | None) -> bool:
    """Whether a request's ``branch`` is another one than main."""
    return branch not in {None, "", "main"}


def plain_location(location: str) -> str:
    """A local location as an absolute path, any other as its URI; neither with a slash at the end."""
    if location.startswith("file:"):
        location = unquote(urlsplit(location).path)
    if not _URL.match(location):
        location = os.path.abspath(location)
    return location.rstrip("/") or "/"


def _invoke(directory: Any, name: str, request: Any, data: bytes | None = None) -> Any:
    operation = OPERATIONS[name]
    if name in _PLAIN:
        answer = getattr(directory, name)(request if isinstance(request, dict) else request.to_dict())
        return model(operation.response or "").from_dict(answer)
    method = getattr(directory, name)
    return method(request) if data is None else method(request, data)
