"""Queries in Spark's SQL as text: the tables and columns that they name, and other names for the tables.

Only what cannot be right is refused here, without Spark: a text that does not parse, and a column that no table of the
query has and no part of the query makes. Spark's analyzer decides in the first refresh.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_lance.definitions.sql.parsing import SPARK, TokenType, exp, parse, tokenize
from airflow_provider_lance.definitions.sql.text import SqlError, near_names, place

# These parts of a query make columns whose names are not in the text, or not as names.
_MAKES_COLUMNS = (
    exp.Pivot,
    exp.Lateral,
    exp.Values,
    exp.Unnest,
    exp.UDTF,
    exp.QueryTransform,
    exp.Placeholder,
    exp.Parameter,
    exp.SessionParameter,
)
# ``explode`` and similar functions in a SELECT list make columns of these names; Spark's files have ``_metadata``.
_MADE_NAMES = frozenset(["col", "key", "value", "pos", "_metadata"])


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and the names of all fields inside them."""

    names: tuple[str, ...]
    fields: tuple[str, ...] = ()


class SparkQuery:
    """One query in Spark's SQL."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens = tokenize(sql, SPARK)
        tree = parse(sql, self.tokens, SPARK)
        if not isinstance(tree, exp.Query):
            first = self.tokens[0]
            raise SqlError(f"{first.text!r} does not begin a query, as SELECT and WITH do", sql, first.start)
        self.tree = tree
        for table in self._places:
            if table.name.upper() == "TABLE" and not table.this.quoted:
                raise SqlError("TABLE is not read here: write SELECT * FROM", sql, _span(table)[0])

    @property
    def text(self) -> str:
        """The query from its first to its last token."""
        return self.sql[self.tokens[0].start : self.tokens[-1].end + 1]

    @functools.cached_property
    def tables(self) -> tuple[tuple[str, ...], ...]:
        """Every table the query reads, each as its parts, in order of appearance, without common table expressions."""
        return tuple(dict.fromkeys(_parts(table) for table in self._places))

    @functools.cached_property
    def _places(self) -> list[exp.Table]:
        """The tables of the tree in the order of the text. Names in hints are not tables of the query."""
        found = [
            table
            for table in self.tree.find_all(exp.Table)
            if all(isinstance(part, exp.Identifier) for part in table.parts)
            and table.find_ancestor(exp.Hint) is None
            and not _is_common(table)
        ]
        return sorted(found, key=lambda table: _span(table)[0])

    def renamed(self, names: Mapping[str, str]) -> str:
        """The text with other ``names`` for its tables, by dotted name. The last part of a name becomes its alias."""
        pieces: list[str] = []
        position = 0
        for table in self._places:
            parts = _parts(table)
            start, end = _span(table)
            if ".".join(parts) not in names or start < position:  # a pipe's tree may name one place twice
                continue
            pieces += [self.sql[position:start], names[".".join(parts)]]
            position = end
            if not table.alias:
                after = self._after_sample(end) if table.args.get("sample") else end
                pieces += [self.sql[end:after], " AS `", parts[-1].replace("`", "``"), "`"]
                position = after
        return "".join([*pieces, self.sql[position:]])

    def _after_sample(self, end: int) -> int:
        """The place after ``TABLESAMPLE (…) [REPEATABLE (…)]``, where Spark expects the alias."""
        depth = 0
        tokens = [token for token in self.tokens if token.start >= end]
        for token, following in zip(tokens, [*tokens[1:], None], strict=True):
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            closed = token.token_type == TokenType.R_PAREN and not depth
            if closed and (following is None or following.text.upper() != "REPEATABLE"):
                return int(token.end) + 1
        return end

    @property
    def output_names(self) -> list[str]:
        """The names of the columns the query yields, as far as its text tells: none for ``*`` and expressions."""
        if any(token.token_type == TokenType.PIPE_GT for token in self.tokens):
            return []
        return [item.output_name for item in self.tree.selects if item.output_name and not item.is_star]

    def unknown_column(self, tables: Mapping[str, Columns]) -> str | None:
        """A sentence about a column that certainly does not exist; None if only Spark can tell.

        ``tables`` has the columns of each table by its dotted name.
        """
        if self.tree.find(*_MAKES_COLUMNS) is not None or any(_makes_rows(node) for node in self.tree.walk()):
            return None
        columns = {name.lower() for table in tables.values() for name in (*table.names, *table.fields)}
        columns |= {alias.alias.lower() for alias in self.tree.find_all(exp.Alias)}
        known = columns | _MADE_NAMES | {name.lower() for name in self._made_names()}
        owners = self._owners(tables)
        everything = {name: table.names for name, table in tables.items()}
        for parts in self._columns():
            *above, name = [part.name.lower() for part in parts]
            owner = owners.get(above[-1]) if above else None
            if owner is not None and above[-1] not in columns:
                if name not in {there.lower() for there in tables[owner].names}:
                    return self._sentence(parts, {owner: tables[owner].names})
            elif not above and name not in known:
                return self._sentence(parts, everything)
        return None

    def _columns(self) -> list[list[exp.Expr]]:
        """The parts of every name that may be a column, in the order of the text."""
        found = [
            column.parts
            for column in self.tree.find_all(exp.Column)
            if not column.is_star and column.find_ancestor(exp.Hint) is None
        ]
        found += [[name] for name in self.tree.find_all(exp.Identifier) if name.arg_key == "using"]
        return sorted(found, key=_start)

    def _owners(self, tables: Mapping[str, Columns]) -> dict[str, str | None]:
        """The table of each qualifier; None where it is not certain, or where the table's columns are renamed."""
        if any(token.token_type == TokenType.PIPE_GT for token in self.tokens):
            return {}
        owners: dict[str, str | None] = {}
        for table in self._places:
            alias, name = (table.alias or table.name).lower(), ".".join(_parts(table))
            sure = name in tables and not table.alias_column_names and owners.get(alias, name) == name
            owners[alias] = name if sure else None
        places = {id(table) for table in self._places}
        for node in self.tree.find_all(exp.Table, exp.Subquery):
            if id(node) not in places:
                owners[node.alias_or_name.lower()] = None
        return owners

    def _made_names(self) -> Iterator[str]:
        """Every name that the query itself makes: aliases and their columns, arguments of lambdas, fields of structs.

        A string may become the name of a field or of a pivot's column, and an expression names a column (`max(a)`).
        """
        for name in self.tree.find_all(exp.Identifier, exp.Literal):
            is_column = isinstance(name.parent, exp.Column) or name.arg_key == "using"
            if isinstance(name, exp.Literal) or not is_column or "(" in name.name:
                yield name.name

    def _sentence(self, parts: Sequence[exp.Expr], tables: Mapping[str, Sequence[str]]) -> str:
        name = parts[-1].name
        near = near_names(name, [there for names in tables.values() for there in names])
        sentence = f"there is no column {name!r} (at {place(self.sql, _start(parts))})"
        listed = "; ".join(f"{table} has {', '.join(names)}" for table, names in tables.items())
        return f"{sentence}: {listed}." + (f" Did you mean {near}?" if near else "")


