"""What a Python worker of Spark does once, before its first task."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """Import what every task needs and hide it from the garbage collector.

    PySpark collects after every task, and with Lance and Arrow loaded that takes tens of milliseconds each time: as
    much as the rest of what Spark does for a task. Modules are never garbage.
    """
    import lance  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401

    gc.collect()
    gc.freeze()
