"""The Spark of a driver that runs several jobs: one JVM and one SparkContext, and a session for each job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.job.driver_output import DriverOutput
from airflow_provider_lance.engine.spark.python_worker import prepare_python_worker
from airflow_provider_lance.engine.spark.session import (
    DEFAULT_MASTER,
    default_parallelism,
    is_local_master,
    make_session,
    start_gateway,
    submitted_master,
)

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_NAME = "lance driver"


class KeptSpark:
    """Starts Spark when a job needs it, or before, and keeps it for the next job."""

    def __init__(self, master: str | None, output: DriverOutput) -> None:
        self._master = master
        self._output = output
        self._lock = threading.Lock()
        self._first: SparkSession | None = None
        self._job: SparkSession | None = None

    @property
    def started(self) -> bool:
        return self._first is not None

    def session(self, name: str) -> SparkSession:
        """A session for the job of that name. Its temporary views and settings end with it."""
        self._job = self._start().newSession()
        # The log of each job has the address; that of the first job also has the line of make_session.
        log.info("Spark UI: %s (%s)", self._job.sparkContext.uiWebUrl, name)
        return self._job

    def warm_up(self, queries: Callable[[SparkSession], None]) -> None:
        """Start Spark and its Python workers before there is a job, and run ``queries`` once.

        A driver on a cluster only starts its JVM, unless its application has executors only while it needs them. A
        failure is only logged: it is that of the first job that needs Spark.
        """
        try:
            with self._lock, self._output.of_jvm():
                start_gateway()
            local = is_local_master(submitted_master() or self._master or DEFAULT_MASTER)
            if not local and not _gives_executors_back():
                return
            self._start()
            if local:
                self.keep_workers()
                queries(self._start().newSession())
            log.info("Spark is ready")
        except Exception:
            log.exception("Spark could not be started before there is a job")

    def start_early(self) -> None:
        """Start Spark in a thread, for a job that will need it, while the job is claimed and planned.

        On a cluster only the JVM is started, because a job that finds nothing to do should take no executors.
        """
        threading.Thread(target=self._start_early, name="start-spark-early", daemon=True).start()

    def _start_early(self) -> None:
        try:
            with self._lock, self._output.of_jvm():
                start_gateway()
            if is_local_master(submitted_master() or self._master):
                self._start()
        except Exception:
            log.debug("Spark could not be started early", exc_info=True)  # the job fails with the same error

    def keep_workers(self) -> None:
        """Run a task on each core of this machine. Spark ends the Python workers that had none for a minute."""
        if self._first is None or not is_local_master(self._first.sparkContext.master):
            return
        spark = self._first.sparkContext
        cores = default_parallelism(spark)
        spark.parallelize(range(cores), cores).foreach(_prepare)

    def end_job(self) -> None:
        """Forget the session of the last job, and with it what it registered and cached."""
        if self._job is not None:
            self._job.catalog.clearCache()
            self._job = None

    def collect_garbage(self) -> None:
        """Let the JVM free memory, and with it what Spark keeps for objects that are gone."""
        jvm = self._first.sparkContext._jvm if self._first is not None else None
        if jvm is not None:
            jvm.java.lang.System.gc()

    @property
    def holds_executors(self) -> bool:
        """Whether this driver keeps executors of a cluster although it has no job."""
        if self._first is None or is_local_master(self._first.sparkContext.master):
            return False
        return not _gives_executors_back(self._first.sparkContext.getConf())

    def _start(self) -> SparkSession:
        with self._lock:
            if self._first is None:
                with self._output.of_jvm():
                    self._first = make_session(_NAME, master=self._master)
            return self._first


def _gives_executors_back(conf: SparkConf | None = None) -> bool:
    """Whether the cluster's settings let an idle application have no executor."""
    if conf is None:
        from pyspark import SparkConf

        conf = SparkConf()
    least = conf.get("spark.dynamicAllocation.minExecutors", "0")
    return conf.get("spark.dynamicAllocation.enabled", "false") == "true" and least == "0"


def _prepare(_: int) -> None:
    prepare_python_worker()
