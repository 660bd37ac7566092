"""Lance's SQL: the parts of one expression, or of one query of LanceDB's grammar, without a schema.

Lance itself reads an expression as ``SELECT <text> FROM t`` or ``… WHERE <text>`` and silently ignores what follows the
first complete expression: ``id < 3) OR (id > 7`` deletes the rows below 3. So every text is read here first. Whether a
column, a function or an operator exists is decided by Lance's planner.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_lance.definitions.sql.parsing import (
    LANCE,
    LANCE_VIEW,
    SPARK,
    Token,
    TokenType,
    exp,
    parse,
    tokenize,
    without_comments,
)
from airflow_provider_lance.definitions.sql.text import SelectItem, SimpleSelect, SqlError, quote

_OPENING = {TokenType.L_PAREN: ")", TokenType.L_BRACKET: "]", TokenType.L_BRACE: "}"}
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
_QUOTED = (TokenType.STRING, TokenType.NUMBER, TokenType.HEX_STRING)
# Lance's planner panics on these.
_NO_LITERALS = (TokenType.PLACEHOLDER, TokenType.PARAMETER, TokenType.COLON, TokenType.NATIONAL_STRING)
# A list of a hundred thousand values takes seconds to parse, so of longer texts only the brackets are checked.
_MOST_PARSED = 5_000
_TYPED_LITERALS = ("date", "time", "timestamp", "interval")


@dataclass(frozen=True)
class Expression:
    """One expression of Lance's SQL.

    ``text`` has no comments and may be put in parentheses inside a larger expression. ``paths`` are the columns that it
    reads. They are None for a very long text, and for a text that only Lance may be able to read; ``doubt`` then says
    why. ``names`` are all bare and quoted words that do not follow a dot, and ``calls`` those before a parenthesis.
    """

    text: str
    paths: tuple[tuple[str, ...], ...] | None
    names: frozenset[str]
    calls: frozenset[str]
    doubt: SqlError | None = None


@functools.lru_cache(maxsize=256)
def read_expression(sql: str) -> Expression:
    """Read ``sql`` as one expression; :class:`SqlError` names the place where it is none, or more than one."""
    tokens = tokenize(sql, LANCE)
    _check_brackets(sql, tokens)
    _check_literals(sql, tokens)
    text = without_comments(sql, tokens)
    words = [
        (token.text.lower(), following)
        for before, token, following in zip([None, *tokens[:-1]], tokens, [*tokens[1:], None], strict=True)
        if _is_word(token) and (before is None or before.token_type != TokenType.DOT)
    ]
    names = frozenset(word for word, _ in words)
    calls = frozenset(word for word, after in words if after is not None and after.token_type == TokenType.L_PAREN)
    if len(tokens) > _MOST_PARSED:
        return Expression(f"({text})", None, names, calls)
    try:
        tree = parse(sql, tokens, LANCE, exp.Condition)
    except SqlError as doubt:
        # A column may have the name of a keyword. In parentheses Lance reads the whole text or refuses it.
        return Expression(f"({text})", None, names, calls, doubt)
    if tree.is_star:
        raise SqlError("`*` is not an expression", sql, tokens[-1].start)
    return Expression(text, tuple(dict.fromkeys(_paths(tree))), names, calls)


def _check_brackets(sql: str, tokens: Sequence[Token]) -> None:
    opened: list[Token] = []
    for token in tokens:
        if token.token_type in _OPENING:
            opened.append(token)
        elif token.token_type in _CLOSING:
            if not opened or _OPENING[opened[-1].token_type] != token.text:
                raise SqlError(f"unexpected {token.text!r}", sql, token.start)
            opened.pop()
        elif token.token_type == TokenType.COMMA and not opened:
            raise SqlError("unexpected ',' after one expression", sql, token.start)
    if opened:
        raise SqlError(f"an unclosed {opened[-1].text}", sql, opened[-1].start)


def _check_literals(sql: str, tokens: Sequence[Token]) -> None:
    for before, token in zip([None, *tokens[:-1]], tokens, strict=True):
        prefix = before is not None and before.end + 1 == token.start and token.token_type == TokenType.STRING
        is_prefixed = (
            prefix
            and before is not None
            and before.token_type == TokenType.VAR
            and before.text.lower() not in _TYPED_LITERALS
        )
        at = before if is_prefixed and before is not None else token
        if is_prefixed or token.token_type in _NO_LITERALS or sql[token.start] == "$":
            raise SqlError(f"Lance's SQL has no {sql[at.start : token.end + 1]!r}", sql, at.start)


def _is_word(token: Token) -> bool:
    if token.token_type == TokenType.IDENTIFIER:
        return True
    return token.token_type not in _QUOTED and (token.text[:1].isalpha() or token.text[:1] == "_")


def _paths(tree: exp.Expr) -> Iterator[tuple[str, ...]]:
    """The paths of the columns in a tree: ``a.b`` and ``a['b']`` are one path each, ``a[i]`` are two."""
    left = [tree]
    while left:  # not recursive, because the tree of ``a OR b OR …`` is as deep as the text is long
        node = left.pop()
        path = _path(node)
        if path is not None:
            yield path
        else:
            left += reversed(list(node.iter_expressions()))


def _path(node: exp.Expr) -> tuple[str, ...] | None:
    if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
        return tuple(part.name for part in node.parts)
    if isinstance(node, exp.Paren):
        return _path(node.this)
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        above = _path(node.this)
        return None if above is None else (*above, node.expression.name)
    if isinstance(node, exp.Bracket) and len(node.expressions) == 1:
        key, above = node.expressions[0], _path(node.this)
        if above is not None and isinstance(key, exp.Literal) and key.is_string:
            return (*above, key.name)
    return None


def names_in(select: SimpleSelect) -> frozenset[str]:
    """Every bare or quoted word in a query's expressions, in lower case; they include all columns that it reads."""
    texts = [item.expression for item in select.items]
    if select.filter is not None:
        texts.append(select.filter)
    return frozenset(token.text.lower() for text in texts for token in tokenize(text, LANCE) if _is_word(token))


