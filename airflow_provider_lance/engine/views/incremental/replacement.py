"""How a view follows its sources: by keys whose rows are replaced or by rows that are added, and what that reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.incremental.affected import Key, NoWayError, Sources, along_links
from airflow_provider_lance.engine.views.incremental.key_values import KeySet
from airflow_provider_lance.engine.views.incremental.lineage import Lineage
from airflow_provider_lance.engine.views.source_changes import Changes, NotComparable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AFFECTED_KEYS = "affected keys"
APPENDED_ROWS = "appended rows"
NOTHING_READ_CHANGED = "nothing that the query reads changed"
#: A key that needs no more than this share of the rows is good enough to look for no better one.
GOOD_SHARE = 0.05
_MOST_KEYS = 6
_WIDEST_KEY = 4
_SAMPLE_ROWS = 50_000


@dataclass(frozen=True)
class Rows:
    """Rows of a source that the query has to read: those of ``mask``, or those that ``written`` added, or all."""

    count: int
    mask: NDArray[np.bool_] | None = None
    written: Changes | None = None

    @property
    def all(self) -> bool:
        return self.mask is None and self.written is None


@dataclass(frozen=True)
class Replacement:
    """What a refresh does to the rows of the view.

    With ``keys`` the rows that have one of them in the columns ``key`` are deleted and computed again over ``rows``;
    without them the query's rows over ``rows`` are added.
    """

    technique: str
    rows: Mapping[str, Rows]
    source_rows: int
    key: tuple[str, ...] = ()
    keys: KeySet | None = None

    @property
    def rows_read(self) -> int:
        return sum(rows.count for rows in self.rows.values())

    @property
    def rows_read_into_driver(self) -> int:
        """Rows that are not read by Spark itself."""
        return sum(rows.count for rows in self.rows.values() if not rows.all)

    @property
    def share(self) -> float:
        return self.rows_read / self.source_rows if self.source_rows else 0.0


def find_replacement(sources: Sources, usable: Sequence[str]) -> Replacement:
    """The replacement that reads the fewest rows. ``usable`` are the columns of the view that may be keys.

    Raises :class:`NotComparable` with the reason where there is none.
    """
    lineage = sources.lineage
    total = sum(sources.columns[table].rows for table in dict.fromkeys(lineage.tables))
    if not sources.changed_occurrences:
        return Replacement(NOTHING_READ_CHANGED, {}, total)
    check_can_follow(lineage, sources.changed)
    appended = _appended(sources, total)
    if appended is not None:
        return appended
    best: Replacement | None = None
    tries = 0
    for names in _candidates(sources, usable):
        key = Key.of(lineage, names)
        try:
            keys = key.affected(sources)
        except NoWayError:
            continue
        found = Replacement(AFFECTED_KEYS, _rows(sources, key.needed(sources, keys)), total, key.names, keys)
        if best is None or found.rows_read < best.rows_read:
            best = found
        tries += 1
        if best.share <= GOOD_SHARE or tries == _MOST_KEYS:
            break
    if best is None:
        raise NotComparable(no_key_reason(lineage, sources.changed))
    return best


def check_can_follow(lineage: Lineage, changed: Collection[str]) -> None:
    """Raise NotComparable where a changed table is read at a place from which no change can be followed."""
    for occurrence, reason in sorted(lineage.opaque.items()):
        if lineage.tables[occurrence] in changed:
            raise NotComparable(f"{lineage.tables[occurrence]} changed, and {reason}")


def no_key_reason(lineage: Lineage, changed: Collection[str]) -> str:
    """Why no change of some tables can be followed, for a person."""
    names = ", ".join(dict.fromkeys(table for table in lineage.tables if table in changed))
    because = "; ".join(lineage.notes) or "the columns that would are not selected, or are of a nested type"
    return f"no column of the view says which rows a change of {names} affects: {because}"


def _appended(sources: Sources, total: int) -> Replacement | None:
    """The replacement for a change that only added rows which the query turns into rows of their own."""
    lineage = sources.lineage
    if len(sources.changed) != 1 or len(sources.changed_occurrences) != 1:
        return None
    ((table, changed),) = sources.changed.items()
    (occurrence,) = sources.changed_occurrences
    if not changed.appended or occurrence not in lineage.linear:
        return None
    needed = along_links(sources, {}, {occurrence: changed.new})
    rows = _rows(sources, needed)
    return Replacement(APPENDED_ROWS, {**rows, table: Rows(len(changed.new), written=changed.changes)}, total)


def _rows(sources: Sources, needed: Mapping[int, NDArray[np.bool_] | None]) -> dict[str, Rows]:
    """The rows to read of each table: what any of its occurrences needs."""

    masks: dict[str, NDArray[np.bool_] | None] = {}
    for number, table in enumerate(sources.lineage.tables):
        if number not in needed:
            continue
        mask = needed[number]
        if table not in masks:
            masks[table] = mask
        else:
            before = masks[table]
            masks[table] = None if before is None or mask is None else before | mask
    return {
        table: Rows(sources.columns[table].rows) if mask is None else Rows(int(mask.sum()), mask)
        for table, mask in masks.items()
    }


def _candidates(sources: Sources, usable: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Sets of columns that may be keys, the most promising ones first.

    Each set is what one occurrence has, beginning with its most distinct column.
    """
    lineage, tried = sources.lineage, set[frozenset[str]]()
    columns = [column for column in lineage.output if column.name in usable]
    changed = sources.changed_occurrences
    numbers = [*changed, *(number for number in range(len(lineage.tables)) if number not in changed)]
    groups: list[list[str]] = []
    for number in numbers:
        terms = {
            column.name: column.restricts[number][0] if number in changed else column.held_by(number)
            for column in columns
            if (number in column.restricts if number in changed else column.held_by(number) is not None)
        }
        names = {name: term for name, term in terms.items() if term is not None}
        if names:
            distinct = {name: _distinct(sources, number, term) for name, term in names.items()}
            groups.append(sorted(names, key=lambda name: -distinct[name]))
    for width in range(1, _WIDEST_KEY + 1):
        for group in groups:
            names_of = frozenset(group[:width])
            if len(group) >= width and names_of not in tried and len(tried) < _MOST_KEYS:
                tried.add(names_of)
                yield tuple(group[:width])
    for name in dict.fromkeys(name for group in groups for name in group):
        if frozenset([name]) not in tried:
            yield (name,)


def _distinct(sources: Sources, occurrence: int, term: object) -> int:
    """How many distinct values the first rows of a table have, to rank columns."""
    from airflow_provider_lance.engine.views.incremental.lineage import ColumnTerm

    if not isinstance(term, ColumnTerm):
        return 0  # evaluating an expression for a rank is not worth it
    dataset = sources.of(occurrence).dataset
    sample = dataset.scanner(columns=[term.name], limit=_SAMPLE_ROWS, use_scalar_index=False).to_table()
    return len(sources.reader.values(term, sample).unique())
