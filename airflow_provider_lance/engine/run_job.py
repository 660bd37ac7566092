"""Runs one job: claims it, executes it and reports its end. A driver does this once, or for one job after another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from airflow_provider_lance.api.commit_client import CommitClient
from airflow_provider_lance.api.http.retry import NO_RETRY, RetryPolicy
from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.job_states import JobState, JobType
from airflow_provider_lance.api.jobs import JobFailure, JobSpec
from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.engine.job.claim import Claim, ClaimLostError, HeartbeatReporter, claim_job
from airflow_provider_lance.engine.job.context import JobCancelledError, JobContext, JobError
from airflow_provider_lance.engine.job.driver_work import DRIVER_ROWS
from airflow_provider_lance.engine.job.failpoints import failpoint

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace
    from pyspark.sql import SparkSession

log = logging.getLogger("airflow_provider_lance.engine")

_CLAIM = RetryPolicy(attempts=20, longest_delay=5.0)
EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_LOST, EXIT_CANCELLED = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Assignment:
    """One attempt of a job of the namespace at ``url``; ``secrets`` are those of ``read_launch_token``."""

    job_id: str
    attempt: int
    url: str
    secrets: Mapping[str, str] = field(repr=False)
    plan: bool = False


@dataclass(frozen=True)
class Runtime:
    """What a driver gives to every job that it runs.

    ``make_spark`` makes a session of the name that it is given. ``admit`` is asked before a job runs, with the identity
    of the user's function or "", and raises if that may not run in this process.
    """

    make_spark: Callable[[str], SparkSession]
    driver_rows: int = DRIVER_ROWS
    admit: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Ended:
    """How a job ended, as an exit status, and the identity of the user's function that it ran."""

    exit: int
    user_code: str = ""


def run_job(assignment: Assignment, runtime: Runtime) -> Ended:
    """Claim a job, execute it and report its end; the exit is 0 done, 1 failed, 3 claim lost, 4 cancelled."""
    settings = settings_of(assignment.url, assignment.secrets)
    # The claim outlasts a restart of the server; a heartbeat must not be retried, so it has a client of its own.
    with Wire(replace(settings, retry=_CLAIM)) as wire, Wire(replace(settings, retry=NO_RETRY, timeout=5.0)) as pulse:
        try:
            token = assignment.secrets["launch_token"]
            claim = claim_job(wire, assignment.job_id, assignment.attempt, token)
        except ClaimLostError as error:
            log.warning("%s", error)
            return Ended(EXIT_LOST)
        failpoint("claimed")
        return _run_claim(settings, pulse, claim, assignment, runtime)


def _run_claim(settings: Settings, pulse: Wire, claim: Claim, assignment: Assignment, runtime: Runtime) -> Ended:
    spec = planned(claim.spec, assignment.plan)
    with HeartbeatReporter(pulse, claim) as reporter, ExitStack() as clients:
        context = JobContext(
            spec=spec,
            make_spark=lambda: runtime.make_spark(application_name(spec)),
            reporter=reporter,
            storage_options=reporter.storage_options,
            secrets=claim.secrets,
            connect=lambda: cast("LanceNamespace", clients.enter_context(CommitClient(settings))),
            job_id=claim.job_id,
            attempt=assignment.attempt,
            driver_rows=runtime.driver_rows,
            admit=runtime.admit,
        )
        try:
            state, result, failure = execute(context)
        except ClaimLostError as error:
            log.warning("%s", error)
            return Ended(EXIT_LOST, context.user_code)
        failpoint("before-report")
        heard = reporter.finish(state, result, failure)
        failpoint("after-report")
    return Ended(exit_of(state) if heard else EXIT_LOST, context.user_code)


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
    if context.spec.job_type == JobType.WRITE.value:
        from airflow_provider_lance.engine.write.job import run_write

        context.runs("")
        return run_write(context)
    raise JobError("validate", f"This engine does not know the job type {context.spec.job_type!r}")


def planned(spec: JobSpec, plan: bool) -> JobSpec:
    """The spec, or one that only plans the same."""
    if not plan:
        return spec
    return JobSpec.from_dict({**spec.to_dict(), "options": {**spec.options, "plan": "true"}})


def settings_of(url: str, secrets: Mapping[str, str]) -> Settings:
    """How the namespace at ``url`` is called with what a launch token's file holds."""
    auth = next((kind for kind in ("api_key", "bearer") if secrets.get(kind)), "none")
    return Settings.from_connection(host=url, password=secrets.get(auth), extra={"auth": auth})


def application_name(spec: JobSpec) -> str:
    what = spec.request.get("column") or spec.job_type
    return f"lance {what} of {'.'.join(spec.table_id) or spec.location}"


def exit_of(state: JobState) -> int:
    return {JobState.DONE: EXIT_DONE, JobState.CANCELLED: EXIT_CANCELLED}.get(state, EXIT_FAILED)
