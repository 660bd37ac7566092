"""Which keys of a view a change affects, and which rows of the sources the rows with these keys need.

The changed rows of an occurrence affect the keys that they have themselves, or those of the rows that they lead to
along the links. Partners are read only as they are now: a partner row that is gone, or was another one, is a change of
its own and leads to the keys from there. The way from any occurrence to the key is the shortest one, so no two of them
wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.incremental.changed_rows import ChangedRows
from airflow_provider_lance.engine.views.incremental.key_values import KeySet
from airflow_provider_lance.engine.views.incremental.lineage import Lineage, Link, Term
from airflow_provider_lance.engine.views.incremental.source_columns import SourceColumns, TermReader

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class NoWayError(Exception):
    """The changed rows of a table do not lead to a key; ``table`` is its name."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(frozen=True)
class Sources:
    """The sources of a query: what each of them has now, and what changed."""

    lineage: Lineage
    columns: Mapping[str, SourceColumns]
    changed: Mapping[str, ChangedRows]
    reader: TermReader

    def of(self, occurrence: int) -> SourceColumns:
        return self.columns[self.lineage.tables[occurrence]]

    @property
    def values_read(self) -> int:
        """How many values of key columns were read and compared."""
        return sum(source.values_read for source in self.columns.values())

    @property
    def changed_occurrences(self) -> list[int]:
        return [number for number, table in enumerate(self.lineage.tables) if table in self.changed]


@dataclass(frozen=True)
class Key:
    """Columns of the view by whose values rows are replaced, and how each occurrence leads to them."""

    names: tuple[str, ...]
    #: The terms that are the key's columns in every row that stems from the occurrence.
    held: Mapping[int, tuple[Term, ...]]
    #: For each occurrence the columns of the key (by position) that restrict its rows, with their terms.
    restricts: Mapping[int, tuple[tuple[int, Term], ...]]
    #: The link that leads from an occurrence nearer to one that holds the key.
    ways: Mapping[int, Link]

    @classmethod
    def of(cls, lineage: Lineage, names: Sequence[str]) -> Key:
        """The key of these columns of the query."""
        columns = [column for name in names for column in lineage.output if column.name == name]
        numbers = [number for number in range(len(lineage.tables)) if number not in lineage.opaque]
        held: dict[int, tuple[Term, ...]] = {}
        restricts: dict[int, tuple[tuple[int, Term], ...]] = {}
        for number in numbers:
            terms = [column.held_by(number) for column in columns]
            if all(term is not None for term in terms):
                held[number] = tuple(term for term in terms if term is not None)
            restricts[number] = tuple(
                (at, column.restricts[number][0]) for at, column in enumerate(columns) if number in column.restricts
            )
        ways: dict[int, Link] = {}
        known = set(held)
        while True:
            found = {
                link.occurrence: link
                for link in reversed(lineage.links)
                if link.occurrence not in known and known.issuperset(link.targets)
            }
            if not found:
                return cls(tuple(names), held, restricts, ways)
            ways.update(found)
            known.update(found)

    def leads_from(self, occurrence: int) -> bool:
        return self._is_direct(occurrence) or occurrence in self.ways

    def _is_direct(self, occurrence: int) -> bool:
        return len(self.restricts.get(occurrence, ())) == len(self.names)

    def affected(self, sources: Sources) -> KeySet:
        """The values of the key whose rows may have changed; raises NoWayError for a table that does not lead to it."""
        found: list[KeySet] = []
        for occurrence in sources.changed_occurrences:
            table = sources.lineage.tables[occurrence]
            rows = sources.changed[table].both()
            if self._is_direct(occurrence):
                terms = [term for _, term in self.restricts[occurrence]]
                found.append(KeySet.of([sources.reader.values(term, rows) for term in terms]))
            elif occurrence in self.ways:
                link = self.ways[occurrence]
                values = KeySet.of([sources.reader.values(term, rows) for term in link.terms])
                found += self._along(sources, link, values)
            else:
                raise NoWayError(table)
        return KeySet.union(found)

    def _along(self, sources: Sources, link: Link, values: KeySet) -> list[KeySet]:
        """The keys of the rows that a link leads to from rows with ``values``."""
        found: list[KeySet] = []
        for target, terms in link.targets.items():
            there = sources.of(target)
            chosen = there.mask(terms, values)
            if target in self.held:
                found.append(there.keys(self.held[target], chosen))
            else:
                onward = self.ways[target]
                found += self._along(sources, onward, there.keys(onward.terms, chosen))
        return found

    def needed(self, sources: Sources, keys: KeySet) -> dict[int, NDArray[np.bool_] | None]:
        """For each occurrence the rows that rows with ``keys`` may depend on; None is all of them."""
        chosen: dict[int, NDArray[np.bool_] | None] = {}
        for number, restricting in self.restricts.items():
            if restricting:
                part = keys.part([at for at, _ in restricting])
                chosen[number] = sources.of(number).mask([term for _, term in restricting], part)
        return along_links(sources, chosen)


def along_links(
    sources: Sources,
    chosen: Mapping[int, NDArray[np.bool_] | None],
    given: Mapping[int, pa.Table] | None = None,
) -> dict[int, NDArray[np.bool_] | None]:
    """The rows that the ``chosen`` ones can meet in joins, for all other occurrences.

    ``given`` are occurrences whose rows are at hand instead of in their table.
    """
    known: dict[int, NDArray[np.bool_] | None] = dict(chosen)
    given = given or {}
    while True:
        link = next(
            (
                link
                for link in sources.lineage.links
                if link.occurrence not in known
                and link.occurrence not in given
                and all(target in given or known.get(target) is not None for target in link.targets)
            ),
            None,
        )
        if link is None:
            break
        met = []
        for target, terms in link.targets.items():
            if target in given:
                met.append(KeySet.of([sources.reader.values(term, given[target]) for term in terms]))
            else:
                met.append(sources.of(target).keys(terms, known[target]))
        known[link.occurrence] = sources.of(link.occurrence).mask(link.terms, KeySet.union(met))
    return {number: known.get(number) for number in range(len(sources.lineage.tables)) if number not in given}
