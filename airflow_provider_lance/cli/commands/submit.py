"""``backfill`` and ``refresh``: submit a job, and follow it to its end."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from airflow_provider_lance.api.ids import parse_id
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.cli.arguments import (
    TABLE_HELP,
    add_command,
    json_argument,
    namespace_arguments,
    whole_number,
)
from airflow_provider_lance.cli.output import note, print_json

if TYPE_CHECKING:
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import ServerConnection


def add_commands(commands: Subparsers) -> None:
    shared = [namespace_arguments(), json_argument("print the job's description as one JSON document")]
    backfill = add_command(
        commands,
        "backfill",
        _backfill,
        parents=shared,
        help="compute the values of a column that are missing, failed or older than their inputs",
        example="airflow-lance backfill articles embedding --where \"lang = 'en'\" --plan",
    )
    backfill.add_argument("table", help=TABLE_HELP)
    backfill.add_argument("column", help="a column with a rule, as `columns` shows them")
    backfill.add_argument("--where", metavar="SQL", help="only rows that this condition selects")
    backfill.add_argument("--branch", help="of the table (default main)")
    backfill.add_argument(
        "--max-failed-rows", type=int, metavar="N", help="fail the job once more rows than this have failed"
    )
    backfill.add_argument(
        "--only", choices=["failed"], help="failed: compute just the rows for which the rule failed before"
    )
    _job_arguments(backfill)
    sample = add_command(
        commands,
        "sample",
        _sample,
        parents=shared,
        help="try the rule of a column on some rows, and show inputs, outputs and seconds; nothing is written",
        example="airflow-lance sample articles embedding --rows 5",
    )
    sample.add_argument("table", help=TABLE_HELP)
    sample.add_argument("column", help="a column with a rule, as `columns` shows them")
    sample.add_argument("--rows", type=whole_number, default=20, metavar="N", help="how many rows (default 20)")
    sample.add_argument("--where", metavar="SQL", help="only rows that this condition selects")
    sample.add_argument("--branch", help="of the table (default main)")
    _job_arguments(sample)
    refresh = add_command(
        commands,
        "refresh",
        _refresh,
        parents=shared,
        help="bring a materialized view up to its sources",
        example="airflow-lance refresh long_articles",
    )
    refresh.add_argument("view", help="the view, such as long_articles or 'sales$totals'")
    refresh.add_argument("--full", action="store_true", help="compute all rows instead of the changes")
    refresh.add_argument(
        "--policy",
        choices=["auto", "incremental", "incremental_strict", "full"],
        help="the cheaper way, by what changed, fail instead of computing all rows, or all rows (default: the view's)",
    )
    refresh.add_argument("--src-version", type=whole_number, metavar="N", help="refresh to this version of the source")
    _job_arguments(refresh)


def _job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", help="where the job runs: a name of the server's configuration (default local)")
    parser.add_argument("--concurrency", type=whole_number, metavar="N", help="Spark tasks at once")
    parser.add_argument("--plan", action="store_true", help="say what the job would do, and change nothing")
    parser.add_argument("--no-wait", action="store_true", help="print the job's id and leave the job alone")
    parser.add_argument("--cancel-on-interrupt", action="store_true", help="cancel the job on Ctrl-C")


def _backfill(options: argparse.Namespace) -> int:
    given = {"max_failed_rows": options.max_failed_rows, "only": options.only}
    context = {name: str(value) for name, value in given.items() if value is not None}
    return _submit(
        options,
        "alter_table_backfill_columns",
        context,
        id=parse_id(options.table),
        column=options.column,
        where=options.where,
        branch=options.branch,
    )


def _sample(options: argparse.Namespace) -> int:
    return _submit(
        options,
        "alter_table_backfill_columns",
        {"sample": str(options.rows)},
        id=parse_id(options.table),
        column=options.column,
        where=options.where,
        branch=options.branch,
    )


def _refresh(options: argparse.Namespace) -> int:
    return _submit(
        options,
        "refresh_materialized_view",
        {},
        id=parse_id(options.view),
        full=options.full or None,
        refresh_policy=options.policy,
        src_version=options.src_version,
    )


def _submit(options: argparse.Namespace, operation: str, context: dict[str, str], **fields: object) -> int:
    from airflow_provider_lance.cli.connection import connect_server

    if options.plan:
        context = {**context, "plan": "true"}
    with connect_server(options) as server:
        began = time.monotonic()
        answer = server.call(
            operation, **fields, cluster=options.cluster, concurrency=options.concurrency, context=context
        )
        job_id = str(answer["job_id"])
        if options.no_wait:
            print_json({"job_id": job_id}) if options.json else print(job_id)
            return 0
        return _wait(options, server, job_id, began)


def _wait(options: argparse.Namespace, server: ServerConnection, job_id: str, began: float) -> int:
    from airflow_provider_lance.api.jobs import result_text
    from airflow_provider_lance.cli.following import follow
    from airflow_provider_lance.cli.job_text import failed_rows_text, print_sample

    try:
        job = follow(server, job_id)
    except KeyboardInterrupt:
        _interrupted(options, server, job_id)
        return 130
    if options.json:
        print_json(server.wire.drive(server.wire.protocol.describe_job(job_id)))
    if job.state is not JobState.DONE:
        print(f"airflow-lance: {job.failure_sentence}", file=sys.stderr)
        return 1
    if warning := failed_rows_text(job):
        note(warning)
    if not options.json:
        print_sample(job.result)
        took = "" if options.plan else f", in {time.monotonic() - began:.1f} s"
        print(f"{job.target}: {result_text(job.result) or 'done'}{took} (job {job_id})")
    return 0


def _interrupted(options: argparse.Namespace, server: ServerConnection, job_id: str) -> None:
    where = f" --url {options.url}" if options.url else ""
    if options.cancel_on_interrupt:
        server.call("cancel_job", job_id=job_id)
        note(f"Job {job_id} was told to stop.")
        return
    note(
        f"Job {job_id} goes on. `airflow-lance jobs show {job_id} --wait{where}` waits for it, "
        f"`airflow-lance jobs cancel {job_id}{where}` ends it."
    )
