"""The jobs as their owners see them: submit, describe, list, cancel, history. What drivers do is in ``executions.py``.

Every transition is one UPDATE with its precondition in the WHERE clause, so several servers on one database need no
other coordination. A row holds hashes of tokens, never a token, and no credentials.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, cast

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_provider_lance.api.job_states import EXTERNAL, LIVE_STATES, JobState
from airflow_provider_lance.api.jobs import JobFailure, JobSpec
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.jobs.database import Database, events, jobs, locks, now_ms
from airflow_provider_lance.namespace.submission import JobSubmission

LIVE = [state.value for state in LIVE_STATES]
# SQLAlchemy cannot type the columns of a table that is not mapped to a class.
JobRow: TypeAlias = Row[*tuple[Any, ...]]


class Stage(str, enum.Enum):
    """How far a job is on its way to a driver, in finer steps than its state.

    A job is ``WAITING`` for a launch, then ``LAUNCHED`` until a driver claims it, then ``CLAIMED``, then ``ENDED``.
    When its driver dies it returns to ``WAITING``, and its state stays RUNNING.
    """

    WAITING = "waiting"
    LAUNCHED = "launched"
    CLAIMED = "claimed"
    ENDED = "ended"


@dataclass(frozen=True)
class Timings:
    """The protocol's times in seconds. The defaults are documented; tests pass smaller ones."""

    lease: float = 60.0
    heartbeat: float = 2.0
    launch: float = 300.0
    launch_external: float = 24 * 3600.0
    start_grace: float = 60.0
    kill_after_cancel: float = 4.0
    server_lease: float = 30.0
    relaunch_pause: float = 2.0
    round_interval: float = 1.0
    attempts: int = 3

    def in_grace(self, started_ms: int, now: int) -> bool:
        """Whether a server started so recently that leases may have ended only because no server could renew them."""
        return now < started_ms + int(self.start_grace * 1000)


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a listing has; ``before`` continues an earlier one below that ``seq``."""

    job_ids: tuple[str, ...] | None = None
    key: str | None = None
    states: tuple[JobState, ...] | None = None
    table: str | None = None
    since_ms: int | None = None
    before: int | None = None
    limit: int = 100


class EventRow(TypedDict):
    """An event of a job as the database has it."""

    event_id: int
    job_id: str
    at_ms: int
    state: str
    attempt: int
    message: str
    emitted_by: str
    claim_entity: str | None
    rows_processed: int | None
    fields: dict[str, object] | None


class Registry:
    """The jobs, for those who submit them and ask for them."""

    def __init__(self, database: Database, timings: Timings | None = None) -> None:
        self.database = database
        self.timings = timings or Timings()

    def submit(self, job: JobSubmission) -> tuple[str, bool]:
        """Store a job with its locks and key in one transaction, or find the live job of the same key.

        Return the job's id, and whether it is new.
        """
        for _ in range(10):
            found = self._live_job_of_key(job)
            if found is not None:
                return found, False
            try:
                return self._insert(job), True
            except IntegrityError:
                # Another transaction took one of the locks, or used the same key.
                holder = self._holder(job.locks)
                if holder is not None and (job.idempotency_key is None or self._live_job_of_key(job) is None):
                    differing = job.differing_fields(holder.body_hash, holder.spec)
                    request = f"differs in {', '.join(differing)}" if differing else "is the same"
                    raise JobConflictError(
                        f"Job {holder.job_id} is still writing {holder.name!r}: wait for its end, or cancel it. Its "
                        f"request {request}.",
                        holder.job_id,
                        differing,
                    ) from None
        raise JobConflictError("Too many submits of the same job at once: try again.")

    def _live_job_of_key(self, job: JobSubmission) -> str | None:
        if job.idempotency_key is None:
            return None
        with self.database.reading() as connection:
            row = connection.execute(
                select(jobs.c.job_id, jobs.c.body_hash, jobs.c.spec).where(jobs.c.live_key == job.idempotency_key)
            ).one_or_none()
        if row is None:
            return None
        if row.body_hash != job.request_hash:
            raise JobConflictError(
                f"The idempotency key belongs to job {row.job_id}, which was submitted with another request: "
                "use a new key for a new request.",
                row.job_id,
                job.differing_fields(row.body_hash, row.spec),
            )
        return str(row.job_id)

    def _insert(self, job: JobSubmission) -> str:
        job_id, now = str(uuid.uuid4()), now_ms()
        external = job.cluster == EXTERNAL
        values = {
            "job_id": job_id,
            "job_type": job.spec.job_type,
            "table_name": job.table_name,
            "state": JobState.QUEUED.value,
            "stage": (Stage.LAUNCHED if external else Stage.WAITING).value,
            "spec": job.spec.to_dict(),
            "body_hash": job.request_hash,
            "idempotency_key": job.idempotency_key,
            "live_key": job.idempotency_key,
            "cluster": job.cluster,
            "environment": job.environment,
            "created_ms": now,
            "updated_ms": now,
            "attempt": 1 if external else 0,
            "launch_deadline_ms": now + int(self.timings.launch_external * 1000) if external else None,
            "waiter_seconds": job.waiter_seconds,
            "waiter_until_ms": now + job.waiter_seconds * 1000 if job.waiter_seconds else None,
            "requester": job.requester.to_dict() if job.requester is not None else None,
            "user_code": job.user_code,
        }
        with self.database.writing() as connection:
            connection.execute(insert(jobs).values(values))
            if job.locks:
                # The locks are sorted, so that two submits with several locks in common cannot wait for each other.
                names = sorted(set(job.locks))
                connection.execute(insert(locks), [{"name": name, "job_id": job_id} for name in names])
            waits = "waits for a driver to claim it" if external else "queued"
            add_event(connection, job_id, JobState.QUEUED, f"Submitted to cluster {job.cluster!r}: {waits}", at_ms=now)
        return job_id

    def record(self, spec: JobSpec, result: Mapping[str, object]) -> str:
        """Store a job that the server has done itself."""
        job_id, now = str(uuid.uuid4()), now_ms()
        submission = JobSubmission(spec, locks=(), user_code="")
        values = {
            "job_id": job_id,
            "job_type": spec.job_type,
            "table_name": submission.table_name,
            "state": JobState.DONE.value,
            "stage": Stage.ENDED.value,
            "spec": spec.to_dict(),
            "body_hash": submission.request_hash,
            "cluster": submission.cluster,
            "created_ms": now,
            "updated_ms": now,
            "finished_ms": now,
            "attempt": 0,
            "result": dict(result),
            "user_code": "",
        }
        with self.database.writing() as connection:
            connection.execute(insert(jobs).values(values))
            add_event(connection, job_id, JobState.DONE, "Done by the server", at_ms=now)
        return job_id

    def _holder(self, names: Iterable[str]) -> JobRow | None:
        """A held lock of these names with the job that holds it; None if all are free."""
        query = select(locks.c.name, jobs.c.job_id, jobs.c.body_hash, jobs.c.spec).join(
            jobs, jobs.c.job_id == locks.c.job_id
        )
        with self.database.reading() as connection:
            return connection.execute(query.where(locks.c.name.in_(list(names))).limit(1)).one_or_none()

    def get(self, job_id: str) -> JobRow | None:
        with self.database.reading() as connection:
            return connection.execute(select(jobs).where(jobs.c.job_id == job_id)).one_or_none()

    def find(self, wanted: JobFilter) -> Sequence[JobRow]:
        """The jobs of a listing, newest first."""
        query = select(jobs).order_by(jobs.c.seq.desc()).limit(wanted.limit)
        if wanted.job_ids is not None:
            query = query.where(jobs.c.job_id.in_(wanted.job_ids))
        if wanted.key is not None:
            query = query.where(jobs.c.idempotency_key == wanted.key)
        if wanted.states is not None:
            query = query.where(jobs.c.state.in_([state.value for state in wanted.states]))
        if wanted.table is not None:
            query = query.where(jobs.c.table_name == wanted.table)
        if wanted.since_ms is not None:
            query = query.where(jobs.c.created_ms >= wanted.since_ms)
        if wanted.before is not None:
            query = query.where(jobs.c.seq < wanted.before)
        with self.database.reading() as connection:
            return connection.execute(query).all()

    def renew_waiters(self, rows: Iterable[JobRow]) -> None:
        """Extend the leases of the waiters who asked for these jobs by name.

        A lease is written at most ten times while it lasts, so that polling is mostly reading.
        """
        now = now_ms()
        due = [
            row.job_id
            for row in rows
            if row.waiter_seconds
            and row.stage != Stage.ENDED.value
            and (row.waiter_until_ms or 0) - now < row.waiter_seconds * 900
        ]
        if not due:
            return
        with self.database.writing() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.job_id.in_(due), jobs.c.stage != Stage.ENDED.value, jobs.c.cancel_requested_ms.is_(None))
                .values(waiter_until_ms=jobs.c.waiter_seconds * 1000 + now)
            )

    def cancel(self, job_id: str, reason: str, *, only_if: ColumnElement[bool] | None = None) -> bool:
        """End a job that no driver has claimed, or tell the driver with its next report to stop.

        Return False if the job had ended, was being cancelled already, or ``only_if`` does not hold.
        """
        now = now_ms()
        live = [jobs.c.job_id == job_id, jobs.c.state.in_(LIVE)]
        if only_if is not None:
            live.append(only_if)
        with self.database.writing() as connection:
            failure = JobFailure("cancel", reason, retryable=False)
            unclaimed = [*live, jobs.c.stage != Stage.CLAIMED.value]
            if end_job(connection, unclaimed, JobState.CANCELLED, reason, failure=failure):
                return True
            claimed = [*live, jobs.c.stage == Stage.CLAIMED.value, jobs.c.cancel_requested_ms.is_(None)]
            told = update_job(
                connection, claimed, cancel_requested_ms=now, cancel_reason=reason, live_key=None, updated_ms=now
            )
            if told:
                add_event(connection, job_id, JobState.RUNNING, f"Cancel requested: {reason}", at_ms=now)
            return told

    def pause(self, job_id: str) -> bool:
        """Keep a job from being launched, or tell its driver to stop and keep what it has finished.

        Return False if it had ended, was paused already, or is being cancelled.
        """
        now = now_ms()
        running = [
            jobs.c.job_id == job_id,
            jobs.c.state.in_(LIVE),
            jobs.c.paused_ms.is_(None),
            jobs.c.cancel_requested_ms.is_(None),
        ]
        with self.database.writing() as connection:
            paused = update_job(connection, running, paused_ms=now, updated_ms=now)
            if paused:
                add_event(connection, job_id, JobState.RUNNING, "Pause requested", at_ms=now)
            return paused

    def resume(self, job_id: str) -> bool:
        """Let a paused job be launched again. Return False if it is not paused, or its driver has not stopped yet."""
        stopped = [jobs.c.job_id == job_id, jobs.c.paused_ms.is_not(None), jobs.c.stage == Stage.WAITING.value]
        with self.database.writing() as connection:
            resumed = update_job(connection, stopped, paused_ms=None, not_before_ms=0, updated_ms=now_ms())
            if resumed:
                add_event(connection, job_id, JobState.QUEUED, "Resumed")
            return resumed

    def nobody_waits(self, started_ms: int, now: int) -> list[str]:
        """Live jobs whose waiter's lease has ended; none while waiters had no time to ask since the server's start."""
        if self.timings.in_grace(started_ms, now):
            return []
        with self.database.reading() as connection:
            query = select(jobs.c.job_id).where(
                jobs.c.state.in_(LIVE), jobs.c.waiter_until_ms < now, jobs.c.cancel_requested_ms.is_(None)
            )
            return list(connection.scalars(query))

    def history(self, job_id: str | None, limit: int, *, newest: bool = False) -> list[EventRow]:
        """The oldest or ``newest`` events of one job or of all jobs, in the order in which they happened."""
        query = select(events).limit(limit)
        if job_id is not None:
            query = query.where(events.c.job_id == job_id)
        query = query.order_by(events.c.event_id.desc() if newest else events.c.event_id)
        with self.database.reading() as connection:
            rows = [cast(EventRow, dict(row._mapping)) for row in connection.execute(query)]
        return rows[::-1] if newest else rows

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state; states without jobs are included."""
        with self.database.reading() as connection:
            found = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
        return {state.value: 0 for state in JobState} | {row[0]: row[1] for row in found}

    def delete_ended(self, before_ms: int, most: int = 1000) -> list[str]:
        """Delete the jobs that ended before that time, with their events; return their ids."""
        with self.database.writing() as connection:
            query = select(jobs.c.job_id).where(jobs.c.stage == Stage.ENDED.value, jobs.c.finished_ms < before_ms)
            gone = list(connection.scalars(query.limit(most)))
            if gone:
                connection.execute(delete(events).where(events.c.job_id.in_(gone)))
                connection.execute(delete(jobs).where(jobs.c.job_id.in_(gone)))
        return gone


