"""The jobs as their owners see them: submit, describe, list, cancel, history. What drivers do is in ``executions.py``.

Every transition is one UPDATE that names its precondition, so several servers on one database need no other
coordination. A row holds hashes of tokens, never a token, and no credentials.
"""

from __future__ import annotations

import enum
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lance_namespace.errors import ConcurrentModificationError
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_provider_lance.api.errors import DIFFERING_FIELDS
from airflow_provider_lance.api.job_words import LIVE_STATES, JobState
from airflow_provider_lance.api.jobs import JobFailure
from airflow_provider_lance.namespace.database import Database, events, jobs, locks, now_ms

LIVE = [state.value for state in LIVE_STATES]
EXTERNAL = "external"


class Stage(str, enum.Enum):
    """Where a job is on its way to a driver; finer than its state.

    ``WAITING`` for a launch → ``LAUNCHED``, no driver has claimed it yet → ``CLAIMED`` → ``ENDED``. A dead driver
    takes it back to ``WAITING``; the state, once RUNNING, stays so.
    """

    WAITING = "waiting"
    LAUNCHED = "launched"
    CLAIMED = "claimed"
    ENDED = "ended"


@dataclass(frozen=True)
class Timings:
    """The protocol's seconds. The defaults are the contract; tests that cannot wait for them pass smaller ones."""

    lease: float = 60.0
    heartbeat: float = 2.0
    launch: float = 300.0
    launch_external: float = 24 * 3600.0
    start_grace: float = 60.0
    kill_after_cancel: float = 4.0
    server_lease: float = 30.0
    relaunch_pause: float = 2.0
    attempts: int = 3

    def in_grace(self, started_ms: int, now: int) -> bool:
        """Whether a server that started then must still take every lease for alive: nobody could renew one before."""
        return now < started_ms + int(self.start_grace * 1000)


