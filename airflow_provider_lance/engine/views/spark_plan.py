"""How often the plan of a query reads each table, and which of its columns.

The query is planned over empty tables, so that no data is read and no Python worker starts. Only Spark's own plan is
reliable: the optimizer inlines common table expressions, repeats tables for correlated subqueries and drops columns.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

ColumnNames = Mapping[str, tuple[str, str]]

_EMPTY_TABLE = "LogicalRDD"
_SCAN = "DataSourceV2ScanRelation"
# Other nodes of an optimized plan may read columns, or run their children, in ways that are not known here.
_UNDERSTOOD = frozenset(
    [
        _EMPTY_TABLE,
        "Aggregate",
        "EmptyRelation",
        "Expand",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Join",
        "LocalLimit",
        "LocalRelation",
        "Offset",
        "OneRowRelation",
        "Project",
        "Range",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "Sample",
        "Sort",
        "Union",
        "Window",
        "WindowGroupLimit",
    ]
)


@dataclass(frozen=True)
class TableReads:
    """What a query reads of one table. ``once`` says that the plan certainly scans the table at most once."""

    columns: frozenset[str]
    once: bool


@dataclass(frozen=True)
class QueryPlan:
    """A query that Spark has planned over empty tables.

    ``names`` has the table and the column behind each attribute of such a table. ``execution`` is None where the tables
    could not be made.
    """

    reads: Mapping[str, TableReads]
    names: ColumnNames
    execution: JavaObject | None


def plan_query(session: SparkSession, query: str, tables: Mapping[str, StructType]) -> QueryPlan:
    """Plan ``query`` over ``tables``, which are left in ``session`` as empty temporary views.

    Raises what Spark raises for a query that it cannot analyze. Where the plan is not understood, every column is read
    and no table is certain to be scanned once.
    """
    names: dict[str, tuple[str, str]] = {}
    try:
        for number, (table, schema) in enumerate(tables.items()):
            _empty_view(session, table, schema, f"t{number}__c", names)
    except Exception as error:
        return QueryPlan(_anything(tables, error), names, None)
    execution = session.sql(query)._jdf.queryExecution()
    try:
        return QueryPlan(_reads(execution, tables, names), names, execution)
    except Exception as error:
        return QueryPlan(_anything(tables, error), names, execution)


def read_plan(session: SparkSession, query: str, tables: Mapping[str, StructType]) -> Mapping[str, TableReads]:
    """What ``query`` reads of ``tables``; see :func:`plan_query`."""
    return plan_query(session, query, tables).reads


def _anything(tables: Mapping[str, StructType], error: Exception) -> dict[str, TableReads]:
    """What a query may read at most. Spark's plans are no public interface, so a changed one may only cost speed."""
    log.info("Spark's plan was not understood, so all columns are read and no filters are pushed: %s", error)
    return {table: TableReads(frozenset(schema.names), False) for table, schema in tables.items()}


def scans(frame: DataFrame) -> Counter[str]:
    """How often the plan that ``frame`` will run scans each data source."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    return Counter(str(node.relation().table().name()) for node in _nodes(plan) if class_name(node) == _SCAN)


def _empty_view(
    session: SparkSession, table: str, schema: StructType, prefix: str, names: dict[str, tuple[str, str]]
) -> None:
    """Register an empty table; ``names`` gets a unique name for each of its columns."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    fields = [StructField(f"{prefix}{at}", field.dataType) for at, field in enumerate(schema)]
    names.update({own.name: (table, field.name) for own, field in zip(fields, schema, strict=True)})
    # session.createDataFrame would make this session the active one of the whole process.
    no_rows = session.sparkContext.emptyRDD()._to_java_object_rdd().rdd()
    empty = DataFrame(session._jsparkSession.applySchemaToPythonRDD(no_rows, StructType(fields).json()), session)
    columns = [empty[own.name].alias(field.name) for own, field in zip(fields, schema, strict=True)]
    empty.select(*columns).createOrReplaceTempView(table)


def _reads(execution: JavaObject, tables: Mapping[str, StructType], names: ColumnNames) -> dict[str, TableReads]:
    optimized = execution.optimizedPlan()
    nodes = list(_nodes(optimized))
    unknown = sorted({class_name(node) for node in nodes} - _UNDERSTOOD)
    if unknown:
        raise ValueError(f"it has {', '.join(unknown)}")
    read = {expression_id(attribute) for attribute in each(optimized.output())}
    for node in nodes:
        read |= {expression_id(attribute) for attribute in each(node.references().toSeq())}
        if class_name(node) == "Union":
            # The nodes above a union name the columns of its first child only.
            read |= {expression_id(attribute) for child in each(node.children()) for attribute in each(child.output())}
    columns: dict[str, set[str]] = {table: set() for table in tables}
    for node in nodes:
        if class_name(node) == _EMPTY_TABLE:
            for attribute in each(node.output()):
                if expression_id(attribute) in read:
                    table, column = names[attribute.name()]
                    columns[table].add(column)
    # Spark also keeps the filters of a scan that the optimizer drops again, so the analyzed plan counts as well.
    counts = [_occurrences(plan, names) for plan in (execution.analyzed(), optimized)]
    return {
        table: TableReads(frozenset(columns[table]), max(count[table] for count in counts) <= 1) for table in tables
    }


def _occurrences(plan: JavaObject, names: ColumnNames) -> Counter[str]:
    leaves = (node for node in _nodes(plan) if class_name(node) == _EMPTY_TABLE)
    return Counter(names[leaf.output().apply(0).name()][0] for leaf in leaves)


def _nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Every node of a plan and of the subqueries in its expressions."""
    yield plan
    for child in (*each(plan.children()), *each(plan.subqueries())):
        yield from _nodes(child)


def each(sequence: JavaObject) -> Iterator[JavaObject]:
    """The elements of a Scala sequence."""
    for at in range(sequence.size()):
        yield sequence.apply(at)


def expression_id(attribute: JavaObject) -> int:
    """Spark's number of a named expression, which is unique in a plan."""
    return int(attribute.exprId().id())


def class_name(node: JavaObject) -> str:
    """The class of a node of a plan, without its package."""
    return str(node.getClass().getSimpleName())
