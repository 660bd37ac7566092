"""Imports pyarrow in a driver without pandas, which takes half of the time of ``import lance``.

pyarrow asks for pandas when its module of datasets is imported, and never again. A driver runs no function of a user
and converts nothing to pandas. Spark's workers do, so they import pyarrow as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not imported while pyarrow is", name=fullname)
        return None


def import_arrow_without_pandas() -> None:
    """Import pyarrow so that it does not know pandas; without effect where one of the two is imported already."""
    if "pandas" in sys.modules or "pyarrow.dataset" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401
    finally:
        sys.meta_path.remove(finder)
