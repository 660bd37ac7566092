"""``CommitClient``: what Lance asks of a namespace that manages a table's versions, over plain data.

Lance takes any object with these methods. ``LanceClient`` has all operations, but importing its models takes longer
than a small job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_lance.api.errors import WireError, lance_error
from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.plain_data import JsonObject


class PlainAnswer(JsonObject):
    """An answer as Lance's Rust side reads it, which expects a model."""

    def model_dump(self, **_: object) -> JsonObject:
        return dict(self)


class CommitClient(Wire):
    """The part of ``LanceNamespace`` that a commit needs. Lance's Rust side sends requests as dictionaries."""

    def namespace_id(self) -> str:
        return repr(self)

    def describe_table(self, request: Mapping[str, Any]) -> PlainAnswer:
        return self._ask("describe_table", request)

    def list_table_versions(self, request: Mapping[str, Any]) -> PlainAnswer:
        return self._ask("list_table_versions", request)

    def describe_table_version(self, request: Mapping[str, Any]) -> PlainAnswer:
        return self._ask("describe_table_version", request)

    def create_table_version(self, request: Mapping[str, Any]) -> PlainAnswer:
        return self._ask("create_table_version", request)

    def _ask(self, name: str, request: Mapping[str, Any]) -> PlainAnswer:
        try:
            return PlainAnswer(self.call(name, dict(request)).value or {})
        except WireError as error:
            failure = lance_error(error)
        raise failure  # outside of the except block, because a chained frame could show a secret
