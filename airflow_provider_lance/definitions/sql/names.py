"""The tables and columns that SQL names, and whether two queries say the same, found without a parser.

A DAG file needs the order of its columns and views while it is parsed, and importing the parser takes half a second.
So the words of a text are read here by their places: a table follows FROM, JOIN or a comma between tables. The order
may wait for a column that the text does not read; it never misses one that it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_PATTERN = r"""
    (?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<string>'(?:[^'{escape}]|''{escaped})*')
  | (?P<name>`(?:[^`]|``)*`)
  | (?P<double>"(?:[^"{escape}]|""{escaped})*")
  | (?P<word>[^\W\d]\w*)
  | (?P<other>\d[\w.]*|.)
"""
_FLAGS = re.VERBOSE | re.DOTALL
_PLAIN = re.compile(_PATTERN.format(escape="", escaped=""), _FLAGS)
# Spark's strings have backslashes, Lance's have none.
_ESCAPED = re.compile(_PATTERN.format(escape=r"\\", escaped=r"|\\."), _FLAGS)

_NAMES = ("word", "name", "double")
#: The keywords that the server writes in upper case when it stores a query.
_FOLDED = frozenset(["select", "from", "where", "limit"])
# A clause that ends the list of tables. The condition of a join does not: ``FROM a JOIN b ON a.id = b.id, c``.
_AFTER_TABLES = frozenset(
    """where group having order sort cluster distribute limit offset window union except minus intersect
    qualify""".split()  # noqa: SIM905
)
_NO_TABLES = frozenset(["select", "with", "from", "lateral", "table", "values"])


class _Token(NamedTuple):
    kind: str
    text: str

    @property
    def value(self) -> str:
        """A name without its quotes; any other token as it is written."""
        if self.kind in ("name", "double"):
            mark = self.text[0]
            return self.text[1:-1].replace(mark * 2, mark)
        return self.text

    @property
    def keyword(self) -> str:
        """A bare word in lower case; empty for anything else."""
        return self.text.lower() if self.kind == "word" else ""


def _tokens(sql: str) -> list[_Token]:
    for pattern in (_PLAIN, _ESCAPED):
        found = [_Token(str(match.lastgroup), match[0]) for match in pattern.finditer(sql)]
        if not any(token.text in ("'", '"', "`") for token in found):
            break
    return [token for token in found if token.kind != "space"]


def column_names(expression: str) -> list[str]:
    """The words of an expression that may be columns: no string, no function's name, and nothing behind a dot."""
    tokens = _tokens(expression)
    found = []
    for place, token in enumerate(tokens):
        after_dot = place > 0 and tokens[place - 1].text == "."
        is_call = token.kind == "word" and place + 1 < len(tokens) and tokens[place + 1].text == "("
        if token.kind in ("word", "name") and not after_dot and not is_call:
            found.append(token.value)
    return list(dict.fromkeys(found))


@dataclass
class _Level:
    """What is known inside one pair of parentheses."""

    selects: bool = False
    lists_tables: bool = False
    defines: str | None = None


@dataclass
class _Tables:
    """The tables that were found so far, and the names that the query itself defines with ``WITH``."""

    found: list[tuple[str, ...]] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)

    def add(self, parts: tuple[str, ...]) -> None:
        if not (len(parts) == 1 and parts[0].lower() in self.defined) and parts not in self.found:
            self.found.append(parts)


def table_names(query: str) -> list[tuple[str, ...]]:
    """The tables that a query reads, each as the parts of its name, in the order in which they are named."""
    tokens = _tokens(query)
    tables, levels = _Tables(), [_Level()]
    expects_table, place = False, 0
    while place < len(tokens):
        token, level = tokens[place], levels[-1]
        keyword = token.keyword
        if expects_table and token.kind in _NAMES and keyword not in _NO_TABLES:
            parts, place = _path(tokens, place)
            if place >= len(tokens) or tokens[place].text != "(":  # otherwise it is a function that makes rows
                tables.add(parts)
            expects_table = False
            continue
        if keyword in _NO_TABLES:
            expects_table = False
        if token.text == "(":
            levels.append(_Level(lists_tables=expects_table, defines=_defined_name(tokens, place)))
        elif token.text == ")":
            expects_table = False
            if len(levels) > 1:
                closed = levels.pop()
                if closed.defines is not None:
                    tables.defined.add(closed.defines.lower())
        elif token.text == ",":
            expects_table = level.lists_tables
        elif keyword == "select":
            level.selects, level.lists_tables, expects_table = True, False, False
        elif keyword == "from":
            expects_table = level.lists_tables = _begins_tables(tokens, place, levels)
        elif keyword == "join":
            expects_table = level.lists_tables = True
        elif keyword in _AFTER_TABLES:
            level.lists_tables = expects_table = False
        place += 1
    return tables.found


def _path(tokens: Sequence[_Token], place: int) -> tuple[tuple[str, ...], int]:
    """A name with dots, and the place behind it."""
    parts = [tokens[place].value]
    place += 1
    while place + 1 < len(tokens) and tokens[place].text == "." and tokens[place + 1].kind in _NAMES:
        parts.append(tokens[place + 1].value)
        place += 2
    return tuple(parts), place


def _begins_tables(tokens: Sequence[_Token], place: int, levels: Sequence[_Level]) -> bool:
    """Whether a FROM is that of a query, and not of ``IS DISTINCT FROM`` or ``extract(year FROM day)``."""
    before = tokens[place - 1].keyword if place else ""
    if before == "distinct":
        return False
    # Spark also reads ``FROM t SELECT a`` and ``(FROM t)``.
    opens = place == 0 or tokens[place - 1].text == "("
    return levels[-1].selects or opens or len(levels) == 1


def _defined_name(tokens: Sequence[_Token], place: int) -> str | None:
    """The name before ``AS (`` or ``AS MATERIALIZED (``, which is how ``WITH`` defines one."""
    before = place - 1
    while before >= 0 and tokens[before].keyword in ("materialized", "not"):
        before -= 1
    if before < 1 or tokens[before].keyword != "as":
        return None
    before -= 1
    if tokens[before].text == ")":  # the names of its columns
        while before >= 0 and tokens[before].text != "(":
            before -= 1
        before -= 1
    return tokens[before].value if before >= 0 and tokens[before].kind in _NAMES else None


def same_query(stored: str, declared: str) -> bool:
    """Whether two queries are the same but for space, comments, quotes of names, AS, and the case of clauses.

    ``SELECT *`` equals a stored list of columns, because the server writes it out when a view is created.
    """
    there, here = list(_words(stored)), list(_words(declared))
    if here[:2] == ["select", "*"] and "from" in there and "from" in here:
        head = there[1 : there.index("from")]
        listed = all(word != "," for word in head[::2]) and all(word == "," for word in head[1::2])
        if listed and len(head) % 2 == 1:
            there, here = there[there.index("from") :], here[here.index("from") :]
    return there == here


def _words(query: str) -> Iterator[str]:
    tokens = _tokens(query)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    for token in tokens:
        if token.keyword == "as":
            continue
        yield token.keyword if token.keyword in _FOLDED else token.value