def update_job(connection: Connection, conditions: Sequence[ColumnElement[bool]], **values: object) -> bool:
    """Change the job that meets all conditions; False if there is none, because another transaction changed it."""
    return connection.execute(update(jobs).where(*conditions).values(**values)).rowcount > 0


def end_job(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    state: JobState,
    message: str,
    *,
    result: Mapping[str, object] | None = None,
    failure: JobFailure | None = None,
    **values: object,
) -> bool:
    """End the job that meets all conditions, and free its locks and its key; False if there is none.

    The hash of the claim is kept, so that a driver whose answer was lost can send its terminal report again.
    """
    now = now_ms()
    job_id = connection.scalar(
        update(jobs)
        .where(*conditions)
        .values(
            state=state.value,
            stage=Stage.ENDED.value,
            result=dict(result) if result is not None else None,
            failure=failure.to_dict() if failure else None,
            live_key=None,
            launch_hash=None,
            launch_deadline_ms=None,
            waiter_until_ms=None,
            finished_ms=now,
            updated_ms=now,
            **values,
        )
        .returning(jobs.c.job_id)
    )
    if job_id is None:
        return False
    connection.execute(delete(locks).where(locks.c.job_id == job_id))
    add_event(connection, job_id, state, message, at_ms=now)
    return True


def add_event(
    connection: Connection,
    job_id: str,
    state: JobState,
    message: str,
    *,
    at_ms: int | None = None,
    emitted_by: str = "server",
    claim_entity: str | None = None,
    rows_processed: int | None = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    attempt = select(func.coalesce(func.max(jobs.c.attempt), 0)).where(jobs.c.job_id == job_id).scalar_subquery()
    connection.execute(
        insert(events).values(
            job_id=job_id,
            at_ms=now_ms() if at_ms is None else at_ms,
            state=state.value,
            attempt=attempt,
            message=message[:4000],
            emitted_by=emitted_by,
            claim_entity=claim_entity,
            rows_processed=rows_processed,
            fields=dict(fields) if fields else None,
        )
    )
