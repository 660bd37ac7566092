"""``apply`` and ``manifest``: bring a namespace to a declaration, and write down what a namespace has."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.cli.arguments import add_command, json_argument, namespace_arguments
from airflow_provider_lance.cli.output import note, print_json

if TYPE_CHECKING:
    from airflow_provider_lance.api.arrow import ArrowData
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import Connection


def add_commands(commands: Subparsers) -> None:
    apply = add_command(
        commands,
        "apply",
        _apply,
        parents=[namespace_arguments(), json_argument("print the plan as one JSON document")],
        help="create and change tables, columns and views until they are as a file declares them",
        example="airflow-lance apply articles.yaml --plan",
    )
    apply.add_argument("file", type=Path, help="a YAML file of declarations, or a folder of such files")
    apply.add_argument("--plan", action="store_true", help="show the differences, and change nothing")
    apply.add_argument("--allow-drop", action="store_true", help="drop columns and indices that are not declared")
    manifest = add_command(
        commands,
        "manifest",
        _manifest,
        parents=[namespace_arguments()],
        help="write what a namespace has into a file, from which a DAG makes tasks without asking the namespace",
        example="airflow-lance manifest --all --output manifest.json",
    )
    manifest.add_argument("namespace", nargs="?", default="", help="such as sales (default: the root namespace)")
    manifest.add_argument("--all", action="store_true", help="of all namespaces inside it, too")
    manifest.add_argument("--output", type=Path, metavar="FILE", help="the file (default: standard output)")


class _Namespace:
    """A connection as the functions of declarations call it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def call(self, operation: str, fields: Mapping[str, object], data: ArrowData | None = None) -> JsonObject:
        given = {name: value for name, value in fields.items() if value is not None}
        return self._connection.request(operation, given, data)


def _apply(options: argparse.Namespace) -> int:
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.declarations import load_declarations
    from airflow_provider_lance.declarations.apply import Applied, apply_plan
    from airflow_provider_lance.declarations.compare import make_plan

    declarations = load_declarations(options.file)
    applied = Applied()
    with connect(options) as connection:
        namespace = _Namespace(connection)
        try:
            plan = make_plan(declarations, namespace, allow_drop=options.allow_drop)
            if not options.json:
                print(*plan.lines(), sep="\n")
            refused = bool(plan.of("refuse"))
            if not options.plan and not refused:
                apply_plan(plan, namespace, allow_drop=options.allow_drop, applied=applied)
        except WireError as error:
            for change in applied.done:
                note(f"Done before the failure: {change.line}")
            _explain(error)
            raise
    if options.json:
        print_json({**plan.to_json(), "applied": not options.plan and not refused})
    elif applied.done:
        print(f"Applied: {len(applied.done)} changes.")
    if refused:
        print("airflow-lance: The declaration cannot be applied, and nothing was changed.", file=sys.stderr)
    return 1 if refused else 0


def _explain(error: WireError) -> None:
    """Say first what the namespace lacks, where that is the reason."""
    from airflow_provider_lance.api.missing_features import missing_feature

    if lacking := missing_feature(error):
        error.reason = f"{lacking[0]} It said: {error.reason}"


def _manifest(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect
    from airflow_provider_lance.declarations.manifest import make_manifest, table_ids

    with connect(options) as connection:
        namespace = _Namespace(connection)
        ids = table_ids(namespace, parse_id(options.namespace), nested=options.all)
        manifest = make_manifest(namespace, ids, connection.place)
    if options.output is None:
        print_json(manifest)
        return
    _replace_file(options.output, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    note(f"Wrote {len(manifest['tables'])} tables and {len(manifest['views'])} views to {options.output}.")


def _replace_file(file: Path, text: str) -> None:
    """Write a file in one step, so that a DAG which is parsed meanwhile reads the old or the new one as a whole."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as temporary:
            temporary.write(text)
        os.chmod(temporary.name, 0o644)
        os.replace(temporary.name, file)
    except OSError as error:
        raise ValueError(f"The file {file} cannot be written: {error.strerror}.") from None
