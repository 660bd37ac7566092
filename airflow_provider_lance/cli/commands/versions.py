"""``versions`` and ``tags``: a table's history, and the names of its versions."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.cli.arguments import (
    TABLE_HELP,
    add_command,
    json_argument,
    namespace_arguments,
    whole_number,
)
from airflow_provider_lance.cli.output import local_time, note, print_json, print_table

if TYPE_CHECKING:
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import Connection

_AT_ONCE = 8


def add_commands(commands: Subparsers) -> None:
    shared = [namespace_arguments(), json_argument()]
    tags = add_command(
        commands,
        "tags",
        _tags,
        parents=shared,
        help="the tags of a table, and the versions they name",
        example="airflow-lance tags articles --root ./lake",
    )
    tags.add_argument("table", help=TABLE_HELP)
    versions = add_command(
        commands,
        "versions",
        _versions,
        parents=shared,
        help="the versions of a table, newest first",
        example="airflow-lance versions articles -n 5 --root ./lake",
    )
    versions.add_argument("table", help=TABLE_HELP)
    versions.add_argument("-n", type=whole_number, default=10, metavar="N", help="how many (default %(default)s)")


def read_tags(connection: Connection, table_id: list[str]) -> list[JsonObject]:
    """The tags by name, each with its version and, where it is not main, its branch."""
    tags = []
    for name, contents in connection.listing("list_table_tags", id=table_id):
        tag = {"tag": name, "version": contents.get("version"), "branch": contents.get("branch")}
        tags.append({key: value for key, value in tag.items() if value is not None})
    return tags


def _tags(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect

    with connect(options) as connection:
        tags = read_tags(connection, parse_id(options.table))
    if options.json:
        print_json(tags)
    elif not tags:
        note(f"{options.table} has no tags.")
    else:
        rows = [(tag["tag"], str(tag["version"]), tag.get("branch", "")) for tag in tags]
        print_table(("TAG", "VERSION", "BRANCH"), rows, right=("VERSION",))


def _versions(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect

    table_id = parse_id(options.table)
    with connect(options) as connection:
        listing = connection.listing("list_table_versions", id=table_id, limit=min(options.n, 1000), descending=True)
        entries = list(islice(listing, options.n))
        tags = read_tags(connection, table_id)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            counts = pool.map(lambda entry: _rows_of(connection, table_id, entry["version"]), entries)
            versions = [_version(entry, rows, tags) for entry, rows in zip(entries, counts, strict=True)]
    if options.json:
        print_json(versions)
        return
    rows = [
        (
            str(version["version"]),
            local_time(version["timestamp_ms"]),
            "" if version["rows"] is None else f"{version['rows']:,}",
            ", ".join(version["tags"]),
        )
        for version in versions
    ]
    print_table(("VERSION", "CREATED", "ROWS", "TAGS"), rows, right=("VERSION", "ROWS"))


def _version(entry: JsonObject, rows: int | None, tags: list[JsonObject]) -> JsonObject:
    number = entry["version"]
    named = [tag["tag"] for tag in tags if tag["version"] == number and "branch" not in tag]
    return {"version": number, "timestamp_ms": entry.get("timestamp_millis"), "rows": rows, "tags": named}


def _rows_of(connection: Connection, table_id: list[str], version: int) -> int | None:
    """The rows of a version; ``None`` where its data was cleaned up, or a server cannot tell."""
    from airflow_provider_lance.cli.connection import concerns_one

    try:
        count = connection.call("count_table_rows", id=table_id, version=version).get("count")
    except WireError as error:
        if not concerns_one(error):
            raise
        return None
    return int(count) if count is not None else None
