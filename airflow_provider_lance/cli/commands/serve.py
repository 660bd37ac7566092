"""``serve``: a namespace server."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.api.plain_data import DEFAULT_PORT
from airflow_provider_lance.cli.arguments import add_command, read_pairs

if TYPE_CHECKING:
    from airflow_provider_lance.cli.arguments import Subparsers

_REGISTRY_VARIABLE = "LANCE_REGISTRY"
_PROPERTY_HELP = "a property of the namespace, such as storage.region=eu-west-1; may be repeated"


def add_commands(commands: Subparsers) -> None:
    serve = add_command(
        commands,
        "serve",
        _serve,
        help="serve a namespace over REST",
        description="Serve the Lance tables under --root. Prints one line `ready <url>` when it answers.",
        example="airflow-lance serve --root ./lake --port 2333",
    )
    serve.add_argument("--root", required=True, help="folder or bucket URI of the tables")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    serve.add_argument("--port", type=int, default=DEFAULT_PORT, help="port; 0 takes a free one (default %(default)s)")
    serve.add_argument("--base-path", default="", help="prefix of every route, as behind a proxy")
    serve.add_argument("--jobs-url", help="where drivers reach this server (default: its own address)")
    serve.add_argument("--config", type=Path, help="TOML file with clusters, environments and limits")
    serve.add_argument(
        "--standby",
        type=int,
        metavar="N",
        help="how many drivers of cluster local wait for jobs (default: what --config says)",
    )
    serve.add_argument("--keys", type=Path, help="file of API keys, `scopes:key` per line; beside the registry's")
    registry_arguments(serve)
    serve.add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help=_PROPERTY_HELP)
    serve.add_argument("--tls-cert", type=Path, help="certificate chain (PEM)")
    serve.add_argument("--tls-key", type=Path, help="its private key (PEM)")


def registry_arguments(parser: argparse.ArgumentParser) -> None:
    """Where jobs and keys are kept."""
    parser.add_argument("--state-dir", type=Path, help="folder for logs and the default registry")
    parser.add_argument(
        "--registry",
        default=os.environ.get(_REGISTRY_VARIABLE),
        help=f"database of jobs and keys: postgresql://… or sqlite:///… (default ${_REGISTRY_VARIABLE}, else SQLite); "
        "use the variable where the URL holds a password",
    )


def _serve(options: argparse.Namespace) -> None:
    from airflow_provider_lance.namespace.server.serve import ServeOptions, serve

    logging.basicConfig(
        level=logging.DEBUG if options.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )

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
            properties=read_pairs("--property", options.property),
            certificate=options.tls_cert,
            private_key=options.tls_key,
            standby=options.standby,
        ),
        ready,
    )
