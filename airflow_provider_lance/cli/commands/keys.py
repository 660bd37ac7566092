"""``keys``: create, list and revoke the API keys of a registry."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from airflow_provider_lance.cli.arguments import add_command, json_argument
from airflow_provider_lance.cli.commands.serve import registry_arguments
from airflow_provider_lance.cli.output import local_time, note, print_json, print_table

if TYPE_CHECKING:
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.namespace.server.keys import Keys


def add_commands(commands: Subparsers) -> None:
    keys = commands.add_parser("keys", help="create, list and revoke API keys").add_subparsers(
        required=True, metavar="COMMAND"
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--root", default="", help="the root the server serves, to find its default registry")
    registry_arguments(where)
    create = add_command(
        keys,
        "create",
        _create,
        parents=[where],
        help="create a key and print it (shown only once)",
        example="airflow-lance keys create --name ada --scopes read,jobs --root ./lake",
    )
    create.add_argument("--name", required=True, help="whom it is for")
    create.add_argument("--scopes", default="all", help="read, write, jobs joined by commas, or all (default)")
    add_command(
        keys,
        "list",
        _list,
        parents=[where, json_argument()],
        help="names and scopes, no secrets",
        example="airflow-lance keys list --root ./lake",
    )
    revoke = add_command(
        keys,
        "revoke",
        _revoke,
        parents=[where],
        help="revoke a key",
        example="airflow-lance keys revoke 3f9a1c2b77d0 --root ./lake",
    )
    revoke.add_argument("key_id", help="its id, as `keys list` shows it")


def _open(options: argparse.Namespace) -> Keys:
    from airflow_provider_lance.namespace.jobs.database import Database
    from airflow_provider_lance.namespace.server.keys import Keys
    from airflow_provider_lance.namespace.server.serve import ServeOptions

    if not (options.root or options.registry or options.state_dir):
        raise ValueError("Say which registry: --root, --state-dir or --registry as the server has them.")
    found = ServeOptions(root=options.root, registry=options.registry, state=options.state_dir)
    return Keys(Database(found.registry_url))


def _create(options: argparse.Namespace) -> None:
    from airflow_provider_lance.namespace.server.keys import parse_scopes

    key_id, key = _open(options).create(options.name, parse_scopes(options.scopes))
    print(key)
    note(f"Key {key_id} for {options.name!r}. It is shown only now: only its hash is stored.")


def _list(options: argparse.Namespace) -> None:
    keys = _open(options).list()
    if options.json:
        fields = ("key_id", "name", "scopes", "created_ms", "revoked_ms")
        print_json([{name: getattr(key, name) for name in fields} for key in keys])
        return
    rows = [(key.key_id, key.name, key.scopes, local_time(key.created_ms), local_time(key.revoked_ms)) for key in keys]
    print_table(("ID", "NAME", "SCOPES", "CREATED", "REVOKED"), rows)


def _revoke(options: argparse.Namespace) -> None:
    if not _open(options).revoke(options.key_id):
        raise ValueError(f"There is no active key {options.key_id!r}.")
    print(f"Key {options.key_id} no longer works.")
