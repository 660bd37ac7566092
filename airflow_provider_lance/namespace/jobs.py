"""The jobs service: ``/v1/jobs/*`` in plain dicts, over the registry, the executor protocol and the supervisor.

It implements the ``Jobs`` protocol that namespaces submit to. It knows nothing of Lance tables: what a job may read
and write reaches it as a spec, and storage credentials come from the namespace the moment a driver claims.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lance_namespace.errors import (
    InvalidInputError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from pydantic import BaseModel, ValidationError
from sqlalchemy import Row

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_words import IDEMPOTENCY_KEY, JobState, parse_state
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.api.models import (
    ClaimJobRequest,
    DescribeJobRequest,
    ListJobsRequest,
    QueryJobEventsRequest,
    ReportJobRequest,
)
from airflow_provider_lance.namespace.config import ConfigError, ServerConfig
from airflow_provider_lance.namespace.database import Database, now_ms
from airflow_provider_lance.namespace.events import event_stream
from airflow_provider_lance.namespace.executions import Executions, claim_token_of, hash_token
from airflow_provider_lance.namespace.launcher import Launcher
from airflow_provider_lance.namespace.registry import EXTERNAL, JobFilter, NewJob, Registry, Timings
from airflow_provider_lance.namespace.submission import JobSubmission
from airflow_provider_lance.namespace.supervisor import Supervisor

#: What a driver may use to reach the tables of a spec: Lance's storage options, ``expires_at_millis`` among them.
Vend = Callable[[JobSpec], Mapping[str, str] | None]

LEASE = "lease-seconds"
_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_MOST_KEY = 512
_LONGEST_LEASE = 30 * 24 * 3600
_RENEW_STORAGE_MS = 5 * 60 * 1000
_Model = TypeVar("_Model", bound=BaseModel)


class JobsService:
    """Jobs that are done, once. ``start()`` begins to launch and supervise; without it jobs only queue.

    ``directory`` keeps driver logs; ``namespace_url`` is where drivers reach the server that answers for this
    service; ``vend`` gives a claiming driver its storage options.
    """

    def __init__(
        self,
        database: Database,
        config: ServerConfig | None = None,
        *,
        directory: Path,
        namespace_url: str,
        vend: Vend | None = None,
        timings: Timings | None = None,
        interval: float = 1.0,
    ) -> None:
        self.config = config or ServerConfig()
        self.vend = vend
        self.database = database
        timings = timings or Timings()
        self.registry = Registry(database, timings)
        self.executions = Executions(database, uuid.uuid4().hex, timings)
        self.launcher = Launcher(self.config, directory, namespace_url)
        self.supervisor = Supervisor(self.registry, self.executions, self.launcher, interval=interval)

    def start(self) -> None:
        self.supervisor.start()

    def close(self) -> None:
        """Stop supervising; running drivers go on and are adopted by the next server."""
        self.supervisor.stop()
        self.database.close()

    # For namespaces

    def check(self, cluster: str | None, environment: str | None) -> None:
        try:
            if cluster != EXTERNAL:
                self.config.cluster(cluster)
            self.config.environment(environment)
        except ConfigError as error:
            raise InvalidInputError(str(error)) from None

    def submit(self, submission: JobSubmission) -> str:
        self.check(submission.cluster, submission.environment)
        options = submission.spec.options
        job = NewJob(
            job_type=submission.spec.job_type,
            table_name=join_id(submission.spec.table_id),
            spec=submission.spec.to_dict(),
            body={**submission.body, "options": options} if options else submission.body,
            locks=submission.locks,
            cluster=submission.cluster or "local",
            environment=submission.environment or None,
            key=_key(submission.context.get(IDEMPOTENCY_KEY)),
            waiter_seconds=_lease_seconds(submission.context.get(LEASE)),
        )
        job_id, new = self.registry.submit(job)
        if new:
            self.supervisor.wake()
        return job_id

    # The jobs API of LanceDB's client

    def describe_job(self, request: dict[str, Any]) -> dict[str, Any]:
        row = self._row(_read(DescribeJobRequest, request).job_id)
        self.registry.renew_waiters([row])
        return describe(row)

    def list_jobs(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = _read(ListJobsRequest, request)
        limit = len(wanted.job_ids) or 1 if wanted.job_ids is not None else wanted.limit or 100
        rows = self.registry.find(
            JobFilter(
                job_ids=None if wanted.job_ids is None else tuple(filter(_JOB_ID.fullmatch, wanted.job_ids)),
                key=wanted.idempotency_key,
                states=None if wanted.state is None else _states(wanted.state),
                table=wanted.table,
                since_ms=None if wanted.since is None else min(wanted.since, 2**62),
                before=_read_page_token(wanted.page_token),
                limit=limit + 1,
            )
        )
        rows, more = rows[:limit], len(rows) > limit
        named = wanted.job_ids is not None or wanted.idempotency_key is not None
        if named:
            self.registry.renew_waiters(rows)
        filtered = named or any(value is not None for value in (wanted.state, wanted.table, wanted.since))
        answer: dict[str, Any] = {"jobs": [describe(row) if filtered else summarise(row) for row in rows]}
        if more:
            answer["page_token"] = _page_token(rows[-1].seq)
        if filtered:
            answer["filtered"] = True
        return answer

    def cancel_job(self, request: dict[str, Any]) -> dict[str, Any]:
        row = self._row(_read(DescribeJobRequest, request).job_id)
        if self.registry.cancel(row.job_id, "Cancelled by request."):
            self.supervisor.wake()
        return {"job_id": row.job_id}

    def query_job_events(self, request: dict[str, Any]) -> bytes:
        wanted = _read(QueryJobEventsRequest, request)
        if wanted.job_id is not None:
            self._row(wanted.job_id)
        return event_stream(self.registry, wanted.job_id, wanted.limit, wanted.filter)

    def pause_job(self, request: dict[str, Any]) -> dict[str, Any]:
        self._row(_read(DescribeJobRequest, request).job_id)
        raise UnsupportedOperationError(
            "Jobs here cannot be paused. Cancel the job: finished parts are kept, and the next one goes on from them."
        )

    def resume_job(self, request: dict[str, Any]) -> dict[str, Any]:
        row = self._row(_read(DescribeJobRequest, request).job_id)
        return {"job_id": row.job_id, "status": "not_paused"}

    # The executor protocol

    def claim_job(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = _read(ClaimJobRequest, request)
        job_id = self._row(wanted.job_id).job_id
        claim = self.executions.claim(job_id, min(wanted.attempt, 2**31 - 1), wanted.launch_token)
        options, expires_ms = self._storage_options(claim.spec)
        self.executions.set_storage_expiry(job_id, expires_ms)
        timings = self.executions.timings
        return {
            "claim_token": claim.token,
            "lease_seconds": timings.lease,
            "heartbeat_seconds": timings.heartbeat,
            "spec": claim.spec,
            "storage_options": options,
            "expires_at": None if expires_ms is None else expires_ms / 1000,
        }

    def knows_launch_token(self, job_id: str, token: str) -> bool:
        """Whether this token was given to the driver we launched, or already holds the claim of an external job."""
        row = self.find(job_id)
        if row is None:
            return False
        launched = row.launch_hash or ""
        claimed = row.claim_hash or ""
        claim = hash_token(claim_token_of(token, row.job_id, row.attempt))
        return hmac.compare_digest(launched, hash_token(token)) or hmac.compare_digest(claimed, claim)

    def report_job(self, request: dict[str, Any]) -> dict[str, Any]:
        report = _read(ReportJobRequest, request)
        row = self._row(report.job_id)
        done = self.executions.report(
            row.job_id,
            report.claim_token,
            min(report.seq, 2**62),
            report.progress,
            report.events or (),
            report.terminal,
        )
        answer: dict[str, Any] = {"lease_until": done.lease_until_ms / 1000, "cancel": done.cancel}
        if done.ended is not None:
            self.supervisor.wake()
            return answer | done.ended
        expires_ms = done.storage_expires_ms
        if expires_ms is not None and expires_ms - now_ms() < _RENEW_STORAGE_MS:
            options, expires_ms = self._storage_options(row.spec)
            self.executions.set_storage_expiry(row.job_id, expires_ms)
            answer["storage_options"] = options
        return answer

    def _storage_options(self, spec: Mapping[str, Any]) -> tuple[dict[str, str], int | None]:
        options = dict(self.vend(JobSpec.from_dict(spec)) or {}) if self.vend is not None else {}
        expires = str(options.get("expires_at_millis", ""))
        return options, int(expires) if expires.isdigit() else None

    def find(self, job_id: str) -> Row[Any] | None:
        return self.registry.get(job_id) if _JOB_ID.fullmatch(job_id) else None

    def _row(self, job_id: str) -> Row[Any]:
        row = self.find(job_id)
        if row is None:
            raise TransactionNotFoundError(f"There is no job {job_id[:100]!r}.")
        return row


def describe(row: Row[Any]) -> dict[str, Any]:
    """A job as ``jobs/describe`` answers it: LanceDB's fields first, then ours. No tokens, no credentials."""
    spec = dict(row.spec)
    column = (spec.get("request") or {}).get("column")
    if column is not None:
        spec["column"] = column  # where clients look to tell a table's jobs apart
    body = summarise(row) | {
        "job_state": row.state,
        "creation_ms": row.created_ms,
        "spec": spec,
        "progress": row.progress or {},
        "attempt": row.attempt,
        "cluster": row.cluster,
        "environment": row.environment,
        "updated_ms": row.updated_ms,
        "finished_ms": row.finished_ms,
        "cancel_requested": row.cancel_requested_ms is not None,
        "result": row.result,
        "failure": row.failure,
        "page": f"/ui/jobs/{row.job_id}",
    }
    return {key: value for key, value in body.items() if value is not None}


