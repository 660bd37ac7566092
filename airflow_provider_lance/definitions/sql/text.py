"""Names and queries as text: how a name is quoted, the parts of a single-table query, and errors with their place.

Spark's workers and DAG files import this module, so it imports no parser; ``lance_sql`` and ``spark_sql`` do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
# Words that some reader of a query takes for a keyword; a name among them is written in backticks.
_KEYWORDS = frozenset(
    """all and any array as asc between both by case cast cluster cross current_date current_time current_timestamp desc
    distinct distribute else end except exists extract false fetch filter for from full group having ilike in inner
    intersect interval into is join lateral leading left like limit natural not null offset on or order outer over
    position qualify right rlike select set similar some sort substring table then to trailing trim true union unique
    unnest using values when where window with within""".split()  # noqa: SIM905 - a list would be eighty lines
)


class SqlError(ValueError):
    """A text is not the SQL it should be. ``position`` counts characters from 0; the message names line and column."""

    def __init__(self, reason: str, sql: str = "", position: int | None = None) -> None:
        self.reason, self.position = reason, position
        super().__init__(reason if position is None else f"{reason} at {place(sql, position)}")


def place(sql: str, position: int) -> str:
    """The line and the column of a character, counted from 1 as editors do."""
    before = sql[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"


def quote(name: str) -> str:
    """An identifier as SQL; quoted unless it is a plain lower-case word (LanceDB refuses others unquoted)."""
    if _PLAIN_NAME.match(name) and name not in _KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def repeated_names(names: Iterable[str]) -> str:
    """The names that occur more than once, as text. Names that differ by case only count as equal."""
    lower = [name.lower() for name in names]
    return ", ".join(sorted({name for name in lower if lower.count(name) > 1}))


def near_names(name: str, names: Iterable[str]) -> str:
    """Those of ``names`` that look like ``name``, quoted, best first; empty where none does."""
    lower = {there.lower(): there for there in names}
    return " or ".join(repr(lower[found]) for found in difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.6))


@dataclass(frozen=True)
class SelectItem:
    """One output column: its SQL expression and its name. ``*`` has the name ``*``."""

    expression: str
    name: str


@dataclass(frozen=True)
class SimpleSelect:
    """``SELECT items FROM table [WHERE filter] [LIMIT limit]``: what LanceDB's grammar can say.

    Each piece is one expression without comments, so it may stand in parentheses inside a larger one.
    """

    items: tuple[SelectItem, ...]
    table: tuple[str, ...]
    filter: str | None = None
    limit: int | None = None

    @property
    def is_star(self) -> bool:
        return len(self.items) == 1 and self.items[0].name == "*"

    def to_sql(self) -> str:
        """The canonical text, spelled so that LanceDB's stricter parser reads it back."""
        columns = ", ".join(
            item.expression
            if item.name == "*" or (item.expression == quote(item.name))
            else f"{item.expression} AS {quote(item.name)}"
            for item in self.items
        )
        text = f"SELECT {columns} FROM {'.'.join(map(quote, self.table))}"  # noqa: S608 - the definition is SQL
        if self.filter is not None:
            text += f" WHERE {self.filter}"
        if self.limit is not None:
            text += f" LIMIT {self.limit}"
        return text
