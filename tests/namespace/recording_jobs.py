"""A jobs service in memory: keeps what was submitted and lets a test end a job as it likes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from lance_namespace.errors import InvalidInputError, TransactionNotFoundError

from airflow_provider_lance.api import models
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.submission import FunctionRegistry, JobSubmission, SecretRegistry


class RecordingJobs:
    """Implements ``Jobs`` for tests that need no registry; the real one has tests of its own."""

    def __init__(self) -> None:
        self.submissions: list[JobSubmission] = []
        self.rows: dict[str, dict[str, Any]] = {}
        self.closed = False
        self._lock = threading.Lock()

    def end(self, job_id: str, state: str = "DONE", **fields: object) -> None:
        self.rows[job_id] |= {"job_state": state, "state": state, **fields}

    def check(self, cluster: str | None, environment: str | None) -> None:
        if cluster not in {None, "local", "external"}:
            raise InvalidInputError(f"There is no cluster {cluster!r}.")
        if environment not in {None, "torch"}:
            raise InvalidInputError(f"There is no environment {environment!r}.")

    def check_input(self, cluster: str | None, path: str) -> None:
        return

    def submit(self, submission: JobSubmission) -> str:
        with self._lock:
            for index, other in enumerate(self.submissions):
                job_id = f"job-{index + 1}"
                live, key = self.rows[job_id]["state"] == "QUEUED", submission.idempotency_key
                if live and key is not None and other.idempotency_key == key:
                    return job_id
                if live and set(other.locks) & set(submission.locks):
                    raise JobConflictError(f"Job {job_id} holds the lock.", job_id)
            self.submissions.append(submission)
            job_id = f"job-{len(self.submissions)}"
            self.rows[job_id] = {
                "job_id": job_id,
                "job_type": submission.spec.job_type,
                "table": submission.table_name,
                "state": "QUEUED",
                "job_state": "QUEUED",
                "spec": submission.spec.to_dict(),
                "key": submission.idempotency_key,
            }
            return job_id

    def describe_job(self, request: models.DescribeJobRequest) -> models.DescribeJobResponse:
        return models.DescribeJobResponse.model_validate(self._row(request.job_id))

    def list_jobs(self, request: models.ListJobsRequest) -> models.ListJobsResponse:
        rows = [
            dict(row)
            for row in reversed(self.rows.values())
            if (request.job_ids is None or row["job_id"] in request.job_ids)
            and (request.table is None or row["table"] == request.table)
            and (request.idempotency_key is None or row["key"] == request.idempotency_key)
            and (request.state is None or row["state"] in request.state)
        ]
        return models.ListJobsResponse(jobs=rows)

    def cancel_job(self, request: models.CancelJobRequest) -> models.CancelJobResponse:
        self._row(request.job_id)
        self.end(request.job_id, "CANCELLED")
        return models.CancelJobResponse(job_id=request.job_id)

    def query_job_events(self, request: models.QueryJobEventsRequest) -> bytes:
        return b"events"

    @property
    def functions(self) -> FunctionRegistry:
        raise NotImplementedError

    @property
    def secrets(self) -> SecretRegistry:
        raise NotImplementedError

    def record(self, spec: JobSpec, result: Mapping[str, object]) -> str:
        raise NotImplementedError

    def pause_job(self, request: models.PauseJobRequest) -> models.PauseJobResponse:
        return models.PauseJobResponse(paused=True)

    def resume_job(self, request: models.ResumeJobRequest) -> models.ResumeJobResponse:
        return models.ResumeJobResponse(resumed=True)

    def claim_job(self, request: models.ClaimJobRequest) -> models.ClaimJobResponse:
        raise NotImplementedError

    def report_job(self, request: models.ReportJobRequest) -> models.ReportJobResponse:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def _row(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.rows:
            raise TransactionNotFoundError(f"There is no job {job_id!r}.")
        return dict(self.rows[job_id])
