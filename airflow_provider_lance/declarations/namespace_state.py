"""What a namespace has: a table's columns and rules, a view's definition, and a table's indices, of any server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.api.versions import WITH_VERSION, version_of
from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec
from airflow_provider_lance.definitions.view_definition import (
    AUTO_REFRESH_KEY,
    DEFINITION_KEY,
    POLICY_KEY,
    ViewDefinition,
)

if TYPE_CHECKING:
    from airflow_provider_lance.api.arrow import ArrowData

_MISSING = (ErrorCode.TABLE_NOT_FOUND, ErrorCode.NAMESPACE_NOT_FOUND)


class Namespace(Protocol):
    """How an operation is called: by its name, with its fields and Arrow data. Errors are ``WireError``."""

    def call(self, operation: str, fields: Mapping[str, object], data: ArrowData | None = None) -> JsonObject: ...


@dataclass(frozen=True)
class TableState:
    """A table as its server describes it. A table that was only declared has no version and no columns."""

    id: tuple[str, ...]
    version: int | None
    fields: Sequence[JsonObject]
    metadata: Mapping[str, str]
    answer: JsonObject

    @property
    def rules(self) -> dict[str, dict[str, str]]:
        """The metadata of each column, which holds its rule."""
        return column_rules(self.answer)

    @property
    def is_view(self) -> bool:
        return DEFINITION_KEY in self.metadata

    @property
    def rows(self) -> int | None:
        """The number of rows, where the server tells it."""
        told = str((self.answer.get("metadata") or {}).get("total_rows", ""))
        return int(told) if told.isdecimal() else None


def column_rules(described: JsonObject) -> dict[str, dict[str, str]]:
    """The metadata of each column of a described table, which holds its rule."""
    fields = (described.get("schema") or {}).get("fields") or []
    return {field["name"]: field.get("metadata") or {} for field in fields}


def read_table(namespace: Namespace, table_id: Sequence[str]) -> TableState | None:
    """The table; ``None`` if there is none."""
    try:
        answer = namespace.call("describe_table", {"id": list(table_id), **WITH_VERSION})
    except WireError as error:
        if error.code in _MISSING:
            return None
        raise
    schema = answer.get("schema") or {}
    return TableState(
        tuple(table_id), version_of(answer), schema.get("fields") or [], schema.get("metadata") or {}, answer
    )


def read_view(namespace: Namespace, state: TableState) -> ViewDefinition | None:
    """The definition of a view, read without a parser; ``None`` for a table that is no view.

    The definition is in the metadata of the view's schema. A server that does not show it is asked for the query.
    """
    if state.is_view:
        try:
            body = json.loads(state.metadata[DEFINITION_KEY])
        except ValueError:
            body = {}
        if isinstance(body, dict) and isinstance(body.get("query"), str):
            return ViewDefinition(
                kind=str(body.get("kind") or "query"),
                query=body["query"],
                dialect="opaque",
                output_schema=body.get("output_schema"),
                udtf=UdtfSpec.from_dict(body["udtf_spec"]) if body.get("udtf_spec") else None,
                auto_refresh=state.metadata.get(AUTO_REFRESH_KEY) == "true",
                refresh_policy=state.metadata.get(POLICY_KEY),
            )
    try:
        described = namespace.call("describe_materialized_view", {"id": list(state.id)})
    except WireError as error:
        if error.missing:
            return None
        raise
    return ViewDefinition(
        kind=str(described.get("kind") or "query"),
        query=str(described.get("query") or ""),
        dialect="opaque",
        auto_refresh=bool(described.get("auto_refresh")),
        refresh_policy=described.get("refresh_policy"),
    )


def read_indices(namespace: Namespace, table_id: Sequence[str]) -> list[JsonObject]:
    """The indices of a table, as the server lists them."""
    return list_rows(namespace, "list_table_indices", {"id": list(table_id)})


def namespace_exists(namespace: Namespace, namespace_id: Sequence[str]) -> bool:
    try:
        namespace.call("namespace_exists", {"id": list(namespace_id)})
    except WireError as error:
        if error.code == ErrorCode.NAMESPACE_NOT_FOUND:
            return False
        raise
    return True


def list_rows(namespace: Namespace, operation: str, fields: Mapping[str, object]) -> list[Any]:
    """Every row of a listing, page by page."""
    from airflow_provider_lance.api.http.wire import Pages

    pages, found = Pages(OPERATIONS[operation], fields), []
    while pages.fields is not None:
        found += pages.rows(namespace.call(operation, pages.fields))
    return found
