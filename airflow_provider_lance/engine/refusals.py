"""The errors with which a request or a declaration is refused, made when they are needed.

Importing the namespace API's errors loads its whole generated client, which takes longer than starting a Python worker
of Spark; and a worker refuses nothing.
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
