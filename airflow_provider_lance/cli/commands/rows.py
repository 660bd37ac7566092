"""``head`` and ``query``: rows of a table, shortened for people and whole for scripts."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.api.jobs import counted
from airflow_provider_lance.cli.arguments import (
    TABLE_HELP,
    UsageError,
    add_command,
    json_argument,
    namespace_arguments,
    whole_number,
)
from airflow_provider_lance.cli.output import note, print_json, print_json_line, print_table

if TYPE_CHECKING:
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import Connection
    from airflow_provider_lance.cli.table_description import TableDescription

_MISSING_COLUMN = re.compile(r'FieldNotFound \{ field: Column \{[^}]*name: "((?:[^"\\]|\\.)*)"')
_COLUMN = re.compile(r'Column \{[^}]*name: "([^"]*)"')
_RUST_TEXT = re.compile(r'InvalidInput \{ source: (?:\w+\()?"((?:[^"\\]|\\.)*)"')
_PREFIXES = re.compile(r"^((Error parsing function|Schema error|Error during planning|Invalid user input): )+")
# A server that reads the condition itself answers with the sentences alone, after the table's name.
_SENTENCE = re.compile(
    r"^(?:[^:]+: )??((?:(?:Error parsing function|Schema error|Error during planning): |The filter ).*)", re.DOTALL
)
_NO_FIELD = re.compile(r"No field named [`\"']?([^`\"'\s]+?)[`\"']?\.(?: Did you mean '([^']+)'\?)?")


def add_commands(commands: Subparsers) -> None:
    shared = [namespace_arguments(), json_argument("print one JSON object per row, with whole values")]
    head = add_command(
        commands,
        "head",
        _query,
        parents=shared,
        help="the first rows of a table",
        example="airflow-lance head articles -n 3 --columns id,title --root ./lake",
    )
    _rows_arguments(head)
    head.set_defaults(where=None, version=None, tag=None, count=False)
    query = add_command(
        commands,
        "query",
        _query,
        parents=shared,
        help="the rows of a table that an SQL condition selects, or their number",
        example="airflow-lance query articles --where \"id > 3 AND title LIKE '%Lance%'\" --columns id --root ./lake",
    )
    _rows_arguments(query)
    query.add_argument("--where", metavar="SQL", help='a condition in Lance\'s SQL, such as "id > 3"')
    at = query.add_mutually_exclusive_group()
    at.add_argument("--version", type=whole_number, metavar="N", help="read this version of the table")
    at.add_argument("--tag", help="read the version that this tag names")
    query.add_argument("--count", action="store_true", help="print how many rows there are, and no rows")


def _rows_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help=TABLE_HELP)
    parser.add_argument("-n", type=whole_number, default=10, metavar="N", help="how many rows (default %(default)s)")
    parser.add_argument("--columns", metavar="A,B", help="these columns only, such as id,title or meta.author")


def _query(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.cells import json_rows, short_rows
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.cli.table_description import describe_table

    table_id = parse_id(options.table)
    with connect(options) as connection:
        version = _tagged_version(connection, table_id, options.tag) if options.tag else options.version
        if options.count:
            if options.columns:
                raise UsageError("--count counts rows, which have no --columns.")
            _count(connection, table_id, version, options)
            return
        table = describe_table(connection, table_id, version)
        if table.version is None:
            raise ValueError(f"Table {table.name} is declared, but has no data yet.")
        try:
            rows = connection.query(
                id=table_id,
                vector={"single_vector": []},
                k=options.n + 1,  # one more tells whether there are more
                filter=options.where,
                version=version,
                columns=_chosen_columns(table, options.columns),
            )
        except WireError as error:
            error.reason = _readable(error.reason)
            raise
    more, rows = rows.num_rows > options.n, rows.slice(0, options.n)
    if options.json:
        for row in json_rows(rows):
            print_json_line(row)
        return
    print_table(rows.column_names, short_rows(rows))
    if more:
        note(f"There are more rows than these {rows.num_rows}; -n {options.n * 10} shows more.")
    elif not rows.num_rows:
        note(f"{counted(0, 'row')}.")


def _count(connection: Connection, table_id: list[str], version: int | None, options: argparse.Namespace) -> None:
    try:
        answer = connection.call("count_table_rows", id=table_id, version=version, predicate=options.where)
    except WireError as error:
        error.reason = _readable(error.reason)
        raise
    if options.json:
        print_json({"count": answer["count"]})
    else:
        print(answer["count"])


def _readable(reason: str) -> str:
    """What is wrong with a condition, out of the sentences of Lance or the text of a Rust value that has them."""
    from airflow_provider_lance.cli.connection import no_such

    missing = _MISSING_COLUMN.search(reason)
    if missing:
        columns = [name for name in _COLUMN.findall(reason, missing.end()) if not name.startswith("_row")]
        return no_such("column", missing[1], columns)
    unknown = _NO_FIELD.search(reason)
    if unknown:
        return no_such("column", unknown[1], [unknown[2]] if unknown[2] else [])
    found = _RUST_TEXT.search(reason) or _SENTENCE.search(reason)
    if not found:
        return reason
    text = found[1].replace("\\n", " ").replace('\\"', '"')
    text = _PREFIXES.sub("", text).rstrip(".")
    return f"The condition cannot be used: {text}{'' if text.endswith('?') else '.'}"


def _tagged_version(connection: Connection, table_id: list[str], tag: str) -> int:
    answer = connection.call("get_table_tag_version", id=table_id, tag=tag)
    if answer.get("branch"):
        raise ValueError(f"The tag {tag} is of the branch {answer['branch']}; a query reads the main branch only.")
    return int(answer["version"])


def _chosen_columns(table: TableDescription, given: str | None) -> dict[str, list[str]] | None:
    """The wanted columns; by default all, without the one in which a view keeps the row ids of its source."""
    from airflow_provider_lance.cli.connection import no_such
    from airflow_provider_lance.definitions.expressions import parse_path
    from airflow_provider_lance.definitions.view_definition import SOURCE_ROW_ID

    names = [column.name for column in table.columns]
    if given is None:
        shown = [name for name in names if name != SOURCE_ROW_ID]
        return {"column_names": shown} if len(shown) < len(names) else None
    chosen = []
    for part in filter(None, map(str.strip, given.split(","))):
        if part not in names and parse_path(part)[0] not in names:
            raise ValueError(no_such("column", part, names))
        chosen.append(part)
    if not chosen:
        raise UsageError("--columns names no column.")
    return {"column_names": chosen}
