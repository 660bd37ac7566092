"""Identifiers of namespaces, tables and views: lists of strings, joined by a delimiter on the wire.

Never split on ``.`` or ``/``; a part may hold any Unicode text except the delimiter itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

DEFAULT_DELIMITER = "$"

Identifier = str | Sequence[str]


class InvalidIdentifierError(ValueError):
    """An identifier that cannot be sent; says which part and why."""


def parse_id(identifier: object, delimiter: str = DEFAULT_DELIMITER) -> list[str]:
    """Read an ``Identifier`` as a list of parts; ``InvalidIdentifierError`` for anything else.

    ``None``, ``[]``, ``""`` and the delimiter alone are the root namespace.
    """
    if not delimiter:
        raise InvalidIdentifierError("The identifier delimiter must not be empty.")
    if identifier is None or identifier == delimiter or identifier == "":
        return []
    if isinstance(identifier, str):
        parts = identifier.split(delimiter)
    elif isinstance(identifier, Sequence):
        parts = list(identifier)
    else:
        raise InvalidIdentifierError(
            f"An identifier is a string like 'sales{delimiter}orders' or a list of strings, "
            f"not {type(identifier).__name__}."
        )
    if parts in ([], [delimiter]):
        return []
    for position, part in enumerate(parts, start=1):
        if not isinstance(part, str):
            raise InvalidIdentifierError(
                f"Part {position} of the identifier is {type(part).__name__}; each part must be a string."
            )
        if not part:
            raise InvalidIdentifierError(f"Part {position} of the identifier {parts!r} is empty.")
        if delimiter in part:
            raise InvalidIdentifierError(
                f"Part {part!r} of the identifier contains the delimiter {delimiter!r}: the server would split it. "
                "Choose another delimiter for this connection, or rename the object."
            )
        if not _encodable(part):
            raise InvalidIdentifierError(f"Part {position} of the identifier is not valid Unicode text.")
    joined = delimiter.join(parts)
    if joined.split(delimiter) != parts:
        # With a delimiter of several characters, the end of one part and the start of the next can form it.
        raise InvalidIdentifierError(
            f"The identifier {parts!r} cannot be joined with {delimiter!r} and split again into the same parts."
        )
    if joined in {".", ".."}:
        raise InvalidIdentifierError(f"The identifier is {joined!r}, which no URL can carry.")
    return parts


def join_id(parts: Sequence[str], delimiter: str = DEFAULT_DELIMITER) -> str:
    """The string form; the root is the delimiter alone."""
    return delimiter.join(parts) if parts else delimiter


def quote_id(parts: Sequence[str], delimiter: str = DEFAULT_DELIMITER) -> str:
    """The percent-encoded path segment of an identifier."""
    return quote(join_id(parts, delimiter), safe="")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
