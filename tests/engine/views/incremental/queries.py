"""Random queries over the tables ``t``, ``u`` and ``v``, in SQL that means the same to Spark and DuckDB.

Every part yields the columns ``k`` (bigint), ``s`` (string), ``d`` (double) and ``n`` (bigint), so that parts nest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

TABLES = ("t", "u", "v")


class Queries:
    """A generator of queries; ``depth`` bounds how deep they nest."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = 0

    def query(self, depth: int = 3) -> str:
        return self.part(depth)

    def name(self) -> str:
        self.names += 1
        return f"q{self.names}"

    def part(self, depth: int) -> str:
        if depth <= 0:
            return self.plain(depth)
        shapes: list[Callable[[int], str]] = [
            self.plain,
            self.grouped,
            self.grouped,
            self.grouped_by_expression,
            self.distinct,
            self.inner_join,
            self.inner_join,
            self.left_join,
            self.left_join,
            self.right_join,
            self.full_join,
            self.window,
            self.top,
            self.union,
            self.set_operation,
            self.exists,
            self.member,
            self.correlated,
            self.common,
            self.scalar,
            self.cross,
        ]
        return self.rng.choice(shapes)(depth - 1)

    def source(self, depth: int) -> str:
        """A table, or a query in parentheses, without an alias."""
        return self.rng.choice(TABLES) if self.rng.random() < 0.55 else f"({self.part(depth)})"

    def condition(self, alias: str) -> str:
        low = self.rng.randrange(8)
        return self.rng.choice(
            [
                f"{alias}.k < {low}",
                f"{alias}.k IS NULL",
                f"{alias}.n > {low}",
                f"{alias}.s IS NOT NULL",
                f"{alias}.s = 'b'",
                f"{alias}.k = {low} OR {alias}.n = {low + 1}",
            ]
        )

    def where(self, alias: str) -> str:
        return f" WHERE {self.condition(alias)}" if self.rng.random() < 0.4 else ""

    def plain(self, depth: int) -> str:
        a = self.name()
        number = self.rng.choice([f"{a}.n", f"{a}.n + 1", f"CASE WHEN {a}.k = 1 THEN {a}.n ELSE 0 END"])
        return f"SELECT {a}.k, {a}.s, {a}.d, {number} AS n FROM {self.source(depth)} {a}{self.where(a)}"

    def grouped(self, depth: int) -> str:
        a = self.name()
        keys = self.rng.choice([["k"], ["s"], ["d"], ["k", "s"], ["k", "d"], ["k", "s", "d"]])
        others = {
            "k": f"max({a}.k)",
            "s": f"min({a}.s)",
            "d": f"max(CASE WHEN isnan({a}.d) THEN NULL ELSE {a}.d END)",
            "n": self.rng.choice(["count(*)", f"sum({a}.n)", f"count(DISTINCT {a}.n)", f"max({a}.n) - min({a}.n)"]),
        }
        columns = ", ".join(f"{a}.{c}" if c in keys else f"{others[c]} AS {c}" for c in ("k", "s", "d", "n"))
        having = f" HAVING count(*) > {self.rng.randrange(3)}" if self.rng.random() < 0.3 else ""
        by = ", ".join(f"{a}.{key}" for key in keys)
        return f"SELECT {columns} FROM {self.source(depth)} {a}{self.where(a)} GROUP BY {by}{having}"

    def grouped_by_expression(self, depth: int) -> str:
        a = self.name()
        key = self.rng.choice([f"{a}.k % 2", f"coalesce({a}.k, -1) + 1", f"{a}.k + {a}.n"])
        return (
            f"SELECT {key} AS k, min({a}.s) AS s, CAST(NULL AS DOUBLE) AS d, count(*) AS n "
            f"FROM {self.source(depth)} {a}{self.where(a)} GROUP BY {key}"
        )

    def distinct(self, depth: int) -> str:
        a = self.name()
        chosen = self.rng.choice(["{0}.k, {0}.s, {0}.d, {0}.n", "{0}.k, {0}.s, CAST(NULL AS DOUBLE) AS d, {0}.n"])
        return f"SELECT DISTINCT {chosen.format(a)} FROM {self.source(depth)} {a}{self.where(a)}"

    def _on(self, left: str, right: str) -> str:
        """The condition of a join."""
        column = self.rng.choice(["k", "k", "k", "s", "n", "d"])
        equal = "=" if self.rng.random() < 0.8 else "IS NOT DISTINCT FROM"
        on = f"{left}.{column} {equal} {right}.{column}"
        more = self.rng.random()
        if more < 0.15:
            on += f" AND {left}.s = {right}.s"
        elif more < 0.3:
            on += f" AND {self.condition(right)}" if " OR " not in (c := self.condition(right)) else f" AND ({c})"
        elif more < 0.36:
            on = f"{left}.k + 1 = {right}.k"
        elif more < 0.42:
            on = f"{left}.n < {right}.n"
        return on.replace(" OR ", " AND ")

    def _join(self, depth: int, kind: str) -> str:
        a, b = self.name(), self.name()
        sides = (self.source(depth), self.source(depth))
        key = self.rng.choice([f"{a}.k", f"{a}.k", f"{b}.k"])
        columns = self.rng.choice([f"{key} AS k, {a}.s, {b}.d, {a}.n", f"{key} AS k, {b}.s, {a}.d, {b}.n"])
        return f"SELECT {columns} FROM {sides[0]} {a} {kind} JOIN {sides[1]} {b} ON {self._on(a, b)}{self.where(a)}"

    def inner_join(self, depth: int) -> str:
        return self._join(depth, "INNER")

    def left_join(self, depth: int) -> str:
        return self._join(depth, "LEFT")

    def right_join(self, depth: int) -> str:
        return self._join(depth, "RIGHT")

    def full_join(self, depth: int) -> str:
        a, b = self.name(), self.name()
        return (
            f"SELECT {a}.k, {b}.s, {a}.d, {b}.n FROM {self.source(depth)} {a} FULL JOIN {self.source(depth)} {b} "
            f"ON {a}.k = {b}.k"
        )

    def cross(self, depth: int) -> str:
        a, b = self.name(), self.name()
        other = f"(SELECT max(k) AS k FROM {self.rng.choice(TABLES)})"
        return f"SELECT {a}.k, {a}.s, {a}.d, {b}.k AS n FROM {self.source(depth)} {a} CROSS JOIN {other} {b}"

    def window(self, depth: int) -> str:
        a = self.name()
        over = self.rng.choice([f"PARTITION BY {a}.k", f"PARTITION BY {a}.k, {a}.s", f"PARTITION BY {a}.d", ""])
        value = self.rng.choice([f"sum({a}.n)", "count(*)", f"max({a}.n)", f"count({a}.s)"])
        return f"SELECT {a}.k, {a}.s, {a}.d, {value} OVER ({over}) AS n FROM {self.source(depth)} {a}{self.where(a)}"

    def top(self, depth: int) -> str:
        a, b = self.name(), self.name()
        rank = (
            f"SELECT {a}.*, rank() OVER (PARTITION BY {a}.k ORDER BY {a}.n DESC NULLS LAST) AS place "
            f"FROM {self.source(depth)} {a}"
        )
        return f"SELECT {b}.k, {b}.s, {b}.d, {b}.place AS n FROM ({rank}) {b} WHERE {b}.place <= 2"

    def union(self, depth: int) -> str:
        word = self.rng.choice([" UNION ALL ", " UNION ALL ", " UNION "])
        return f"SELECT * FROM ({word.join(f'({self.part(depth)})' for _ in range(2))}) {self.name()}"

    def set_operation(self, depth: int) -> str:
        word = self.rng.choice([" EXCEPT ", " INTERSECT "])
        return f"SELECT * FROM (({self.part(depth)}){word}({self.part(depth)})) {self.name()}"

    def exists(self, depth: int) -> str:
        a, b = self.name(), self.name()
        negated = self.rng.choice(["", "NOT "])
        return (
            f"SELECT {a}.k, {a}.s, {a}.d, {a}.n FROM {self.source(depth)} {a} WHERE {negated}EXISTS "
            f"(SELECT 1 FROM {self.source(depth)} {b} WHERE {b}.k = {a}.k AND ({self.condition(b)}))"
        )

    def member(self, depth: int) -> str:
        a, b = self.name(), self.name()
        negated = self.rng.choice(["", "", "NOT "])
        return (
            f"SELECT {a}.k, {a}.s, {a}.d, {a}.n FROM {self.source(depth)} {a} WHERE {a}.k {negated}IN "
            f"(SELECT {b}.k FROM {self.source(depth)} {b}{self.where(b)})"
        )

    def correlated(self, depth: int) -> str:
        a, b = self.name(), self.name()
        return (
            f"SELECT {a}.k, {a}.s, {a}.d, (SELECT max({b}.n) FROM {self.rng.choice(TABLES)} {b} WHERE {b}.k = {a}.k) "
            f"AS n FROM {self.source(depth)} {a}"
        )

    def scalar(self, depth: int) -> str:
        a = self.name()
        return (
            f"SELECT {a}.k, {a}.s, {a}.d, (SELECT max(n) FROM {self.rng.choice(TABLES)}) AS n "
            f"FROM {self.source(depth)} {a}"
        )

    def common(self, depth: int) -> str:
        c, a, b = self.name(), self.name(), self.name()
        kind = self.rng.choice(["INNER", "LEFT"])
        return (
            f"SELECT * FROM (WITH {c} AS ({self.part(depth)}) SELECT {a}.k, {b}.s, {a}.d, {b}.n "
            f"FROM {c} {a} {kind} JOIN {c} {b} ON {a}.k = {b}.k) {self.name()}"
        )


def generated(seed: int | str, count: int) -> Iterator[str]:
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        yield Queries(rng).query(rng.choice([1, 2, 2, 3]))
