"""The texts of Lance's errors without what only Lance's developers can use."""

from __future__ import annotations

import re

_SOURCE_LOCATIONS = (
    re.compile(r",? ?(location: )?Location \{[^}]*\}"),
    re.compile(r",? ?backtrace: \w+"),
    re.compile(r",? ?(location: )?/\S+\.rs:\d+(:\d+)?"),
)
_WRAPPERS = re.compile(
    r"^((Namespace error|Internal error|Invalid user input): |Encountered internal error\. [^.]*\. )+"
)


def plain_reason(text: str) -> str:
    """The reason in the text of a Lance error, without places in Rust's source code and without wrapping prefixes."""
    for location in _SOURCE_LOCATIONS:
        text = location.sub("", text)
    return _WRAPPERS.sub("", text).strip()
