"""Read the outline of a SELECT: its clauses, its column names, the tables it names. Knows no engine and no schema.

Two grammars need it. LanceDB's (one table, columns, WHERE, LIMIT) is taken apart completely, because Lance evaluates
the pieces; everything else belongs to Spark's parser and only the table names are needed, to resolve them.
Expressions are never interpreted here: whoever runs them validates them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_lance.engine.sql_tokens import (
    OUTSIDE_SIMPLE,
    RESERVED,
    SelectSyntaxError,
    Token,
    quote,
    tokenize,
)

# ``interval '1' day`` has no alias.
_INTERVAL_UNIT = re.compile(
    r"(century|centuries|decade|year|quarter|month|week|day|hour|minute|(milli|micro|nano)?second)s?\Z", re.IGNORECASE
)
_ENDS_FROM = frozenset(["select", "where", "group", "having", "order", "limit", "union", "except", "intersect"])


@dataclass(frozen=True)
class SelectItem:
    """One output column: its SQL expression and its name. ``*`` has the name ``*``."""

    expression: str
    name: str


@dataclass(frozen=True)
class SimpleSelect:
    """``SELECT items FROM table [WHERE filter] [LIMIT limit]``: what LanceDB's grammar can say."""

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


def looks_like_sql(text: str) -> bool:
    """Whether ``text`` starts like a query; a client's opaque blob does not."""
    for spark in (False, True):
        try:
            tokens = tokenize(text, spark=spark)
        except SelectSyntaxError:
            continue
        words = [token.keyword for token in tokens if token.text != "("]
        if words and words[0] in ("select", "with") and "from" in words:
            return True
    return False


def parse_simple_select(sql: str) -> SimpleSelect | None:
    """Take a query of LanceDB's grammar apart; ``None`` for a query that needs more than that grammar.

    Raises :class:`SelectSyntaxError` for one that is inside the grammar and wrong, such as an unnamed expression.
    """
    try:
        tokens = tokenize(sql)
    except SelectSyntaxError:
        tokenize(sql, spark=True)  # which raises for a text that is wrong in both grammars
        return None
    if not tokens or tokens[0].keyword != "select":
        return None
    clauses = _clauses(tokens)
    if clauses is None:
        return None
    table = _table_name(clauses["from"])
    items = clauses["select"]
    if table is None or not items or items[0].keyword in ("distinct", "all"):
        return None
    return SimpleSelect(
        items=tuple(_item(part, sql) for part in _split(items, ",")),
        table=table,
        filter=_text(clauses["where"], sql) if "where" in clauses else None,
        limit=_limit(clauses["limit"]) if "limit" in clauses else None,
    )


def table_names(sql: str) -> tuple[tuple[str, ...], ...]:
    """Every table a query reads, each as its parts, in order of appearance, without common table expressions."""
    tokens = tokenize(sql, spark=True)
    found: list[tuple[str, ...]] = []
    bound = list(_common_table_expressions(tokens))
    for index in _table_positions(tokens):
        parts, after = _path(tokens, index)
        if not parts or (after < len(tokens) and tokens[after].text == "("):
            continue
        if _is_bound(parts, index, bound) or parts in found:
            continue
        found.append(parts)
    return tuple(found)


def rename_tables(sql: str, names: Mapping[str, str]) -> str:
    """``sql`` with its tables (by dotted name) renamed; each keeps its old last part as alias, for ``people.id``."""
    tokens = tokenize(sql, spark=True)
    bound = list(_common_table_expressions(tokens))
    pieces: list[str] = []
    position = 0
    for index in _table_positions(tokens):
        parts, after = _path(tokens, index)
        following = tokens[after] if after < len(tokens) else None
        if not parts or ".".join(parts) not in names or (following is not None and following.text == "("):
            continue
        if _is_bound(parts, index, bound):
            continue
        aliased = following is not None and (following.keyword == "as" or following.is_name) and not _clause(following)
        alias = "" if aliased else " AS " + "`" + parts[-1].replace("`", "``") + "`"
        pieces += [sql[position : tokens[index].start], names[".".join(parts)], alias]
        position = tokens[after - 1].end
    return "".join([*pieces, sql[position:]])


