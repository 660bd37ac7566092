"""``airflow-lance``: serve a Lance namespace, manage its API keys, look at its jobs.

Errors are one line; ``--debug`` shows where they come from.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_lance import __version__

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job

_URL_VARIABLE, _KEY_VARIABLE, _REGISTRY_VARIABLE = "LANCE_URL", "LANCE_API_KEY", "LANCE_REGISTRY"
_PROPERTY_HELP = "a property of the namespace, e.g. storage.region=eu-west-1; may be repeated"
_JOB_HELP = "its id, as `jobs list` and the task's log show it"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
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
        words = _missing_package(error) if isinstance(error, ModuleNotFoundError) else _one_line(error)
        print(f"airflow-lance: {words}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow-lance",
        description="A Lance namespace whose backfills and materialized views are Spark jobs.",
        epilog="Start with: airflow-lance serve --root ./lake",
    )
    parser.add_argument("--version", action="version", version=f"airflow-lance {__version__}")
    parser.set_defaults(debug=False)
    debug = argparse.ArgumentParser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show tracebacks and debug logs")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _serve_parser(commands, debug)
    _keys_parser(commands, debug)
    _jobs_parser(commands, debug)
    return parser


def _serve_parser(commands: Any, debug: argparse.ArgumentParser) -> None:
    serve = commands.add_parser(
        "serve",
        parents=[debug],
        help="serve a namespace over REST",
        description="Serve the Lance tables under --root. Prints one line `ready <url>` when it answers.",
    )
    serve.add_argument("--root", required=True, help="folder or bucket URI of the tables")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    serve.add_argument("--port", type=int, default=2333, help="port; 0 takes a free one (default %(default)s)")
    serve.add_argument("--base-path", default="", help="prefix of every route, as behind a proxy")
    serve.add_argument("--jobs-url", help="where drivers reach this server (default: its own address)")
    serve.add_argument("--config", type=Path, help="TOML file with clusters, environments and limits")
    serve.add_argument("--keys", type=Path, help="file of API keys, `scopes:key` per line; beside the registry's")
    _registry_arguments(serve)
    serve.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help=_PROPERTY_HELP)
    serve.add_argument("--tls-cert", type=Path, help="certificate chain (PEM)")
    serve.add_argument("--tls-key", type=Path, help="its private key (PEM)")
    serve.set_defaults(run=_serve)


def _registry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, help="folder for logs and the default registry")
    parser.add_argument(
        "--registry",
        default=os.environ.get(_REGISTRY_VARIABLE),
        help=f"database of jobs and keys: postgresql://… or sqlite:///… (default ${_REGISTRY_VARIABLE}, else SQLite); "
        "use the variable where the URL holds a password",
    )


def _keys_parser(commands: Any, debug: argparse.ArgumentParser) -> None:
    keys = commands.add_parser("keys", help="create, list and revoke API keys").add_subparsers(
        required=True, metavar="COMMAND"
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--root", default="", help="the root the server serves, to find its default registry")
    _registry_arguments(where)
    create = keys.add_parser("create", parents=[where, debug], help="create a key and print it (shown only once)")
    create.add_argument("--name", required=True, help="whom it is for")
    create.add_argument("--scopes", default="all", help="read, write, jobs joined by commas, or all (default)")
    create.set_defaults(run=_keys_create)
    keys.add_parser("list", parents=[where, debug], help="names and scopes, no secrets").set_defaults(run=_keys_list)
    revoke = keys.add_parser("revoke", parents=[where, debug], help="revoke a key")
    revoke.add_argument("key_id", help="its id, as `keys list` shows it")
    revoke.set_defaults(run=_keys_revoke)


def _jobs_parser(commands: Any, debug: argparse.ArgumentParser) -> None:
    jobs = commands.add_parser("jobs", help="list, show, read logs of and cancel jobs").add_subparsers(
        required=True, metavar="COMMAND"
    )
    where = argparse.ArgumentParser(add_help=False)
    url = os.environ.get(_URL_VARIABLE, "http://127.0.0.1:2333")
    where.add_argument("--url", default=url, help=f"the server (default ${_URL_VARIABLE} or %(default)s)")
    where.epilog = f"The API key is read from ${_KEY_VARIABLE}."
    listing = jobs.add_parser("list", parents=[where, debug], help="jobs, newest first", epilog=where.epilog)
    listing.add_argument("--state", help="QUEUED, RUNNING, DONE, FAILED or CANCELLED")
    listing.add_argument("--table", help="only jobs of this table, e.g. sales$orders")
    listing.add_argument("--limit", type=int, default=20, help="how many, 1000 at most (default %(default)s)")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    listing.set_defaults(run=_jobs_list)
    show = jobs.add_parser("show", parents=[where, debug], help="everything about a job", epilog=where.epilog)
    show.add_argument("job_id", help=_JOB_HELP)
    show.add_argument("--wait", action="store_true", help="follow its progress until it ends")
    show.set_defaults(run=_jobs_show)
    logs = jobs.add_parser("logs", parents=[where, debug], help="the end of its driver's log", epilog=where.epilog)
    logs.add_argument("job_id", help=_JOB_HELP)
    logs.add_argument("--attempt", type=int, help="which of its drivers, from 1 (default: the last)")
    logs.add_argument("--bytes", type=int, default=64 << 10, help="how much of its end (default %(default)s)")
    logs.set_defaults(run=_jobs_logs)
    cancel = jobs.add_parser("cancel", parents=[where, debug], help="ask a job to end", epilog=where.epilog)
    cancel.add_argument("job_id", help=_JOB_HELP)
    cancel.set_defaults(run=_jobs_cancel)


def _serve(options: argparse.Namespace) -> None:
    from airflow_provider_lance.namespace.serving import ServeOptions, serve

    logging.basicConfig(
        level=logging.DEBUG if options.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    properties = {}
    for given in options.property:
        name, separator, value = given.partition("=")
        if not separator:
            raise ValueError(f"--property {given!r} is not NAME=VALUE.")
        properties[name] = value

    def ready(url: str) -> None:
        print(f"ready {url}", flush=True)
        print(f"Serving {options.root} at {url}, jobs at {url}/ui. Stop with Ctrl+C.", file=sys.stderr, flush=True)

    serve(
        ServeOptions(
            root=options.root,
            host=options.host,
            port=options.port,
            base_path=options.base_path,
            jobs_url=options.jobs_url,
            registry=options.registry,
            state=options.state_dir,
            config=options.config,
            keys=options.keys,
            properties=properties,
            certificate=options.tls_cert,
            private_key=options.tls_key,
        ),
        ready,
    )


def _keys(options: argparse.Namespace) -> Any:
    from airflow_provider_lance.namespace.database import Database
    from airflow_provider_lance.namespace.keys import Keys
    from airflow_provider_lance.namespace.serving import ServeOptions

    if not (options.root or options.registry or options.state_dir):
        raise ValueError("Say which registry: --root, --state-dir or --registry as the server has them.")
    found = ServeOptions(root=options.root, registry=options.registry, state=options.state_dir)
    return Keys(Database(found.registry_url))


def _keys_create(options: argparse.Namespace) -> None:
    from airflow_provider_lance.namespace.keys import parse_scopes

    key_id, key = _keys(options).create(options.name, parse_scopes(options.scopes))
    print(key)
    print(f"Key {key_id} for {options.name!r}. It is shown only now: only its hash is stored.", file=sys.stderr)


def _keys_list(options: argparse.Namespace) -> None:
    rows = [("ID", "NAME", "SCOPES", "CREATED", "REVOKED")]
    rows += [
        (row.key_id, row.name, row.scopes, _when(row.created_ms), _when(row.revoked_ms))
        for row in _keys(options).list()
    ]
    _table(rows)


def _keys_revoke(options: argparse.Namespace) -> None:
    if not _keys(options).revoke(options.key_id):
        raise ValueError(f"There is no active key {options.key_id!r}.")
    print(f"Key {options.key_id} no longer works.")


def _wire(options: argparse.Namespace) -> Any:
    from airflow_provider_lance.api.settings import Settings
    from airflow_provider_lance.api.wire import Wire

    key = os.environ.get(_KEY_VARIABLE)
    place = f"the variable {_KEY_VARIABLE}"
    return Wire(Settings.from_connection(host=options.url, password=key, credentials_place=place))


def _jobs_list(options: argparse.Namespace) -> None:
    from airflow_provider_lance.api.jobs import Job

    wanted: dict[str, Any] = {"limit": max(1, min(options.limit, 1000)), "since": 0}
    wanted |= {name: value for name in ("state", "table") if (value := getattr(options, name))}
    with _wire(options) as wire:
        bodies = wire.call("list_jobs", wanted).value["jobs"]
    if options.json:
        for body in bodies:
            print(json.dumps(body))
        return
    rows = [("JOB", "STATE", "TABLE", "TYPE", "SUBMITTED", "PROGRESS")]
    for job in map(Job.from_wire, bodies):
        rows.append((job.job_id, job.state.value, job.table or "", job.job_type, _when(job.created_ms), _progress(job)))
    _table(rows)


def _progress(job: Job) -> str:
    if job.progress is None:
        return ""
    fraction = 1.0 if job.state.value == "DONE" else job.progress.fraction
    return f"{fraction:.0%} {job.progress.describe()}"


def _jobs_show(options: argparse.Namespace) -> int:
    with _wire(options) as wire:
        last = ""
        while True:
            job = wire.job(options.job_id)
            line = f"{job.state.value} {job.progress.describe() if job.progress else ''}".rstrip()
            if options.wait and line != last:
                print(line, file=sys.stderr)
            if not options.wait or job.state.terminal:
                break
            last = line
            time.sleep(1)
        print(json.dumps(wire.drive(wire.protocol.describe_job(options.job_id)), indent=2))
    return 0 if not options.wait or job.state.value == "DONE" else 1


def _jobs_logs(options: argparse.Namespace) -> None:
    import httpx

    key = os.environ.get(_KEY_VARIABLE)
    query = {"bytes": options.bytes} | ({"attempt": options.attempt} if options.attempt else {})
    url = f"{options.url.rstrip('/')}/v1/jobs/{options.job_id}/log"
    try:
        answer = httpx.get(url, params=query, headers={"x-api-key": key} if key else {}, timeout=30)
    except httpx.HTTPError as error:
        raise RuntimeError(f"{options.url} gave no answer: {error}") from error
    if answer.status_code != 200:
        raise RuntimeError(answer.json().get("error") if "json" in answer.headers.get("content-type", "") else answer)
    sys.stdout.write(answer.text)


def _jobs_cancel(options: argparse.Namespace) -> None:
    with _wire(options) as wire:
        wire.call("cancel_job", {"job_id": options.job_id})
        state = wire.job(options.job_id).state.value
    print(f"Job {options.job_id} is {state}." if state != "RUNNING" else f"Job {options.job_id} was told to stop.")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _when(ms: int | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000)) if ms else ""


def _missing_package(error: ModuleNotFoundError) -> str:
    extra = "postgres" if error.name == "psycopg" else "server"
    return f"This needs {error.name}, which is not installed: pip install 'airflow-provider-lance[{extra}]'."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
