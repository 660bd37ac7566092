"""What a table function asks of the machine (CPUs, GPUs, memory), in Spark's terms.

Spark schedules whole tasks, so a function's request becomes a task's. Where Spark has no such scheduling (local mode),
it limits how many tasks run at once. A request that the cluster cannot meet is refused, never ignored.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_lance.definitions.table_function_spec import UdtfSpec
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.spark.session import default_parallelism, is_local_master

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

_T = TypeVar("_T")


def slots(context: SparkContext, udtf: UdtfSpec) -> int:
    """How many tasks of this function may run at once; JobError when not even one can."""
    cores = default_parallelism(context)
    cpus = max(1, math.ceil(udtf.num_cpus or 1))
    if is_local_master(context.master) and cpus > cores:
        raise JobError("plan", f"the function asks for {udtf.num_cpus} CPUs per task and this Spark has {cores}.")
    _check_gpus(context, udtf)
    at_once = max(1, cores // cpus)
    if udtf.memory:
        there = _memory(context)
        if udtf.memory > there:
            raise JobError(
                "plan", f"the function asks for {udtf.memory:,} bytes of memory and a worker here has {there:,}."
            )
        if is_local_master(context.master):
            at_once = min(at_once, there // udtf.memory)
    return at_once


def with_resources(rdd: RDD[_T], context: SparkContext, udtf: UdtfSpec) -> RDD[_T]:
    """Ask Spark's own scheduler for the resources of the tasks of ``rdd``, where it can give them."""
    wants_more = (udtf.num_cpus or 1) > 1 or (udtf.num_gpus or 0) > 0
    if is_local_master(context.master) or not wants_more:
        return rdd
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(max(1, math.ceil(udtf.num_cpus or 1)))
    if udtf.num_gpus:
        requests = requests.resource("gpu", udtf.num_gpus)
    return rdd.withResources(ResourceProfileBuilder().require(requests).build)


def _check_gpus(context: SparkContext, udtf: UdtfSpec) -> None:
    if not udtf.num_gpus:
        return
    amount = float(context.getConf().get("spark.executor.resource.gpu.amount", "0") or 0)
    if amount < udtf.num_gpus:
        raise JobError(
            "plan",
            f"the function asks for {udtf.num_gpus:g} GPUs per task and an executor here has {amount:g} "
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
