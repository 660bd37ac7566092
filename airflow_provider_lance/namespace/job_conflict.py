"""The error of a request that a job prevents."""

from __future__ import annotations

from lance_namespace.errors import ConcurrentModificationError


class JobConflictError(ConcurrentModificationError):
    """A job prevents what was asked for. The server sends its id and the fields that differ in the error body."""

    def __init__(self, message: str, instance: str | None = None, differing_fields: list[str] | None = None) -> None:
        super().__init__(message)
        self.instance = instance
        self.differing_fields = differing_fields
