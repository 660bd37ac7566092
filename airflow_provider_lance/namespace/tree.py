"""The tree of namespaces and tables: make, drop and list, with the modes and pages the spec promises.

Methods are operations of the wire by name; each takes its request model and returns its response model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    TableNotFoundError,
)

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.models import model
from airflow_provider_lance.namespace.catalog import Catalog, TablePlace


class Tree:
    """Namespaces, and which tables are in them. ``before_drop`` is called with a table's id before ``remove``."""

    def __init__(
        self, catalog: Catalog, before_drop: Callable[[list[str]], None], remove: Callable[[TablePlace], None]
    ) -> None:
        self._catalog = catalog
        self._before_drop = before_drop
        self._remove = remove

    def create_namespace(self, request: Any) -> Any:
        mode = read_word("mode", request.mode, ("create", "exist_ok", "overwrite"))
        plain = request.model_copy(update={"mode": None})
        try:
            return self._catalog.call("create_namespace", plain)
        except NamespaceAlreadyExistsError:
            if mode == "create":
                raise
        try:
            self._catalog.require_namespace(request.id)
        except NamespaceNotFoundError:
            raise NamespaceAlreadyExistsError(
                f"{join_id(request.id)} is a table; a namespace needs another name."
            ) from None
        if mode == "overwrite":
            self._drop(list(request.id))
            return self._catalog.call("create_namespace", plain)
        described = self._catalog.call("describe_namespace", model("DescribeNamespaceRequest")(id=request.id))
        return model("CreateNamespaceResponse")(properties=described.properties)

    def drop_namespace(self, request: Any) -> Any:
        mode = read_word("mode", request.mode, ("fail", "skip"))
        behavior = read_word("behavior", request.behavior, ("restrict", "cascade"))
        if not request.id:
            raise InvalidInputError("The root namespace cannot be dropped.")
        try:
            self._catalog.require_namespace(request.id)
        except NamespaceNotFoundError:
            if mode == "skip":
                return model("DropNamespaceResponse")()
            raise
        if behavior == "cascade":
            return self._drop(list(request.id))
        return self._catalog.call("drop_namespace", model("DropNamespaceRequest")(id=request.id))

    def list_namespaces(self, request: Any) -> Any:
        self._catalog.require_namespace(request.id or [])
        names = self._catalog.listing("list_namespaces", request.id or [])
        page, token = cut_page(names, request.page_token, request.limit)
        return model("ListNamespacesResponse")(namespaces=page, page_token=token)

    def list_tables(self, request: Any) -> Any:
        self._catalog.require_namespace(request.id or [])
        names = self._names(request.id or [], request.include_declared)
        page, token = cut_page(names, request.page_token, request.limit)
        return model("ListTablesResponse")(tables=page, page_token=token)

    def list_all_tables(self, request: Any) -> Any:
        """Every table of every namespace, as joined ids."""
        names = sorted(join_id(table_id) for table_id in self.tables(include_declared=request.include_declared))
        page, token = cut_page(names, request.page_token, request.limit)
        return model("ListTablesResponse")(tables=page, page_token=token)

    def tables(self, below: Sequence[str] = (), *, include_declared: bool | None = None) -> Iterator[list[str]]:
        """The ids of all tables below a namespace, depth first."""
        for namespace_id in self._namespaces(list(below)):
            for name in self._names(namespace_id, include_declared):
                yield [*namespace_id, name]

    def _namespaces(self, top: list[str]) -> Iterator[list[str]]:
        """A namespace and all below it, each before its own."""
        yield top
        for child in self._catalog.listing("list_namespaces", top):
            yield from self._namespaces([*top, child])

    def _names(self, namespace_id: list[str], include_declared: bool | None) -> list[str]:
        names = self._catalog.listing("list_tables", namespace_id, include_declared=include_declared)
        if include_declared is not False:
            return names
        # pylance honours the flag at the root's directories only.
        found = {name: self._catalog.find([*namespace_id, name]) for name in names}
        return [name for name, place in found.items() if place is not None and not place.only_declared]

    def _drop(self, namespace_id: list[str]) -> Any:
        """A namespace with all that is in it: what speaks against that is found before the first table goes."""
        *below, last = reversed(list(self._namespaces(namespace_id)))
        tables = list(self.tables(namespace_id))
        for table_id in tables:
            self._before_drop(table_id)
        for table_id in tables:
            with contextlib.suppress(TableNotFoundError):  # others may drop as well
                self._remove(self._catalog.locate(table_id, check_declared=True))
        for child in below:
            self._catalog.call("drop_namespace", model("DropNamespaceRequest")(id=child))
        return self._catalog.call("drop_namespace", model("DropNamespaceRequest")(id=last))


def read_word(name: str, value: str | None, words: tuple[str, ...]) -> str:
    """One of the spec's words, in any case, PascalCase or snake_case; the first is the default."""
    wanted = (value or words[0]).replace("_", "").lower()
    for word in words:
        if word.replace("_", "") == wanted:
            return word
    raise InvalidInputError(f"{name} is {value!r}; it must be one of {', '.join(words)}.")


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit is {limit}; it must be at least 1.")


def cut_page(names: list[str], token: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """The names after ``token`` (the last one of the page before), and the token of the page after, if there is one."""
    check_limit(limit)
    rest = [name for name in names if not token or name > token]
    if limit is None or len(rest) <= limit:
        return rest, None
    return rest[:limit], rest[limit - 1]
