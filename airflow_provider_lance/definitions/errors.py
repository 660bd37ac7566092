"""How a request or a declaration is refused: ``raise invalid(...)`` or ``raise no_column(...)``.

The errors are imported when one is raised: importing them loads the whole generated client of the namespace API, which
takes longer than starting a Python worker of Spark.
"""

from __future__ import annotations


def invalid(message: str) -> Exception:
    """An ``InvalidInputError`` (code 13)."""
    from lance_namespace.errors import InvalidInputError

    return InvalidInputError(message)


def no_column(message: str) -> Exception:
    """A ``TableColumnNotFoundError`` (code 12)."""
    from lance_namespace.errors import TableColumnNotFoundError

    return TableColumnNotFoundError(message)
