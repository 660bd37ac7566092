"""Reads a page of the documentation as a person follows it: Python to save, commands to type, and what they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = [DOCS / "loading.md", *sorted((DOCS / "guides").glob("*.md"))]
_BLOCK = re.compile(r"^```(python|bash|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DAG = re.compile(r"with DAG\(\s*\"(\w+)\"")


class Block(NamedTuple):
    """A block of a page. ``dag_id`` is that of Python which defines a DAG."""

    kind: str
    text: str

    @property
    def dag_id(self) -> str | None:
        found = _DAG.search(self.text) if self.kind == "python" else None
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    return [Block(kind, text) for kind, text in _BLOCK.findall(page.read_text())]


def missing_lines(expected: str, output: str) -> list[str]:
    """The lines of a ``text`` block that the output does not have in this order; ``…`` stands for anything."""
    missing, position = [], 0
    for line in expected.splitlines():
        pattern = ".*?".join(re.escape(part) for part in re.split("…", line.strip()))
        found = re.compile(pattern.replace(r"\ ", r"[ ]")).search(output, position)
        if found is None:
            missing.append(line)
        else:
            position = found.end()
    return missing
