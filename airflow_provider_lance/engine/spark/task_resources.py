"""What a function of a column or view asks of the machine (CPUs, GPUs, memory), in Spark's terms.

Spark schedules whole tasks, so a function's request becomes a task's. Where Spark has no such scheduling (local mode),
it limits how many tasks run at once. A request that the cluster cannot meet is refused, never ignored.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.spark.session import default_parallelism, is_local_master

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile

_T = TypeVar("_T")
_profiles: WeakKeyDictionary[SparkContext, dict[tuple[int, float], ResourceProfile]] = WeakKeyDictionary()


class Demand(Protocol):
    """What one task of a function needs: the spec of a view's function, or the envelope of a column's."""

    @property
    def num_cpus(self) -> float | None: ...

    @property
    def num_gpus(self) -> float | None: ...

    @property
    def memory(self) -> int | None: ...


def slots(context: SparkContext, function: Demand) -> int:
    """How many tasks of this function may run at once; JobError when not even one can."""
    cores = default_parallelism(context)
    cpus = max(1, math.ceil(function.num_cpus or 1))
    if is_local_master(context.master) and cpus > cores:
        raise JobError("plan", f"the function asks for {function.num_cpus} CPUs per task and this Spark has {cores}.")
    _check_gpus(context, function)
    at_once = max(1, cores // cpus)
    if function.memory:
        there = _memory(context)
        if function.memory > there:
            raise JobError(
                "plan", f"the function asks for {function.memory:,} bytes of memory and a worker here has {there:,}."
            )
        if is_local_master(context.master):
            at_once = min(at_once, there // function.memory)
    return at_once


def with_resources(rdd: RDD[_T], context: SparkContext, function: Demand) -> RDD[_T]:
    """Ask Spark's own scheduler for the resources of the tasks of ``rdd``, where it can give them."""
    wants_more = (function.num_cpus or 1) > 1 or (function.num_gpus or 0) > 0
    if is_local_master(context.master) or not wants_more:
        return rdd
    return rdd.withResources(_profile(context, max(1, math.ceil(function.num_cpus or 1)), function.num_gpus or 0))


def _profile(context: SparkContext, cpus: int, gpus: float) -> ResourceProfile:
    """The resource profile of a session, made once: Spark keeps every profile that it has seen."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    known = _profiles.setdefault(context, {})
    if (cpus, gpus) not in known:
        requests = TaskResourceRequests().cpus(cpus)
        known[cpus, gpus] = ResourceProfileBuilder().require(requests.resource("gpu", gpus) if gpus else requests).build
    return known[cpus, gpus]


def _check_gpus(context: SparkContext, function: Demand) -> None:
    if not function.num_gpus:
        return
    amount = float(context.getConf().get("spark.executor.resource.gpu.amount", "0") or 0)
    if amount < function.num_gpus:
        raise JobError(
            "plan",
            f"the function asks for {function.num_gpus:g} GPUs per task and an executor here has {amount:g} "
            "(spark.executor.resource.gpu.amount). Choose a cluster with GPUs.",
        )


def _memory(context: SparkContext) -> int:
    """The bytes that a worker's Python may use: its configured share, or the machine's memory in local mode."""
    conf = context.getConf()
    python = conf.get("spark.executor.pyspark.memory", None)
    if python:
        return _bytes(python)
    if is_local_master(context.master):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    heap = _bytes(conf.get("spark.executor.memory", "1g") or "1g")
    overhead = conf.get("spark.executor.memoryOverhead", None)
    # Python lives beside the executor's heap, and this is Spark's own default for the memory there.
    return _bytes(overhead) if overhead else max(384 << 20, heap // 10)


def _bytes(text: str) -> int:
    """Read a size as Spark writes it: ``512m``, ``4g``; a bare number is in mebibytes."""
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    text = text.strip().lower().removesuffix("b")
    if text and text[-1] in units:
        return int(float(text[:-1]) * (1 << units[text[-1]]))
    return int(text) << 20