def output_names(sql: str) -> list[str]:
    """The names of the columns a query for Spark yields, as far as its text tells: none for ``*`` and expressions."""
    tokens = tokenize(sql, spark=True)
    inside: list[Token] = []
    depth = 0
    opened = False
    for index, token in enumerate(tokens):
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "symbol" else 0
        word = token.keyword if depth == 0 else ""
        if not opened:
            opened = word == "select"
        elif word in _ENDS_FROM or (word == "from" and not _compares(tokens, index)):
            break
        elif inside or word not in ("distinct", "all"):
            inside.append(token)
    names = []
    for part in _split(inside, ","):
        alias, body = _alias(part)
        parts, after = _path(body, 0)
        if alias is not None:
            names.append(alias.name)
        elif parts and after == len(body):
            names.append(parts[-1])
    return names


def repeated_names(names: Iterable[str]) -> str:
    """Those of ``names`` that occur more than once, as text; no table can have two, whatever their case."""
    lower = [name.lower() for name in names]
    return ", ".join(sorted({name for name in lower if lower.count(name) > 1}))


def _clause(token: Token) -> bool:
    """Words that follow a table and are neither reserved nor its alias."""
    return token.keyword in (
        "tablesample",
        "pivot",
        "unpivot",
        "qualify",
        "cluster",
        "distribute",
        "sort",
        "anti",
        "semi",
    )


def _clauses(tokens: Sequence[Token]) -> dict[str, list[Token]] | None:
    """Tokens per clause of the outermost SELECT, or None when it has a clause outside the simple grammar."""
    order = ["select", "from", "where", "limit"]
    clauses: dict[str, list[Token]] = {}
    current, depth = "", 0
    for index, token in enumerate(tokens):
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "symbol" else 0
        word = token.keyword if depth == 0 else ""
        if word in order and not (word == "from" and _compares(tokens, index)):
            if word in clauses or (current and order.index(word) < order.index(current)):
                return None
            current = word
            clauses[word] = []
        elif word in OUTSIDE_SIMPLE:
            return None
        else:
            clauses[current].append(token)
    if depth:
        raise SelectSyntaxError("the parentheses do not match")
    return clauses if "from" in clauses else None


def _item(tokens: Sequence[Token], sql: str) -> SelectItem:
    if not tokens:
        raise SelectSyntaxError("an empty column between two commas")
    if len(tokens) == 1 and tokens[0].text == "*":
        return SelectItem("*", "*")
    alias, body = _alias(tokens)
    parts, after = _path(body, 0)
    is_column = bool(parts) and after == len(body)
    if alias is None and not is_column:
        text = _text(tokens, sql)
        raise SelectSyntaxError(f"column `{text}` needs a name: `{text} AS name`")
    expression = ".".join(quote(part) for part in parts) if is_column else _text(body, sql)
    return SelectItem(expression, alias.name if alias is not None else parts[-1])


def _alias(tokens: Sequence[Token]) -> tuple[Token | None, Sequence[Token]]:
    """The name an output column is given, if it is, and the expression before it."""
    if len(tokens) > 2 and tokens[-2].keyword == "as" and tokens[-1].kind in ("word", "quoted"):
        return tokens[-1], tokens[:-2]
    is_unit = len(tokens) > 2 and tokens[-3].keyword == "interval" and _INTERVAL_UNIT.match(tokens[-1].keyword)
    if len(tokens) > 1 and tokens[-1].is_name and _ends_an_expression(tokens[-2]) and not is_unit:
        return tokens[-1], tokens[:-1]
    return None, tokens


def _ends_an_expression(token: Token) -> bool:
    if token.kind == "word":
        return token.keyword not in RESERVED or token.keyword in ("end", "null", "true", "false")
    return token.kind in ("string", "number", "quoted") or token.text in (")", "]")


def _table_name(tokens: Sequence[Token]) -> tuple[str, ...] | None:
    parts, after = _path(tokens, 0)
    # Anything after the name (an alias, a comma, a function's arguments) is outside LanceDB's grammar.
    return parts if parts and after == len(tokens) else None


def _limit(tokens: Sequence[Token]) -> int:
    if len(tokens) != 1 or not tokens[0].text.isdigit():
        raise SelectSyntaxError("the limit must be a plain `LIMIT n`")
    return int(tokens[0].text)


