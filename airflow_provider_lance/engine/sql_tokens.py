"""The words of a SELECT: what is a string, a name, a keyword; how a name is quoted. Knows no clause and no schema."""

from __future__ import annotations

import re
from dataclasses import dataclass


def _tokens(string: str, quoted: str) -> re.Pattern[str]:
    return re.compile(
        rf"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
          | (?P<string>{string})
          | (?P<quoted>`(?:[^`]|``)*`|{quoted})
          | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
          | (?P<word>[^\W\d]\w*)
          | (?P<symbol>::|<>|!=|<=|>=|\|\||.)""",
        re.VERBOSE | re.DOTALL,
    )


_TOKEN = _tokens(r"'(?:[^']|'')*'", r'"(?:[^"]|"")*"')
# In Spark's strings a backslash escapes the quote that follows it, unless an ``r`` stands before the string.
_SPARK_TOKEN = _tokens(r"""[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|''|\\.)*'""", r'"(?:[^"\\]|""|\\.)*"')
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
# Words that cannot be a bare output name or alias; a name among them is written in backticks.
RESERVED = frozenset(
    """all and any array as asc between both by case cast cross current_date current_time current_timestamp desc
    distinct else end except exists extract false fetch filter for from full group having in inner intersect interval
    into is join lateral leading left like ilike limit natural not null offset on or order outer over position right
    rlike select set similar some substring table then to trailing trim true union unique unnest using values when
    where window with within""".split()  # noqa: SIM905 - a list would be eighty lines
)
# Words that open a clause outside LanceDB's grammar: a name among them would be taken for one.
OUTSIDE_SIMPLE = frozenset(
    """join group having order union intersect except window qualify fetch offset cluster distribute sort
    lateral""".split()  # noqa: SIM905
)


class SelectSyntaxError(ValueError):
    """The text is no SELECT this module can take apart; the message says which part."""


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def keyword(self) -> str:
        """The word in lower case, or nothing for anything that is not a bare word."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The identifier without its quotes."""
        if self.kind != "quoted":
            return self.text
        quote = self.text[0]
        return self.text[1:-1].replace(quote * 2, quote)

    @property
    def is_name(self) -> bool:
        return self.kind == "quoted" or (self.kind == "word" and self.keyword not in RESERVED)


def quote(name: str) -> str:
    """An identifier as SQL; quoted unless it is a plain lower-case word (LanceDB refuses others unquoted)."""
    if _PLAIN_NAME.match(name) and name not in RESERVED and name not in OUTSIDE_SIMPLE:
        return name
    return "`" + name.replace("`", "``") + "`"


def tokenize(sql: str, *, spark: bool = False) -> list[Token]:
    """The meaningful tokens of ``sql``; comments and space are dropped, and so is one trailing semicolon.

    The two grammars differ in their strings: ``spark`` says whose they are.
    """
    tokens = [
        Token(match.lastgroup or "symbol", match.group(), match.start(), match.end())
        for match in (_SPARK_TOKEN if spark else _TOKEN).finditer(sql)
        if match.lastgroup != "space"
    ]
    if tokens and tokens[-1].text == ";":
        tokens.pop()
    for token in tokens:
        if token.kind == "symbol" and token.text in ";'`\"":
            what = "more than one statement" if token.text == ";" else f"an unclosed {token.text}"
            raise SelectSyntaxError(f"{what} at position {token.start}")
    return tokens
