"""Which names may become paths. Identifiers are checked before pylance gets them, so no path can leave the root.

pylance turns every part into a piece of a directory name and loses some of them on the way: a table named ``é`` or
``a#b`` is created and then not found, and ``a<newline>b`` becomes the table ``ab``. Only names that pylance keeps as
they are may be used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lance_namespace.errors import InvalidInputError

_PART = re.compile(r"[A-Za-z0-9_+=@-](?:[A-Za-z0-9_.+=@:, -]*[A-Za-z0-9_.+=@-])?")
_RESERVED = frozenset({"__manifest"})
# Table directories are named "<8 hex digits>_<joined id>"; 255 bytes is the longest name a file system takes.
LONGEST_ID = 240


def check_identifier(parts: Sequence[str] | None, what: str = "table") -> list[str]:
    """The parts as a list; ``InvalidInputError`` says which one is wrong and what a name may look like."""
    parts = list(parts or [])
    for part in parts:
        if not isinstance(part, str) or not _PART.fullmatch(part):
            raise InvalidInputError(
                f"{_quoted(part)} cannot be part of the id of a {what}: a name has ASCII letters, digits, spaces and "
                "any of _ - . + = @ : , where a space, a colon or a comma is neither the first nor the last character, "
                "and a dot is not the first."
            )
        if part in _RESERVED:
            raise InvalidInputError(f"{part!r} is the namespace's own name; choose another one.")
    if sum(map(len, parts)) + len(parts) > LONGEST_ID:
        raise InvalidInputError(f"The id of the {what} is longer than {LONGEST_ID} characters in all.")
    return parts


def table_identifier(parts: Sequence[str] | None, what: str = "table") -> list[str]:
    """The checked parts of an id that must not be empty, because the root is no table."""
    checked = check_identifier(parts, what)
    if not checked:
        raise InvalidInputError(f"The id of the {what} is missing.")
    return checked


def _quoted(part: object) -> str:
    text = repr(part)
    return text if len(text) <= 60 else f"{text[:50]}… ({len(text)} characters)"
