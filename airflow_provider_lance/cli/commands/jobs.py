"""``jobs``: list the jobs of a server, show one, read its driver's log, cancel it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.cli.arguments import add_command, json_argument, namespace_arguments, whole_number
from airflow_provider_lance.cli.output import local_time, note, print_facts, print_json, print_json_line, print_table

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.cli.arguments import Subparsers
    from airflow_provider_lance.cli.connection import ServerConnection

_JOB_HELP = "its id, as `jobs list` and the task's log show it"


def add_commands(commands: Subparsers) -> None:
    jobs = commands.add_parser("jobs", help="list, show, read logs of and cancel jobs").add_subparsers(
        required=True, metavar="COMMAND"
    )
    where = namespace_arguments()
    listing = add_command(
        jobs,
        "list",
        _list,
        parents=[where, json_argument("print one JSON object per line")],
        help="jobs, newest first",
        example="airflow-lance jobs list --state failed --limit 5",
    )
    listing.add_argument("--state", help="QUEUED, RUNNING, DONE, FAILED or CANCELLED")
    listing.add_argument("--table", help="only jobs of this table, such as 'sales$orders'")
    listing.add_argument("--limit", type=whole_number, default=20, help="how many, 1000 at most (default %(default)s)")
    show = add_command(
        jobs,
        "show",
        _show,
        parents=[where, json_argument("print the whole description as one JSON document")],
        help="everything about a job",
        example="airflow-lance jobs show 24c4c0c0-fc2c-4c2e-8a3b-5a2b6c8a9d10 --wait",
    )
    show.add_argument("job_id", help=_JOB_HELP)
    show.add_argument("--wait", action="store_true", help="follow its progress until it ends; the status is 0 if DONE")
    logs = add_command(
        jobs,
        "logs",
        _logs,
        parents=[where],
        help="the end of its driver's log",
        example="airflow-lance jobs logs 24c4c0c0-fc2c-4c2e-8a3b-5a2b6c8a9d10 --attempt 1",
    )
    logs.add_argument("job_id", help=_JOB_HELP)
    logs.add_argument("--attempt", type=whole_number, help="which of its drivers, from 1 (default: the last)")
    logs.add_argument("--bytes", type=whole_number, default=64 << 10, help="how much of its end (default %(default)s)")
    cancel = add_command(
        jobs,
        "cancel",
        _cancel,
        parents=[where],
        help="ask a job to end",
        example="airflow-lance jobs cancel 24c4c0c0-fc2c-4c2e-8a3b-5a2b6c8a9d10",
    )
    cancel.add_argument("job_id", help=_JOB_HELP)


def _list(options: argparse.Namespace) -> None:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.cli.connection import connect_server
    from airflow_provider_lance.cli.job_text import job_task, outcome

    with connect_server(options) as server:
        # With `since` our server answers with whole descriptions instead of LanceDB's five fields.
        answer = server.call(
            "list_jobs", limit=min(options.limit, 1000), since=0, state=options.state, table=options.table
        )
    bodies = answer["jobs"]
    if options.json:
        for body in bodies:
            print_json_line(body)
        return
    if not bodies:
        note(f"{server.place} has no such jobs." if options.state or options.table else f"{server.place} has no jobs.")
        return
    jobs = [Job.from_wire(body) for body in bodies]
    columns = {
        "JOB": [job.job_id for job in jobs],
        "STATE": [job.state.value for job in jobs],
        "TYPE": [job.job_type for job in jobs],
        "TABLE": [job.table or "" for job in jobs],
        "COLUMN": [job.column for job in jobs],
        "DAG · TASK": [job_task(job) for job in jobs],
        "SUBMITTED": [local_time(job.created_ms) for job in jobs],
        "OUTCOME": [outcome(job) for job in jobs],
    }
    if not any(columns["DAG · TASK"]):  # no job of the list was submitted by Airflow
        del columns["DAG · TASK"]
    print_table(tuple(columns), list(zip(*columns.values(), strict=True)))


def _show(options: argparse.Namespace) -> int:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.cli.connection import connect_server
    from airflow_provider_lance.cli.following import follow

    with connect_server(options) as server:
        if options.wait:
            follow(server, options.job_id)
        body = server.wire.drive(server.wire.protocol.describe_job(options.job_id))
    job = Job.from_wire(body, options.job_id)
    if options.json:
        print_json(body)
    else:
        _print_job(job, body, server)
    return 0 if not options.wait or job.state is JobState.DONE else 1


def _print_job(job: Job, body: JsonObject, server: ServerConnection) -> None:
    from airflow_provider_lance.cli.job_text import failed_rows_text, outcome

    request = {name: value for name, value in (job.spec.get("request") or {}).items() if name != "column"}
    failure = job.failure
    phase, warning = "", failed_rows_text(job)
    if failure is not None:
        phase = f"{failure.phase}, may succeed when tried again" if failure.retryable else failure.phase
        warning = f"{failure.rows_failed:,} rows failed" if failure.rows_failed else ""
    print_facts(
        f"{job.target}: {job.job_type} {job.state.value}",
        [
            ("job", job.job_id),
            ("reason" if failure is not None else "outcome", outcome(job)),
            ("phase", phase),
            ("failed rows", warning),
            ("asked by", job.requester.describe() if job.requester is not None else ""),
            ("submitted", local_time(job.created_ms)),
            ("finished", local_time(body.get("finished_ms"))),
            ("attempt", str(body.get("attempt") or "")),
            ("cluster", str(body.get("cluster") or "")),
            ("driver", job.start_text),
            ("request", json.dumps(request, ensure_ascii=False) if request else ""),
            ("options", json.dumps(job.spec["options"]) if job.spec.get("options") else ""),
            ("page", f"{server.place}{job.page}" if job.page else ""),
            ("traceback", failure.traceback if failure is not None else ""),
        ],
    )


def _logs(options: argparse.Namespace) -> None:
    import httpx

    from airflow_provider_lance.cli.connection import connect_server

    query = {"bytes": options.bytes} | ({"attempt": options.attempt} if options.attempt else {})
    with connect_server(options) as server:
        try:
            with httpx.Client(**server.settings.httpx_arguments) as client:
                answer = client.get(f"{server.place}/v1/jobs/{options.job_id}/log", params=query)
        except httpx.HTTPError as error:
            raise ValueError(f"{server.place} gave no answer: {error}") from error
        if answer.status_code != 200:
            is_json = "json" in answer.headers.get("content-type", "")
            raise ValueError(answer.json().get("error") if is_json else f"The server answered {answer.status_code}.")
        if not answer.text:
            raise ValueError(_no_log(server.wire.job(options.job_id), options.attempt, server))
    sys.stdout.write(answer.text)


def _no_log(job: Job, attempt: int | None, server: ServerConnection) -> str:
    if job.state is JobState.QUEUED:
        return f"Job {job.job_id} is QUEUED: no driver has started yet, so there is no log."
    if attempt is not None:
        return f"{server.place} has no log of attempt {attempt} of job {job.job_id}."
    return (
        f"{server.place} has no log of job {job.job_id}: it did not start the driver. The log is where the driver "
        "runs: in the Airflow task, on the Spark cluster or on another server of this registry."
    )


def _cancel(options: argparse.Namespace) -> None:
    from airflow_provider_lance.cli.connection import connect_server

    with connect_server(options) as server:
        server.call("cancel_job", job_id=options.job_id)
        state = server.wire.job(options.job_id).state
    told = state is JobState.RUNNING
    print(f"Job {options.job_id} was told to stop." if told else f"Job {options.job_id} is {state.value}.")