def read_select(sql: str) -> SimpleSelect | None:
    """Read a query of LanceDB's grammar; None for a query outside of that grammar.

    Raises :class:`SqlError` for a query that is inside the grammar and wrong, such as an unnamed expression.
    """
    try:
        tokens = tokenize(sql, LANCE_VIEW)
        tree = parse(sql, tokens, LANCE_VIEW)
    except SqlError:
        return None
    table = _only_table(tree)
    if table is None or not isinstance(tree, exp.Select):
        return None
    clauses = _clauses(tokens, table)
    if any((name in clauses) != bool(tree.args.get(name)) for name in ("where", "limit")):
        return None
    if any(item.is_star and not isinstance(item, exp.Star) for item in tree.expressions):  # table.*
        return None
    parts = list(_split(clauses["select"]))
    if any(not part for part in parts):
        raise SqlError("an empty column between two commas", sql, clauses["from"][0].start)
    items = tuple(_item(part, select, sql) for part, select in zip(parts, tree.expressions, strict=True))
    return SimpleSelect(
        items=items,
        table=tuple(part.name for part in table.parts),
        filter=_text(clauses["where"], sql) if "where" in clauses else None,
        limit=_limit(clauses["limit"], sql) if "limit" in clauses else None,
    )


def _only_table(tree: exp.Expr) -> exp.Table | None:
    """The one table of ``SELECT … FROM table [WHERE …] [LIMIT …]``; None for any other tree."""
    if not isinstance(tree, exp.Select):
        return None
    if {name for name, value in tree.args.items() if value} - {"expressions", "from_", "where", "limit"}:
        return None
    table = tree.args["from_"].this if tree.args.get("from_") else None
    if not isinstance(table, exp.Table) or not tree.expressions:
        return None
    if {name for name, value in table.args.items() if value} - {"this", "db", "catalog"}:
        return None
    return table if all(isinstance(part, exp.Identifier) for part in table.parts) else None


