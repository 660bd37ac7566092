"""``tables``, ``show`` and ``columns``: which tables there are, and what one of them is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import join_id, parse_id
from airflow_provider_lance.api.jobs import counted
from airflow_provider_lance.cli.arguments import TABLE_HELP, add_command, json_argument, namespace_arguments
from airflow_provider_lance.cli.output import byte_size, local_time, note, print_facts, print_json, print_table

if TYPE_CHECKING:
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import Connection
    from airflow_provider_lance.cli.table_description import Column, TableDescription

_NOT_STABLE = "not stable: a view over this table computes all rows at every refresh"
_COLUMN_HEADER = ("COLUMN", "TYPE", "NULLABLE", "RULE")


def add_commands(commands: Subparsers) -> None:
    shared = [namespace_arguments(), json_argument()]
    tables = add_command(
        commands,
        "tables",
        _tables,
        parents=shared,
        help="list the tables and views of a namespace",
        example="airflow-lance tables --root ./lake",
    )
    tables.add_argument("namespace", nargs="?", default="", help="such as sales (default: the root namespace)")
    tables.add_argument("--all", action="store_true", help="of all namespaces")
    show = add_command(
        commands,
        "show",
        _show,
        parents=shared,
        help="everything about a table or view: columns, rules, rows, versions, tags, indices, sources",
        example="airflow-lance show articles --root ./lake",
    )
    show.add_argument("table", help=TABLE_HELP)
    columns = add_command(
        commands,
        "columns",
        _columns,
        parents=shared,
        help="the columns of a table, with their types and rules",
        example="airflow-lance columns articles --root ./lake",
    )
    columns.add_argument("table", help=TABLE_HELP)


def _tables(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.cli.table_description import describe_tables

    namespace = parse_id(options.namespace)
    with connect(options) as connection:
        namespaces: list[str] = []
        if options.all:
            ids = [parse_id(name) for name in connection.listing("list_all_tables")]
            ids = [table_id for table_id in ids if table_id[: len(namespace)] == namespace]
        else:
            ids = [[*namespace, parse_id(name)[-1]] for name in connection.listing("list_tables", id=namespace)]
            namespaces = _namespaces_below(connection, namespace)
        found = describe_tables(connection, sorted(ids))
    if options.json:
        print_json({"tables": [table.to_json() for table in found], "namespaces": namespaces})
        return
    where = f"namespace {options.namespace}" if namespace else "root namespace"
    if found:
        print_table(
            ("NAME", "KIND", "ROWS", "VERSION", "COLUMNS", "SIZE"),
            [_table_row(table) for table in found],
            right=("ROWS", "VERSION", "COLUMNS", "SIZE"),
        )
    else:
        note(f"There are no tables in the {where} of {connection.place}.")
    for table in found:
        if table.problem:
            note(f"{table.name} cannot be described: {table.problem}")
    if namespaces:
        note(f"Namespaces in the {where}: {', '.join(namespaces)}. `tables --all` lists their tables too.")


def _namespaces_below(connection: Connection, namespace: list[str]) -> list[str]:
    try:
        names = list(connection.listing("list_namespaces", id=namespace))
    except WireError:  # a server without namespaces
        return []
    return [join_id([*namespace, parse_id(name)[-1]]) for name in names]


def _table_row(table: TableDescription) -> list[str]:
    if table.version is None:
        return [table.name, table.kind, "", "", "", ""]
    size = "" if table.bytes is None else byte_size(table.bytes)
    rows = "" if table.rows is None else f"{table.rows:,}"
    return [table.name, table.kind, rows, str(table.version), str(len(table.columns)), size]


def _show(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.commands.versions import read_tags
    from airflow_provider_lance.cli.commands.views import describe_view, view_facts
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.cli.table_description import describe_table

    table_id = parse_id(options.table)
    with connect(options) as connection:
        table = describe_table(connection, table_id)
        if table.version is None:
            _show_declared(table, options.json)
            return
        newest: JsonObject = next(connection.listing("list_table_versions", id=table_id, limit=1, descending=True), {})
        tags = read_tags(connection, table_id)
        indices = [_index(index) for index in connection.listing("list_table_indices", id=table_id)]
        view = describe_view(connection, table) if table.kind == "view" else None
    changed_ms = newest.get("timestamp_millis") if newest.get("version") == table.version else None
    if options.json:
        document = table.to_json() | {
            "columns": [column.to_json() for column in table.columns],
            "deleted_rows": table.deleted_rows,
            "fragments": table.fragments,
            "changed_ms": changed_ms,
            "location": table.location,
            "properties": table.properties or {},
            "stable_row_ids": table.stable_row_ids,
            "tags": {tag["tag"]: tag["version"] for tag in tags},
            "indices": indices,
        }
        print_json(document if view is None else {**document, "view": view.to_json()})
        return
    print_facts(
        f"{table.name}: {table.kind}, version {table.version}",
        [
            ("rows", _rows_text(table)),
            ("changed", local_time(changed_ms)),
            ("location", table.location or ""),
            *(view_facts(view) if view is not None else ()),
            ("tags", ", ".join(f"{tag['tag']} is version {tag['version']}" for tag in tags)),
            ("indices", "\n".join(_index_text(index) for index in indices)),
            ("properties", ", ".join(f"{name}={value}" for name, value in (table.properties or {}).items())),
            ("row ids", "" if table.stable_row_ids is not False else _NOT_STABLE),
        ],
    )
    print()
    _print_columns(table.columns)


def _show_declared(table: TableDescription, as_json: bool) -> None:
    if as_json:
        print_json(table.to_json() | {"columns": [], "location": table.location})
    else:
        print_facts(f"{table.name}: declared, without data yet", [("location", table.location or "")])


def _rows_text(table: TableDescription) -> str:
    parts = [] if table.rows is None else [counted(table.rows, "row").partition(" ")[0]]
    if table.deleted_rows:
        parts.append(f"({table.deleted_rows:,} deleted)")
    if table.fragments is not None:
        parts.append(f"in {counted(table.fragments, 'fragment')}")
    text = " ".join(parts)
    return text if table.bytes is None else f"{text}, {byte_size(table.bytes)}"


def _index(index: JsonObject) -> JsonObject:
    return {
        "name": index.get("index_name"),
        "type": index.get("index_type") or "index",
        "columns": index.get("columns") or [],
        "status": index.get("status"),
    }


def _index_text(index: JsonObject) -> str:
    return f"{index['name']} ({index['type']}) on {', '.join(index['columns'])}"


def _columns(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.cli.table_description import describe_table

    with connect(options) as connection:
        table = describe_table(connection, parse_id(options.table))
    if options.json:
        print_json([column.to_json() for column in table.columns])
    elif table.version is None:
        note(f"Table {table.name} is declared, but has no data yet.")
    else:
        _print_columns(table.columns)


def _print_columns(columns: list[Column]) -> None:
    rows = [(column.name, column.type, "yes" if column.nullable else "no", column.rule_text) for column in columns]
    print_table(_COLUMN_HEADER, rows)