@dataclass(frozen=True)
class NewJob:
    """A submission in the registry's words; ``key`` and ``waiter_seconds`` come from the request's context."""

    job_type: str
    table_name: str
    spec: dict[str, Any]
    body: Mapping[str, Any]
    locks: tuple[str, ...]
    cluster: str
    environment: str | None = None
    key: str | None = None
    waiter_seconds: int = 0

    @property
    def body_hash(self) -> str:
        same = [self.job_type, self.table_name, self.body]
        return hashlib.sha256(json.dumps(same, sort_keys=True, default=str).encode()).hexdigest()

    def differing_fields(self, other: Any) -> list[str]:
        """The request's fields and options in which another job's row differs; empty for an equal request."""
        if other.body_hash == self.body_hash:
            return []
        here = {**self.body, **self.body.get("options", {}), "options": None}
        there = {**other.spec.get("request", {}), **other.spec.get("options", {})}
        differing = (name for name in {**here, **there} if here.get(name) != there.get(name))
        return sorted(differing) or ["request"]


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a listing wants; ``before`` continues it below that ``seq``."""

    job_ids: tuple[str, ...] | None = None
    key: str | None = None
    states: tuple[JobState, ...] | None = None
    table: str | None = None
    since_ms: int | None = None
    before: int | None = None
    limit: int = 100


def conflict(
    message: str, instance: str | None = None, differing_fields: list[str] | None = None
) -> ConcurrentModificationError:
    """409/14; the server puts ``instance`` (the live job's id) and ``differing_fields`` into the error body."""
    error = ConcurrentModificationError(message)
    error.instance = instance  # type: ignore[attr-defined]
    setattr(error, DIFFERING_FIELDS, differing_fields)
    return error


class Registry:
    """Jobs for those who submit and watch them."""

    def __init__(self, database: Database, timings: Timings | None = None) -> None:
        self.database = database
        self.timings = timings or Timings()

    def submit(self, job: NewJob) -> tuple[str, bool]:
        """``(job id, whether it is new)``: job, locks and key in one transaction, or the live job of the same key."""
        for _ in range(10):
            found = self._live_job_of_key(job)
            if found is not None:
                return found, False
            try:
                return self._insert(job), True
            except IntegrityError:
                # Somebody else's transaction won: either it holds one of our locks, or it used our key.
                holder = self._holder(job.locks)
                if holder is not None and (job.key is None or self._live_job_of_key(job) is None):
                    differing = job.differing_fields(holder)
                    request = f"differs in {', '.join(differing)}" if differing else "is the same"
                    raise conflict(
                        f"Job {holder.job_id} is still writing {holder.name!r}: wait for its end, or cancel it. Its "
                        f"request {request}.",
                        holder.job_id,
                        differing,
                    ) from None
        raise conflict("Too many submits of the same job at once: try again.")

    def _live_job_of_key(self, job: NewJob) -> str | None:
        if job.key is None:
            return None
        with self.database.reading() as connection:
            row = connection.execute(
                select(jobs.c.job_id, jobs.c.body_hash, jobs.c.spec).where(jobs.c.live_key == job.key)
            ).one_or_none()
        if row is None:
            return None
        if row.body_hash != job.body_hash:
            raise conflict(
                f"The idempotency key belongs to job {row.job_id}, which was submitted with another request: "
                "use a new key for a new request.",
                row.job_id,
                job.differing_fields(row),
            )
        return str(row.job_id)

    def _insert(self, job: NewJob) -> str:
        job_id, now, timings = str(uuid.uuid4()), now_ms(), self.timings
        external = job.cluster == EXTERNAL
        values = {
            "job_id": job_id,
            "job_type": job.job_type,
            "table_name": job.table_name,
            "state": JobState.QUEUED.value,
            "stage": (Stage.LAUNCHED if external else Stage.WAITING).value,
            "spec": job.spec,
            "body_hash": job.body_hash,
            "idempotency_key": job.key,
            "live_key": job.key,
            "cluster": job.cluster,
            "environment": job.environment,
            "created_ms": now,
            "updated_ms": now,
            "attempt": 1 if external else 0,
            "launch_deadline_ms": now + int(timings.launch_external * 1000) if external else None,
            "waiter_seconds": job.waiter_seconds,
            "waiter_until_ms": now + job.waiter_seconds * 1000 if job.waiter_seconds else None,
        }
        with self.database.writing() as connection:
            connection.execute(insert(jobs).values(values))
            if job.locks:
                # Sorted, so that two submits with several locks in common cannot wait for each other.
                names = sorted(set(job.locks))
                connection.execute(insert(locks), [{"name": name, "job_id": job_id} for name in names])
            waits = "waits for a driver to claim it" if external else "queued"
            add_event(connection, job_id, JobState.QUEUED, f"Submitted to cluster {job.cluster!r}: {waits}", at_ms=now)
        return job_id

    def _holder(self, names: Iterable[str]) -> Any:
        """The lock's name and its job's id, hash and spec; ``None`` if nobody holds any of these."""
        query = select(locks.c.name, jobs.c.job_id, jobs.c.body_hash, jobs.c.spec).join(
            jobs, jobs.c.job_id == locks.c.job_id
        )
        with self.database.reading() as connection:
            return connection.execute(query.where(locks.c.name.in_(list(names))).limit(1)).one_or_none()

    def get(self, job_id: str) -> Row[Any] | None:
        with self.database.reading() as connection:
            return connection.execute(select(jobs).where(jobs.c.job_id == job_id)).one_or_none()

    def find(self, wanted: JobFilter) -> Sequence[Row[Any]]:
        """Newest first."""
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

    def renew_waiters(self, rows: Iterable[Row[Any]]) -> None:
        """Somebody asked for these jobs by name. Written at most ten times per lease: polling must stay a read."""
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
        """Ask a job to end: at once where no driver holds it, otherwise with the driver's next report.

        False if there was nothing to do: it had ended, was being cancelled already, or ``only_if`` does not hold.
        """
        now = now_ms()
        live = [jobs.c.job_id == job_id, jobs.c.state.in_(LIVE)]
        if only_if is not None:
            live.append(only_if)
        with self.database.writing() as connection:
            failure = JobFailure("cancel", reason, retryable=False)
            if end(
                connection, [*live, jobs.c.stage != Stage.CLAIMED.value], JobState.CANCELLED, reason, failure=failure
            ):
                return True
            told = connection.execute(
                update(jobs)
                .where(*live, jobs.c.stage == Stage.CLAIMED.value, jobs.c.cancel_requested_ms.is_(None))
                .values(cancel_requested_ms=now, cancel_reason=reason, live_key=None, updated_ms=now)
            ).rowcount
            if told:
                add_event(connection, job_id, JobState.RUNNING, f"Cancel requested: {reason}", at_ms=now)
            return bool(told)

    def nobody_waits(self, started_ms: int, now: int) -> list[str]:
        """Live jobs whose waiter's lease has ended: not while the server's start is so near that who waits had no time
        to ask again."""
        if self.timings.in_grace(started_ms, now):
            return []
        with self.database.reading() as connection:
            query = select(jobs.c.job_id).where(
                jobs.c.state.in_(LIVE), jobs.c.waiter_until_ms < now, jobs.c.cancel_requested_ms.is_(None)
            )
            return list(connection.scalars(query))

    def history(self, job_id: str | None, limit: int, *, newest: bool = False) -> list[dict[str, Any]]:
        """Events in the order they happened; of the newest ``limit`` ones where ``newest``."""
        query = select(events).limit(limit)
        if job_id is not None:
            query = query.where(events.c.job_id == job_id)
        query = query.order_by(events.c.event_id.desc() if newest else events.c.event_id)
        with self.database.reading() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query)]
        return rows[::-1] if newest else rows

    def counts(self) -> dict[str, int]:
        """Jobs by state, every state named."""
        with self.database.reading() as connection:
            found = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state)).all()
        return {state.value: 0 for state in JobState} | {row[0]: row[1] for row in found}

    def forget_ended(self, before_ms: int, most: int = 1000) -> list[str]:
        """Delete ended jobs older than that, with their events; the ids, so that their logs can go too."""
        with self.database.writing() as connection:
            query = select(jobs.c.job_id).where(jobs.c.stage == Stage.ENDED.value, jobs.c.finished_ms < before_ms)
            gone = list(connection.scalars(query.limit(most)))
            if gone:
                connection.execute(delete(events).where(events.c.job_id.in_(gone)))
                connection.execute(delete(jobs).where(jobs.c.job_id.in_(gone)))
        return gone


def end(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    state: JobState,
    message: str,
    *,
    result: Mapping[str, Any] | None = None,
    failure: JobFailure | None = None,
    **values: Any,
) -> bool:
    """The one transition into an end: state, result, locks and key together. False if the conditions do not hold.

    The claim's hash stays, so that a driver whose answer was lost can ask for its terminal report's result again.
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
    fields: Mapping[str, Any] | None = None,
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
