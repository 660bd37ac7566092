"""What a Python worker of Spark does once, before its first task."""

from __future__ import annotations

import functools
import gc
import math
import os
import sys

# Read by OpenMP, OpenBLAS, MKL, numexpr, Apple's Accelerate, and Rust's rayon (tokenizers, polars has its own).
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


def limit_threads(num_cpus: float | None) -> None:
    """Give numeric libraries as many threads as a task has cores, so that two workers do not fight over two cores.

    Variables that are set already win, except over a number that the function asks for: Spark sets OMP_NUM_THREADS to
    the cores of a plain task.
    """
    cores = str(max(1, math.ceil(num_cpus or 1)))
    for name in _THREADS:
        if num_cpus is not None:
            os.environ[name] = cores
        else:
            os.environ.setdefault(name, cores)
    torch = sys.modules.get("torch")
    if num_cpus is not None and torch is not None:
        torch.set_num_threads(int(cores))


@functools.cache
def prepare_python_worker() -> None:
    """Import what every task needs and exempt it from garbage collection.

    PySpark collects garbage after every task. With Lance and Arrow loaded that takes tens of milliseconds each time,
    as much as everything else Spark does for a task, and modules are never garbage.
    """
    import lance  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401

    gc.collect()
    gc.freeze()
