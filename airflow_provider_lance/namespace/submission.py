"""The border between the namespace (what a job is to do) and the jobs service (that it is done, once).

``SparkNamespace`` validates a request, writes a :class:`JobSubmission` and hands it to a :class:`Jobs`; it knows
nothing of SQL, launchers or leases. The jobs service knows nothing of Lance tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_lance.api.jobs import JobSpec


@dataclass(frozen=True)
class JobSubmission:
    """One accepted request.

    ``locks``: what the job writes, e.g. ``"a$t|main|embedding"`` or ``"view|a$v"``; at most one live job holds
    each. ``body``: the request as it came, compared with the spec's options when an idempotency key returns.
    ``context``: the request's context (``idempotency-key``, ``lease-seconds``, ``plan`` …). ``cluster`` and
    ``environment`` name entries of the server's configuration (the request's ``cluster`` and, for a backfill,
    ``manifest``).
    """

    spec: JobSpec
    locks: tuple[str, ...]
    body: dict[str, Any] = field(default_factory=dict)
    context: dict[str, str] = field(default_factory=dict)
    cluster: str | None = None
    environment: str | None = None


class Jobs(Protocol):
    """What a namespace needs of the jobs service. Requests and answers are the plain dicts of ``/v1/jobs/*``."""

    def check(self, cluster: str | None, environment: str | None) -> None:
        """Raise ``InvalidInputError`` unless both names are known; called before anything is written."""

    def submit(self, submission: JobSubmission) -> str:
        """The job's id: a new one, or the live one of the same key. ``ConcurrentModificationError`` on a held lock."""

    def describe_job(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def list_jobs(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def cancel_job(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def query_job_events(self, request: dict[str, Any]) -> bytes:
        """An Arrow IPC stream."""

    def pause_job(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def resume_job(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def claim_job(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def report_job(self, request: dict[str, Any]) -> dict[str, Any]: ...

    def close(self) -> None: ...
