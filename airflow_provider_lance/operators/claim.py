"""A worker's claim on a job that waits for a driver: taken, handed over, kept until the driver has taken over.

Knows the namespace and the task's log; nothing of Spark.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.operators.base import log_reason, task_error
from airflow_provider_lance.operators.result import look
from airflow_provider_lance.private_files import private_folder, write_private
from airflow_provider_lance.triggers.outcome import Follower

if TYPE_CHECKING:
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook


class Claim:
    """A claim on one attempt of one job. Its two tokens are good for that alone, and only while the claim lives."""

    def __init__(self, job_id: str, attempt: int, launch_token: str, claim_token: str, lease_seconds: float) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.lease_seconds = lease_seconds
        self.launch_token = launch_token
        self.claim_token = claim_token

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """The claim in a file that only this user can read, for as long as the driver runs."""
        with private_folder("lance-claim-") as folder:
            path = folder / f"claim-{self.job_id}.json"
            write_private(path, json.dumps({"launch_token": self.launch_token, "api_key": self.claim_token}))
            yield path

    def renew(self, hook: LanceNamespaceHook) -> None:
        """The same claim again gets the same answer and a new lease."""
        hook.call("claim_job", {"job_id": self.job_id, "attempt": self.attempt, "launch_token": self.launch_token})


def claim_job(hook: LanceNamespaceHook, job_id: str, log: Any) -> Claim | None:
    """Claim the job, after waiting for a driver that has it already; ``None`` once it has ended by another's hand."""
    interval = read_configuration().poll_interval
    token = secrets.token_urlsafe(32)
    follower = Follower(job_id, log=log)
    told = False
    while True:
        failure: AirflowException | None = None
        try:
            described = hook.call("describe_job", {"job_id": job_id})
            if follower.see(Job.from_wire(described, job_id)) is not None:
                return None
            attempt = int(described.get("attempt") or 1)
            answer = hook.call("claim_job", {"job_id": job_id, "attempt": attempt, "launch_token": token})
            return Claim(job_id, attempt, token, str(answer["claim_token"]), float(answer["lease_seconds"]))
        except WireError as error:
            if error.transient:
                if follower.see(error) is not None:
                    failure = task_error(error)
            elif not error.conflict:
                failure = task_error(error)
            elif not told:
                log.info("Another driver has job %s; waiting for its end: %s", job_id, error)
                told = True
        if failure is not None:
            raise log_reason(log, failure)
        time.sleep(follower.pause(interval))


class Watch:
    """Beside ``spark-submit``: keeps the claim until the driver has taken over, and logs the job's progress."""

    def __init__(self, hook: LanceNamespaceHook, claim: Claim, log: Any) -> None:
        self._hook = hook
        self._claim = claim
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lance-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        interval = min(read_configuration().poll_interval, self._claim.lease_seconds / 4)
        follower = Follower(self._claim.job_id, log=self._log)
        renewed = time.monotonic()
        while not self._stop.wait(interval):
            seen = look(self._hook, self._claim.job_id)
            if follower.see(seen) is not None:
                return
            taken_over = isinstance(seen, Job) and seen.progress is not None and seen.progress.fraction > 0
            if not taken_over and time.monotonic() - renewed > self._claim.lease_seconds / 3:
                with contextlib.suppress(WireError):
                    self._claim.renew(self._hook)
                renewed = time.monotonic()
