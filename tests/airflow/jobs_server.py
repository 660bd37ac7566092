"""A namespace server of which the tests control every job: a real HTTP server that speaks the jobs wire.

Submits honour idempotency keys, one live job per table and column, cancels and leases, as the wire's contract has
it; a job stays as it is until the test moves it. Tables and tags exist as far as sensors and watchers look at them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import unquote

from tests.airflow.json_server import JsonServer

LIVE = ("QUEUED", "RUNNING")
_Found = TypeVar("_Found")


@dataclass
class FakeJob:
    job_id: str
    table: str
    body: dict[str, Any]
    job_type: str
    key: str | None
    lease: str | None
    state: str = "QUEUED"
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    cancel_requested: bool = False
    page: str | None = None
    created_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def describe(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "page": self.page,
            "job_id": self.job_id,
            "job_type": self.job_type,
            "job_state": self.state,
            "state": self.state,
            "table": self.table,
            "creation_ms": self.created_ms,
            "created_at_millis": self.created_ms,
            "spec": {"table_id": self.table.split("$"), "request": self.body, **self.body},
            "cancel_requested": self.cancel_requested,
        }
        for name in ("result", "failure", "progress"):
            if getattr(self, name) is not None:
                body[name] = getattr(self, name)
        return body


class JobsServer(JsonServer):
    """``with JobsServer() as server:`` listens on a free port of the loopback."""

    def __init__(self, *, filtered: bool = True, token: str | None = None, has_pages: bool = True) -> None:
        self.has_pages = has_pages  # as our own server; others have none
        self.filtered = filtered
        self.token = token
        self.jobs: dict[str, FakeJob] = {}
        self.versions: dict[str, int] = {}
        self.tags: dict[tuple[str, str], int] = {}
        self.requests: list[tuple[float, str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.broken: list[int] = []  # statuses to answer with, before anything else is looked at
        self.finish_after: float | None = None  # seconds after which a submitted job ends by itself
        self.finish_state = "DONE"
        self.finish_result: dict[str, Any] = {"rows_assigned": 10, "rows_failed": 0, "rows_remaining": 0}
        self.finish_failure: dict[str, Any] | None = None
        self.hidden: dict[str, int] = {}  # looks for which a job is unknown, as on a replica that lags behind
        self.corrupt: set[str] = set()  # jobs whose description fails
        self.cancel_delay = 0.0
        self.compares_requests = True  # in the answer to a submit that another job is in the way of
        self.lock = threading.RLock()
        self._ids = itertools.count(1)

    # What a test does

    def add(self, table: str = "t", state: str = "RUNNING", **fields: Any) -> FakeJob:
        with self.lock:
            job = FakeJob(f"job-{next(self._ids)}", table, {}, "backfill_column", None, None, state=state, **fields)
            self.jobs[job.job_id] = job
            return job

    def finish(self, job_id: str, state: str = "DONE", **fields: Any) -> None:
        with self.lock:
            job = self.jobs[job_id]
            job.state = state
            for name, value in fields.items():
                setattr(job, name, value)

    def looks(self, job_id: str) -> int:
        """How often a client asked for a job."""
        with self.lock:
            asked = [body.get("job_ids", [body.get("job_id")]) for _, _, body in self.requests]
            return sum(job_id in ids for ids in asked)

    def live(self) -> list[FakeJob]:
        with self.lock:
            return [job for job in self.jobs.values() if job.state in LIVE]

    def submitted(self) -> list[FakeJob]:
        with self.lock:
            return list(self.jobs.values())

    def paths(self, since: float = 0.0) -> list[str]:
        return [path for at, path, _ in self.requests if at >= since]

    def wait_for(self, condition: Callable[[JobsServer], _Found | Literal[False]], seconds: float = 30.0) -> _Found:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self.lock:
                found = condition(self)
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s; jobs: {[(j.job_id, j.state) for j in self.submitted()]}")

    # The wire

    def respond(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        path = unquote(path)
        with self.lock:
            self.requests.append((time.monotonic(), path, body))
            self.headers.append(headers)
            if self.broken:
                status = self.broken.pop(0)
                return status, {"error": f"broken on purpose ({status})", "code": 17 if status == 503 else 18}
            lowered = {name.lower(): value for name, value in headers.items()}
            if self.token is not None and lowered.get("authorization") != f"Bearer {self.token}":
                return 401, {"error": "who are you", "code": 16}
            parts = path.strip("/").split("/")
            if parts[1] == "jobs":
                return self._jobs(parts[2], body)
            if parts[1:2] == ["table"] and parts[3:] == ["backfill_column"]:
                return self._submit(parts[2], body, lowered, "backfill_column", f"{parts[2]}|{body.get('column')}")
            if parts[1] == "materialized_view" and parts[3] in {"create", "refresh"}:
                return self._view(parts[2], parts[3], body, lowered)
            if parts[1] == "table":
                return self._table(parts[2], parts[3:], body)
            if parts[1] == "namespace":
                return 200, {"tables": sorted(self.versions)}
            return 404, None

    def _submit(
        self, table: str, body: dict[str, Any], headers: dict[str, str], kind: str, lock: str
    ) -> tuple[int, dict[str, Any]]:
        self._move()
        key = headers.get("x-lance-ctx-idempotency-key")
        for job in self.live():
            if job.key == key and not job.cancel_requested:
                return (202, {"job_id": job.job_id}) if job.body == body else (409, self._conflict(job, body))
            if f"{job.table}|{job.body.get('column')}" == lock:
                return 409, self._conflict(job, body)
        job = FakeJob(f"job-{next(self._ids)}", table, body, kind, key, headers.get("x-lance-ctx-lease-seconds"))
        job.page = f"/ui/jobs/{job.job_id}" if self.has_pages else None
        self.jobs[job.job_id] = job
        return 202, {"job_id": job.job_id}

    def _conflict(self, job: FakeJob, body: dict[str, Any]) -> dict[str, Any]:
        answer = {"error": f"job {job.job_id} already writes this", "code": 14, "instance": job.job_id}
        if self.compares_requests:
            theirs = {key: value for key, value in job.body.items() if key != "cancelled_at"}
            answer["differing_fields"] = sorted(
                name for name in {**theirs, **body} if theirs.get(name) != body.get(name)
            )
        return answer

    def _view(self, view: str, what: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if what == "create":
            if view in self.versions:
                return 409, {"error": f"view {view} exists", "code": 5}
            self.versions[view] = 1
            if body.get("with_no_data"):
                return 201, {"version": 1}
        elif view not in self.versions:
            return 404, {"error": f"no view {view}", "code": 4}
        status, answer = self._submit(view, body, headers, "refresh_materialized_view", f"{view}|None")
        return status, answer | ({"version": self.versions[view]} if status == 202 and what == "create" else {})

    def _jobs(self, what: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self._move()
        if what == "list":
            if not self.filtered:
                return 200, {"jobs": [{"job_id": job.job_id, "state": job.state} for job in self.jobs.values()]}
            rows = [job.describe() for job in self.jobs.values()]
            if "job_ids" in body:
                rows = [self.jobs[job_id].describe() for job_id in body["job_ids"] if self._shows(job_id)]
            if "idempotency_key" in body:
                rows = [job.describe() for job in self.jobs.values() if job.key == body["idempotency_key"]]
            return 200, {"jobs": rows, "filtered": True}
        job = self.jobs.get(body.get("job_id", ""))
        if job is not None and job.job_id in self.corrupt:
            return 500, {"error": "corrupt row", "code": 18}
        if job is None:
            return 404, {"error": f"no job {body.get('job_id')}", "code": 10}
        if what == "cancel":
            if job.state in LIVE and not job.cancel_requested:
                job.cancel_requested = True
                job.body["cancelled_at"] = time.monotonic()
            self._move()
            return 200, {"job_id": job.job_id}
        return 200, job.describe()

    def _shows(self, job_id: str) -> bool:
        if self.hidden.get(job_id, 0) > 0:
            self.hidden[job_id] -= 1
            return False
        return job_id in self.jobs

    def _move(self) -> None:
        for job in self.live():
            if job.cancel_requested and time.monotonic() - job.body["cancelled_at"] >= self.cancel_delay:
                job.state = "CANCELLED"
            elif self.finish_after is not None and time.time() * 1000 - job.created_ms >= self.finish_after * 1000:
                job.state, job.result, job.failure = self.finish_state, dict(self.finish_result), self.finish_failure
            elif self.finish_after is not None:
                job.state = "RUNNING"

    def _table(self, table: str, what: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if table not in self.versions:
            return 404, {"error": f"no table {table}", "code": 4}
        if what == ["tags", "version"]:
            version = self.tags.get((table, body["tag"]))
            return (200, {"version": version}) if version else (404, {"error": "no such tag", "code": 8})
        if what == ["describe"]:
            return 200, {"version": self.versions[table] or None, "location": f"memory://{table}"}
        return 404, None
