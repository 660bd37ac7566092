"""What Spark keeps to itself while the driver waits: that the job was cancelled, that the cluster has no room."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from airflow_provider_lance.engine.context import JobContext, JobError

_CHECK_SECONDS = 0.5


class Room:
    """Says so once when the cluster gives a job no executor: Spark waits for ever, and only logs that it does."""

    SECONDS = 30.0

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._since = time.monotonic()
        self._settled = context.spark.sparkContext.master.startswith("local")

    def look(self) -> None:
        if self._settled or time.monotonic() - self._since < self.SECONDS:
            return
        self._settled = True
        spark = self._context.spark.sparkContext
        if spark._jsc.sc().getExecutorMemoryStatus().size() > 1:  # the driver is one of them
            return
        wanted = {name: spark.getConf().get(f"spark.executor.{name}", default) for name, default in _EXECUTOR.items()}
        self._context.reporter.event(
            f"Waiting for {spark.master}: no executor for {self.SECONDS:.0f} s. The cluster is busy, or no worker has "
            f"room for one of {wanted['memory']} and {wanted['cores']} cores (spark.executor.memory, .cores)."
        )


_EXECUTOR = {"memory": "1g", "cores": "all its"}


def run_watched(context: JobContext, action: Callable[[], Any]) -> Any:
    """The result of ``action``, run in the job's group; its failure becomes a JobError with the worker's own words.

    Raises what ``reporter.check()`` raises as soon as the job must stop, with the Spark job cancelled.
    """
    from pyspark.errors import PySparkException

    spark = context.spark.sparkContext
    room = Room(context)

    def in_group() -> Any:
        # Job groups belong to a thread.
        spark.setJobGroup(context.job_id, "refresh a materialized view", interruptOnCancel=True)
        return action()

    with ThreadPoolExecutor(1, thread_name_prefix="spark-action") as pool:
        future = pool.submit(in_group)
        try:
            while not wait([future], _CHECK_SECONDS).done:
                context.reporter.check()
                room.look()
        except BaseException:
            spark.cancelJobGroup(context.job_id)
            raise
    try:
        return future.result()
    except PySparkException as error:
        raise JobError("compute", f"a task of the refresh failed: {_cause(str(error))}") from error


def _cause(text: str) -> str:
    """The last line of the worker's traceback: what a person needs first. Java's stack is in the log."""
    python = text.split("\n\tat ", 1)[0].strip().splitlines()
    lines = [line for line in python if line.strip() and not line.startswith((" ", "\t"))]
    return lines[-1] if lines else text[:500]
