"""Requests that become jobs, and questions about jobs: the namespace's side of the border in ``submission.py``.

This module knows the jobs service only by its protocol. Each public method that takes one request is an operation of
the wire by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lance_namespace import (
    AlterTransactionRequest,
    AlterTransactionResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    LanceNamespace,
)
from lance_namespace.errors import InvalidInputError, TransactionNotFoundError, UnsupportedOperationError

from airflow_provider_lance.api import models
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, join_id
from airflow_provider_lance.api.job_states import EXTERNAL, JobState, JobType
from airflow_provider_lance.api.jobs import Job, JobSpec
from airflow_provider_lance.api.plain_data import REQUEST_ENVELOPE
from airflow_provider_lance.definitions.backfill_request import only_plans, writes_nothing
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.requests.values import id_of
from airflow_provider_lance.namespace.submission import (
    LOCAL,
    Jobs,
    JobSubmission,
    read_idempotency_key,
    read_lease_seconds,
    read_requester,
)
from airflow_provider_lance.namespace.tables.catalog import Catalog, TablePlace

#: Context entries that the engine reads. The jobs service reads some of the others.
_OF_BACKFILLS = ("only", "sample")
_OPTIONS = ("plan", "max_failed_rows", "max_failed_fraction", "on_error", "retries", *_OF_BACKFILLS)
_TRANSACTION_STATUS = {
    JobState.QUEUED: "Queued",
    JobState.RUNNING: "Running",
    JobState.DONE: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Canceled",
}


class RequestModel(Protocol):
    """A request of the wire, as a generated model or one of ``api/models.py``."""

    def to_dict(self) -> dict[str, object]: ...


class JobRequests:
    """Submits jobs and passes the jobs API through. Without a jobs service each operation is refused."""

    def __init__(self, catalog: Catalog, jobs: Callable[[], Jobs | None]) -> None:
        self._catalog = catalog
        self._jobs = jobs

    @property
    def service(self) -> Jobs:
        jobs = self._jobs()
        if jobs is None:
            raise UnsupportedOperationError(
                "This namespace runs in process without a jobs service, so it cannot start or describe jobs. Give it a "
                "`jobs_url`, or talk to an `airflow-lance serve`."
            )
        return jobs

    def available(self) -> bool:
        return self._jobs() is not None

    def submit(
        self,
        job_type: JobType,
        place: TablePlace,
        fields: Mapping[str, object],
        *,
        locks: tuple[str, ...],
        context: Mapping[str, str] | None = None,
        tables: Mapping[str, str] | None = None,
        environment: str | None = None,
        user_code: str | None = None,
        on_spark: bool = False,
        write_key: str = "",
        write_after: int = 0,
        secrets: Mapping[str, str] | None = None,
    ) -> str:
        """Hand an accepted request to the jobs service; ``fields`` are those of :func:`job_fields`.

        ``locks`` name what the job writes. A plan writes nothing, so it holds no lock and waits for none. ``user_code``
        is what :class:`JobSubmission` has under that name, and ``on_spark`` what :class:`JobSpec` has.
        """
        options = job_options(context)
        strange = [name for name in _OF_BACKFILLS if name in options and job_type is not JobType.BACKFILL]
        if strange:
            raise InvalidInputError(f"The context entry {strange[0]!r} belongs to a backfill.")
        spec = JobSpec(
            job_type=job_type.value,
            table_id=list(place.id),
            location=place.location,
            request=dict(fields),
            options=options,
            managed=True,
            tables=dict(tables or {}),
            write_key=write_key,
            write_after=write_after,
            on_spark=on_spark and not only_plans(options),
            secrets=self._checked_secrets(secrets or {}, str(fields.get("cluster") or LOCAL)),
        )
        return self.service.submit(
            JobSubmission(
                spec,
                locks=() if writes_nothing(options) else locks,
                cluster=str(fields.get("cluster") or LOCAL),
                environment=environment,
                idempotency_key=read_idempotency_key(context or {}),
                waiter_seconds=read_lease_seconds(context or {}),
                requester=read_requester(context or {}),
                user_code=user_code,
            )
        )

    def _checked_secrets(self, secrets: Mapping[str, str], cluster: str) -> dict[str, str]:
        """The ids of a job's secrets, all of which must exist now."""
        if secrets and cluster == EXTERNAL:
            raise InvalidInputError(
                "The job's function needs secrets, which are given only to drivers that this server starts. Run it on "
                "one of the server's clusters."
            )
        for secret in secrets.values():
            if self.service.secrets.find(secret.split(DEFAULT_DELIMITER)) is None:
                raise InvalidInputError(f"The job's function needs the secret {secret}, which does not exist.")
        return dict(secrets)

    def find_jobs(self, wanted: models.ListJobsRequest) -> list[Job]:
        """The jobs of a listing, newest first."""
        return [Job.from_wire(row) for row in self.service.list_jobs(wanted).jobs]

    def live_jobs(self, table_id: list[str]) -> list[Job]:
        """The jobs that write this table and have not ended; jobs that only plan are left out."""
        if not self.available():
            return []
        states = [JobState.QUEUED.value, JobState.RUNNING.value]
        found = self.find_jobs(models.ListJobsRequest(table=join_id(table_id), state=states))
        return [job for job in found if not writes_nothing(job.spec.get("options") or {})]

    def refuse_while_live(self, table_id: list[str]) -> None:
        """Refuse to move or drop a table while a job writes it, because the job's spec has the table's location."""
        for job in self.live_jobs(table_id):
            raise JobConflictError(
                f"Job {job.job_id} is writing {join_id(table_id)}; wait for it or cancel it first.", job.job_id
            )

    def list_jobs(self, request: models.ListJobsRequest) -> models.ListJobsResponse:
        return self.service.list_jobs(request)

    def describe_job(self, request: models.DescribeJobRequest) -> models.DescribeJobResponse:
        return self.service.describe_job(request)

    def cancel_job(self, request: models.CancelJobRequest) -> models.CancelJobResponse:
        return self.service.cancel_job(request)

    def pause_job(self, request: models.PauseJobRequest) -> models.PauseJobResponse:
        return self.service.pause_job(request)

    def resume_job(self, request: models.ResumeJobRequest) -> models.ResumeJobResponse:
        return self.service.resume_job(request)

    def claim_job(self, request: models.ClaimJobRequest) -> models.ClaimJobResponse:
        return self.service.claim_job(request)

    def report_job(self, request: models.ReportJobRequest) -> models.ReportJobResponse:
        return self.service.report_job(request)

    def query_job_events(self, request: models.QueryJobEventsRequest) -> bytes:
        return self.service.query_job_events(request)

    def describe_transaction(self, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
        """Describe a job as a long transaction, or a transaction of pylance's."""
        job = self._find_job(id_of(request))
        if job is None:
            if len(id_of(request)) < 2:
                raise TransactionNotFoundError(f"There is no transaction {join_id(id_of(request))}.")
            return self._catalog.run(LanceNamespace.describe_transaction, request)
        properties = {"job_type": job.job_type}
        if job.failure is not None:
            properties["message"] = job.failure.message
        return DescribeTransactionResponse(status=_TRANSACTION_STATUS[job.state], properties=properties)

    def alter_transaction(self, request: AlterTransactionRequest) -> AlterTransactionResponse:
        """Cancel a job by setting its transaction's status; nothing else about a job can be altered."""
        job = self._find_job(id_of(request))
        if job is None:
            raise TransactionNotFoundError(f"There is no transaction {join_id(id_of(request))} that can be altered.")
        for action in request.actions:
            wanted = action.set_status_action.status if action.set_status_action else None
            if (wanted or "").lower() not in {"canceled", "cancelled"}:
                raise InvalidInputError("The only thing that can be altered about a job is its status, to Canceled.")
        self.service.cancel_job(models.CancelJobRequest(job_id=job.job_id))
        after = self._find_job([job.job_id]) or job
        return AlterTransactionResponse(status=_TRANSACTION_STATUS[after.state])

    def _find_job(self, transaction_id: list[str]) -> Job | None:
        if not self.available() or len(transaction_id) != 1:
            return None
        try:
            answer = self.service.describe_job(models.DescribeJobRequest(job_id=transaction_id[0]))
        except (TransactionNotFoundError, InvalidInputError):
            return None
        return Job.from_wire(answer.to_dict())


def job_fields(request: RequestModel) -> dict[str, object]:
    """The fields of a request that its job needs, without those that are for the server only."""
    return {key: value for key, value in request.to_dict().items() if key not in REQUEST_ENVELOPE and value is not None}


def job_options(context: Mapping[str, str] | None) -> dict[str, str]:
    """The entries of a request's context that the engine reads; header names have dashes, options underscores."""
    given = {key.lower().replace("-", "_"): value for key, value in (context or {}).items()}
    return {name: given[name] for name in _OPTIONS if name in given}
