"""Translates pylance's exceptions to the classes of ``lance_namespace.errors``, without Rust's source locations.

pylance raises the right class for most things. For the rest it raises ``InternalError``, ``ValueError``, ``OSError``,
``RuntimeError`` or ``NotImplementedError`` with the reason in the text. A caller's mistake must not be reported as an
error of the server.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.definitions.lance_errors import plain_reason
from airflow_provider_lance.namespace.job_conflict import JobConflictError

# The first pattern that is found in the text decides.
_MEANINGS: tuple[tuple[type[LanceNamespaceError], str], ...] = (
    (UnsupportedOperationError, r"\b[nN]ot (yet )?(supported|implemented)\b|NotSupported|NotImplemented|unimplemented"),
    (TableSchemaValidationError, r"Append with different schema|(?i:schema ?mismatch)|fields did not match"),
    (ConcurrentModificationError, r"(?i:commit ?conflict|concurrent (transaction|modification))|WriteContention"),
    (TableAlreadyExistsError, r"DatasetAlreadyExists|Dataset already exists"),
    (TableTagNotFoundError, r"tag \S+ does not exist"),
    (TableBranchNotFoundError, r"(?s:branch operation failed for branch .*Not found: .*/tree/)"),
    (TableVersionNotFoundError, r"checkout version|_versions/\d+\.manifest was not found"),
    (TableColumnNotFoundError, r"(?i:column) '?\S+ does not exist"),
    (InvalidInputError, r"already exists in the dataset|Type conflicts between"),
    (InvalidInputError, r"InvalidInput\b|Invalid (user )?input|FieldNotFound|(?i:schema ?error)|sql parser error"),
    (InvalidInputError, r"Error during planning|Failed to coerce|No field named|Arrow error"),
    (InvalidInputError, r"Failed to read (batch from )?IPC stream"),
    (InvalidInputError, r"C Data interface error|Compute error|File name too long"),
    (InvalidInputError, r"GeoArrow|\bWkt\(|\bWkb\(|\bWK[TB] error"),
    (TableNotFoundError, r"Dataset at path \S+ was not found|DatasetNotFound|No such file or directory"),
    (ServiceUnavailableError, r"(?i:timed out|connection (refused|reset)|error sending request|slowdown)"),
)
_COMPILED = tuple((re.compile(pattern), kind) for kind, pattern in _MEANINGS)
_LONGEST = 1500


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate the exceptions that pylance raises in this block."""
    try:
        yield
    except Exception as error:
        meaning = translate(error)
        if meaning is error:
            raise
        raise meaning from error
    except BaseException as error:
        # pyo3 raises a Rust panic as PanicException, which is no Exception. It must not end a thread of the server.
        if type(error).__name__ != "PanicException":
            raise
        raise InternalError(f"Lance gave up on this request: {_readable(str(error))}") from error


def translate(error: Exception) -> Exception:
    """The error to raise instead. Errors that are clear already, and those of our own code, stay as they are."""
    if isinstance(error, JobConflictError):
        return error  # Its text has the names of tables and columns, which may look like any reason.
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError(_readable(str(error)))
    if isinstance(error, OverflowError):
        return InvalidInputError("A number in the request is larger than Lance can take.")
    if isinstance(error, LanceNamespaceError):
        if not isinstance(error, InternalError | ConcurrentModificationError):
            plain = _readable(str(error))
            return error if plain == str(error) else type(error)(plain)
    elif not isinstance(error, ValueError | OSError | RuntimeError):
        return error
    text = str(error)
    for pattern, kind in _COMPILED:
        if pattern.search(text):
            return error if type(error) is kind else kind(_readable(text))
    return error if isinstance(error, LanceNamespaceError) else InternalError(_readable(text))


def _readable(text: str) -> str:
    return plain_reason(text)[:_LONGEST] or "Lance gave no reason."
