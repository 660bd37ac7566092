"""What a Python worker of Spark does once, before its first task."""

from __future__ import annotations

import functools
import gc


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
