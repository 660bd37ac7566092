"""Tokens and trees of SQL texts by sqlglot, in the three dialects used here, with errors that name a place.

No SQL is generated from a tree, because sqlglot rewrites it. Texts are changed at the places of their tokens.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from sqlglot import Dialect, Token, Tokenizer, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser

from airflow_provider_lance.definitions.sql.text import SqlError

__all__ = ["LANCE", "LANCE_VIEW", "SPARK", "Token", "TokenType", "exp", "parse", "tokenize", "without_comments"]

# Every other word may be a column's name in Lance's SQL, such as list, range, show or rename.
_WORDS = frozenset(
    """ALL AND AS BETWEEN CASE DISTINCT ELSE END ESCAPE EXISTS FALSE FROM ILIKE IN INTERVAL IS LIKE LIMIT NOT NULL OR
    SELECT THEN TRUE WHEN WHERE BOOLEAN TINYINT SMALLINT INT INTEGER BIGINT FLOAT REAL DOUBLE DECIMAL NUMERIC VARCHAR
    CHAR STRING TEXT DATE TIME TIMESTAMP BINARY VARBINARY""".split()  # noqa: SIM905
)
# Lance has no hints and no pipes, and the rest are marks of a template language.
_NO_MARKS = ("/*+", "|>", "{%", "{{", "+%", "-%", "%}", "+}", "-}")
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "JOIN", "UNION", "WITH", "AND", "NOT")


_SET_OPERATORS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)


class _SparkParser(SparkParser):
    """Spark's grammar with pipes kept as they are written: sqlglot rewrites them and knows fewer operators."""

    def _parse_pipe_syntax_query(self, query: exp.Query) -> exp.Query:
        steps: list[exp.Expr] = []
        while self._match(TokenType.PIPE_GT):
            begin = self._index
            steps += [part for part in self._parse_pipe_step() if part is not None]
            if self._index == begin:
                self.raise_error("Unexpected token")
        query.set("pipes", steps)
        return query

    def _parse_pipe_step(self) -> Iterable[exp.Expr | None]:
        if self._match(TokenType.SELECT, advance=False):
            return [self._parse_select(consume_pipe=False)]
        if self._match_texts(("AGGREGATE", "EXTEND", "SET")):
            made = self._parse_csv(self._parse_expression)
            return made + (self._parse_csv(self._parse_expression) if self._match(TokenType.GROUP_BY) else [])
        if self._match_texts(("DROP", "AS")):
            self._parse_csv(self._parse_id_var)
            return []
        if self._match_texts(("PIVOT", "UNPIVOT"), advance=False):
            return self._parse_pivots() or []
        if self._match_set(_SET_OPERATORS):
            self._match_set((TokenType.ALL, TokenType.DISTINCT))
            return [self._parse_select(nested=True, consume_pipe=False)]
        return [self._parse_query_modifiers(exp.Select())]


class _Spark(Spark):
    Parser = _SparkParser


class _LanceTokenizer(Tokenizer):
    QUOTES: ClassVar = ["'", '"']
    IDENTIFIERS: ClassVar = ["`"]
    STRING_ESCAPES: ClassVar = ["'", '"']
    HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
    NESTED_COMMENTS = False
    KEYWORDS: ClassVar = {
        word: kind
        for word, kind in Tokenizer.KEYWORDS.items()
        if word in _WORDS or not (word[0].isalpha() or word.startswith(_NO_MARKS))
    }


class _LanceViewTokenizer(_LanceTokenizer):
    QUOTES: ClassVar = ["'"]
    IDENTIFIERS: ClassVar = ["`", '"']
    STRING_ESCAPES: ClassVar = ["'"]


class _Lance(Dialect):
    Tokenizer = _LanceTokenizer


class _LanceView(Dialect):
    Tokenizer = _LanceViewTokenizer


#: Lance's expressions and filters: ``'`` and ``"`` quote strings, backticks quote names, a backslash is a character.
LANCE: Dialect = _Lance()
#: LanceDB's queries of one table: ``'`` quotes strings, ``"`` and backticks quote names.
LANCE_VIEW: Dialect = _LanceView()
#: Spark's queries: ``'`` and ``"`` quote strings with backslashes in them, backticks quote names.
SPARK: Dialect = _Spark()


def tokenize(sql: str, dialect: Dialect) -> list[Token]:
    """The tokens of ``sql`` without comments and without one closing semicolon."""
    try:
        tokens = dialect.tokenize(sql)
    except TokenError as error:
        found = re.search(r"Missing (.+) from \d+:(\d+)\Z", str(error.__cause__))
        if found:
            raise SqlError(f"an unclosed {found[1]}", sql, int(found[2])) from None
        if isinstance(error.__cause__, IndexError):  # sqlglot reads past the end of the text
            opened = "/*" if sql.rfind("/*") > sql.rfind("*/") else sql[-1]
            raise SqlError(f"an unclosed {opened}", sql, sql.rfind(opened)) from None
        raise SqlError(f"the text cannot be read: {error.__cause__ or error}") from None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise SqlError("there is no SQL in the text")
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            raise SqlError("more than one statement", sql, token.start)
    return tokens


def parse(sql: str, tokens: Sequence[Token], dialect: Dialect, into: type[exp.Expr] | None = None) -> exp.Expr:
    """One tree of all ``tokens``; :class:`SqlError` says which token does not fit."""
    parser = dialect.parser()
    try:
        trees = parser.parse_into(into, list(tokens), sql) if into else parser.parse(list(tokens), sql)
    except ParseError as error:
        raise _explained(error, sql, tokens) from None
    except RecursionError:
        raise SqlError("the text is nested too deeply") from None
    if len(trees) != 1 or trees[0] is None:
        raise SqlError("there is no SQL in the text")
    return trees[0]


def _explained(error: ParseError, sql: str, tokens: Sequence[Token]) -> SqlError:
    found = error.errors[0] if error.errors else {}
    at = next((i for i, t in enumerate(tokens) if (t.line, t.col) == (found.get("line"), found.get("col"))), None)
    if at is None:
        return SqlError(f"the text cannot be read: {str(error).splitlines()[0]}")
    token, description = tokens[at], str(found.get("description", ""))
    spelled = sql[token.start : token.end + 1]
    if description.startswith("Required"):
        reason = f"something is missing beside {spelled!r}"
    elif description.startswith("Expecting"):
        reason = f"{description[0].lower()}{description[1:]} before {spelled!r}"
    else:
        reason = f"unexpected {spelled!r}"
    for near in tokens[max(0, at - 1) : at + 1]:
        word = near.text.upper()
        meant = difflib.get_close_matches(word, _CLAUSES, n=1, cutoff=0.7) if near.token_type == TokenType.VAR else []
        if meant and word not in _CLAUSES:
            return SqlError(f"{reason}: is {near.text!r} meant as {meant[0]}?", sql, near.start)
    return SqlError(reason, sql, token.start)


def without_comments(sql: str, tokens: Sequence[Token]) -> str:
    """The text of ``tokens`` as it was written, with a space in the place of each comment between them."""
    pieces: list[str] = []
    for previous, token in zip([None, *tokens[:-1]], tokens, strict=True):
        gap = sql[previous.end + 1 : token.start] if previous is not None else ""
        pieces.append(gap if not gap or gap.isspace() else " ")
        pieces.append(sql[token.start : token.end + 1])
    return "".join(pieces)
