"""Spark's optimized plan of a query as a :class:`QueryTree`.

The optimizer has inlined common table expressions and aliases and turned EXISTS, IN, EXCEPT, INTERSECT and correlated
subqueries into joins, so a few kinds of nodes are left. Spark's plans are no public interface: a node that is not known
here is opaque, and any error while reading means that the view is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.views.incremental.expression import Expression
from airflow_provider_lance.engine.views.incremental.lineage import Lineage, find_lineage
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
from airflow_provider_lance.engine.views.source_changes import NotComparable
from airflow_provider_lance.engine.views.spark_plan import class_name, each, expression_id

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    from airflow_provider_lance.engine.views.spark_plan import ColumnNames, QueryPlan

_INTEGERS = ("tinyint", "smallint", "int", "bigint")  # each one fits into the next
_FLOATS = ("float", "double")
_KEY_TYPES = frozenset([*_INTEGERS, *_FLOATS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"])
# These only say something about a value, or make one value of -0.0 and 0.0 as comparing values here does anyway.
_SAME_VALUE = frozenset(["Alias", "KnownFloatingPointNormalized", "NormalizeNaNAndZero", "KnownNotNull"])
_SAME_ROWS = frozenset(["Repartition", "RepartitionByExpression", "RebalancePartitions"])
_CONSTANTS = frozenset(["LocalRelation", "OneRowRelation", "Range", "EmptyRelation"])
_GENERATORS = frozenset(["Explode", "PosExplode", "Inline", "Stack", "JsonTuple"])
_LEFT_JOINS = frozenset(["LeftOuter", "LeftSemi", "LeftAnti", "LeftSingle"])
_BARRIERS = {
    "Sort": "ORDER BY keeps the rows of the view in order",
    "GlobalLimit": "LIMIT chooses among all rows",
    "LocalLimit": "LIMIT chooses among all rows",
    "Offset": "OFFSET chooses among all rows",
    "Sample": "TABLESAMPLE chooses among all rows",
}
# Two rebuilds may differ in these as well: they depend on the order in which Spark happens to read.
_ORDER_DEPENDENT = frozenset(
    ["First", "Last", "AnyValue", "CollectList", "CollectSet", "Mode", "PandasMode", "ListAgg", "ApproximatePercentile"]
)


def read_lineage(session: SparkSession, plan: QueryPlan, tables: Mapping[str, str]) -> Lineage:
    """What Spark's plan says about a query. ``tables`` has the source behind each temporary view of the plan.

    Raises NotComparable with the reason where no change can be followed.
    """
    if plan.execution is None:
        raise NotComparable("Spark could not plan the query over empty tables")
    jvm = session.sparkContext._jvm
    assert jvm is not None
    current_like = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    names = {attribute: (tables[view], column) for attribute, (view, column) in plan.names.items()}
    try:
        return find_lineage(read_tree(plan.execution, names, current_like))
    except ChangesByItselfError as error:
        raise NotComparable(f"the source changed, and {error}") from None


class ChangesByItselfError(Exception):
    """The query gives other rows over the same tables; the message says why."""


def read_tree(execution: JavaObject, names: ColumnNames, current_like: JavaObject) -> QueryTree:
    """The tree of a planned query. ``names`` has the table and the column behind each attribute of a leaf.

    ``current_like`` is Spark's pattern of functions such as ``now()``. Raises :class:`ChangesByItselfError` where a
    query over the same rows would give others, and anything else where the plan cannot be read.
    """
    analyzed, optimized = execution.analyzed(), execution.optimizedPlan()
    _check_repeatable(analyzed, current_like)
    # The names are those of the analyzed plan, because the optimizer may rename what it yields.
    output = [str(attribute.name()) for attribute in each(analyzed.output())]
    numbers = [expression_id(attribute) for attribute in each(optimized.output())]
    return QueryTree(_Reader(names).node(optimized), tuple(zip(output, numbers, strict=True)))


def _check_repeatable(analyzed: JavaObject, current_like: JavaObject) -> None:
    if analyzed.containsPattern(current_like):
        raise ChangesByItselfError("its query depends on the moment or the user that it runs as, such as now()")
    for plan in _plans(analyzed):
        for expression in each(plan.expressions()):
            culprit = _not_repeatable(expression)
            if culprit is not None:
                raise ChangesByItselfError(f"{culprit} gives another value each time")


def _plans(plan: JavaObject) -> Iterator[JavaObject]:
    yield plan
    for child in (*each(plan.children()), *each(plan.subqueries())):
        yield from _plans(child)


def _not_repeatable(expression: JavaObject) -> str | None:
    """The text of a part of ``expression`` that has another value each time it is evaluated."""
    if expression.deterministic():
        return None
    children = list(each(expression.children()))
    found = next((culprit for child in children if (culprit := _not_repeatable(child)) is not None), None)
    if found is not None:
        return found
    if all(child.deterministic() for child in children) and class_name(expression) not in _ORDER_DEPENDENT:
        return str(expression.sql())
    return None


class _Reader:
    def __init__(self, names: ColumnNames) -> None:
        self._names = names
        self._expressions = 0
        #: The attributes whose values can be compared, by number: the name of Spark's type.
        self._types: dict[int, str] = {}

    def node(self, plan: JavaObject) -> Node:
        kind = class_name(plan)
        for attribute in each(plan.output()):
            self._types[expression_id(attribute)] = str(attribute.dataType().simpleString())
        node = self._node(plan, kind)
        subqueries = tuple(
            Opaque((self.node(subquery),), "a subquery yields one value for all rows")
            for subquery in each(plan.subqueries())
        )
        return WithSubqueries(node, subqueries) if subqueries else node

    def _node(self, plan: JavaObject, kind: str) -> Node:
        if kind == "LogicalRDD":
            return self._leaf(plan)
        if kind in _CONSTANTS:
            return Constant()
        if kind == "Join":
            return self._join(plan)
        if kind == "Union":
            numbers = tuple(expression_id(attribute) for attribute in each(plan.output()))
            branches = [
                (self.node(child), tuple(expression_id(attribute) for attribute in each(child.output())))
                for child in each(plan.children())
            ]
            return Uniting(tuple(branches), numbers)
        children = tuple(self.node(child) for child in each(plan.children()))
        if kind == "Project":
            return RowByRow(children[0], self._named(each(plan.projectList())))
        if kind == "Filter" or kind in _SAME_ROWS:
            return RowByRow(children[0], self._passed(plan))
        if kind == "Generate" and class_name(plan.generator()) in _GENERATORS:
            made = {expression_id(attribute) for attribute in each(plan.generatorOutput())}
            passed = self._passed(plan)
            return RowByRow(children[0], {number: passed[number] for number in passed if number not in made})
        if kind == "Expand":
            return RowByRow(children[0], self._expanded(plan))
        if kind == "Aggregate":
            return self._aggregate(plan, children[0])
        if kind in ("Window", "WindowGroupLimit"):
            return self._window(plan, children[0])
        reason = _BARRIERS.get(kind) or f"what {kind} does in Spark's plan is not known here"
        return Opaque(children, reason)

    def _leaf(self, plan: JavaObject) -> Leaf:
        columns: dict[int, str] = {}
        table = None
        for attribute in each(plan.output()):
            table, column = self._names[str(attribute.name())]
            if self._comparable(expression_id(attribute)):
                columns[expression_id(attribute)] = column
        if table is None:
            raise ValueError("a table without columns")
        return Leaf(table, columns)

    def _passed(self, plan: JavaObject) -> dict[int, Value]:
        return {expression_id(attribute): Reference(expression_id(attribute)) for attribute in each(plan.output())}

    def _named(self, expressions: Iterable[JavaObject]) -> dict[int, Value]:
        values = {expression_id(expression): self._value(expression) for expression in expressions}
        return {number: value for number, value in values.items() if value is not None}

    def _expanded(self, plan: JavaObject) -> dict[int, Value]:
        """The columns that have the same value in each copy of a row; GROUPING SETS make NULL of the others."""
        rows = [[_same_value(one) for one in each(projection)] for projection in each(plan.projections())]
        found: dict[int, Value] = {}
        for at, attribute in enumerate(each(plan.output())):
            values = {str(row[at].exprId().id()) if class_name(row[at]) == "AttributeReference" else "" for row in rows}
            if len(values) == 1 and "" not in values:
                found[expression_id(attribute)] = Reference(int(values.pop()))
        return found

    def _aggregate(self, plan: JavaObject, child: Node) -> Grouping:
        grouped = [_same_value(one) for one in each(plan.groupingExpressions())]
        keys = {expression_id(one) for one in grouped if class_name(one) == "AttributeReference"}
        found: dict[int, Value] = {}
        for expression in each(plan.aggregateExpressions()):
            bare = _same_value(expression)
            of_keys = {expression_id(one) for one in each(bare.references().toSeq())} <= keys
            if any(bare.semanticEquals(one) for one in grouped) or (of_keys and not _has(bare, "AggregateExpression")):
                value = self._value(bare)
                if value is not None:
                    found[expression_id(expression)] = value
        note = "" if grouped else "an aggregate without GROUP BY reads all rows"
        return Grouping(child, found, note)

    def _window(self, plan: JavaObject, child: Node) -> Grouping:
        partitions = [_same_value(expression) for expression in each(plan.partitionSpec())]
        found: dict[int, Value] = {
            expression_id(one): Reference(expression_id(one))
            for one in partitions
            if class_name(one) == "AttributeReference"
        }
        note = "" if partitions else "a window without PARTITION BY reads all rows"
        return Grouping(child, found, note)

    def _join(self, plan: JavaObject) -> Node:
        kind = str(plan.joinType().toString())
        left, right = plan.left(), plan.right()
        condition = plan.condition()
        conjuncts = list(_conjuncts(condition.get())) if condition.isDefined() else []
        outer = "RightOuter" if kind == "RightOuter" else "LeftOuter"
        if kind == "RightOuter":
            left, right = right, left
        sides = (self.node(left), self.node(right))
        if kind not in ("Inner", "Cross", "RightOuter") and kind not in _LEFT_JOINS and "Existence" not in kind:
            text = "a FULL JOIN keeps the rows of both sides" if kind == "FullOuter" else f"a join of kind {kind}"
            return Opaque(sides, text)
        ours, theirs = (frozenset(expression_id(one) for one in each(side.output())) for side in (left, right))
        equal: list[tuple[Value, Value]] = []
        for conjunct in conjuncts:
            if class_name(conjunct) not in ("EqualTo", "EqualNullSafe"):
                continue
            pair = [self._value(conjunct.left()), self._value(conjunct.right())]
            read = [_read(value) for value in pair]
            for here, there in ((0, 1), (1, 0)):
                mine, other = pair[here], pair[there]
                if mine is not None and other is not None and read[here] <= ours and read[there] <= theirs:
                    equal.append((mine, other))
        inner = kind in ("Inner", "Cross")
        words = "a join" if inner else f"a join of kind {outer if 'Outer' in kind else kind}"
        note = f"{words} has no condition that is an equality of two values"
        return Joining(*sides, inner, tuple(equal), note)

    def _value(self, expression: JavaObject) -> Value | None:
        """An expression as a value that can be followed; None where it cannot."""
        bare = _same_value(expression)
        kind = str(bare.dataType().simpleString())
        if not _is_key_type(kind):
            return None
        if class_name(bare) == "AttributeReference":
            return Reference(expression_id(bare))
        attributes = {expression_id(one): one for one in each(bare.references().toSeq())}
        inputs = tuple(sorted(attributes))
        if not inputs or not bare.deterministic() or _has(bare, "Subquery"):
            return None
        # 0.0 and -0.0 are equal, but their texts are not: an expression over floats may tell equal values apart.
        if not all(self._comparable(one) and self._types[one] not in _FLOATS for one in inputs):
            return None
        from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

        fields = [
            StructField(f"c{at}", _parse_datatype_json_string(attributes[one].dataType().json()))
            for at, one in enumerate(inputs)
        ]
        self._expressions += 1
        text = str(bare.sql())
        return Computed(Expression(self._expressions, text, inputs, StructType(fields), bare), inputs)

    def _comparable(self, number: int) -> bool:
        return _is_key_type(self._types.get(number, ""))


def _is_key_type(kind: str) -> bool:
    """Whether equal values of Spark's type are equal here; nested values and strings with a collation are not."""
    return kind in _KEY_TYPES or kind.startswith("decimal(")


def _same_value(expression: JavaObject) -> JavaObject:
    """The expression below names, marks and casts to wider integers, which keep the value."""
    while True:
        kind = class_name(expression)
        if kind in _SAME_VALUE or (kind == "Cast" and _widens(expression)):
            expression = expression.child()
        else:
            return expression


def _widens(cast: JavaObject) -> bool:
    kinds = [str(one.dataType().simpleString()) for one in (cast.child(), cast)]
    return all(kind in _INTEGERS for kind in kinds) and _INTEGERS.index(kinds[0]) <= _INTEGERS.index(kinds[1])


def _conjuncts(condition: JavaObject) -> Iterator[JavaObject]:
    if class_name(condition) == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _has(expression: JavaObject, kind: str) -> bool:
    """Whether a part of the expression is of a class with ``kind`` in its name."""
    return kind in class_name(expression) or any(_has(child, kind) for child in each(expression.children()))


def _read(value: Value | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value.column]) if isinstance(value, Reference) else frozenset(value.columns)
