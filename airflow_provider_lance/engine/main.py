"""The engine's command line, as the launcher or ``spark-submit`` starts it: it runs one job and reports its end."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_lance.api.job_states import JobState, JobType
from airflow_provider_lance.api.jobs import JobFailure, JobSpec
from airflow_provider_lance.api.retry import NO_RETRY
from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.api.wire import Wire
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.engine.job.claim import (
    Claim,
    ClaimLostError,
    HeartbeatReporter,
    claim_job,
    read_launch_token,
)
from airflow_provider_lance.engine.job.context import JobCancelledError, JobContext, JobError
from airflow_provider_lance.engine.job.driver_work import DRIVER_ROWS
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.log_reporter import LogReporter
from airflow_provider_lance.engine.spark.session import session_factory

if TYPE_CHECKING:
    from airflow_provider_lance.api.client import LanceClient

log = logging.getLogger("airflow_provider_lance.engine")

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_LOST, EXIT_CANCELLED = 0, 1, 2, 3, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job; the exit status is 0 done, 1 failed, 3 claim lost, 4 cancelled."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # httpx logs every heartbeat and py4j every connection; Lance warns at each commit that DataReplacement is new.
    for name in ("httpx", "py4j"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("LANCE_LOG", "error")
    # PySpark starts the JVM by a fork, and Lance cannot know that the child is another program at once.
    warnings.filterwarnings("ignore", message="lance is not fork-safe", category=UserWarning)
    if arguments.spec:
        return _run_spec(arguments)
    if not (arguments.job_id and arguments.namespace):
        _parser().error("either --spec, or --job-id with --namespace")
    return _run_claimed(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_lance.engine",
        description="Execute a Lance backfill or view refresh on Spark.",
        epilog="The launch token and credentials come from LANCE_JOB_TOKEN_FILE or the environment, never from here.",
    )
    parser.add_argument("--job-id", help="the job to claim")
    parser.add_argument("--attempt", type=int, default=1, help="which launch of the job this is")
    parser.add_argument("--namespace", help="URL of the namespace that has the job")
    parser.add_argument("--spec", type=Path, help="a job spec as JSON, with a location; needs no server")
    parser.add_argument("--answer", type=Path, help="with --spec: also write the answer into this file")
    parser.add_argument(
        "--while-locked", action="store_true", help="with --spec: end when nobody locks the spec's file any more"
    )
    parser.add_argument("--plan", action="store_true", help="say what would be done, and touch nothing")
    parser.add_argument("--master", help="Spark master, where spark-submit does not name one")
    parser.add_argument(
        "--driver-rows", type=int, default=DRIVER_ROWS, help="SQL over at most so many rows runs in the driver"
    )
    return parser


def _run_spec(arguments: argparse.Namespace) -> int:
    try:
        document = json.loads(arguments.spec.read_text(encoding="utf-8"))
        spec = _planned(JobSpec.read(document), arguments.plan)
    except (OSError, ValueError) as error:
        _parser().error(f"{arguments.spec} cannot be run: {error}")
    job_id = arguments.job_id or document.get("job_id") or f"spec-{uuid.uuid4().hex[:12]}"
    context = JobContext(
        spec=spec,
        make_spark=session_factory(_name(spec), master=arguments.master),
        reporter=LogReporter(
            lines=not sys.stderr.isatty(),  # a terminal shows a bar instead
            lock=arguments.spec if arguments.while_locked else None,
        ),
        storage_options=_storage_options(),
        job_id=job_id,
        attempt=arguments.attempt,
        driver_rows=arguments.driver_rows,
    )
    state, result, failure = execute(context)
    answer = {
        "job_id": job_id,
        "job_type": spec.job_type,
        "table_id": spec.table_id,
        "state": state.value,
        "result": result,
        "failure": failure and failure.to_dict(),
    }
    if arguments.answer:
        arguments.answer.write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.write(json.dumps(answer) + "\n")
    return _exit(state)


def _storage_options() -> dict[str, str]:
    """Credentials for a run without a server, from the JSON file that ``LANCE_STORAGE_OPTIONS_FILE`` names."""
    path = os.environ.get("LANCE_STORAGE_OPTIONS_FILE")
    if not path:
        return {}
    return {str(key): str(value) for key, value in json.loads(Path(path).read_text(encoding="utf-8")).items()}


def _run_claimed(arguments: argparse.Namespace) -> int:
    secrets = read_launch_token()
    settings = _settings(arguments.namespace, secrets)
    # Commits and the claim are retried for long; a heartbeat must not be, so it has a client of its own.
    with Wire(settings) as wire, Wire(replace(settings, retry=NO_RETRY, timeout=5.0)) as pulse:
        try:
            claim = claim_job(wire, arguments.job_id, arguments.attempt, secrets["launch_token"])
        except ClaimLostError as error:
            log.warning("%s", error)
            return EXIT_LOST
        failpoint("claimed")
        return _run_claim(settings, pulse, claim, arguments)


def _run_claim(settings: Settings, pulse: Wire, claim: Claim, arguments: argparse.Namespace) -> int:
    spec = _planned(claim.spec, arguments.plan)
    with HeartbeatReporter(pulse, claim) as reporter, ExitStack() as clients:
        context = JobContext(
            spec=spec,
            make_spark=session_factory(_name(spec), master=arguments.master),
            reporter=reporter,
            storage_options=reporter.storage_options,
            connect=lambda: clients.enter_context(_client(settings)),
            job_id=claim.job_id,
            attempt=arguments.attempt,
            driver_rows=arguments.driver_rows,
        )
        try:
            state, result, failure = execute(context)
        except ClaimLostError as error:
            log.warning("%s", error)
            return EXIT_LOST
        failpoint("before-report")
        heard = reporter.finish(state, result, failure)
        failpoint("after-report")
    return _exit(state) if heard else EXIT_LOST


def _client(settings: Settings) -> LanceClient:
    from airflow_provider_lance.api.client import LanceClient

    return LanceClient(settings)


def execute(context: JobContext) -> tuple[JobState, Mapping[str, object] | None, JobFailure | None]:
    """Run the job and turn its result or its error into a terminal state; only a lost claim is raised."""
    try:
        result = _dispatch(context)
        return JobState.DONE, {**result, "ran_on": "spark" if context.spark_started else "driver"}, None
    except ClaimLostError:
        raise
    except JobCancelledError as error:
        return JobState.CANCELLED, error.result, None
    except JobError as error:
        log.error("%s: %s", error.phase, error, exc_info=error.__cause__)
        if error.traceback:
            context.reporter.event(f"Where the function failed:\n{error.traceback}")
        examples = tuple(dict(row) for row in error.failed_rows)
        failure = JobFailure(error.phase, str(error), error.retryable, error.traceback, error.rows_failed, examples)
        return JobState.FAILED, None, failure
    except Exception as error:
        if isinstance(error, refusals()):
            log.error("The request cannot be executed: %s", error)
            return JobState.FAILED, None, JobFailure("validate", str(error), retryable=False)
        log.exception("The job ended unexpectedly")
        message = f"{type(error).__name__}: {error}"[:2000]
        return JobState.FAILED, None, JobFailure("run", message, retryable=isinstance(error, OSError))


def _dispatch(context: JobContext) -> Mapping[str, object]:
    if context.spec.job_type == JobType.BACKFILL.value:
        from airflow_provider_lance.engine.backfill.job import run_backfill

        return run_backfill(context)
    if context.spec.job_type == JobType.REFRESH.value:
        from airflow_provider_lance.engine.views.job import run_refresh

        return run_refresh(context)
    raise JobError("validate", f"This engine does not know the job type {context.spec.job_type!r}")


def _planned(spec: JobSpec, plan: bool) -> JobSpec:
    if not plan:
        return spec
    return JobSpec.from_dict({**spec.to_dict(), "options": {**spec.options, "plan": "true"}})


def _settings(url: str, secrets: dict[str, str]) -> Settings:
    auth = next((kind for kind in ("api_key", "bearer") if secrets.get(kind)), "none")
    return Settings.from_connection(host=url, password=secrets.get(auth), extra={"auth": auth})


def _name(spec: JobSpec) -> str:
    what = spec.request.get("column") or spec.job_type
    return f"lance {what} of {'.'.join(spec.table_id) or spec.location}"


def _exit(state: JobState) -> int:
    return {JobState.DONE: EXIT_DONE, JobState.CANCELLED: EXIT_CANCELLED}.get(state, EXIT_FAILED)
