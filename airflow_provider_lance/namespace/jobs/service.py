"""The jobs service: the operations of ``/v1/jobs/*``, over the registry, the executor protocol and the supervisor.

It implements the ``Jobs`` protocol that namespaces submit to. It knows nothing of Lance tables: what a job may read
and write is in its spec, and the namespace gives storage credentials when a driver claims the job.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from lance_namespace.errors import (
    InvalidInputError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from pydantic import BaseModel, ValidationError

from airflow_provider_lance.api import models
from airflow_provider_lance.api.client import validation_sentence
from airflow_provider_lance.api.job_states import EXTERNAL, JobState, parse_state
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.namespace.config import ConfigError, ServerConfig
from airflow_provider_lance.namespace.histogram import Histogram
from airflow_provider_lance.namespace.jobs.database import Database, now_ms
from airflow_provider_lance.namespace.jobs.events import event_stream
from airflow_provider_lance.namespace.jobs.executions import Executions, claim_token_of, hash_token
from airflow_provider_lance.namespace.jobs.function_store import FunctionStore
from airflow_provider_lance.namespace.jobs.launcher import Launcher
from airflow_provider_lance.namespace.jobs.registry import JobFilter, JobRow, Registry, Stage, Timings
from airflow_provider_lance.namespace.jobs.reports import DriverReport
from airflow_provider_lance.namespace.jobs.secret_store import SecretKeys, SecretStore
from airflow_provider_lance.namespace.jobs.supervisor import Supervisor
from airflow_provider_lance.namespace.submission import LOCAL, FunctionRegistry, JobSubmission, SecretRegistry

#: Gives the storage options with which a driver reaches the tables of a spec, ``expires_at_millis`` among them.
Vend = Callable[[JobSpec], Mapping[str, str] | None]

_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,63}")
_RENEW_STORAGE_MS = 5 * 60 * 1000
_START_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_Model = TypeVar("_Model", bound=BaseModel)
_JobRequest = (
    models.DescribeJobRequest
    | models.CancelJobRequest
    | models.PauseJobRequest
    | models.ResumeJobRequest
    | models.ClaimJobRequest
    | models.ReportJobRequest
)


def start_seconds() -> Histogram:
    """The metric of how long jobs waited for their drivers, by how these began."""
    meaning = "Time from a job's submit until its driver claimed it."
    return Histogram("lance_job_start_seconds", meaning, "path", _START_BUCKETS)


class JobsService:
    """Has every job done once. Until ``start()`` is called jobs are only queued.

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
    ) -> None:
        self.config = config or ServerConfig()
        self.vend = vend
        self.database = database
        timings = timings or Timings()
        self.registry = Registry(database, timings)
        self.functions: FunctionRegistry = FunctionStore(database)
        self._secret_values = SecretStore(database, SecretKeys.from_environment())
        self.secrets: SecretRegistry = self._secret_values
        self.executions = Executions(database, uuid.uuid4().hex, timings)
        self.launcher = Launcher(self.config, directory, namespace_url)
        self.supervisor = Supervisor(self.registry, self.executions, self.launcher)
        self.start_seconds = start_seconds()
        self.supervisor.pool.storage_options = lambda spec: self.vend(spec) if self.vend is not None else None

    def start(self) -> None:
        self.supervisor.start()

    def close(self) -> None:
        """Stop supervising. Running drivers go on, and the next server takes them over."""
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

    def check_input(self, cluster: str | None, path: str) -> None:
        allowed = () if cluster == EXTERNAL else self.config.cluster(cluster).input_paths
        if allowed and (".." in path.split("/") or not any(_is_below(path, folder) for folder in allowed)):
            raise InvalidInputError(
                f"Jobs of the cluster {cluster or LOCAL!r} may not read {path[:200]}; its `input_paths` are "
                f"{', '.join(allowed)}."
            )

    def submit(self, submission: JobSubmission) -> str:
        self.check(submission.cluster, submission.environment)
        job_id, new = self.registry.submit(submission)
        if new:
            self.supervisor.wake()
        return job_id

    def record(self, spec: JobSpec, result: Mapping[str, object]) -> str:
        return self.registry.record(spec, result)

    # The jobs API of LanceDB's client

    def describe_job(self, request: models.DescribeJobRequest) -> models.DescribeJobResponse:
        row = self._row(request)
        self.registry.renew_waiters([row])
        return models.DescribeJobResponse.model_validate(describe(row))

    def list_jobs(self, request: models.ListJobsRequest) -> models.ListJobsResponse:
        _refuse_nul(request)
        limit = len(request.job_ids) or 1 if request.job_ids is not None else request.limit or 100
        rows = self.registry.find(
            JobFilter(
                job_ids=None if request.job_ids is None else tuple(filter(_JOB_ID.fullmatch, request.job_ids)),
                key=request.idempotency_key,
                states=None if request.state is None else _states(request.state),
                table=request.table,
                since_ms=None if request.since is None else min(request.since, 2**62),
                before=_read_page_token(request.page_token),
                limit=limit + 1,
            )
        )
        rows, more = rows[:limit], len(rows) > limit
        named = request.job_ids is not None or request.idempotency_key is not None
        if named:
            self.registry.renew_waiters(rows)
        filtered = named or any(value is not None for value in (request.state, request.table, request.since))
        return models.ListJobsResponse(
            jobs=[describe(row) if filtered else summarise(row) for row in rows],
            page_token=_page_token(rows[-1].seq) if more else None,
            filtered=True if filtered else None,
        )

    def cancel_job(self, request: models.CancelJobRequest) -> models.CancelJobResponse:
        row = self._row(request)
        if self.registry.cancel(row.job_id, "Cancelled by request."):
            self.supervisor.wake()
        return models.CancelJobResponse(job_id=row.job_id)

    def query_job_events(self, request: models.QueryJobEventsRequest) -> bytes:
        _refuse_nul(request)
        if request.job_id is not None:
            self._find_row(request.job_id)
        return event_stream(self.registry, request.job_id, request.limit, request.filter)

    def pause_job(self, request: models.PauseJobRequest) -> models.PauseJobResponse:
        row = self._row(request)
        if row.cluster == EXTERNAL:
            raise UnsupportedOperationError(
                "The driver of this job was started elsewhere, so it cannot be paused here. Cancel the job: finished "
                "parts are kept, and the next one goes on from them."
            )
        paused = self.registry.pause(row.job_id)
        self.supervisor.wake()
        return models.PauseJobResponse(job_id=row.job_id, paused=paused)

    def resume_job(self, request: models.ResumeJobRequest) -> models.ResumeJobResponse:
        row = self._row(request)
        resumed = self.registry.resume(row.job_id)
        self.supervisor.wake()
        stopping = not resumed and row.paused_ms is not None and row.stage not in {Stage.WAITING, Stage.ENDED}
        return models.ResumeJobResponse(job_id=row.job_id, resumed=resumed, still_pausing=stopping or None)

    # The executor protocol

    def claim_job(self, request: models.ClaimJobRequest) -> models.ClaimJobResponse:
        row = self._row(request)
        job_id = row.job_id
        claim = self.executions.claim(job_id, min(request.attempt, 2**31 - 1), request.launch_token)
        if not claim.again and row.attempt == 1 and row.start_path is not None:
            self.start_seconds.observe(row.start_path, max(0, now_ms() - row.created_ms) / 1000)
        options, expires_ms = self._storage_options(claim.spec)
        self.executions.set_storage_expiry(job_id, expires_ms)
        timings = self.executions.timings
        return models.ClaimJobResponse(
            claim_token=claim.token,
            lease_seconds=timings.lease,
            heartbeat_seconds=timings.heartbeat,
            spec=claim.spec.to_dict(),
            storage_options=options,
            expires_at=None if expires_ms is None else expires_ms / 1000,
            # Whoever has a key may claim an external job, and would read the values.
            secrets=None if row.cluster == EXTERNAL else self._secret_values.values_for(claim.spec.secrets) or None,
        )

    def knows_launch_token(self, job_id: str, token: str) -> bool:
        """Whether this token was given to the driver we launched, or already holds the claim of an external job."""
        row = self.find(job_id)
        if row is None:
            return False
        launched = row.launch_hash or ""
        claimed = row.claim_hash or ""
        claim = hash_token(claim_token_of(token, row.job_id, row.attempt))
        return hmac.compare_digest(launched, hash_token(token)) or hmac.compare_digest(claimed, claim)

    def report_job(self, request: models.ReportJobRequest) -> models.ReportJobResponse:
        row = self._row(request)
        done = self.executions.report(DriverReport.read(request))
        answer = models.ReportJobResponse(lease_until=done.lease_until_ms / 1000, cancel=done.cancel)
        if done.ending is not None:
            self.supervisor.wake()
            return models.ReportJobResponse.model_validate(answer.to_dict() | done.ending.to_dict())
        expires_ms = done.storage_expires_ms
        if expires_ms is not None and expires_ms - now_ms() < _RENEW_STORAGE_MS:
            answer.storage_options, expires_ms = self._storage_options(JobSpec.from_dict(row.spec))
            self.executions.set_storage_expiry(row.job_id, expires_ms)
        return answer

    def _storage_options(self, spec: JobSpec) -> tuple[dict[str, str], int | None]:
        options = dict(self.vend(spec) or {}) if self.vend is not None else {}
        expires = str(options.get("expires_at_millis", ""))
        return options, int(expires) if expires.isdigit() else None

    def find(self, job_id: str) -> JobRow | None:
        return self.registry.get(job_id) if _JOB_ID.fullmatch(job_id) else None

    def _row(self, request: _JobRequest) -> JobRow:
        _refuse_nul(request)
        return self._find_row(request.job_id)

    def _find_row(self, job_id: str) -> JobRow:
        row = self.find(job_id)
        if row is None:
            raise TransactionNotFoundError(f"There is no job {job_id[:100]!r}.")
        return row


