"""What a running job has at hand: its spec, Spark, storage credentials, the namespace and a reporter.

``run_backfill(context)`` and ``run_refresh(context)`` take one of these and return the job's result; they
know nothing of claims, heartbeats or command lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_lance.api.jobs import JobSpec, Progress

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace
    from pyspark.sql import SparkSession


class JobError(Exception):
    """A job's failure as its owner reads it: the phase it failed in, a sentence, and whether a retry may help.

    ``traceback`` has the frames of the user's function that raised; ``rows_failed`` and ``failed_rows`` say how many
    rows failed before, with some examples.
    """

    def __init__(
        self,
        phase: str,
        message: str,
        *,
        retryable: bool = False,
        traceback: str = "",
        rows_failed: int = 0,
        failed_rows: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.retryable = retryable
        self.traceback = traceback
        self.rows_failed = rows_failed
        self.failed_rows = list(failed_rows)


class JobCancelledError(Exception):
    """The job was cancelled, or its claim was lost: stop without another commit.

    ``result`` tells what had been committed before; the job's code sets it on the way out.
    """

    result: dict[str, Any] | None = None


class Reporter(Protocol):
    """Where a job says how far it is and asks whether it may go on."""

    def progress(self, progress: Progress) -> None:
        """Remember the newest figures; they are sent with the next heartbeat."""

    def event(self, message: str, **fields: Any) -> None:
        """Add a line to the job's history (state changes, conflicts, failed rows)."""

    def check(self) -> None:
        """Raise :class:`JobCancelledError` when the job must stop."""

    def check_commit(self) -> None:
        """Raise unless the claim was renewed recently enough to commit (see the executor protocol)."""


class SilentReporter:
    """A reporter for jobs nobody watches."""

    def __init__(self) -> None:
        self.latest = Progress()
        self.events: list[dict[str, Any]] = []

    def progress(self, progress: Progress) -> None:
        self.latest = progress

    def event(self, message: str, **fields: Any) -> None:
        self.events.append({"message": message, **fields})

    def check(self) -> None:
        return

    def check_commit(self) -> None:
        return


@dataclass
class JobContext:
    """One running job. ``make_spark`` is called on first use, so a job with nothing to do starts no Spark."""

    spec: JobSpec
    make_spark: Callable[[], SparkSession]
    reporter: Reporter = field(default_factory=SilentReporter)
    storage_options: dict[str, str] = field(default_factory=dict)
    namespace: LanceNamespace | None = None
    job_id: str = "local"
    attempt: int = 1

    @cached_property
    def spark(self) -> SparkSession:
        return self.make_spark()
