"""Which column reads which column, and which view reads which table: the order of backfills and refreshes.

A graph has a node for each table, for each column or function with a rule, and for each view. The node of a table comes
after its columns, because what reads a table reads all of them. It is made from the declaration alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeVar

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER
from airflow_provider_lance.declarations.collection import Declarations
from airflow_provider_lance.declarations.table import DeclarationError, LanceTable, LanceView
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.definitions.expressions import parse_path
from airflow_provider_lance.definitions.sql.names import column_names, table_names
from airflow_provider_lance.functions import UdfColumn

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Node:
    """A table, a column with a rule, or a view. ``name`` is ``articles``, ``articles.length`` or ``long_articles``."""

    kind: Literal["table", "column", "view"]
    declared: LanceTable | LanceView
    column: str | None = None

    @property
    def name(self) -> str:
        return f"{self.declared.name}.{self.column}" if self.column is not None else self.declared.name

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.declared.tags)

    def __hash__(self) -> int:
        return hash((self.kind, self.declared.id, self.column))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return (self.kind, self.declared.id, self.column) == (other.kind, other.declared.id, other.column)


@dataclass(frozen=True)
class Graph:
    """The nodes in an order in which each comes after what it reads, and what each of them reads."""

    parents: Mapping[Node, tuple[Node, ...]]

    @property
    def nodes(self) -> list[Node]:
        return list(self.parents)

    def ancestors(self, node: Node) -> set[Node]:
        """Everything that a node reads, directly or through others."""
        found: set[Node] = set()
        waiting = list(self.parents[node])
        while waiting:
            above = waiting.pop()
            if above not in found:
                found.add(above)
                waiting += self.parents[above]
        return found

    def descendants(self, node: Node) -> set[Node]:
        """Everything that reads a node, directly or through others."""
        return {other for other in self.parents if node in self.ancestors(other)}

    def nearest(self, node: Node, among: Iterable[Node]) -> list[Node]:
        """The nodes of ``among`` that a node reads, directly or through nodes that are not among them."""
        chosen = set(among)
        found: dict[Node, None] = {}
        seen: set[Node] = set()
        waiting = list(reversed(self.parents[node]))
        while waiting:
            above = waiting.pop()
            if above in seen:
                continue
            seen.add(above)
            if above in chosen:
                found[above] = None
            else:
                waiting += reversed(self.parents[above])
        return list(found)


def make_graph(declarations: Declarations) -> Graph:
    """The graph of a declaration; :class:`DeclarationError` names the columns or views that read each other."""
    tables = {table.id: Node("table", table) for table in declarations.tables}
    views = {view.id: Node("view", view) for view in declarations.views}
    parents: dict[Node, tuple[Node, ...]] = {}
    for table in declarations.tables:
        columns = {name: Node("column", table, name) for name in (*table.computed, *table.virtual)}
        for name, reads in column_inputs(table).items():
            parents[columns[name]] = tuple(columns[other] for other in reads)
        parents[tables[table.id]] = tuple(columns.values())
    known = {**tables, **views}
    for view in declarations.views:
        sources = (next((known[each] for each in meant if each in known), None) for meant in view_sources(view))
        read = dict.fromkeys(source for source in sources if source is not None and source.declared is not view)
        parents[views[view.id]] = tuple(read)
    ordered = _in_order(parents, "Views read each other", lambda node: node.name)
    return Graph({node: parents[node] for node in ordered})


def column_levels(table: LanceTable, columns: Iterable[str]) -> list[list[str]]:
    """Columns with rules in groups: a column is in a later group than those that it reads."""
    wanted = set(columns)
    sorter = TopologicalSorter(column_inputs(table))
    sorter.prepare()
    levels = []
    while sorter.is_active():
        ready = sorter.get_ready()
        sorter.done(*ready)
        levels.append([name for name in ready if name in wanted])
    return [level for level in levels if level]


def column_inputs(table: LanceTable) -> dict[str, list[str]]:
    """For each column or function with a rule, the others that it reads. ``DeclarationError`` for a cycle."""
    owners = {output: name for name in table.virtual for output in table.outputs(name)}
    owners |= {name: name for name in table.computed}
    lower = {column.lower(): name for column, name in owners.items()}
    found: dict[str, list[str]] = {}
    for name, inputs in rule_inputs(table).items():
        read = (owners.get(column) or lower.get(column.lower()) for column in inputs)
        found[name] = [owner for owner in dict.fromkeys(read) if owner is not None and owner != name]
    _in_order(found, f"Columns of {table.name} read each other", str)
    return found


def rule_inputs(table: LanceTable) -> dict[str, list[str]]:
    """For each column or function with a rule, the words that may be columns which it reads."""
    found = {name: column_names(expression) for name, expression in table.computed.items()}
    for name, rule in table.virtual.items():
        try:
            inputs = rule.input_columns() if isinstance(rule, UdfColumn) else rule.get("input_columns") or []
            found[name] = [parse_path(path)[0] for path in inputs]
        except Exception as error:
            if not isinstance(error, (*refusals(), ValueError)):
                raise
            raise DeclarationError(f"The column {table.name}.{name}: {error}") from None
    return found


def view_sources(view: LanceView) -> list[list[tuple[str, ...]]]:
    """The tables that a view reads: for each the identifiers that its name may mean, the one beside the view first."""
    if view.sources is not None:
        return [[tuple(source)] for source in view.sources]
    found = []
    for parts in table_names(view.query):
        steps = tuple(step for part in parts for step in part.split(DEFAULT_DELIMITER))
        found.append(list(dict.fromkeys([(*view.id[:-1], *steps), steps])))
    return found


def _in_order(parents: Mapping[_Key, Iterable[_Key]], problem: str, name: Callable[[_Key], str]) -> list[_Key]:
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        cycle = " → ".join(name(key) for key in error.args[1])
        raise DeclarationError(f"{problem}: {cycle}.") from None
