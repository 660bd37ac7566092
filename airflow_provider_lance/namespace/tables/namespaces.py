"""Namespaces, and which tables are in them: create, drop and list, with the modes and pages of the spec.

Each method is an operation of the wire by name, and takes its request model and returns its response model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DescribeNamespaceRequest,
    DropNamespaceRequest,
    DropNamespaceResponse,
    LanceNamespace,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
)
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    TableNotFoundError,
)

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.namespace.requests.values import cut_page, id_of, read_word
from airflow_provider_lance.namespace.tables.catalog import Catalog
from airflow_provider_lance.namespace.tables.table_writer import TableWriter


class Namespaces:
    """The tree of namespaces. ``before_drop`` is called with the id of each table before the first one is dropped."""

    def __init__(self, catalog: Catalog, before_drop: Callable[[list[str]], None]) -> None:
        self._catalog = catalog
        self._writer = TableWriter(catalog)
        self._before_drop = before_drop

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        mode = read_word("mode", request.mode, ("create", "exist_ok", "overwrite"))
        namespace_id = id_of(request)
        without_mode = request.model_copy(update={"mode": None})
        try:
            return self._catalog.run(LanceNamespace.create_namespace, without_mode)
        except NamespaceAlreadyExistsError:
            if mode == "create":
                raise
        try:
            self._catalog.require_namespace(namespace_id)
        except NamespaceNotFoundError:
            raise NamespaceAlreadyExistsError(
                f"{join_id(namespace_id)} is a table; a namespace needs another name."
            ) from None
        if mode == "overwrite":
            self._drop_with_tables(namespace_id)
            return self._catalog.run(LanceNamespace.create_namespace, without_mode)
        existing = self._catalog.run(LanceNamespace.describe_namespace, DescribeNamespaceRequest(id=namespace_id))
        return CreateNamespaceResponse(properties=existing.properties)

    def drop_namespace(self, request: DropNamespaceRequest) -> DropNamespaceResponse:
        mode = read_word("mode", request.mode, ("fail", "skip"))
        behavior = read_word("behavior", request.behavior, ("restrict", "cascade"))
        namespace_id = id_of(request)
        if not namespace_id:
            raise InvalidInputError("The root namespace cannot be dropped.")
        try:
            self._catalog.require_namespace(namespace_id)
        except NamespaceNotFoundError:
            if mode == "skip":
                return DropNamespaceResponse()
            raise
        if behavior == "cascade":
            return self._drop_with_tables(namespace_id)
        return self._catalog.run(LanceNamespace.drop_namespace, DropNamespaceRequest(id=namespace_id))

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        self._catalog.require_namespace(id_of(request))
        page, token = cut_page(self._catalog.namespace_names(id_of(request)), request.page_token, request.limit)
        return ListNamespacesResponse(namespaces=page, page_token=token)

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        self._catalog.require_namespace(id_of(request))
        names = self._table_names(id_of(request), request.include_declared)
        page, token = cut_page(names, request.page_token, request.limit)
        return ListTablesResponse(tables=page, page_token=token)

    def list_all_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        """List the tables of all namespaces by their joined ids."""
        names = sorted(join_id(table_id) for table_id in self.tables(include_declared=request.include_declared))
        page, token = cut_page(names, request.page_token, request.limit)
        return ListTablesResponse(tables=page, page_token=token)

    def tables(self, below: Sequence[str] = (), *, include_declared: bool | None = None) -> Iterator[list[str]]:
        """The ids of all tables below a namespace, depth first."""
        for namespace_id in self._namespaces(list(below)):
            for name in self._table_names(namespace_id, include_declared):
                yield [*namespace_id, name]

    def _namespaces(self, top: list[str]) -> Iterator[list[str]]:
        """The ids of a namespace and of all namespaces below it, parents before their children."""
        yield top
        for child in self._catalog.namespace_names(top):
            yield from self._namespaces([*top, child])

    def _table_names(self, namespace_id: list[str], include_declared: bool | None) -> list[str]:
        names = self._catalog.table_names(namespace_id, include_declared=include_declared)
        if include_declared is not False:
            return names
        # pylance applies the flag only to tables that it finds by their directories at the root.
        found = {name: self._catalog.find([*namespace_id, name]) for name in names}
        return [name for name, place in found.items() if place is not None and not place.only_declared]

    def _drop_with_tables(self, namespace_id: list[str]) -> DropNamespaceResponse:
        """Drop a namespace and everything in it. All tables are checked before the first one is dropped."""
        *below, last = reversed(list(self._namespaces(namespace_id)))
        tables = list(self.tables(namespace_id))
        for table_id in tables:
            self._before_drop(table_id)
        for table_id in tables:
            with contextlib.suppress(TableNotFoundError):  # Another request dropped it in the meantime.
                self._writer.remove(self._catalog.locate(table_id, check_declared=True))
        for child in below:
            self._catalog.run(LanceNamespace.drop_namespace, DropNamespaceRequest(id=child))
        return self._catalog.run(LanceNamespace.drop_namespace, DropNamespaceRequest(id=last))