def summarise(row: Row[Any]) -> dict[str, Any]:
    """A row of LanceDB's plain listing."""
    return {
        "job_id": row.job_id,
        "table": row.table_name,
        "job_type": row.job_type,
        "state": row.state,
        "created_at_millis": row.created_ms,
    }


def _read(kind: type[_Model], request: Mapping[str, Any]) -> _Model:
    from airflow_provider_lance.api.client import validation_sentence

    try:
        found = kind.model_validate(dict(request))
    except ValidationError as error:
        raise InvalidInputError(validation_sentence(error)) from None
    for name, value in found.__dict__.items():
        if isinstance(value, str) and "\0" in value:  # PostgreSQL stores no such text
            raise InvalidInputError(f"`{name}` holds a NUL character.")
    return found


def _states(words: str | list[str]) -> tuple[JobState, ...]:
    states = []
    for word in [words] if isinstance(words, str) else words:
        state = parse_state(word)
        if state is JobState.RUNNING and word.upper() not in {"RUNNING", "IN_PROGRESS"}:
            known = ", ".join(item.value for item in JobState)
            raise InvalidInputError(f"`state` is {word[:50]!r}; it can be one of {known}.")
        states.append(state)
    return tuple(states)


def _key(text: str | None) -> str | None:
    """A key goes back as a header, so it must be able to be one."""
    if not text:
        return None
    if len(text) > _MOST_KEY:
        raise InvalidInputError(f"The context's `{IDEMPOTENCY_KEY}` is longer than {_MOST_KEY} characters.")
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise InvalidInputError(
            f"The context's `{IDEMPOTENCY_KEY}` must be printable ASCII, without a space at its ends."
        )
    return text


def _lease_seconds(text: str | None) -> int:
    if text in (None, "", "0"):
        return 0
    try:
        seconds = int(str(text))
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _LONGEST_LEASE:
        raise InvalidInputError(f"The context's `{LEASE}` must be a whole number of seconds up to {_LONGEST_LEASE}.")
    return seconds


def _page_token(seq: int) -> str:
    return base64.urlsafe_b64encode(f"seq:{seq}".encode()).decode().rstrip("=")


def _read_page_token(token: str | None) -> int | None:
    if not token:
        return None
    try:
        word, _, number = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii").partition(":")
        if word == "seq" and number.isdigit() and len(number) < 19:
            return int(number)
    except (binascii.Error, ValueError):
        pass
    raise InvalidInputError("`page_token` is not one that this server gave out.")
