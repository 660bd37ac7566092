"""What the parsers of several commands share: where the namespace is, ``--json``, ``--debug``, and an example."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.api.plain_data import DEFAULT_PORT

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

URL_VARIABLE, KEY_VARIABLE = "LANCE_URL", "LANCE_API_KEY"
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
TABLE_HELP = "the table or view, such as articles or 'sales$orders'"


class UsageError(ValueError):
    """A command line whose options do not fit together; the exit status is 2."""


def add_command(
    commands: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    *,
    help: str,
    example: str,
    description: str = "",
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.ArgumentParser:
    """A command whose help ends with an example."""
    debug = argparse.ArgumentParser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show the traceback of an error, and debug logs")
    parser = commands.add_parser(
        name,
        parents=[*parents, debug],
        help=help,
        description=description or f"{help[:1].upper()}{help[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def namespace_arguments() -> argparse.ArgumentParser:
    """Where the namespace is: a server or a folder."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("the namespace")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--url", help=f"the server, such as localhost:2333 (default ${URL_VARIABLE} or {DEFAULT_URL})")
    place.add_argument("--root", help="a folder or bucket URI of tables, read without a server")
    group.add_argument(
        "--key", help=f"the server's API key; others on this machine can see it, so prefer ${KEY_VARIABLE}"
    )
    group.add_argument("--key-file", type=Path, metavar="FILE", help="a file that has the API key in its first line")
    group.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Lance for the storage of --root, such as region=eu-west-1; may be repeated",
    )
    return parser


def json_argument(form: str = "print one JSON document") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", action="store_true", help=form)
    return parser


def read_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """The values of an option that takes NAME=VALUE and may be repeated."""
    pairs = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {text!r} is not NAME=VALUE.")
        pairs[name] = value
    return pairs


def whole_number(text: str) -> int:
    """An argument that is a whole number, 1 or more."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def server_url(options: argparse.Namespace) -> str:
    return str(options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)


def read_key(options: argparse.Namespace) -> tuple[str | None, str]:
    """The API key, and where a person sets it, for messages."""
    if options.key and options.key_file:
        raise UsageError("Give --key or --key-file, not both.")
    if options.key_file:
        try:
            lines = options.key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ValueError(f"The key file {options.key_file} cannot be read: {reason}.") from None
        return (lines[0].strip() if lines else "") or None, f"the file {options.key_file}"
    if options.key:
        return str(options.key), "the option --key"
    return os.environ.get(KEY_VARIABLE), f"the variable {KEY_VARIABLE}"
