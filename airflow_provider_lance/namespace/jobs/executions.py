"""The executor protocol in the registry: launch, claim, report, and what happens when a driver dies.

A driver owns its job from its claim until its terminal report, as long as its reports renew the lease. Only hashes of
tokens are stored. The launch token is made for one attempt and the claim token is derived from it, so the same claim
sent again gets the same answer although neither token is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TransactionNotFoundError
from sqlalchemy import ColumnElement, Connection, and_, or_, select, update

from airflow_provider_lance.api.job_states import EXTERNAL, JobState, StartPath
from airflow_provider_lance.api.jobs import JobFailure, JobSpec
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.jobs.database import Database, jobs, now_ms
from airflow_provider_lance.namespace.jobs.registry import (
    LIVE,
    JobRow,
    Stage,
    Timings,
    add_event,
    end_job,
    update_job,
)
from airflow_provider_lance.namespace.jobs.reports import DriverReport, Ending, add_sample, read_event

_MOST_EVENTS = 200
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Launch:
    """One attempt to be started: everything the launcher needs to know of its job."""

    job_id: str
    attempt: int
    token: str
    cluster: str
    environment: str | None
    job_type: str
    table_name: str
    on_spark: bool = False


@dataclass(frozen=True)
class Claim:
    """A job that a driver owns until its lease ends; ``again`` tells that the driver had it already."""

    token: str
    lease_until_ms: int
    spec: JobSpec
    again: bool = False


@dataclass(frozen=True)
class Reported:
    """The answer to a report; ``ending`` is how the job ended, if it has."""

    lease_until_ms: int
    cancel: bool
    storage_expires_ms: int | None = None
    ending: Ending | None = None


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def claim_token_of(launch_token: str, job_id: str, attempt: int) -> str:
    return hmac.new(launch_token.encode(), f"claim:{job_id}:{attempt}".encode(), hashlib.sha256).hexdigest()


class _LostRaceError(Exception):
    """Another transaction changed the job between the read and the write of this one."""


class Executions:
    """The jobs, for those who run them: this server (``server_id``) and the drivers."""

    def __init__(self, database: Database, server_id: str, timings: Timings) -> None:
        self.database = database
        self.server_id = server_id
        self.timings = timings

    # Launching

    def waiting(self, clusters: Sequence[str], limit: int) -> list[JobRow]:
        """The jobs to be launched now, in the order of their submission."""
        query = (
            select(jobs)
            .where(
                jobs.c.state.in_(LIVE),
                jobs.c.stage == Stage.WAITING.value,
                jobs.c.not_before_ms <= now_ms(),
                jobs.c.paused_ms.is_(None),
                jobs.c.cluster.in_(clusters),
            )
            .order_by(jobs.c.seq)
            .limit(limit)
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def running_here(self) -> list[JobRow]:
        """The live jobs whose drivers this server has launched."""
        query = select(jobs).where(
            jobs.c.state.in_(LIVE),
            jobs.c.server_id == self.server_id,
            jobs.c.stage.in_([Stage.LAUNCHED.value, Stage.CLAIMED.value]),
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def begin_launch(
        self,
        job_id: str,
        attempt: int,
        path: StartPath = StartPath.COLD,
        message: str = "Launching a driver",
        reference: Mapping[str, object] | None = None,
    ) -> Launch | None:
        """Begin the next attempt before its driver is started; None if another server has begun it.

        ``reference`` is that of a driver which waits. It is stored before the driver hears of the job, so that the next
        server finds the driver of a server that died in between.
        """
        token, now = secrets.token_urlsafe(32), now_ms()
        with self.database.writing() as connection:
            row = connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job_id,
                    jobs.c.stage == Stage.WAITING.value,
                    jobs.c.attempt == attempt,
                    jobs.c.state.in_(LIVE),
                    jobs.c.paused_ms.is_(None),
                )
                .values(
                    attempt=attempt + 1,
                    stage=Stage.LAUNCHED.value,
                    launch_hash=hash_token(token),
                    launch_deadline_ms=now + int(self.timings.launch * 1000),
                    launcher_ref=None if reference is None else dict(reference),
                    server_id=self.server_id,
                    start_path=path.value,
                    launched_ms=now,
                    claimed_ms=None,
                    updated_ms=now,
                )
                .returning(jobs.c.cluster, jobs.c.environment, jobs.c.job_type, jobs.c.table_name, jobs.c.spec)
            ).one_or_none()
            if row is None:
                return None
            add_event(connection, job_id, JobState.QUEUED if attempt == 0 else JobState.RUNNING, message)
        on_spark = JobSpec.from_dict(row.spec).on_spark
        return Launch(job_id, attempt + 1, token, row.cluster, row.environment, row.job_type, row.table_name, on_spark)

    def started(self, launch: Launch, reference: Mapping[str, object]) -> None:
        """Store how to find and kill the driver that was started."""
        same_attempt = [jobs.c.job_id == launch.job_id, jobs.c.attempt == launch.attempt]
        with self.database.writing() as connection:
            update_job(connection, same_attempt, launcher_ref=dict(reference))

    # Claim and report

    def claim(self, job_id: str, attempt: int, launch_token: str | None) -> Claim:
        """Give an attempt of a job to the driver that has its launch token."""
        row = self._row(job_id)
        if row.attempt != attempt:
            raise JobConflictError(
                f"Attempt {attempt} of job {job_id} is not current; attempt {row.attempt} is.", job_id
            )
        if row.state not in LIVE:
            raise JobConflictError(f"Job {job_id} has ended: it is {row.state}.", job_id)
        launch_token = _check_launch_token(row, launch_token)
        claim = Claim(
            claim_token_of(launch_token, job_id, attempt), self._lease_from(now_ms()), JobSpec.from_dict(row.spec)
        )
        with self.database.writing() as connection:
            if self._claim_first(connection, row, claim, launch_token):
                return claim
            if self._claim_again(connection, row, claim):
                return replace(claim, again=True)
        raise JobConflictError(
            f"Attempt {attempt} of job {job_id} is claimed by another driver, or the job has ended.", job_id
        )

    def _claim_first(self, connection: Connection, row: JobRow, claim: Claim, launch_token: str) -> bool:
        unclaimed = [
            jobs.c.job_id == row.job_id,
            jobs.c.attempt == row.attempt,
            jobs.c.stage == Stage.LAUNCHED.value,
            jobs.c.state.in_(LIVE),
            or_(jobs.c.launch_hash.is_(None), jobs.c.launch_hash == hash_token(launch_token)),
        ]
        claimed = update_job(
            connection,
            unclaimed,
            state=JobState.RUNNING.value,
            stage=Stage.CLAIMED.value,
            claim_hash=hash_token(claim.token),
            lease_until_ms=claim.lease_until_ms,
            launch_deadline_ms=None,
            last_seq=-1,
            claimed_ms=now_ms(),
            updated_ms=now_ms(),
        )
        if claimed:
            message = f"A driver claimed attempt {row.attempt}"
            add_event(connection, row.job_id, JobState.RUNNING, message, claim_entity=_claim_entity(row))
        return claimed

    def _claim_again(self, connection: Connection, row: JobRow, claim: Claim) -> bool:
        """Repeat a claim. A driver that was started again counts its reports from the beginning."""
        return update_job(
            connection,
            [*_held(row.job_id, claim.token), jobs.c.attempt == row.attempt],
            lease_until_ms=claim.lease_until_ms,
            last_seq=-1,
        )

    def report(self, report: DriverReport) -> Reported:
        """Store a driver's report, renew its lease, and end the job if the report is its last."""
        while True:
            try:
                return self._store_report(report)
            except _LostRaceError:
                # The job has ended, was cancelled, or a later report was faster. The progress and the events of this
                # one are obsolete, but the driver must learn what became of the job.
                report = report.without_progress()

    def _store_report(self, report: DriverReport) -> Reported:
        row = self._row(report.job_id)
        claim_hash = hash_token(report.claim_token)
        known = row.claim_hash is not None and hmac.compare_digest(row.claim_hash, claim_hash)
        if not known or row.stage not in {Stage.CLAIMED.value, Stage.ENDED.value}:
            raise JobConflictError(
                f"The claim on job {report.job_id} was lost: stop without another commit.", report.job_id
            )
        # The driver of a job that is paused stops as that of a cancelled one does, and keeps what it has finished.
        cancel = row.cancel_requested_ms is not None or row.paused_ms is not None
        if row.stage == Stage.ENDED.value:
            if report.ending is None and report.seq > row.last_seq:
                raise JobConflictError(f"Job {report.job_id} has ended: it is {row.state}.", report.job_id)
            return Reported(row.lease_until_ms or 0, cancel, ending=Ending.of_row(row))
        # A repeated report changes nothing. A terminal one cannot be a repetition, because the first ended the job.
        if report.seq <= row.last_seq and report.ending is None:
            return Reported(row.lease_until_ms, cancel, row.storage_expires_ms)
        now = now_ms()
        values: dict[str, object] = {
            "last_seq": max(report.seq, row.last_seq),
            "lease_until_ms": self._lease_from(now),
        }
        if report.progress is not None:
            values["progress"] = report.progress.to_dict()
            values["samples"] = add_sample(row.samples, row.created_ms, now, report.progress)
        ending = report.ending.with_cancel_reason(row.cancel_reason) if report.ending is not None else None
        held = _held(report.job_id, report.claim_token)
        with self.database.writing() as connection:
            _add_events(connection, row, report, now)
            if ending is not None and ending.state is JobState.CANCELLED and _only_paused(row):
                unchanged = [*held, jobs.c.paused_ms.is_not(None), jobs.c.cancel_requested_ms.is_(None)]
                stored = self._next_attempt(connection, unchanged, row, "Paused: the driver has stopped.")
            elif ending is None:
                stored = update_job(connection, [*held, jobs.c.last_seq < report.seq], updated_ms=now, **values)
            else:
                message = ending.failure.message if ending.failure else f"{ending.state.value} on attempt {row.attempt}"
                stored = end_job(
                    connection, held, ending.state, message, result=ending.result, failure=ending.failure, **values
                )
            if not stored:
                raise _LostRaceError  # This also undoes the events that were added.
        return Reported(self._lease_from(now), cancel, row.storage_expires_ms, ending)

    def _lease_from(self, now: int) -> int:
        return now + int(self.timings.lease * 1000)

    def set_storage_expiry(self, job_id: str, expires_ms: int | None) -> None:
        with self.database.writing() as connection:
            update_job(connection, [jobs.c.job_id == job_id], storage_expires_ms=expires_ms)

    def claimed_table(self, claim_token: str) -> list[str] | None:
        """The table that the driver with this token writes; ``None`` unless its claim is alive."""
        query = select(jobs.c.lease_until_ms, jobs.c.spec).where(
            jobs.c.claim_hash == hash_token(claim_token), jobs.c.stage == Stage.CLAIMED.value
        )
        with self.database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or row.lease_until_ms is None or row.lease_until_ms < now_ms():
            return None
        return list(JobSpec.from_dict(row.spec).table_id)

    # Drivers that died

    def overdue(self, started_ms: int) -> list[JobRow]:
        """The jobs whose lease or launch deadline has passed.

        After an outage every lease looks dead, so there are none until drivers had time to report to this server,
        which started at ``started_ms``.
        """
        now = now_ms()
        if self.timings.in_grace(started_ms, now):
            return []
        query = select(jobs).where(
            jobs.c.state.in_(LIVE),
            or_(
                and_(jobs.c.stage == Stage.CLAIMED.value, jobs.c.lease_until_ms < now),
                and_(jobs.c.stage == Stage.LAUNCHED.value, jobs.c.launch_deadline_ms < now),
            ),
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def cancelling(self) -> list[JobRow]:
        """The claimed jobs of this server whose driver was told to stop and has had the time to do so."""
        told = now_ms() - int(self.timings.kill_after_cancel * 1000)
        query = select(jobs).where(
            jobs.c.state.in_(LIVE),
            jobs.c.stage == Stage.CLAIMED.value,
            jobs.c.server_id == self.server_id,
            or_(jobs.c.cancel_requested_ms <= told, jobs.c.paused_ms <= told),
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def driver_died(self, row: JobRow, why: str, *, final: bool = False) -> bool:
        """End the attempt of this row, which has no result.

        The job is cancelled if that was requested, otherwise it gets its next attempt, or it fails after the last one
        or if ``final``. Return False, and change nothing, if the driver reported after ``row`` was read.
        """
        unchanged = [
            jobs.c.job_id == row.job_id,
            jobs.c.attempt == row.attempt,
            jobs.c.stage == row.stage,
            jobs.c.last_seq == row.last_seq,
            jobs.c.lease_until_ms.is_not_distinct_from(row.lease_until_ms),
            jobs.c.cancel_requested_ms.is_not_distinct_from(row.cancel_requested_ms),
        ]
        with self.database.writing() as connection:
            if row.cancel_requested_ms is not None:
                reason = row.cancel_reason or "Cancelled."
                state, failure, message = JobState.CANCELLED, JobFailure("cancel", reason), f"{reason} ({why})"
            elif _only_paused(row):
                return self._next_attempt(connection, unchanged, row, f"Paused: {why}")
            elif final or row.attempt >= self.timings.attempts:
                message = why if final else f"{why} That was attempt {row.attempt} of {self.timings.attempts}."
                phase = "run" if row.stage == Stage.CLAIMED.value else "launch"
                state, failure = JobState.FAILED, JobFailure(phase, message, retryable=True)
            else:
                return self._next_attempt(connection, unchanged, row, why)
            return end_job(connection, unchanged, state, message, failure=failure, claim_hash=None)

    def _next_attempt(
        self, connection: Connection, unchanged: Sequence[ColumnElement[bool]], row: JobRow, why: str
    ) -> bool:
        now = now_ms()
        external = row.cluster == EXTERNAL
        pause = 0 if external else int(self.timings.relaunch_pause * row.attempt * 1000)
        changed = update_job(
            connection,
            unchanged,
            stage=(Stage.LAUNCHED if external else Stage.WAITING).value,
            attempt=row.attempt + 1 if external else row.attempt,
            launch_hash=None,
            launch_deadline_ms=now + int(self.timings.launch_external * 1000) if external else None,
            not_before_ms=now + pause,
            claim_hash=None,
            lease_until_ms=None,
            last_seq=-1,
            launcher_ref=None,
            server_id=None,
            updated_ms=now,
        )
        if changed:
            then = "" if row.paused_ms is not None else " The job will be tried again."
            add_event(connection, row.job_id, JobState(row.state), f"{why}{then}", at_ms=now)
        return changed

    def _row(self, job_id: str) -> JobRow:
        with self.database.reading() as connection:
            row = connection.execute(select(jobs).where(jobs.c.job_id == job_id)).one_or_none()
        if row is None:
            raise TransactionNotFoundError(f"There is no job {job_id!r}.")
        return row


def _only_paused(row: JobRow) -> bool:
    return row.paused_ms is not None and row.cancel_requested_ms is None


def _check_launch_token(row: JobRow, token: str | None) -> str:
    """The launch token of a claim; ``PermissionDeniedError`` unless it is the one of the current attempt.

    The driver of an external job is started by somebody else, who chooses the token of the first claim. A claim without
    a token gets a random one, and cannot be repeated.
    """
    external = row.cluster == EXTERNAL
    if not token:
        if not external:
            raise PermissionDeniedError(f"A claim of job {row.job_id} needs its launch token.")
        return secrets.token_urlsafe(32)
    if external and len(token) < _SHORTEST_TOKEN:
        raise InvalidInputError(
            f"Whoever starts the driver of an external job chooses its launch token: take {_SHORTEST_TOKEN} "
            "random characters or more."
        )
    known = row.launch_hash is None or hmac.compare_digest(row.launch_hash, hash_token(token))
    if not known and not external:
        raise PermissionDeniedError(f"That is not the launch token of attempt {row.attempt} of job {row.job_id}.")
    return token


def _held(job_id: str, claim_token: str) -> list[ColumnElement[bool]]:
    """The conditions under which a driver with this claim still owns the job."""
    return [
        jobs.c.job_id == job_id,
        jobs.c.stage == Stage.CLAIMED.value,
        jobs.c.claim_hash == hash_token(claim_token),
    ]


def _add_events(connection: Connection, row: JobRow, report: DriverReport, now: int) -> None:
    for line in report.events[:_MOST_EVENTS]:
        message, at_ms, fields = read_event(line, now)
        add_event(
            connection,
            row.job_id,
            JobState.RUNNING,
            message,
            at_ms=at_ms,
            emitted_by="driver",
            claim_entity=_claim_entity(row),
            rows_processed=report.progress.rows_done if report.progress else None,
            fields=fields,
        )


def _claim_entity(row: JobRow) -> str:
    return f"{row.job_id}/{row.attempt}"
