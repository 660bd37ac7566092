"""The context of a running job: its spec, Spark, storage credentials, the namespace and a reporter.

``run_backfill(context)`` and ``run_refresh(context)`` take a context and return the job's result. They know nothing of
claims, heartbeats or command lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from airflow_provider_lance.api.jobs import JobSpec, Progress
from airflow_provider_lance.engine.job.driver_work import DRIVER_ROWS

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace
    from pyspark.sql import SparkSession


class JobError(Exception):
    """Why a job failed: the phase, a sentence for its owner, and whether a retry may help.

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
        failed_rows: Sequence[Mapping[str, object]] = (),
    ) -> None:
        super().__init__(message)
        self.phase = phase
        self.retryable = retryable
        self.traceback = traceback
        self.rows_failed = rows_failed
        self.failed_rows = list(failed_rows)


class JobCancelledError(Exception):
    """The job was cancelled or its claim was lost, so it must stop without another commit.

    ``result`` tells what had been committed before. The job's code sets it before it raises the error again.
    """

    result: Mapping[str, object] | None = None


class Reporter(Protocol):
    """Receives the progress and the events of a job, and tells the job whether it may go on."""

    def progress(self, progress: Progress) -> None:
        """Remember the newest figures; they are sent with the next heartbeat."""

    def event(self, message: str, **fields: object) -> None:
        """Add a line to the job's history (state changes, conflicts, failed rows)."""

    def check(self) -> None:
        """Raise :class:`JobCancelledError` when the job must stop."""

    def check_commit(self) -> None:
        """Raise unless the claim was renewed recently enough to commit, as the executor protocol demands."""


class SilentReporter:
    """A reporter that keeps what it is told, for jobs without a server."""

    def __init__(self) -> None:
        self.latest = Progress()
        self.events: list[dict[str, object]] = []

    def progress(self, progress: Progress) -> None:
        self.latest = progress

    def event(self, message: str, **fields: object) -> None:
        self.events.append({"message": message, **fields})

    def check(self) -> None:
        return

    def check_commit(self) -> None:
        return


@dataclass
class JobContext:
    """One running job.

    ``make_spark`` is called on first use, so that a job with nothing to do starts no Spark. So is ``connect``, which
    returns a client of the namespace through which the job commits. ``admit``
    raises if this process must not run the code of a user, or none, whose identity it is given.
    """

    spec: JobSpec
    make_spark: Callable[[], SparkSession]
    reporter: Reporter = field(default_factory=SilentReporter)
    storage_options: dict[str, str] = field(default_factory=dict)
    connect: Callable[[], LanceNamespace] | None = None
    job_id: str = "local"
    attempt: int = 1
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # by the variables of the job's function
    driver_rows: int = DRIVER_ROWS  # the most rows that the driver computes itself
    admit: Callable[[str], None] | None = None
    user_code: str = ""  # the identity of the user's function that the job runs

    def runs(self, code: str) -> None:
        """Say which function of a user the job runs, "" for none, before anything of it is loaded."""
        self.user_code = f"{'$'.join(self.spec.table_id)}|{code}" if code else ""
        if self.admit is not None:
            self.admit(self.user_code)

    @cached_property
    def spark(self) -> SparkSession:
        return self.make_spark()

    @cached_property
    def namespace(self) -> LanceNamespace | None:
        return self.connect() if self.connect is not None else None

    @property
    def spark_started(self) -> bool:
        return "spark" in self.__dict__
