"""The executor protocol's side of the registry: launch, claim, report, death.

A driver owns its job from its claim until its terminal report, as long as its reports keep the lease alive. Tokens
are stored hashed: the launch token is made for one attempt, and the claim token is derived from it, so the same
claim sent again gets the same answer without anybody remembering it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TransactionNotFoundError
from sqlalchemy import Row, and_, or_, select, update

from airflow_provider_lance.api.job_words import JobState
from airflow_provider_lance.api.jobs import JobFailure, JobSpec
from airflow_provider_lance.namespace.database import Database, jobs, now_ms
from airflow_provider_lance.namespace.registry import EXTERNAL, LIVE, Stage, Timings, add_event, conflict, end
from airflow_provider_lance.namespace.reports import read_event, read_progress, read_terminal, sampled

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


@dataclass(frozen=True)
class Claim:
    token: str
    lease_until_ms: int
    spec: dict[str, Any]


@dataclass(frozen=True)
class Reported:
    """What a report came to. ``ended`` carries state, result and failure when the job is over."""

    lease_until_ms: int
    cancel: bool
    storage_expires_ms: int | None = None
    ended: dict[str, Any] | None = None


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def claim_token_of(launch_token: str, job_id: str, attempt: int) -> str:
    return hmac.new(launch_token.encode(), f"claim:{job_id}:{attempt}".encode(), hashlib.sha256).hexdigest()


class _LostRaceError(Exception):
    """Another transaction changed the job between our read and our write."""


class Executions:
    """Jobs for those who run them: this server (``server_id``) and the drivers."""

    def __init__(self, database: Database, server_id: str, timings: Timings) -> None:
        self.database = database
        self.server_id = server_id
        self.timings = timings

    # Launching

    def waiting(self, clusters: Sequence[str], limit: int) -> list[Row[Any]]:
        """Jobs to be launched now, in the order they came."""
        query = (
            select(jobs.c.job_id, jobs.c.attempt, jobs.c.cluster)
            .where(
                jobs.c.state.in_(LIVE),
                jobs.c.stage == Stage.WAITING.value,
                jobs.c.not_before_ms <= now_ms(),
                jobs.c.cluster.in_(clusters),
            )
            .order_by(jobs.c.seq)
            .limit(limit)
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def running_here(self) -> list[Row[Any]]:
        """What this server has launched and not yet seen the end of."""
        query = select(jobs).where(
            jobs.c.state.in_(LIVE),
            jobs.c.server_id == self.server_id,
            jobs.c.stage.in_([Stage.LAUNCHED.value, Stage.CLAIMED.value]),
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def begin_launch(self, job_id: str, attempt: int) -> Launch | None:
        """Take the next attempt, committed before anything is started. None: another server was faster."""
        token, now = secrets.token_urlsafe(32), now_ms()
        with self.database.writing() as connection:
            row = connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job_id,
                    jobs.c.stage == Stage.WAITING.value,
                    jobs.c.attempt == attempt,
                    jobs.c.state.in_(LIVE),
                )
                .values(
                    attempt=attempt + 1,
                    stage=Stage.LAUNCHED.value,
                    launch_hash=hash_token(token),
                    launch_deadline_ms=now + int(self.timings.launch * 1000),
                    launcher_ref=None,
                    server_id=self.server_id,
                    updated_ms=now,
                )
                .returning(jobs.c.cluster, jobs.c.environment, jobs.c.job_type, jobs.c.table_name)
            ).one_or_none()
            if row is None:
                return None
            add_event(connection, job_id, JobState.QUEUED if attempt == 0 else JobState.RUNNING, "Launching a driver")
        return Launch(job_id, attempt + 1, token, row.cluster, row.environment, row.job_type, row.table_name)

    def started(self, launch: Launch, reference: Mapping[str, Any]) -> None:
        """Remember how to find and kill what was started."""
        with self.database.writing() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id == launch.job_id, jobs.c.attempt == launch.attempt)
                .values(launcher_ref=dict(reference))
            )

    # Claim and report

    def claim(self, job_id: str, attempt: int, launch_token: str | None) -> Claim:
        row = self._row(job_id)
        if row.attempt != attempt:
            raise conflict(f"Attempt {attempt} of job {job_id} is not current; attempt {row.attempt} is.", job_id)
        if row.state not in LIVE:
            raise conflict(f"Job {job_id} has ended: it is {row.state}.", job_id)
        external = row.cluster == EXTERNAL
        if not launch_token:
            if not external:
                raise PermissionDeniedError(f"A claim of job {job_id} needs its launch token.")
            launch_token = secrets.token_urlsafe(32)  # such a claim cannot be repeated
        elif external and len(launch_token) < _SHORTEST_TOKEN:
            raise InvalidInputError(
                f"Whoever starts the driver of an external job chooses its launch token: take {_SHORTEST_TOKEN} "
                "random characters or more."
            )
        token = claim_token_of(launch_token, job_id, attempt)
        known = row.launch_hash is None or hmac.compare_digest(row.launch_hash, hash_token(launch_token))
        if not known and not external:
            raise PermissionDeniedError(f"That is not the launch token of attempt {attempt} of job {job_id}.")
        now = now_ms()
        lease_until = now + int(self.timings.lease * 1000)
        spec = row.spec
        with self.database.writing() as connection:
            fresh = connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job_id,
                    jobs.c.attempt == attempt,
                    jobs.c.stage == Stage.LAUNCHED.value,
                    jobs.c.state.in_(LIVE),
                    or_(jobs.c.launch_hash.is_(None), jobs.c.launch_hash == hash_token(launch_token)),
                )
                .values(
                    state=JobState.RUNNING.value,
                    stage=Stage.CLAIMED.value,
                    claim_hash=hash_token(token),
                    lease_until_ms=lease_until,
                    launch_deadline_ms=None,
                    last_seq=-1,
                    updated_ms=now,
                )
            ).rowcount
            if fresh:
                add_event(
                    connection,
                    job_id,
                    JobState.RUNNING,
                    f"A driver claimed attempt {attempt}",
                    claim_entity=_entity(job_id, attempt),
                )
                return Claim(token, lease_until, spec)
            again = connection.execute(
                update(jobs)
                .where(
                    jobs.c.job_id == job_id,
                    jobs.c.stage == Stage.CLAIMED.value,
                    jobs.c.attempt == attempt,
                    jobs.c.claim_hash == hash_token(token),
                )
                # A driver that was started again with its claim counts its reports from the beginning.
                .values(lease_until_ms=lease_until, last_seq=-1)
            ).rowcount
        if again:
            return Claim(token, lease_until, spec)
        raise conflict(f"Attempt {attempt} of job {job_id} is claimed by another driver, or the job has ended.", job_id)

    def report(
        self,
        job_id: str,
        claim_token: str,
        seq: int,
        progress: Mapping[str, Any] | None,
        events: Sequence[Mapping[str, Any]],
        terminal: Mapping[str, Any] | None,
    ) -> Reported:
        ending = read_terminal(terminal)
        row = self._row(job_id)
        claim_hash = hash_token(claim_token)
        if not row.claim_hash or not hmac.compare_digest(row.claim_hash, claim_hash):
            raise conflict(f"The claim on job {job_id} was lost: stop without another commit.", job_id)
        if row.stage == Stage.ENDED.value:
            if terminal is None and seq > row.last_seq:
                raise conflict(f"Job {job_id} has ended: it is {row.state}.", job_id)
            ended = {"state": row.state, "result": row.result, "failure": row.failure}
            return Reported(row.lease_until_ms or 0, bool(row.cancel_requested_ms), ended=ended)
        if row.stage != Stage.CLAIMED.value:
            raise conflict(f"The claim on job {job_id} was lost: stop without another commit.", job_id)
        cancel = row.cancel_requested_ms is not None
        if seq <= row.last_seq and ending is None:  # an end that was heard before would have ended the job
            return Reported(row.lease_until_ms, cancel, row.storage_expires_ms)
        now = now_ms()
        lease_until = now + int(self.timings.lease * 1000)
        held = [
            jobs.c.job_id == job_id,
            jobs.c.stage == Stage.CLAIMED.value,
            jobs.c.claim_hash == claim_hash,
        ]
        if ending is None:
            held.append(jobs.c.last_seq < seq)
        figures = read_progress(progress)
        values: dict[str, Any] = {"last_seq": max(seq, row.last_seq), "lease_until_ms": lease_until}
        if figures is not None:
            values |= {"progress": figures.to_dict(), "samples": sampled(row.samples, row.created_ms, now, figures)}
        try:
            with self.database.writing() as connection:
                for line in events[:_MOST_EVENTS]:
                    message, at_ms, fields = read_event(line, now)
                    add_event(
                        connection,
                        job_id,
                        JobState.RUNNING,
                        message,
                        at_ms=at_ms,
                        emitted_by="driver",
                        claim_entity=_entity(job_id, row.attempt),
                        rows_processed=figures.rows_done if figures else None,
                        fields=fields,
                    )
                outcome: dict[str, Any] | None = None
                if ending is None:
                    done = bool(connection.execute(update(jobs).where(*held).values(updated_ms=now, **values)).rowcount)
                else:
                    state, result, failure = ending
                    if state is JobState.CANCELLED and failure is None:
                        failure = JobFailure("cancel", row.cancel_reason or "The driver was told to stop.")
                    words = failure.message if failure else f"{state.value} on attempt {row.attempt}"
                    done = end(connection, held, state, words, result=result, failure=failure, **values)
                    reason = failure.to_dict() if failure else None
                    outcome = {"state": state.value, "result": result, "failure": reason}
                if not done:
                    raise _LostRaceError  # between the read and the write: nothing of this report may stay
        except _LostRaceError:
            return self.report(job_id, claim_token, seq, None, (), terminal)
        return Reported(lease_until, cancel, row.storage_expires_ms, outcome)

    def set_storage_expiry(self, job_id: str, expires_ms: int | None) -> None:
        with self.database.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(storage_expires_ms=expires_ms))

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

    # Death

    def overdue(self, started_ms: int) -> list[Row[Any]]:
        """Jobs whose driver must be given up: a lease or a launch deadline has passed, and so has our own start's
        grace (after an outage every lease looks dead until its driver has had the time to report)."""
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

    def cancelling(self) -> list[Row[Any]]:
        """Claimed jobs of this server that were told to stop long enough ago to be killed."""
        told = now_ms() - int(self.timings.kill_after_cancel * 1000)
        query = select(jobs).where(
            jobs.c.state.in_(LIVE),
            jobs.c.stage == Stage.CLAIMED.value,
            jobs.c.server_id == self.server_id,
            jobs.c.cancel_requested_ms <= told,
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))

    def driver_died(self, row: Row[Any], why: str, *, final: bool = False) -> bool:
        """The attempt of this row is over without a result: cancelled if that was asked for, else the next attempt,
        else FAILED. Its preconditions make it a no-op, and False, when the driver reported in the meantime."""
        now = now_ms()
        same = [
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
                failure = JobFailure("cancel", reason)
                return end(connection, same, JobState.CANCELLED, f"{reason} ({why})", failure=failure, claim_hash=None)
            if final or row.attempt >= self.timings.attempts:
                message = why if final else f"{why} That was attempt {row.attempt} of {self.timings.attempts}."
                phase = "run" if row.stage == Stage.CLAIMED.value else "launch"
                failure = JobFailure(phase, message, retryable=True)
                return end(connection, same, JobState.FAILED, message, failure=failure, claim_hash=None)
            external = row.cluster == EXTERNAL
            pause = 0 if external else int(self.timings.relaunch_pause * row.attempt * 1000)
            lost = connection.execute(
                update(jobs)
                .where(*same)
                .values(
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
            ).rowcount
            if lost:
                add_event(connection, row.job_id, JobState(row.state), f"{why} The job will be tried again.", at_ms=now)
            return bool(lost)

    def _row(self, job_id: str) -> Row[Any]:
        with self.database.reading() as connection:
            row = connection.execute(select(jobs).where(jobs.c.job_id == job_id)).one_or_none()
        if row is None:
            raise TransactionNotFoundError(f"There is no job {job_id!r}.")
        return row


def _entity(job_id: str, attempt: int) -> str:
    return f"{job_id}/{attempt}"