def _path(tokens: Sequence[Token], index: int) -> tuple[tuple[str, ...], int]:
    """The dotted name starting at ``index`` and the position after it; empty when there is none."""
    parts: list[str] = []
    while index < len(tokens) and (tokens[index].is_name or (parts and tokens[index].kind == "word")):
        parts.append(tokens[index].name)
        index += 1
        if index >= len(tokens) or tokens[index].text != ".":
            return tuple(parts), index
        index += 1
    return (), index


def _split(tokens: Sequence[Token], separator: str) -> Iterator[list[Token]]:
    part: list[Token] = []
    depth = 0
    for token in tokens:
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "symbol" else 0
        if depth == 0 and token.text == separator and token.kind == "symbol":
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _text(tokens: Sequence[Token], sql: str) -> str:
    """The source text of ``tokens`` on one line; "double quoted" names become backticked, as Lance reads them."""
    pieces: list[str] = []
    for previous, token in zip([None, *tokens[:-1]], tokens, strict=True):
        if previous is not None and token.start > previous.end:
            pieces.append(" ")
        pieces.append(quote(token.name) if token.kind == "quoted" else token.text)
    return "".join(pieces)


def _common_table_expressions(tokens: Sequence[Token]) -> Iterator[tuple[str, range]]:
    """Names bound by WITH (``name [(columns)] AS (``), each with the tokens among which it hides a table.

    Those follow its own definition, where the same name is still the table's (unless it is recursive), and end with the
    query that the WITH belongs to.
    """
    closing, around = _parentheses(tokens)
    recursive = False
    for index, token in enumerate(tokens[:-2]):
        before = tokens[index - 1] if index else token
        recursive |= token.keyword == "recursive" and before.keyword == "with"
        if not token.is_name or not (before.keyword in ("with", "recursive") or before.text == ","):
            continue
        following = index + 1
        if tokens[following].text == "(":
            following = closing.get(following, following) + 1
        words = [token.text.lower() for token in tokens[following : following + 2]]
        if words == ["as", "("]:
            body = following + 1
            end = closing.get(around[index], len(tokens))
            yield token.name.lower(), range(body if recursive else closing.get(body, end), end)


def _is_bound(parts: tuple[str, ...], index: int, bound: Iterable[tuple[str, range]]) -> bool:
    """Whether the name at ``index`` is one that a WITH gave, not a table's."""
    return len(parts) == 1 and any(parts[0].lower() == name and index in where for name, where in bound)


def _parentheses(tokens: Sequence[Token]) -> tuple[dict[int, int], list[int]]:
    """Where every parenthesis closes, and for each token which one it is in; -1 is none."""
    closing: dict[int, int] = {}
    around: list[int] = []
    opened = [-1]
    for index, token in enumerate(tokens):
        around.append(opened[-1])
        if token.text == "(":
            opened.append(index)
        elif token.text == ")" and len(opened) > 1:
            closing[opened.pop()] = index
    return closing, around


def _table_positions(tokens: Sequence[Token]) -> Iterator[int]:
    """Where a table may be named: after FROM and JOIN, and after a comma of the same FROM clause."""
    # Per open parenthesis: is it a query (or a parenthesised join), and are we in its FROM clause?
    stack: list[tuple[bool, bool]] = []
    is_query, in_from = True, False
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        if token.text == "(":
            stack.append((is_query, in_from))
            opens = tokens[index + 1].keyword if index + 1 < len(tokens) else ""
            subquery = opens in ("select", "with", "from")
            joined = not subquery and in_from and before is not None and before.text.lower() in ("from", "join", ",")
            is_query, in_from = subquery or joined, joined
            if joined:
                yield index + 1
        elif token.text == ")" and stack:
            is_query, in_from = stack.pop()
        elif not is_query:
            continue
        elif token.keyword == "join" or (token.keyword == "from" and not _compares(tokens, index)):
            in_from = True
            yield index + 1
        elif token.keyword in _ENDS_FROM:
            in_from = False
        elif token.text == "," and in_from:
            yield index + 1


def _compares(tokens: Sequence[Token], index: int) -> bool:
    """Whether the FROM at ``index`` belongs to ``a IS [NOT] DISTINCT FROM b``."""
    words = [token.keyword for token in tokens[max(0, index - 3) : index]]
    return words[-2:] == ["is", "distinct"] or words == ["is", "not", "distinct"]
