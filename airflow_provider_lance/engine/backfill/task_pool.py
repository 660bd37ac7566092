"""Tasks on Spark, or in the driver, whose results the driver gets one by one.

Each running task has a thread of the driver that runs a Spark job of a single partition. So results arrive as soon as
they exist, ``concurrency`` is exact, and Spark still schedules, retries and cancels.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.backfill.task import (
    FillSettings,
    FragmentWork,
    TaskFailure,
    TaskResult,
    attempt_task,
)
from airflow_provider_lance.engine.spark.task_resources import with_resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# More threads would slow the driver down; a larger cluster needs a larger task_size instead.
MAX_THREADS = 512


class DriverTaskPool:
    """Runs fill tasks one after the other in this process, for work that is not worth a Spark session."""

    ATTEMPTS = 4  # as often as Spark tries a task whose storage fails

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="driver-task")

    def __enter__(self) -> DriverTaskPool:
        return self

    def __exit__(self, *_: object) -> None:
        # A task of few rows that has begun is waited for, so that it writes nothing after the job's end.
        self._pool.shutdown(cancel_futures=True)

    def submit(self, settings: FillSettings, works: list[FragmentWork]) -> Future[TaskResult | TaskFailure]:
        return self._pool.submit(self._run, settings, works)

    def _run(self, settings: FillSettings, works: list[FragmentWork]) -> TaskResult | TaskFailure:
        for _ in range(self.ATTEMPTS - 1):
            try:
                return attempt_task(settings, works)
            except OSError as error:
                log.warning("A task failed and is tried again: %s", error)
        return attempt_task(settings, works)


class SparkTaskPool:
    """Runs fill tasks. It is a context manager that cancels its Spark jobs when its block raises."""

    def __init__(self, spark: SparkSession, group: str, label: str, concurrency: int) -> None:
        self._spark = spark
        self._group = group
        self._label = label
        self._pool = ThreadPoolExecutor(min(concurrency, MAX_THREADS), thread_name_prefix="spark-task")
        self._cancelled = False

    def __enter__(self) -> SparkTaskPool:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self.cancel()
        self._pool.shutdown(wait=failed is None, cancel_futures=True)

    def submit(self, settings: FillSettings, works: list[FragmentWork]) -> Future[TaskResult | TaskFailure]:
        return self._pool.submit(self._run, settings, works)

    def cancel(self) -> None:
        """Cancel the running Spark jobs, which also ends the threads that wait for them."""
        self._cancelled = True
        self._spark.sparkContext.cancelJobGroup(self._group)

    def _run(self, settings: FillSettings, works: list[FragmentWork]) -> TaskResult | TaskFailure:
        context = self._spark.sparkContext
        if self._cancelled:
            return TaskFailure("compute", "cancelled", retryable=True)
        context.setJobGroup(self._group, self._describe(works), interruptOnCancel=True)
        tasks = context.parallelize([works], 1).map(partial(attempt_task, settings))
        if settings.rule.envelope is not None:
            tasks = with_resources(tasks, context, settings.rule.envelope)
        answer: TaskResult | TaskFailure = tasks.collect()[0]
        return answer

    def _describe(self, works: list[FragmentWork]) -> str:
        rows = sum(work.live for work in works)
        first = works[0]
        if not first.assemble:
            what = f"rows {first.start:,} to {first.stop:,} of fragment {first.fragment_id}"
        elif len(works) == 1:
            what = f"fragment {first.fragment_id}, {rows:,} rows"
        else:
            what = f"{len(works)} fragments from {first.fragment_id} on, {rows:,} rows"
        return f"{self._label}: {what}"
