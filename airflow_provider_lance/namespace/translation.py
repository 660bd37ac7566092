"""What pylance's exceptions mean, as the classes of ``lance_namespace.errors`` and in words without Rust in them.

pylance raises the right class for most things, and ``InternalError``, ``ValueError``, ``OSError``, ``RuntimeError``
or ``NotImplementedError`` with the reason in its text for the rest. A caller's mistake must not read as a server fault.
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

# In this order: the first that is found in the text decides.
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
    (InvalidInputError, r"GeoArrow|\bWkt\(|\bWkb\("),
    (TableNotFoundError, r"Dataset at path \S+ was not found|DatasetNotFound|No such file or directory"),
    (ServiceUnavailableError, r"(?i:timed out|connection (refused|reset)|error sending request|slowdown)"),
)
_COMPILED = tuple((re.compile(pattern), kind) for kind, pattern in _MEANINGS)
_PLACES = (
    re.compile(r",? ?(location: )?Location \{[^}]*\}"),
    re.compile(r",? ?backtrace: \w+"),
    re.compile(r",? ?(location: )?/\S+\.rs:\d+(:\d+)?"),
)
_WRAPPERS = re.compile(
    r"^((Namespace error|Internal error|Invalid user input): |Encountered internal error\. [^.]*\. )+"
)
_LONGEST = 1500


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise what pylance raised inside as the error it means."""
    try:
        yield
    except Exception as error:
        meaning = translate(error)
        if meaning is error:
            raise
        raise meaning from error
    except BaseException as error:
        # A Rust panic arrives as pyo3's PanicException, which is no Exception; it must not end a server's thread.
        if type(error).__name__ != "PanicException":
            raise
        raise InternalError(f"Lance gave up on this request: {_plain(str(error))}") from error


def translate(error: Exception) -> Exception:
    """The error to raise instead; errors that already say what they mean, and our own bugs, stay as they are."""
    if isinstance(error, NotImplementedError):
        return UnsupportedOperationError(_plain(str(error)))
    if isinstance(error, OverflowError):
        return InvalidInputError("A number in the request is larger than Lance can take.")
    if isinstance(error, LanceNamespaceError):
        if not isinstance(error, InternalError | ConcurrentModificationError):
            plain = _plain(str(error))
            return error if plain == str(error) else type(error)(plain)
    elif not isinstance(error, ValueError | OSError | RuntimeError):
        return error
    text = str(error)
    for pattern, kind in _COMPILED:
        if pattern.search(text):
            return error if type(error) is kind else kind(_plain(text))
    return error if isinstance(error, LanceNamespaceError) else InternalError(_plain(text))


def _plain(text: str) -> str:
    for place in _PLACES:
        text = place.sub("", text)
    return _WRAPPERS.sub("", text).strip()[:_LONGEST] or "Lance gave no reason."
