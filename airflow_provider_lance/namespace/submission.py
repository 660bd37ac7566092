"""The border between the namespace, which says what a job is to do, and the jobs service, which has it done once.

``SparkNamespace`` validates a request, makes a :class:`JobSubmission` of it and hands that to a :class:`Jobs`. It knows
nothing of SQL, launchers or leases. The jobs service knows nothing of Lance tables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY, LEASE_SECONDS
from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.api.requester import Requester
from airflow_provider_lance.definitions.errors import invalid

if TYPE_CHECKING:
    from airflow_provider_lance.api import models

#: The cluster of a request that names none.
LOCAL = "local"
_LONGEST_KEY = 512
_LONGEST_LEASE = 30 * 24 * 3600


@dataclass(frozen=True)
class JobSubmission:
    """One accepted request.

    ``locks`` name what the job writes, for example ``"a$t|main|embedding"`` or ``"view|a$v"``; at most one live job
    holds each. ``cluster`` and ``environment`` name entries of the server's configuration. ``waiter_seconds`` is how
    long the job may go on after its submitter last asked for it; 0 means for ever. ``requester`` is shown and never
    compared: two tasks that ask for the same make equal requests. ``user_code`` identifies the code of a user that the
    job runs; it is "" for a job that runs none, and None where that is not known.
    """

    spec: JobSpec
    locks: tuple[str, ...]
    cluster: str = LOCAL
    environment: str | None = None
    idempotency_key: str | None = None
    waiter_seconds: int = 0
    requester: Requester | None = None
    user_code: str | None = None

    @property
    def table_name(self) -> str:
        return join_id(self.spec.table_id)

    @property
    def request_hash(self) -> str:
        """Equal for two submissions that ask for the same, in whatever cluster and for whomever."""
        options = self.spec.options
        request = {**self.spec.request, "options": options} if options else self.spec.request
        same = [self.spec.job_type, self.table_name, request]
        return hashlib.sha256(json.dumps(same, sort_keys=True, default=str).encode()).hexdigest()

    def differing_fields(self, request_hash: str, spec: Mapping[str, Mapping[str, object]]) -> list[str]:
        """The fields and options in which a stored job differs; empty for an equal request."""
        if request_hash == self.request_hash:
            return []
        here = {**self.spec.request, **self.spec.options}
        there = {**spec.get("request", {}), **spec.get("options", {})}
        differing = (name for name in {**here, **there} if here.get(name) != there.get(name))
        return sorted(differing) or ["request"]


def read_idempotency_key(context: Mapping[str, str]) -> str | None:
    """The key of a request's context. It is sent back as a header, so it must be one."""
    text = context.get(IDEMPOTENCY_KEY)
    if not text:
        return None
    if len(text) > _LONGEST_KEY:
        raise invalid(f"The context's `{IDEMPOTENCY_KEY}` is longer than {_LONGEST_KEY} characters.")
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise invalid(f"The context's `{IDEMPOTENCY_KEY}` must be printable ASCII, without a space at its ends.")
    return text


def read_lease_seconds(context: Mapping[str, str]) -> int:
    """The seconds after which a job that nobody asks for is cancelled; 0 where the context has no lease."""
    text = context.get(LEASE_SECONDS) or "0"
    try:
        seconds = int(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _LONGEST_LEASE:
        raise invalid(f"The context's `{LEASE_SECONDS}` must be a whole number of seconds up to {_LONGEST_LEASE}.")
    return seconds


def read_requester(context: Mapping[str, str]) -> Requester | None:
    """The Airflow task that sent the request, as its context names it."""
    try:
        return Requester.from_context(context)
    except ValueError as error:
        raise invalid(str(error)) from None


@dataclass(frozen=True)
class RegisteredFunction:
    """One version of a function; ``definition`` is the request that registered it."""

    id: tuple[str, ...]
    version: int
    definition: JsonObject
    created_ms: int


class FunctionRegistry(Protocol):
    """Functions by their ids and versions."""

    def add(self, function_id: list[str], definition: JsonObject) -> RegisteredFunction:
        """Store the next version, or find the newest one if its definition is the same."""

    def find(self, function_id: list[str], version: int | None = None) -> RegisteredFunction | None: ...

    def drop(self, function_id: list[str], version: int) -> bool: ...

    def listed(self, namespace_id: list[str]) -> list[RegisteredFunction]:
        """The newest version of each function of a namespace, in the order of their names."""


@dataclass(frozen=True)
class SecretTimes:
    """When a secret was created and last set."""

    name: str
    created_ms: int
    updated_ms: int


class SecretRegistry(Protocol):
    """Secrets by their ids. Their values are given to jobs only."""

    def create(self, secret_id: list[str], value: str) -> None: ...

    def alter(self, secret_id: list[str], value: str) -> None: ...

    def find(self, secret_id: list[str]) -> SecretTimes | None: ...

    def drop(self, secret_id: list[str]) -> bool: ...

    def listed(self, namespace_id: list[str]) -> list[SecretTimes]: ...


class Jobs(Protocol):
    """What a namespace needs of the jobs service."""

    @property
    def functions(self) -> FunctionRegistry: ...

    @property
    def secrets(self) -> SecretRegistry: ...

    def record(self, spec: JobSpec, result: Mapping[str, object]) -> str:
        """The id of a job that is done already, for requests that a client follows as a job."""

    def check(self, cluster: str | None, environment: str | None) -> None:
        """Raise ``InvalidInputError`` unless both names are known; called before anything is written."""

    def check_input(self, cluster: str | None, path: str) -> None:
        """Raise ``InvalidInputError`` unless jobs of this cluster may read the path."""

    def submit(self, submission: JobSubmission) -> str:
        """The id of a new job, or of the live job with the same key; ``JobConflictError`` on a held lock."""

    def describe_job(self, request: models.DescribeJobRequest) -> models.DescribeJobResponse: ...

    def list_jobs(self, request: models.ListJobsRequest) -> models.ListJobsResponse: ...

    def cancel_job(self, request: models.CancelJobRequest) -> models.CancelJobResponse: ...

    def query_job_events(self, request: models.QueryJobEventsRequest) -> bytes:
        """An Arrow IPC stream."""

    def pause_job(self, request: models.PauseJobRequest) -> models.PauseJobResponse: ...

    def resume_job(self, request: models.ResumeJobRequest) -> models.ResumeJobResponse: ...

    def claim_job(self, request: models.ClaimJobRequest) -> models.ClaimJobResponse: ...

    def report_job(self, request: models.ReportJobRequest) -> models.ReportJobResponse: ...

    def close(self) -> None: ...