def describe(row: JobRow) -> dict[str, object]:
    """A job as ``jobs/describe`` answers it: LanceDB's fields and ours, without tokens and credentials."""
    spec = dict(row.spec)
    column = (spec.get("request") or {}).get("column")
    if column is not None:
        spec["column"] = column  # LanceDB's client reads the column here.
    body = summarise(row) | {
        "job_state": row.state,
        "creation_ms": row.created_ms,
        "spec": spec,
        "progress": row.progress or {},
        "attempt": row.attempt,
        "cluster": row.cluster,
        "environment": row.environment,
        "start_path": row.start_path,
        "launched_ms": row.launched_ms,
        "claimed_ms": row.claimed_ms,
        "updated_ms": row.updated_ms,
        "finished_ms": row.finished_ms,
        "cancel_requested": row.cancel_requested_ms is not None,
        "paused": True if row.paused_ms is not None and row.finished_ms is None else None,
        "result": row.result,
        "failure": row.failure,
        "requester": row.requester,
        "page": f"/ui/jobs/{row.job_id}",
    }
    return {key: value for key, value in body.items() if value is not None}


def summarise(row: JobRow) -> dict[str, object]:
    """A job as LanceDB's listing without a filter has it."""
    return {
        "job_id": row.job_id,
        "table": row.table_name,
        "job_type": row.job_type,
        "state": row.state,
        "created_at_millis": row.created_ms,
    }


def read_job_request(kind: type[_Model], fields: Mapping[str, object]) -> _Model:
    """A request of the jobs API from the fields of its body."""
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise InvalidInputError(validation_sentence(error)) from None


def _refuse_nul(request: BaseModel) -> None:
    """Refuse texts that PostgreSQL cannot store."""
    for name, value in vars(request).items():
        if isinstance(value, str) and "\0" in value:
            raise InvalidInputError(f"`{name}` holds a NUL character.")


def _states(words: str | list[str]) -> tuple[JobState, ...]:
    states = []
    for word in [words] if isinstance(words, str) else words:
        state = parse_state(word)
        if state is JobState.RUNNING and word.upper() not in {"RUNNING", "IN_PROGRESS"}:
            known = ", ".join(item.value for item in JobState)
            raise InvalidInputError(f"`state` is {word[:50]!r}; it can be one of {known}.")
        states.append(state)
    return tuple(states)


def _is_below(path: str, folder: str) -> bool:
    return path == folder.rstrip("/") or path.startswith(folder.rstrip("/") + "/")


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
