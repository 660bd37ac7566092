"""The plan: every difference between a declaration and a namespace, in lines that a person reads before it is applied.

    + column articles.length: length(text)
    ~ view long_articles: query is 'SELECT …' there and 'SELECT …' here
    - column articles.old: it is not declared
    ! column articles.id: its type is int64 there and string here

Nothing is changed here. ``apply.py`` carries a plan out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.declarations.table import LanceIndex, LanceTable, LanceView

Action = Literal["create", "change", "drop", "keep", "refuse"]
#: The parts of a declaration that can be planned by themselves.
Part = Literal["tables", "columns", "indices", "views"]
PARTS: tuple[Part, ...] = get_args(Part)

_SYMBOLS: dict[Action, str] = {"create": "+", "change": "~", "drop": "-", "keep": "-", "refuse": "!"}
_KEPT = "it is not declared; kept, because allow_drop is not set"


@dataclass(frozen=True)
class Change:
    """One difference, and what carries it out.

    ``name`` is that of the column or index inside the table. ``request`` is the entry of ``AlterTableAddColumns`` for a
    column with a rule, and the request of ``CreateMaterializedView`` for a view. ``recreate`` says that a column must
    be dropped before its new rule can be declared.
    """

    action: Action
    kind: Literal["namespace", "table", "column", "index", "view"]
    id: tuple[str, ...]
    text: str
    name: str | None = None
    request: JsonObject | None = field(default=None, repr=False)
    table: LanceTable | None = field(default=None, repr=False)
    view: LanceView | None = field(default=None, repr=False)
    index: LanceIndex | None = field(default=None, repr=False)
    recreate: bool = False

    @property
    def target(self) -> str:
        """What is changed: ``column articles.length``."""
        return f"{self.kind} {join_id(self.id)}" + (f".{self.name}" if self.name is not None else "")

    @property
    def line(self) -> str:
        """The change as a line of the plan."""
        return f"{_SYMBOLS[self.action]} {self.target}: {self.text}"

    def to_json(self) -> JsonObject:
        found = {"action": self.action, "kind": self.kind, "id": list(self.id), "text": self.text}
        return found if self.name is None else {**found, "name": self.name}


@dataclass(frozen=True)
class Plan:
    """All differences, in the order in which they are carried out, and remarks about what was not compared."""

    declared: str
    changes: tuple[Change, ...]
    remarks: tuple[str, ...] = ()

    def of(self, *actions: Action) -> list[Change]:
        """The changes with one of these actions."""
        return [change for change in self.changes if change.action in actions]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do. What is kept although it is not declared does not count."""
        return not self.of("create", "change", "drop", "refuse")

    def lines(self) -> Iterator[str]:
        """The plan in lines, the summary first."""
        yield self.summary
        for change in self.changes:
            yield f"  {change.line}"
        yield from self.remarks

    @property
    def summary(self) -> str:
        """How much there is to do, in one line."""
        if self.is_empty:
            return f"No changes: the namespace has {self.declared} as declared."
        counts = ", ".join(f"{len(self.of(action))} to {action}" for action in ("create", "change", "drop"))
        refused = len(self.of("refuse"))
        return f"Plan for {self.declared}: {counts}" + (f", {refused} that cannot be made." if refused else ".")

    def to_json(self) -> JsonObject:
        """What a task returns of the plan."""
        counts = {action: len(self.of(action)) for action in get_args(Action)}
        return {**counts, "changes": [change.to_json() for change in self.changes]}


def read_parts(only: str | Collection[str] | None) -> frozenset[str]:
    """The parts that an argument names; all of them for ``None``."""
    words = [only] if isinstance(only, str) else list(only if only is not None else PARTS)
    for word in words:
        if word not in PARTS:
            raise ValueError(f"`only` names {', '.join(map(repr, PARTS[:-1]))} or {PARTS[-1]!r}, not {word!r}.")
    return frozenset(words)


def dropped(allow_drop: bool) -> tuple[Action, str]:
    """The action and the text for what is there and not declared."""
    return ("drop", "it is not declared") if allow_drop else ("keep", _KEPT)
