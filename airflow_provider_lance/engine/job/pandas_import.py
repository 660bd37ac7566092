"""Keeps pandas out of a driver, where it takes half of the time of ``import lance`` and as much again with PySpark.

pyarrow asks for pandas when its module of datasets is imported, and never again. PySpark's helpers for tests ask for it
when the first value is sent to the JVM. A driver runs no function of a user and converts nothing to pandas; where Spark
itself needs it, it is imported then. Spark's workers run users' functions, so nothing is hidden from them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_light = False  # whether this process is a driver that has imported pyarrow without pandas


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not imported at this point", name=fullname)
        return None


def import_arrow_without_pandas() -> None:
    """Import pyarrow so that it does not know pandas; without effect where one of the two is imported already."""
    global _light
    if "pandas" in sys.modules or "pyarrow.dataset" in sys.modules:
        return
    with _without_pandas():
        import pyarrow.dataset  # noqa: F401
    _light = True


def import_spark_without_pandas() -> None:
    """Import the parts of PySpark that ask for pandas, in a process that did so with pyarrow."""
    if _light and "pandas" not in sys.modules:
        with _without_pandas():
            import pyspark.testing  # noqa: F401


@contextmanager
def _without_pandas() -> Iterator[None]:
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
