"""A worker's claim on a job that waits for a driver: the worker takes it, hands it over, and renews it until then.

This module knows the namespace and the task's log, and nothing of Spark.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.system.private_files import private_folder, write_private
from airflow_provider_lance.tasks.errors import TaskLog, log_failure, task_error
from airflow_provider_lance.tasks.job_follower import JobFollower, poll_job

if TYPE_CHECKING:
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook


@dataclass(frozen=True)
class DriverClaim:
    """A claim on one attempt of one job. Its two tokens are valid for that attempt only, while the claim lasts."""

    job_id: str
    attempt: int
    launch_token: str = field(repr=False)
    claim_token: str = field(repr=False)
    lease_seconds: float

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """The claim in a file that only this user can read, for as long as the driver runs."""
        with private_folder("lance-claim-") as folder:
            path = folder / f"claim-{self.job_id}.json"
            write_private(path, json.dumps({"launch_token": self.launch_token, "api_key": self.claim_token}))
            yield path

    def renew(self, hook: LanceNamespaceHook) -> None:
        """Send the same claim again, which extends its lease."""
        hook.call("claim_job", {"job_id": self.job_id, "attempt": self.attempt, "launch_token": self.launch_token})


def claim_job(hook: LanceNamespaceHook, job_id: str, log: TaskLog) -> DriverClaim | None:
    """Claim the job, after waiting for a driver that already has it. Returns ``None`` if the job ended meanwhile."""
    interval = read_configuration().poll_interval
    token = secrets.token_urlsafe(32)
    follower = JobFollower(job_id, log=log)
    logged = False
    while True:
        failure: AirflowException | None = None
        try:
            described = hook.call("describe_job", {"job_id": job_id})
            if follower.observe(Job.from_wire(described, job_id)) is not None:
                return None
            attempt = int(described.get("attempt") or 1)
            answer = hook.call("claim_job", {"job_id": job_id, "attempt": attempt, "launch_token": token})
            return DriverClaim(job_id, attempt, token, str(answer["claim_token"]), float(answer["lease_seconds"]))
        except WireError as error:
            if error.transient:
                if follower.observe(error) is not None:
                    failure = task_error(error)
            elif not error.conflict:
                failure = task_error(error)
            elif not logged:
                log.info("Another driver has job %s; waiting for its end: %s", job_id, error)
                logged = True
        if failure is not None:
            raise log_failure(log, failure)
        time.sleep(follower.pause(interval))


class ClaimKeeper:
    """A thread beside ``spark-submit`` that renews the claim until the driver reports, and logs the job's progress."""

    def __init__(self, hook: LanceNamespaceHook, claim: DriverClaim, log: TaskLog) -> None:
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
        follower = JobFollower(self._claim.job_id, log=self._log)
        renewed = time.monotonic()
        while not self._stop.wait(interval):
            polled = poll_job(self._hook, self._claim.job_id)
            if follower.observe(polled) is not None:
                return
            driver_reports = isinstance(polled, Job) and polled.progress is not None and polled.progress.fraction > 0
            if not driver_reports and time.monotonic() - renewed > self._claim.lease_seconds / 3:
                with contextlib.suppress(WireError):
                    self._claim.renew(self._hook)
                renewed = time.monotonic()
