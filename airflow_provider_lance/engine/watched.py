"""Run one Spark action and stop it when the job is cancelled: Spark itself waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from airflow_provider_lance.engine.context import JobContext, JobError

_CHECK_SECONDS = 0.5


def run_watched(context: JobContext, action: Callable[[], Any]) -> Any:
    """The result of ``action``, run in the job's group; its failure becomes a JobError with the worker's own words.

    Raises what ``reporter.check()`` raises as soon as the job must stop, with the Spark job cancelled.
    """
    from pyspark.errors import PySparkException

    spark = context.spark.sparkContext

    def in_group() -> Any:
        # Job groups belong to a thread.
        spark.setJobGroup(context.job_id, "refresh a materialized view", interruptOnCancel=True)
        return action()

    with ThreadPoolExecutor(1, thread_name_prefix="spark-action") as pool:
        future = pool.submit(in_group)
        try:
            while not wait([future], _CHECK_SECONDS).done:
                context.reporter.check()
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