def _clauses(tokens: Sequence[Token], table: exp.Table) -> dict[str, Sequence[Token]]:
    """The tokens of each clause. The FROM of the query is found by the place of its table (``IS DISTINCT FROM``)."""
    begin, end = table.parts[0].meta["start"], table.parts[-1].meta["end"]
    first = next(index for index, token in enumerate(tokens) if token.start == begin)
    after = next((index for index, token in enumerate(tokens) if token.start > end), len(tokens))
    clauses = {"select": tokens[1 : first - 1], "from": tokens[first:after]}
    rest = tokens[after:]
    limits = [index for index, depth in enumerate(_depths(rest)) if not depth and _is(rest[index], TokenType.LIMIT)]
    if limits:
        clauses["limit"] = rest[limits[-1] + 1 :]
        rest = rest[: limits[-1]]
    if rest:
        clauses["where"] = rest[1:]
    return clauses


def _is(token: Token, kind: TokenType) -> bool:
    return token.token_type == kind


def _depths(tokens: Sequence[Token]) -> Iterator[int]:
    depth = 0
    for token in tokens:
        depth += token.token_type in _OPENING
        yield depth
        depth -= token.token_type in _CLOSING


def _split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    for token, depth in zip(tokens, _depths(tokens), strict=True):
        if not depth and token.token_type == TokenType.COMMA:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _item(tokens: Sequence[Token], select: exp.Expr, sql: str) -> SelectItem:
    if isinstance(select, exp.Star):
        if len(tokens) > 1:
            raise SqlError("Lance's SQL has nothing that follows `*`", sql, tokens[1].start)
        return SelectItem("*", "*")
    name, body = None, tokens
    if isinstance(select, exp.Alias):
        alias = tokens[-1]
        if alias.token_type in _QUOTED:
            raise SqlError("the name of a column is not a string", sql, alias.start)
        name, body = alias.text, tokens[: -2 if _is(tokens[-2], TokenType.ALIAS) else -1]
        select = select.this
    parts = _dotted(select)
    if name is None and not parts:
        text = _text(tokens, sql)
        raise SqlError(f"column `{text}` needs a name: `{text} AS name`", sql, tokens[0].start)
    expression = ".".join(quote(part) for part in parts) if parts else _text(body, sql)
    return SelectItem(expression, name if name is not None else parts[-1])


def _dotted(node: exp.Expr) -> list[str]:
    """The parts of a name with dots; empty for any other expression."""
    if isinstance(node, exp.Dot):
        above = _dotted(node.this)
        return [*above, node.expression.name] if above and isinstance(node.expression, exp.Identifier) else []
    return [part.name for part in node.parts] if isinstance(node, exp.Column) else []


def _limit(tokens: Sequence[Token], sql: str) -> int:
    if len(tokens) != 1 or not tokens[0].text.isdigit():
        raise SqlError("the limit must be a plain `LIMIT n`", sql, tokens[0].start)
    return int(tokens[0].text)


def _text(tokens: Sequence[Token], sql: str) -> str:
    """The source text of ``tokens`` on one line, with names in backticks instead of double quotes, as Lance needs."""
    pieces: list[str] = []
    for previous, token in zip([None, *tokens[:-1]], tokens, strict=True):
        if previous is not None and token.start > previous.end + 1:
            pieces.append(" ")
        quoted = token.token_type == TokenType.IDENTIFIER
        pieces.append(quote(token.text) if quoted else sql[token.start : token.end + 1])
    return "".join(pieces)


def looks_like_sql(text: str) -> bool:
    """Whether ``text`` begins like a query."""
    try:
        words = [token.text.lower() for token in tokenize(text, SPARK) if token.token_type != TokenType.L_PAREN]
    except SqlError:
        words = text.lower().replace("(", " ").split()
    return len(words) > 1 and words[0] in ("select", "with", "from")
