"""The parser of all commands, and the way from a failure to one sentence and an exit status.

The exit status is 0 for success, 1 for a failure, 2 for a wrong command line and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from airflow_provider_lance import __version__
from airflow_provider_lance.cli.arguments import UsageError
from airflow_provider_lance.cli.commands import (
    completion,
    declarations,
    jobs,
    keys,
    rows,
    serve,
    submit,
    tables,
    versions,
    views,
)

_EXTRAS = {"psycopg": "postgres"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        print(f"airflow-lance: {_sentence(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow-lance",
        description="Look at Lance tables, run backfills and view refreshes, and serve a Lance namespace.",
        epilog="Start with: airflow-lance tables --root ./lake, or: airflow-lance serve --root ./lake",
    )
    parser.add_argument("--version", action="version", version=f"airflow-lance {__version__}")
    parser.set_defaults(debug=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for noun in (tables, rows, views, versions, declarations, submit, jobs, serve, keys, completion):
        noun.add_commands(commands)
    return parser


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(error.name or "", "server")
        return f"This needs {error.name}, which is not installed: pip install 'airflow-provider-lance[{extra}]'."
    reason = getattr(error, "reason", "")  # a WireError's text begins with the operation and its codes
    return " ".join((reason if isinstance(reason, str) and reason else str(error)).split()) or type(error).__name__
