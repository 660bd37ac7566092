"""A Griffe extension for the API reference: Sphinx roles, ``>>>`` examples and names of pages become Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":[a-z:]+:`~?(?:[\w.]+\.)?(\w+)`")
_PAGE = re.compile(r"``docs/([\w/-]+)\.md``")
_EXAMPLE = re.compile(r"(?:^(?:>>>|\.\.\.).*\n?)+", re.MULTILINE)


class MarkdownDocstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    text = _ROLE.sub(r"`\1`", text)
    text = _PAGE.sub(r"[\1](../\1.md)", text)  # as seen from a page in docs/reference/
    return _EXAMPLE.sub(lambda found: f"```python\n{_code(found[0])}\n```\n", text)


def _code(example: str) -> str:
    return "\n".join(line[4:] for line in example.splitlines())
