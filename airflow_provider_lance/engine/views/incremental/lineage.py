"""Which rows of its tables a row of a query depends on, found by a walk over the query's tree.

An *occurrence* is a place where the query reads a table; a table that is read twice has two. A *term* is a column of an
occurrence, or an expression over its columns. The walk finds for every column ``a`` of a node:

- ``restricts``: terms ``o.c`` such that the rows with ``a = v`` depend only on those rows of ``o`` with ``c = v``.
- ``holders``: sets of occurrences with a term each, such that every row with ``a = v`` stems from a row of one of them
  whose term is ``v``. A set has more than one occurrence only above a union. All columns of a row that the same set
  holds stem from the same row of it.

and for the whole query *links* ``o.c → p.d``: a row of ``o`` matters only to output rows that stem from rows of ``p``
with ``d = c``. A missing restriction, holder or link costs speed only. A wrong one would leave rows in the view that
are no longer right, so everything that is not certain is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from airflow_provider_lance.engine.views.incremental.expression import Expression
from airflow_provider_lance.engine.views.incremental.query_tree import (
    Computed,
    Constant,
    Grouping,
    Joining,
    Leaf,
    Node,
    Opaque,
    QueryTree,
    Reference,
    RowByRow,
    Uniting,
    Value,
    WithSubqueries,
)

# A column that is equal to many others has as many terms. More than a few of them find no better key.
_MOST_TERMS = 6
_MOST_HOLDERS = 8
_K = TypeVar("_K")


@dataclass(frozen=True)
class ColumnTerm:
    """A column of an occurrence's table."""

    name: str

    @property
    def columns(self) -> frozenset[str]:
        return frozenset([self.name])

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ExpressionTerm:
    """An expression over terms of one occurrence."""

    expression: Expression
    inputs: tuple[Term, ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(column for term in self.inputs for column in term.columns)

    def __str__(self) -> str:
        return self.expression.text


Term = ColumnTerm | ExpressionTerm
#: The term of each occurrence that holds a column.
Holder = Mapping[int, Term]
_Restricts = Mapping[int, tuple[Term, ...]]
_Holders = Mapping[frozenset[int], Holder]


@dataclass(frozen=True)
class Link:
    """A row of ``occurrence`` matters only to output rows that stem from rows of ``targets`` with the same values.

    A join by several equalities is one link with as many terms.
    """

    occurrence: int
    terms: tuple[Term, ...]
    targets: Mapping[int, tuple[Term, ...]]


@dataclass(frozen=True)
class OutputColumn:
    """A column of the query: what it restricts, by occurrence, and what holds it, by the set of occurrences."""

    name: str
    restricts: _Restricts = field(default_factory=dict)
    holders: _Holders = field(default_factory=dict)

    def held_by(self, occurrence: int) -> Term | None:
        """The term of ``occurrence`` that is this column's value in all rows that stem from it."""
        return next((holder[occurrence] for holder in self.holders.values() if occurrence in holder), None)


@dataclass(frozen=True)
class Lineage:
    """What the walk over a query found.

    ``tables`` has the table of each occurrence. ``opaque`` has the reason why a change of an occurrence cannot be
    followed at all. ``linear`` are the occurrences for which the query over more rows yields its old rows and, beside
    them, what it yields over the new rows alone. ``notes`` say for a person what is in the way of keys.
    """

    tables: tuple[str, ...]
    output: tuple[OutputColumn, ...]
    links: tuple[Link, ...]
    opaque: Mapping[int, str]
    linear: frozenset[int]
    notes: tuple[str, ...]

    def key_columns(self, table: str) -> frozenset[str]:
        """The columns of ``table`` whose values a change of it can be followed by."""
        numbers = {number for number, name in enumerate(self.tables) if name == table}
        found: set[str] = set()
        for column in self.output:
            for number in numbers.intersection(column.restricts):
                found.update(name for term in column.restricts[number] for name in term.columns)
        for link in self.links:
            if link.occurrence in numbers:
                found.update(name for term in link.terms for name in term.columns)
            for number in numbers.intersection(link.targets):
                found.update(name for term in link.targets[number] for name in term.columns)
        return frozenset(found)


@dataclass
class _Facts:
    """What is known of the rows of a node."""

    restricts: dict[int, _Restricts] = field(default_factory=dict)
    holders: dict[int, _Holders] = field(default_factory=dict)
    linear: frozenset[int] = frozenset()


def find_lineage(tree: QueryTree) -> Lineage:
    """Walk over a query. Every node that the walk does not understand makes the tables below it opaque."""
    walk = _Walk()
    facts = walk.visit(tree.root)
    output = [
        OutputColumn(name, facts.restricts.get(number, {}), facts.holders.get(number, {}))
        for name, number in tree.output
    ]
    return Lineage(
        tuple(walk.tables),
        tuple(output),
        tuple(walk.links),
        walk.opaque,
        facts.linear,
        tuple(dict.fromkeys(walk.notes)),
    )


class _Walk:
    def __init__(self) -> None:
        self.tables: list[str] = []
        self.links: list[Link] = []
        self.opaque: dict[int, str] = {}
        self.notes: list[str] = []

    def visit(self, node: Node) -> _Facts:
        match node:
            case Leaf():
                return self._leaf(node)
            case Constant():
                return _Facts()
            case RowByRow():
                below = self.visit(node.child)
                return _valued(below, node.columns, below.linear)
            case Grouping():
                if node.note:
                    self.notes.append(node.note)
                return _valued(self.visit(node.child), node.columns, frozenset())
            case Joining():
                return self._join(node)
            case Uniting():
                return self._union(node)
            case WithSubqueries():
                for subquery in node.subqueries:
                    self.visit(subquery)
                return self.visit(node.node)
            case Opaque():
                return self._barrier(node)

    def _leaf(self, leaf: Leaf) -> _Facts:
        occurrence = len(self.tables)
        self.tables.append(leaf.table)
        terms = {number: ColumnTerm(column) for number, column in leaf.columns.items()}
        return _Facts(
            {number: {occurrence: (term,)} for number, term in terms.items()},
            {number: {frozenset([occurrence]): {occurrence: term}} for number, term in terms.items()},
            frozenset([occurrence]),
        )

    def _barrier(self, node: Opaque) -> _Facts:
        first, links = len(self.tables), len(self.links)
        for child in node.children:
            self.visit(child)
        for occurrence in range(first, len(self.tables)):
            self.opaque.setdefault(occurrence, node.reason)
        del self.links[links:]
        return _Facts()

    def _join(self, node: Joining) -> _Facts:
        first = len(self.tables)
        left = self.visit(node.left)
        between = len(self.tables)
        right = self.visit(node.right)
        facts = _Facts(dict(left.restricts), dict(left.holders), left.linear)
        if node.inner:
            facts.restricts |= right.restricts
            facts.holders |= right.holders
            facts.linear |= right.linear
        sides = [(_value_facts(left, mine), _value_facts(right, theirs), mine, theirs) for mine, theirs in node.equal]
        linked = self._link([(theirs[0], mine[1]) for mine, theirs, _, _ in sides])
        if node.inner:
            linked |= self._link([(mine[0], theirs[1]) for mine, theirs, _, _ in sides])
        for mine, theirs, value, other in sides:
            # The two values are equal in every output row, so each has what both have. An outer join makes NULL of the
            # right one, and keeps left rows without a partner: the right side holds nothing there.
            for one in (value, other) if node.inner else (value,):
                if isinstance(one, Reference):
                    known = facts.restricts.get(one.column, {})
                    facts.restricts[one.column] = _merged(_merged(known, mine[0]), theirs[0])
                    if node.inner:
                        held = {**facts.holders.get(one.column, {}), **mine[1], **theirs[1]}
                        facts.holders[one.column] = dict(list(held.items())[:_MOST_HOLDERS])
        if not linked and first < between < len(self.tables):
            self.notes.append(node.note)
        return facts

    def _link(self, equalities: list[tuple[_Restricts, _Holders]]) -> bool:
        """Add the links from one side of a join to the other. Each equality has what it restricts and who holds it."""
        found: dict[tuple[int, frozenset[int]], list[tuple[Term, Holder]]] = {}
        for restricts, holders in equalities:
            for occurrence, terms in restricts.items():
                for together, holder in holders.items():
                    found.setdefault((occurrence, together), []).append((terms[0], holder))
        for (occurrence, together), pairs in found.items():
            targets = {one: tuple(holder[one] for _, holder in pairs) for one in together}
            self.links.append(Link(occurrence, tuple(term for term, _ in pairs), targets))
        return bool(found)

    def _union(self, node: Uniting) -> _Facts:
        branches = [(self.visit(child), numbers) for child, numbers in node.branches]
        facts = _Facts()  # nothing is linear: over the new rows of one branch the others would yield all rows again
        for at, number in enumerate(node.columns):
            restricts: dict[int, tuple[Term, ...]] = {}
            for branch, numbers in branches:
                restricts.update(branch.restricts.get(numbers[at], {}))  # branches share no occurrence
            facts.restricts[number] = restricts
            choices = [list(branch.holders.get(numbers[at], {}).items()) for branch, numbers in branches]
            holders: dict[frozenset[int], Holder] = {}
            for combination in product(*choices):
                if len(holders) == _MOST_HOLDERS:
                    break
                together: dict[int, Term] = {}
                for _, holder in combination:
                    together.update(holder)
                holders[frozenset(together)] = together
            facts.holders[number] = holders
        return facts


def _valued(below: _Facts, columns: Mapping[int, Value], linear: frozenset[int]) -> _Facts:
    """What is known of columns that are values of the rows below."""
    facts = _Facts(linear=linear)
    for number, value in columns.items():
        facts.restricts[number], facts.holders[number] = _value_facts(below, value)
    return facts


def _value_facts(below: _Facts, value: Value) -> tuple[_Restricts, _Holders]:
    """The restrictions and the holders of a value over the rows of a node."""
    if isinstance(value, Reference):
        return below.restricts.get(value.column, {}), below.holders.get(value.column, {})
    assert isinstance(value, Computed)
    inputs = [below.restricts.get(number, {}) for number in value.columns]
    restricts: dict[int, tuple[Term, ...]] = {}
    for occurrence in _common(inputs):
        chosen = product(*(one[occurrence] for one in inputs))
        restricts[occurrence] = tuple(
            ExpressionTerm(value.expression, terms) for _, terms in zip(range(_MOST_TERMS), chosen, strict=False)
        )
    held = [below.holders.get(number, {}) for number in value.columns]
    holders: dict[frozenset[int], Holder] = {}
    for together in _common(held):
        holders[together] = {
            occurrence: ExpressionTerm(value.expression, tuple(one[together][occurrence] for one in held))
            for occurrence in together
        }
    return restricts, holders


def _common(mappings: Sequence[Mapping[_K, object]]) -> list[_K]:
    """The keys that all of the mappings have."""
    first, *rest = mappings
    return [key for key in first if all(key in one for one in rest)]


def _merged(one: _Restricts, other: _Restricts) -> _Restricts:
    merged = dict(one)
    for occurrence, terms in other.items():
        merged[occurrence] = tuple(dict.fromkeys([*merged.get(occurrence, ()), *terms]))[:_MOST_TERMS]
    return merged
