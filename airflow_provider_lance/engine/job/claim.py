"""The driver's side of the executor protocol: claim a job, keep its lease, report, and never commit without it.

This module uses HTTP only through two calls of the wire and knows nothing of Spark or Lance. The wire takes and returns
plain data: the models of the namespace API take a second to import, and a driver can do without them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import TOKEN_FILE_VARIABLE, JobState
from airflow_provider_lance.api.jobs import JobFailure, JobSpec, Progress
from airflow_provider_lance.engine.job.context import JobCancelledError, JobError

if TYPE_CHECKING:
    from airflow_provider_lance.api.http.wire import Wire

log = logging.getLogger(__name__)

# The executor protocol: a commit needs a lease renewed this recently, and after so long without contact none starts.
RENEWED_SECONDS = 10.0
SILENT_SECONDS = 45.0
FINISH_SECONDS = 120.0  # how long the final report is tried
_EVENTS_PER_REPORT = 200


class ClaimLostError(JobCancelledError):
    """Another driver has this job, or the server gave up on this driver, which then ends without a report."""


@dataclass(frozen=True)
class Claim:
    """An accepted claim. Credentials stay out of its repr."""

    job_id: str
    token: str = field(repr=False)
    spec: JobSpec
    heartbeat_seconds: float = 2.0
    lease_seconds: float = 60.0
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


def claim_job(wire: Wire, job_id: str, attempt: int, launch_token: str) -> Claim:
    """Claim the job, or raise :class:`ClaimLostError` if another driver has it.

    The same claim again gets the same answer.
    """
    request = {"job_id": job_id, "attempt": attempt, "launch_token": launch_token}
    try:
        answer = wire.call("claim_job", request).value
    except WireError as error:
        if error.conflict:
            raise ClaimLostError(f"Attempt {attempt} of job {job_id} may not run: {error}") from error
        raise
    return Claim(
        job_id=job_id,
        token=answer["claim_token"],
        spec=JobSpec.from_dict(answer["spec"]),
        heartbeat_seconds=answer.get("heartbeat_seconds") or 2.0,
        lease_seconds=answer.get("lease_seconds") or 60.0,
        storage_options=dict(answer.get("storage_options") or {}),
        secrets=dict(answer.get("secrets") or {}),
    )


class HeartbeatReporter:
    """A :class:`~airflow_provider_lance.engine.job.context.Reporter` that keeps the lease alive from its own thread.

    ``storage_options`` is the dict that the job's tables hold, and renewed credentials are put into it.
    """

    def __init__(self, wire: Wire, claim: Claim) -> None:
        self.storage_options = dict(claim.storage_options)
        self._wire = wire
        self._claim = claim
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._progress = Progress()
        self._events: list[dict[str, object]] = []
        self._seq = 0
        self._renewed = time.monotonic()
        self._cancel = False
        self._lost: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> HeartbeatReporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def progress(self, progress: Progress) -> None:
        with self._lock:
            self._progress = progress

    def event(self, message: str, **fields: object) -> None:
        log.info("%s", message)
        with self._lock:
            self._events.append({"message": message, "at_ms": int(time.time() * 1000), **fields})

    def check(self) -> None:
        if self._lost is not None:
            raise ClaimLostError(self._lost)
        if self._cancel:
            raise JobCancelledError("The job was cancelled")

    def check_commit(self) -> None:
        """Wait for a recent renewal, and raise if the server has not answered for too long."""
        while True:
            self.check()
            silent = time.monotonic() - self._renewed
            if silent <= RENEWED_SECONDS:
                return
            if silent > SILENT_SECONDS:
                raise JobError(
                    "commit",
                    f"The namespace has not answered for {silent:.0f} s, so this driver may have lost its job: nothing "
                    "more is committed. What was computed is kept for the next attempt.",
                    retryable=True,
                )
            self._send(None)
            time.sleep(0.2)

    def finish(
        self, state: JobState, result: Mapping[str, object] | None = None, failure: JobFailure | None = None
    ) -> bool:
        """Send the final report, as often as it takes, and return whether the server has it."""
        self._stop.set()
        terminal: dict[str, object] = {
            "state": state.value,
            "result": dict(result) if result is not None else None,
            "failure": failure.to_dict() if failure else None,
        }
        deadline = time.monotonic() + FINISH_SECONDS
        pause = 0.2
        while self._lost is None:
            if self._send(terminal):
                return True
            if time.monotonic() > deadline:
                break
            time.sleep(pause)
            pause = min(5.0, pause * 2)
        log.error("The end of job %s (%s) could not be reported: %s", self._claim.job_id, state.value, self._lost)
        return False

    def _beat(self) -> None:
        while not self._stop.wait(self._claim.heartbeat_seconds):
            self._send(None)
            if self._lost is not None:
                return

    def _send(self, terminal: dict[str, object] | None) -> bool:
        """Send one report and return whether it was answered. The events of an unanswered report are sent again."""
        with self._sending:
            with self._lock:
                self._seq += 1
                events = self._events[:_EVENTS_PER_REPORT]
                body: dict[str, object] = {
                    "job_id": self._claim.job_id,
                    "claim_token": self._claim.token,
                    "seq": self._seq,
                    "progress": self._progress.to_dict(),
                    "events": events,
                }
            if terminal is not None:
                body["terminal"] = terminal
            sent = time.monotonic()
            try:
                answer = self._wire.call("report_job", body).value or {}
            except WireError as error:
                if error.conflict:
                    self._lost = f"The claim on job {self._claim.job_id} was lost: {error}"
                else:
                    log.warning("A heartbeat of job %s was not answered: %s", self._claim.job_id, error)
                return False
            with self._lock:
                del self._events[: len(events)]
                # The server renews the lease after the report was sent, so the time of sending is the safe one.
                self._renewed = sent
                self._cancel = self._cancel or bool(answer.get("cancel"))
                self.storage_options.update(answer.get("storage_options") or {})
            return True


def read_launch_token(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The launch token and credentials, from a JSON file that only this user can read.

    ``LANCE_JOB_TOKEN_FILE`` names the file; one line of text in it is the bare token. ``LANCE_JOB_TOKEN`` holds the
    token where a file cannot be passed (Kubernetes secrets). The keys are ``launch_token``, and ``api_key`` or
    ``bearer`` for the namespace.
    """
    environ = os.environ if environ is None else environ
    found = {
        key: environ[name]
        for key, name in (
            ("launch_token", "LANCE_JOB_TOKEN"),
            ("api_key", "LANCE_API_KEY"),
            ("bearer", "LANCE_BEARER_TOKEN"),
        )
        if environ.get(name)
    }
    path = environ.get(TOKEN_FILE_VARIABLE)
    if path:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
        found |= json.loads(text) if text.startswith("{") else {"launch_token": text}
    if not found.get("launch_token"):
        raise ValueError(f"There is no launch token: name its file in {TOKEN_FILE_VARIABLE}, or set LANCE_JOB_TOKEN.")
    return found
