"""How a request or a declaration is refused: ``raise invalid(...)``, ``raise no_column(...)``, ``except refusals()``.

The errors are imported when one is raised: importing them loads the whole generated client of the namespace API, which
takes longer than starting a Python worker of Spark.
"""

from __future__ import annotations

import sys


def invalid(message: str) -> Exception:
    """An ``InvalidInputError`` (code 13)."""
    from lance_namespace.errors import InvalidInputError

    return InvalidInputError(message)


def no_column(message: str) -> Exception:
    """A ``TableColumnNotFoundError`` (code 12)."""
    from lance_namespace.errors import TableColumnNotFoundError

    return TableColumnNotFoundError(message)


def refusals() -> tuple[type[Exception], ...]:
    """All errors of the namespace API, for an ``except``; none while no such error can have been raised."""
    return _loaded("LanceNamespaceError")


def missing_columns() -> tuple[type[Exception], ...]:
    """What :func:`no_column` returns, for an ``except``."""
    return _loaded("TableColumnNotFoundError")


def _loaded(name: str) -> tuple[type[Exception], ...]:
    errors = sys.modules.get("lance_namespace.errors")
    return () if errors is None else (getattr(errors, name),)
