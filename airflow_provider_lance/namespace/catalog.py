"""The tables under one root: pylance's directory namespace, asked so that it finds every one of them.

pylance looks for a root-level table in ``<name>.lance`` only, and there overlooks its properties and tables that were
registered from elsewhere. A second look at the same root that trusts its list alone finds those. Everything
else in this package asks here where a table is and opens it here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.engine.table import TableFiles, TableRef

if TYPE_CHECKING:
    import lance

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
    """One root. Thread-safe: pylance's objects are, and nothing here changes after construction."""

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

    @property
    def is_local(self) -> bool:
        return not _URL.match(self.root)

    def call(self, name: str, request: Any, data: bytes | None = None) -> Any:
        """Run one operation on pylance's namespace."""
        try:
            return _invoke(self._directory, name, request, data)
        except TableNotFoundError:
            if len(request.id or []) != 1 or not self._is_listed(request.id):
                raise
            return _invoke(self._listed, name, request, data)

    def forget(self, table_id: list[str]) -> Any:
        """Deregister a table: its name is free, its data stays."""
        place = self.locate(table_id)
        if self._is_listed(table_id):
            answer = _invoke(self._listed, "deregister_table", model("DeregisterTableRequest")(id=table_id))
        if self.in_own_directory(place):
            # The list forgot it, the directory is still there to be found: pylance's marker hides it.
            answer = _invoke(self._bare, "deregister_table", model("DeregisterTableRequest")(id=table_id))
        return answer

    def in_own_directory(self, place: TablePlace) -> bool:
        """Whether this is a root-level table that is found by its directory's name."""
        return len(place.id) == 1 and place.location == f"{self.root}/{place.id[0]}.lance"

    def relative(self, location: str) -> str:
        """A location as a path below the root; ``InvalidInputError`` for any other."""
        inside = plain_location(location) if _URL.match(location) or os.path.isabs(location) else location
        inside = inside.removeprefix(f"{self.root}/").rstrip("/")
        steps = inside.split("/")
        if _URL.match(inside) or inside.startswith("/") or any(step in {"", ".", ".."} for step in steps):
            raise InvalidInputError(f"The location {location!r} is not inside this namespace's root.")
        if steps[0] == "__manifest" or not all(step.isprintable() for step in steps) or len(inside) > 1024:
            raise InvalidInputError(f"The location {location[:60]!r} cannot hold a table.")
        return inside

    def locate(self, table_id: list[str], *, check_declared: bool = False) -> TablePlace:
        """Where a table is; ``TableNotFoundError`` if there is none of that name."""
        request = model("DescribeTableRequest")(id=table_id, check_declared=check_declared)
        try:
            found = _invoke(self._directory, "describe_table", request)
        except TableNotFoundError:
            if len(table_id) != 1:
                raise TableNotFoundError(f"There is no table {join_id(table_id)}.") from None
            found = None
        properties = dict(found.properties or {}) if found is not None else {}
        if len(table_id) == 1 and (found is None or found.properties is None):
            try:
                listed = _invoke(self._listed, "describe_table", request)
            except TableNotFoundError:
                if found is None:
                    raise TableNotFoundError(f"There is no table {join_id(table_id)}.") from None
            else:
                found = found or listed
                properties = dict(listed.properties or {})
        place = TablePlace(
            tuple(table_id), plain_location(found.location), properties, only_declared=bool(found.is_only_declared)
        )
        if place.only_declared and "/" in place.location.removeprefix(f"{self.root}/"):
            # pylance looks for "a%2Fb" when a registered table is at "a/b", and finds nothing there.
            return replace(place, only_declared=not self.files(place).names("_versions"))
        return place

    def find(self, table_id: list[str]) -> TablePlace | None:
        """The same, or None; tells whether the table is only declared."""
        try:
            return self.locate(table_id, check_declared=True)
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

    def _is_listed(self, table_id: list[str]) -> bool:
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
