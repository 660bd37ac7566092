"""Waiting for Spark in the driver: a job can be cancelled meanwhile, and a cluster without executors is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine.job.context import JobContext, JobError
from airflow_provider_lance.engine.spark.session import is_local_master
from airflow_provider_lance.engine.spark.worker_errors import worker_error

_CHECK_SECONDS = 0.5
_START_CHECK_SECONDS = 0.2
_EXECUTOR_DEFAULTS = {"memory": "1g", "cores": "all its"}
_T = TypeVar("_T")


def start_spark(context: JobContext) -> None:
    """Start the session of a job; that takes seconds, and minutes on a busy cluster, so it can be cancelled."""
    context.reporter.progress(Progress("starting Spark"))
    started: Future[object] = Future()

    def start() -> None:
        try:
            started.set_result(context.spark)
        except BaseException as error:
            started.set_exception(error)

    # The thread is a daemon because a cancelled job does not wait for a session it will not use.
    threading.Thread(target=start, name="start-spark", daemon=True).start()
    while not started.done():
        wait([started], timeout=_START_CHECK_SECONDS)
        context.reporter.check()
    started.result()


class ExecutorWatch:
    """Reports once that the cluster gives a job no executor; Spark itself waits for ever and only logs it."""

    SECONDS = 30.0

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._since = time.monotonic()
        self._done = is_local_master(context.spark.sparkContext.master)

    def check(self) -> None:
        if self._done or time.monotonic() - self._since < self.SECONDS:
            return
        self._done = True
        spark = self._context.spark.sparkContext
        if spark._jsc.sc().getExecutorMemoryStatus().size() > 1:  # the driver is counted too
            return
        conf = spark.getConf()
        wanted = {name: conf.get(f"spark.executor.{name}", default) for name, default in _EXECUTOR_DEFAULTS.items()}
        self._context.reporter.event(
            f"Waiting for {spark.master}: no executor for {self.SECONDS:.0f} s. The cluster is busy, or no worker has "
            f"room for one of {wanted['memory']} and {wanted['cores']} cores (spark.executor.memory, .cores)."
        )


def run_action(context: JobContext, action: Callable[[], _T], what: str = "refresh") -> _T:
    """The result of a Spark action; its failure becomes a JobError with the last line of the worker's traceback.

    ``what`` says in one word what the job does.

    Raises what ``reporter.check()`` raises as soon as the job must stop, with the Spark job cancelled.
    """
    from pyspark.errors import PySparkException

    spark = context.spark.sparkContext
    executors = ExecutorWatch(context)

    def in_group() -> _T:
        # Spark keeps the job group per thread.
        spark.setJobGroup(context.job_id, f"{what} of {'.'.join(context.spec.table_id)}", interruptOnCancel=True)
        return action()

    with ThreadPoolExecutor(1, thread_name_prefix="spark-action") as pool:
        future = pool.submit(in_group)
        try:
            while not wait([future], _CHECK_SECONDS).done:
                context.reporter.check()
                executors.check()
        except BaseException:
            spark.cancelJobGroup(context.job_id)
            raise
    try:
        return future.result()
    except PySparkException as error:
        raise JobError("compute", f"a task of the {what} failed: {worker_error(error)}") from error
