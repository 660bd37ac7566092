"""A driver that runs one job after another: it waits for the next one on a channel that only its server can use.

It stays after a job that succeeded, and leaves after any other, after a function of a user, and when its server is
gone. The server decides which job it gets, and ends it by closing the channel.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import threading

from airflow_provider_lance.engine.job.claim import ClaimLostError
from airflow_provider_lance.engine.job.driver_output import DriverOutput
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.run_job import EXIT_DONE, Assignment, Ended, Runtime, run_job
from airflow_provider_lance.engine.spark.kept_spark import KeptSpark
from airflow_provider_lance.system.channels import Channel

log = logging.getLogger(__name__)

OWN_LOG = "driver.log"  # in the driver's working directory, for what it says between two jobs
_KEEP_WORKERS_SECONDS = 45.0  # less than the minute after which Spark ends idle workers
_JVM_COLLECTION = 10  # after so many jobs the JVM frees what they left


class NotForThisDriverError(ClaimLostError):
    """The job must not run in a process that has run other jobs; its next attempt gets a fresh one."""


class WaitingDriver:
    """One driver process of the server at ``url``."""

    def __init__(
        self, channel: Channel, url: str, *, master: str | None, driver_rows: int, same_function: bool = False
    ) -> None:
        self._channel = channel
        self._url = url
        self._same_function = same_function
        self._home = os.getcwd()
        self._output = DriverOutput()
        self._spark = KeptSpark(master, self._output)
        self._runtime = Runtime(self._spark.session, driver_rows, self._admit)
        self._jobs = 0
        self._user_code = ""

    def run(self, first: Assignment | None, *, warm_up: bool = False, start_spark: bool = False) -> int:
        """Run ``first`` and then what the server hands over, until it closes the channel or this driver must end."""
        if start_spark:
            self._spark.start_early()
        if warm_up:
            # A daemon, so that a driver whose server is gone ends at once.
            threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        assignment = first
        while True:
            if assignment is None:
                import_engine()
                assignment = self._next()
                if assignment is None:
                    return EXIT_DONE
            failpoint("heard")
            ended = run_job(assignment, self._runtime)
            assignment = None
            self._jobs += 1
            self._user_code = ended.user_code
            if not self._stays(ended) or not self._tell():
                return ended.exit
            self._tidy()

    def _warm_up(self) -> None:
        from airflow_provider_lance.engine.views.warm_up import warm_up_queries

        self._spark.warm_up(lambda session: warm_up_queries(session, self._home))

    def _next(self) -> Assignment | None:
        while not self._channel.wait(_KEEP_WORKERS_SECONDS):
            self._spark.keep_workers()
        message = self._channel.receive()
        if message is None:
            log.info("The server has ended this driver, or is gone")
            return None
        self._output.to(str(message["log"]))
        secrets = {name: str(message[name]) for name in ("launch_token", "bearer")}
        return Assignment(str(message["job_id"]), int(str(message["attempt"])), self._url, secrets)

    def _admit(self, user_code: str) -> None:
        if self._jobs and user_code != self._user_code:
            raise NotForThisDriverError(
                "This driver has run other jobs, and the job's rule has changed since it was given to this driver. A "
                "fresh driver runs it."
            )

    def _stays(self, ended: Ended) -> bool:
        if ended.exit != EXIT_DONE or (ended.user_code and not self._same_function):
            return False
        return not self._spark.holds_executors

    def _tell(self) -> bool:
        """Leave the log of the job and tell the server that this driver is free."""
        os.chdir(self._home)
        self._output.to(OWN_LOG)
        return self._channel.send({"free": True, "jobs": self._jobs, "spark": self._spark.started})

    def _tidy(self) -> None:
        """Free what the job left, while nobody waits for this driver."""
        self._spark.end_job()
        gc.collect()
        if self._jobs % _JVM_COLLECTION == 0:
            self._spark.collect_garbage()


@functools.cache
def import_engine() -> None:
    """Import what any job needs, and exempt it from garbage collection."""
    import lance.commit  # noqa: F401

    from airflow_provider_lance.api import client  # noqa: F401
    from airflow_provider_lance.definitions.sql import lance_sql  # noqa: F401
    from airflow_provider_lance.engine.backfill import job as backfill  # noqa: F401
    from airflow_provider_lance.engine.views import job as views  # noqa: F401

    gc.collect()
    gc.freeze()
