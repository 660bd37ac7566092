"""Check a view's definition against its source's schema and settle the view's own schema.

Lance plans the pieces of a single-table query on an empty table in memory, and the parser finds the names in a Spark
query that no source has, so this needs no Spark and the server can refuse a wrong column when the view is created, not
at night. Opens sources for their schema only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.sql_text import SimpleSelect
from airflow_provider_lance.engine.expressions import (
    check_expression,
    check_filter,
    expression_type,
    find_field,
    parse_path,
)
from airflow_provider_lance.engine.udtf_spec import UdtfSpec, refuse
from airflow_provider_lance.engine.view_definition import SOURCE_ROW_ID, ViewDefinition, spark_query

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

# How Lance's planner says that an expression is good SQL which it cannot evaluate: CASE, subqueries, aggregates.
_BEYOND_LANCE = ("is not supported SQL in lance", "This feature is not implemented", "Not supported:")


def bind(
    definition: ViewDefinition, open_source: Callable[[str], lance.LanceDataset]
) -> tuple[ViewDefinition, pa.Schema]:
    """The definition with ``*`` written out, and the schema of the view's table.

    A query that Lance's SQL has no words for becomes a Spark view; its schema is the client's ``output_schema``, or
    empty until the first refresh settles it.
    """
    import pyarrow as pa
    from lance_namespace.errors import InvalidInputError

    asked = definition.output()
    if definition.dialect == "opaque":
        return definition, asked if asked is not None else pa.schema([])
    sources = {name: open_source(name) for name in definition.sources}
    if definition.select is None:
        check_columns(definition, sources)
        return definition, asked if asked is not None else pa.schema([])
    source = sources[definition.sources[0]]
    definition = definition.with_columns(source.schema.names)
    assert definition.select is not None
    try:
        schema = output_schema(definition.select, source.schema)
    except InvalidInputError as error:
        if definition.kind == "query" and any(sign in str(error) for sign in _BEYOND_LANCE):
            definition = definition.as_spark()
            check_columns(definition, sources)
            return definition, asked if asked is not None else pa.schema([])
        raise
    if definition.udtf is not None:
        check_table_function(definition.udtf, schema, source)
        schema = asked if asked is not None else schema
        if definition.kind == "udtf":
            return definition, schema
    elif asked is not None:
        check_same(asked, schema, "output_schema", "the query")
    return definition, schema.append(pa.field(SOURCE_ROW_ID, pa.uint64(), nullable=False))


def check_columns(definition: ViewDefinition, sources: Mapping[str, lance.LanceDataset]) -> None:
    """Refuse a Spark query that names a column which none of its sources has; what is not certain is left to Spark."""
    from airflow_provider_lance.definitions.spark_sql import Columns

    tables = {
        name: Columns(tuple(source.schema.names), tuple(_field_names(source.schema)))
        for name, source in sources.items()
    }
    wrong = spark_query(definition.query).unknown_column(tables)
    if wrong:
        refuse(f"the view's query cannot be planned: {wrong}")


def _field_names(fields: Iterable[pa.Field]) -> Iterator[str]:
    """The names of all fields inside nested types."""
    for field in fields:
        inner = [field.type.field(index) for index in range(field.type.num_fields)]
        yield from (part.name for part in inner)
        yield from _field_names(inner)


def output_schema(select: SimpleSelect, source: pa.Schema) -> pa.Schema:
    """The columns a single-table query yields, planned by Lance; InvalidInputError names the piece that is wrong."""
    import pyarrow as pa

    for item in select.items:
        check_expression(source, item.expression)
    if select.filter is not None:
        check_expression(source, select.filter)
        check_filter(source, select.filter)
    return pa.schema([pa.field(item.name, expression_type(source, item.expression)) for item in select.items])


def columns_read(select: SimpleSelect, source: Iterable[str]) -> list[str]:
    """The top-level columns of ``source`` a query may read: every one whose name occurs in it.

    One too many costs a needless comparison, one too few would lose a change; so names are enough, and planning the
    query once per column, as exact inputs would take, is not worth it on a table of a thousand columns.
    """
    from airflow_provider_lance.definitions.lance_sql import names_in

    names = names_in(select)
    return [column for column in source if column.lower() in names]


def check_same(asked: pa.Schema, found: pa.Schema, asked_by: str, found_by: str) -> None:
    """Refuse two schemas whose columns differ in name, order or type."""
    left = [(field.name, field.type) for field in asked]
    right = [(field.name, field.type) for field in found]
    if left != right:
        say = lambda fields: ", ".join(f"{name}: {kind}" for name, kind in fields)  # noqa: E731
        refuse(f"{asked_by} says ({say(left)}), but {found_by} yields ({say(right)}).")


def check_table_function(udtf: UdtfSpec, inputs: pa.Schema, source: lance.LanceDataset) -> None:
    """Refuse a table function over columns its source query does not yield, or an index that is not there."""
    for path in udtf.input_columns or ():
        find_field(inputs, path)
    if udtf.partition_by is not None:
        find_field(inputs, udtf.partition_by)
    if udtf.partition_by_indexed_column is not None:
        find_field(source.schema, udtf.partition_by_indexed_column)
        if ivf_index(source, udtf.partition_by_indexed_column) is None:
            refuse(
                f"partition_by_indexed_column {udtf.partition_by_indexed_column!r} has no IVF index; create one, or "
                "use partition_by."
            )


def ivf_index(source: lance.LanceDataset, column: str) -> str | None:
    """The name of an IVF-family index over ``column``, or None."""
    wanted = ".".join(parse_path(column))
    for index in source.describe_indices():
        if wanted in index.field_names and index.index_type.upper().startswith("IVF"):
            return str(index.name)
    return None
