"""Tasks on Spark from a driver that wants each result as soon as it is there.

One thread per task at once, each running a Spark job of a single partition: results arrive one by one, ``concurrency``
is exact, and Spark still schedules, retries and cancels.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.fill import FragmentWork, Order, TaskFailure, TaskResult, attempt_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A driver thread costs little, but not nothing: a larger cluster needs a larger task_size rather than more of them.
MAX_THREADS = 512


class SparkRunner:
    """Runs fill tasks; a context manager that leaves no Spark job behind."""

    def __init__(self, spark: SparkSession, group: str, label: str, concurrency: int) -> None:
        self._spark = spark
        self._group = group
        self._label = label
        self._pool = ThreadPoolExecutor(min(concurrency, MAX_THREADS), thread_name_prefix="spark-task")
        self._cancelled = False

    def __enter__(self) -> SparkRunner:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self.cancel()
        self._pool.shutdown(wait=failed is None, cancel_futures=True)

    def submit(self, order: Order, works: list[FragmentWork]) -> Future[TaskResult | TaskFailure]:
        return self._pool.submit(self._run, order, works)

    def cancel(self) -> None:
        """End what runs; the threads that wait for it end with it."""
        self._cancelled = True
        self._spark.sparkContext.cancelJobGroup(self._group)

    def _run(self, order: Order, works: list[FragmentWork]) -> TaskResult | TaskFailure:
        context = self._spark.sparkContext
        if self._cancelled:
            return TaskFailure("compute", "cancelled", retryable=True)
        context.setJobGroup(self._group, self._describe(works), interruptOnCancel=True)
        answer: TaskResult | TaskFailure = (
            context.parallelize([works], 1).map(partial(attempt_task, order)).collect()[0]
        )
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
