"""What people and scripts read: tables and facts by rich in a terminal, aligned plain text elsewhere, and JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2
# A column of a table with more columns than fit gets fewer characters than this: then rows are shown as records.
_NARROWEST = 9


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table with a header; the columns in ``right`` have numbers, which are aligned to the right."""
    body = [[printable(cell) for cell in row] for row in rows]
    console = _console()
    if not console.is_terminal:
        _print_plain([list(header), *body], [name in right for name in header])
    elif len(header) * (_NARROWEST + _GAP) > console.width:
        _print_records(header, body)
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for name in header:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in body:
            table.add_row(*map(Text, row))
        console.print(table)


def print_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """A title, and below it a line for each fact that is known; a text of several lines is indented as a whole."""
    _print_pairs(title, [(name, text) for name, text in facts if text])


def _print_pairs(title: str, known: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in known), default=0) + _GAP
    console = _console()
    console.print(printable(title), style="bold", markup=False, highlight=False, soft_wrap=True)
    for name, text in known:
        first, *more = [printable(line) for line in text.splitlines()] or [""]
        lines = [f"{name:<{width}}{first}", *(f"{'':<{width}}{line}" for line in more)]
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_json_line(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def note(text: str) -> None:
    """A remark for people, which is no part of the output."""
    print(text, file=sys.stderr)


def printable(text: str) -> str:
    """A text whose line breaks and terminal codes are visible as escapes, so that data cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def local_time(milliseconds: object) -> str:
    if not isinstance(milliseconds, int) or not milliseconds:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def byte_size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 1000 or unit == "TB":
            break
    return f"{size:.1f} {unit}"


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout)


def _print_plain(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(right))]
    for row in rows:
        cells = []
        for cell, width, numeric in zip(row, widths, right, strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if numeric else cell + space)
        print((" " * _GAP).join(cells).rstrip())


def _print_records(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for number, row in enumerate(rows, start=1):
        _print_pairs(f"row {number}", list(zip(header, row, strict=True)))