def _makes_rows(node: exp.Expr) -> bool:
    """Whether a table of the query is a function, such as ``range(5)``, whose columns are not in the text."""
    return isinstance(node, exp.Table) and not all(isinstance(part, exp.Identifier) for part in node.parts)


def _parts(table: exp.Table) -> tuple[str, ...]:
    return tuple(part.name for part in table.parts)


def _span(table: exp.Table) -> tuple[int, int]:
    return int(table.parts[0].meta.get("start", 0)), int(table.parts[-1].meta.get("end", -1)) + 1


def _start(parts: Sequence[exp.Expr]) -> int:
    return int(parts[0].meta.get("start", 0))


def _is_common(table: exp.Table) -> bool:
    """Whether a table's name is defined by a WITH around it.

    The name is valid in the query of the WITH and in the definitions after its own, and with RECURSIVE also in its own.
    """
    if len(table.parts) > 1:
        return False
    inside: exp.Expr | None = None
    node: exp.Expr | None = table
    while node is not None:
        if isinstance(node, exp.CTE):
            inside = node
        bound = node.args.get("with_")
        if bound is not None:
            for common in bound.expressions:
                if common is inside and not bound.recursive:
                    break
                if common.alias.lower() == table.name.lower():
                    return True
                if common is inside:
                    break
        node = node.parent
    return False
