"""Requests that become jobs, and questions about jobs: the namespace's side of the border in ``submission.py``.

Knows tables only by place, and the jobs service only by its protocol. Methods are operations of the wire by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_words import JobState, JobType
from airflow_provider_lance.api.jobs import Job, JobSpec
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.engine.request import only_plans
from airflow_provider_lance.namespace.catalog import Catalog, TablePlace
from airflow_provider_lance.namespace.submission import Jobs, JobSubmission

#: Context entries that steer a job's execution; the others are the jobs service's or nobody's.
_OPTIONS = ("plan", "max_failed_rows", "max_failed_fraction", "on_error", "retries")
_ENVELOPE = frozenset({"id", "identity", "context"})
_TRANSACTION_WORDS = {
    JobState.QUEUED: "Queued",
    JobState.RUNNING: "Running",
    JobState.DONE: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.CANCELLED: "Canceled",
}


class JobRequests:
    """Submits jobs and passes the jobs API through. Without a jobs service each of these says so."""

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
        fields: Mapping[str, Any],
        *,
        locks: tuple[str, ...],
        context: Mapping[str, str] | None = None,
        tables: Mapping[str, str] | None = None,
        environment: str | None = None,
    ) -> str:
        """Hand an accepted request to the jobs service; ``fields`` is its body as it came.

        ``locks`` are what the job writes. A plan writes nothing: it holds no lock and waits for nobody's.
        """
        options = job_options(context)
        request = {key: value for key, value in fields.items() if key not in _ENVELOPE and value is not None}
        spec = JobSpec(
            job_type=job_type.value,
            table_id=list(place.id),
            location=place.location,
            request=request,
            options=options,
            managed=True,
            tables=dict(tables or {}),
        )
        return self.service.submit(
            JobSubmission(
                spec=spec,
                locks=() if only_plans(options) else locks,
                body=request,
                context=dict(context or {}),
                cluster=request.get("cluster"),
                environment=environment,
            )
        )

    def live(self, table_id: list[str]) -> list[str]:
        """The ids of the jobs that are not finished and write this table."""
        return [job["job_id"] for job in self.live_jobs(table_id)]

    def live_jobs(self, table_id: list[str]) -> list[dict[str, Any]]:
        """The same jobs, described, without those that only plan."""
        jobs = self._jobs()
        if jobs is None:
            return []
        states = [JobState.QUEUED.value, JobState.RUNNING.value]
        rows = jobs.list_jobs({"table": join_id(table_id), "state": states})["jobs"]
        return [row for row in rows if not only_plans((row.get("spec") or {}).get("options") or {})]

    def refuse_while_live(self, table_id: list[str]) -> None:
        """A table keeps its name while a job writes it: the job's spec holds its place."""
        live = self.live(table_id)
        if live:
            error = ConcurrentModificationError(
                f"Job {live[0]} is writing {join_id(table_id)}; wait for it or cancel it first."
            )
            error.instance = live[0]  # type: ignore[attr-defined]
            raise error

    def list_jobs(self, request: Any) -> Any:
        return self._ask("list_jobs", request)

    def describe_job(self, request: Any) -> Any:
        return self._ask("describe_job", request)

    def cancel_job(self, request: Any) -> Any:
        return self._ask("cancel_job", request)

    def pause_job(self, request: Any) -> Any:
        return self._ask("pause_job", request)

    def resume_job(self, request: Any) -> Any:
        return self._ask("resume_job", request)

    def claim_job(self, request: Any) -> Any:
        return self._ask("claim_job", request)

    def report_job(self, request: Any) -> Any:
        return self._ask("report_job", request)

    def query_job_events(self, request: Any) -> bytes:
        return self.service.query_job_events(request.to_dict())

    def describe_transaction(self, request: Any) -> Any:
        """A job is a transaction that takes its time; any other id is pylance's."""
        job = self._find_job(request.id)
        if job is None:
            if len(request.id or []) < 2:
                raise TransactionNotFoundError(f"There is no transaction {join_id(request.id or [])}.")
            return self._catalog.call("describe_transaction", request)
        properties = {"job_type": job.job_type}
        if job.failure is not None:
            properties["message"] = job.failure.message
        return model("DescribeTransactionResponse")(status=_TRANSACTION_WORDS[job.state], properties=properties)

    def alter_transaction(self, request: Any) -> Any:
        """Cancelling a job, in the words of transactions; nothing else about a job can be altered."""
        job = self._find_job(request.id)
        if job is None:
            raise TransactionNotFoundError(f"There is no transaction {join_id(request.id or [])} that can be altered.")
        for action in request.actions:
            wanted = action.set_status_action.status if action.set_status_action else None
            if (wanted or "").lower() not in {"canceled", "cancelled"}:
                raise InvalidInputError("The only thing that can be altered about a job is its status, to Canceled.")
        self.service.cancel_job({"job_id": job.job_id})
        after = self._find_job(request.id) or job
        return model("AlterTransactionResponse")(status=_TRANSACTION_WORDS[after.state])

    def _find_job(self, transaction_id: list[str] | None) -> Job | None:
        jobs = self._jobs()
        if jobs is None or len(transaction_id or []) != 1:
            return None
        try:
            return Job.from_wire(jobs.describe_job({"job_id": (transaction_id or [])[0]}))
        except (TransactionNotFoundError, InvalidInputError):
            return None

    def _ask(self, name: str, request: Any) -> Any:
        answer = getattr(self.service, name)(request.to_dict())
        return model(OPERATIONS[name].response or "").from_dict(answer)


def job_options(context: Mapping[str, str] | None) -> dict[str, Any]:
    """The entries of a request's context that the engine reads; header names have dashes, options underscores."""
    given = {key.lower().replace("-", "_"): value for key, value in (context or {}).items()}
    return {name: given[name] for name in _OPTIONS if name in given}
