"""A query as a tree of plain values: what a node does to the columns that it gets, and nothing else.

``spark_tree.py`` makes it of Spark's optimized plan, and ``lineage.py`` reads it. Columns are numbered by Spark: a
number means one column of one node, and it is passed upwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_lance.engine.views.incremental.expression import Expression


@dataclass(frozen=True)
class Reference:
    """The value of a column of the node below."""

    column: int


@dataclass(frozen=True)
class Computed:
    """A deterministic expression over columns of the node below, none of which holds floats or nested values."""

    expression: Expression
    columns: tuple[int, ...]


Value = Reference | Computed


@dataclass(frozen=True)
class Leaf:
    """A place where the query reads a table. ``columns`` has those that may be keys, by their numbers."""

    table: str
    columns: Mapping[int, str]


@dataclass(frozen=True)
class Constant:
    """Rows that the query has itself, such as VALUES."""


@dataclass(frozen=True)
class RowByRow:
    """Each output row comes from one row below: a projection, a filter, an explode, GROUPING SETS.

    ``columns`` are the output columns that are values of that row.
    """

    child: Node
    columns: Mapping[int, Value]


@dataclass(frozen=True)
class Grouping:
    """Rows below with the same ``columns`` become output rows with these values: GROUP BY, DISTINCT, PARTITION BY.

    ``note`` says for a person why nothing passes, where ``columns`` is empty.
    """

    child: Node
    columns: Mapping[int, Value]
    note: str = ""


@dataclass(frozen=True)
class Joining:
    """A join whose output rows have a row of ``left`` each, and one of ``right`` if it is ``inner``.

    Rows belong together only if the two values of each of ``equal`` are equal. ``note`` says for a person why a change
    on the right cannot be followed where there is no equality.
    """

    left: Node
    right: Node
    inner: bool
    equal: tuple[tuple[Value, Value], ...]
    note: str


@dataclass(frozen=True)
class Uniting:
    """The rows of all branches. ``columns`` has the numbers of each branch at the position of the output's number."""

    branches: tuple[tuple[Node, tuple[int, ...]], ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Opaque:
    """Any row below may decide about any row above, for ``reason``."""

    children: tuple[Node, ...]
    reason: str


@dataclass(frozen=True)
class WithSubqueries:
    """A node whose expressions have subqueries: any of their rows may decide about any row above."""

    node: Node
    subqueries: tuple[Opaque, ...] = field(default=())


Node = Leaf | Constant | RowByRow | Grouping | Joining | Uniting | Opaque | WithSubqueries


@dataclass(frozen=True)
class QueryTree:
    """A query with the columns it yields, by name and number, in their order."""

    root: Node
    output: tuple[tuple[str, int], ...]
