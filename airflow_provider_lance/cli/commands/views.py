"""``views``: the materialized views of a namespace, what they read, and how far they are behind their sources."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id, parse_id
from airflow_provider_lance.api.jobs import counted
from airflow_provider_lance.cli.arguments import add_command, json_argument, namespace_arguments
from airflow_provider_lance.cli.output import local_time, note, print_json, print_table

if TYPE_CHECKING:
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import Connection
    from airflow_provider_lance.cli.table_description import TableDescription


def add_commands(commands: Subparsers) -> None:
    views = add_command(
        commands,
        "views",
        _views,
        parents=[namespace_arguments(), json_argument()],
        help="list the materialized views of a namespace, and how far they are behind their sources",
        example="airflow-lance views --root ./lake",
    )
    views.add_argument("namespace", nargs="?", default="", help="such as sales (default: the root namespace)")


@dataclass(frozen=True)
class Source:
    """A table that a view reads. ``refreshed_version`` is the one the view has the rows of, ``version`` the newest."""

    name: str
    refreshed_version: int | None
    version: int | None

    @property
    def lag(self) -> str:
        """How far the view is behind this source, in words."""
        if self.refreshed_version is None:
            return "never refreshed"
        if self.version is None:
            return f"refreshed from version {self.refreshed_version}; the table is gone"
        behind = self.version - self.refreshed_version
        if behind == 0:
            return f"up to date with version {self.version}"
        return f"{counted(behind, 'version')} behind: refreshed from version {self.refreshed_version} of {self.version}"


@dataclass(frozen=True)
class ViewDescription:
    """A view's definition, and its sources."""

    name: str
    answer: JsonObject
    sources: list[Source]
    refreshed_ms: int | None

    @property
    def function(self) -> str:
        udtf = self.answer.get("udtf") or {}
        return f"{udtf.get('name')} version {udtf.get('version')}" if udtf else ""

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "kind": self.answer.get("kind"),
            "query": self.answer.get("query"),
            "function": self.answer.get("udtf"),
            "auto_refresh": self.answer.get("auto_refresh"),
            "refreshed_ms": self.refreshed_ms,
            "sources": [
                {"table": source.name, "refreshed_version": source.refreshed_version, "version": source.version}
                for source in self.sources
            ],
        }


def describe_view(connection: Connection, table: TableDescription) -> ViewDescription:
    from airflow_provider_lance.storage.view_state import REFRESHED_AT

    answer = connection.call("describe_materialized_view", id=table.id)
    refreshed = str(table.metadata.get(REFRESHED_AT, ""))
    return ViewDescription(
        name=table.name,
        answer=answer,
        sources=[_source(connection, source) for source in answer.get("sources") or []],
        refreshed_ms=int(refreshed) if refreshed.isdecimal() else None,
    )


def _source(connection: Connection, source: JsonObject) -> Source:
    table_id = source.get("table_id")
    version: int | None = None
    if table_id:
        try:
            version = connection.call("describe_table", id=table_id).get("version")
        except WireError as error:
            if not error.missing:
                raise
    return Source(join_id(table_id) if table_id else str(source["name"]), source.get("version"), version)


def view_facts(view: ViewDescription) -> Iterator[tuple[str, str]]:
    """What ``show`` tells of a view besides its table."""
    yield "query", str(view.answer.get("query") or "")
    yield "function", view.function
    yield "sources", "\n".join(f"{source.name}: {source.lag}" for source in view.sources)
    yield "refreshed", local_time(view.refreshed_ms) or "never"
    yield "auto_refresh", "yes" if view.answer.get("auto_refresh") else ""


def _views(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.cli.table_description import describe_tables

    namespace = parse_id(options.namespace)
    with connect(options) as connection:
        names = [str(name) for name in connection.listing("list_materialized_views", id=namespace)]
        tables = describe_tables(connection, [[*namespace, parse_id(name)[-1]] for name in names])
        found = [(table, describe_view(connection, table)) for table in tables]
    if options.json:
        print_json([{**table.to_json(), **view.to_json(), "kind": view.answer.get("kind")} for table, view in found])
    elif not found:
        where = f"namespace {options.namespace}" if namespace else "root namespace"
        note(f"There are no materialized views in the {where} of {connection.place}.")
    else:
        print_table(
            ("NAME", "ROWS", "VERSION", "SOURCES", "REFRESHED", "QUERY"),
            [_view_row(table, view) for table, view in found],
            right=("ROWS", "VERSION"),
        )


def _view_row(table: TableDescription, view: ViewDescription) -> list[str]:
    sources = "; ".join(f"{source.name}: {source.lag}" for source in view.sources)
    function = f" with {view.function}" if view.function else ""
    return [
        table.name,
        "" if table.rows is None else f"{table.rows:,}",
        "" if table.version is None else str(table.version),
        sources,
        local_time(view.refreshed_ms),
        f"{view.answer.get('query') or ''}{function}",
    ]
