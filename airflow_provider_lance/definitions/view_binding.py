"""Bind a view's definition to its sources: check the columns that it names, and find the schema of its rows.

Lance plans the pieces of a single-table query on an empty table in memory, and the SQL parser finds the names in a
Spark query that no source has. So the server refuses a wrong column when the view is created, and needs no Spark for
it. Sources are opened for their schemas and indices only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.expressions import (
    check_expression,
    check_filter,
    expression_type,
    find_field,
    parse_path,
)
from airflow_provider_lance.definitions.sql.text import SimpleSelect
from airflow_provider_lance.definitions.view_definition import SOURCE_ROW_ID, ViewDefinition, spark_query

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

# How Lance's planner says that an expression is good SQL which it cannot evaluate: CASE, subqueries, aggregates.
_BEYOND_LANCE = ("is not supported SQL in lance", "This feature is not implemented", "Not supported:")


def bind(
    definition: ViewDefinition, open_source: Callable[[str], lance.LanceDataset]
) -> tuple[ViewDefinition, pa.Schema]:
    """The definition with ``*`` written out, and the schema of the view's table.

    ``open_source`` opens the table that a name of ``definition.sources`` stands for. A query that Lance's SQL cannot
    express becomes a Spark view. The schema of a Spark view is the client's ``output_schema``; without one it is empty
    until the first refresh.
    """
    import pyarrow as pa
    from lance_namespace.errors import InvalidInputError

    asked = definition.output()
    asked_or_empty = pa.schema([]) if asked is None else asked
    if definition.dialect == "opaque":
        return definition, asked_or_empty
    sources = {name: open_source(name) for name in definition.sources}
    if definition.select is None:
        check_spark_columns(definition, sources)
        return definition, asked_or_empty
    source = sources[definition.sources[0]]
    definition = definition.with_columns(source.schema.names)
    assert definition.select is not None
    try:
        schema = output_schema(definition.select, source.schema)
    except InvalidInputError as error:
        if definition.kind == "query" and any(sign in str(error) for sign in _BEYOND_LANCE):
            definition = definition.as_spark()
            check_spark_columns(definition, sources)
            return definition, asked_or_empty
        raise
    if definition.udtf is not None:
        check_table_function(definition, schema, source)
        schema = asked if asked is not None else schema
        if definition.kind == "udtf":
            return definition, schema
    elif asked is not None:
        check_same_columns(asked, schema, "output_schema", "the query")
    return definition, schema.append(pa.field(SOURCE_ROW_ID, pa.uint64(), nullable=False))


def check_spark_columns(definition: ViewDefinition, sources: Mapping[str, lance.LanceDataset]) -> None:
    """Refuse a Spark query that names a column which certainly none of its sources has."""
    from airflow_provider_lance.definitions.sql.spark_sql import Columns

    tables = {
        name: Columns(tuple(source.schema.names), tuple(_field_names(source.schema)))
        for name, source in sources.items()
    }
    wrong = spark_query(definition.query).unknown_column(tables)
    if wrong:
        raise invalid(f"the view's query cannot be planned: {wrong}")


def _field_names(fields: Iterable[pa.Field[pa.DataType]]) -> Iterator[str]:
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
    """The top-level columns of ``source`` that a query may read: every one whose name occurs in it.

    A column too many costs a needless comparison, a column too few would lose a change. Exact inputs would take
    planning the query once per column, which is too slow on a table of a thousand columns.
    """
    from airflow_provider_lance.definitions.sql.lance_sql import names_in

    names = names_in(select)
    return [column for column in source if column.lower() in names]


def check_same_columns(asked: pa.Schema, found: pa.Schema, asked_by: str, found_by: str) -> None:
    """Refuse two schemas whose columns differ in name, order or type."""
    if [(field.name, field.type) for field in asked] != [(field.name, field.type) for field in found]:
        raise invalid(f"{asked_by} says ({columns_text(asked)}), but {found_by} yields ({columns_text(found)}).")


def columns_text(schema: pa.Schema) -> str:
    """The columns of a schema for a message: ``id: int64, text: string``."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def check_table_function(definition: ViewDefinition, inputs: pa.Schema, source: lance.LanceDataset) -> None:
    """Refuse a table function over columns that its source query does not yield, or partitions that cannot be made.

    ``inputs`` is the schema of the source query.
    """
    import pyarrow as pa

    udtf = definition.udtf
    assert udtf is not None
    for path in udtf.input_columns or ():
        find_field(inputs, path)
    if udtf.partition_by is not None:
        find_field(inputs, udtf.partition_by)
    if udtf.partition_by_indexed_column is not None:
        find_field(source.schema, udtf.partition_by_indexed_column)
        if ivf_index(source, udtf.partition_by_indexed_column) is None:
            raise invalid(
                f"partition_by_indexed_column {udtf.partition_by_indexed_column!r} has no IVF index; create one, or "
                "use partition_by."
            )
    key = definition.partition_key
    kind = None if key is None else expression_type(source.schema, key)
    if kind is not None and pa.types.is_nested(kind):
        raise invalid(
            f"partition_by {key!r} is of type {kind}: rows are partitioned by a single value, such as a field of it."
        )


def ivf_index(source: lance.LanceDataset, column: str) -> str | None:
    """The name of an IVF-family index over ``column``, or None."""
    wanted = ".".join(parse_path(column))
    for index in source.describe_indices():
        if wanted in index.field_names and index.index_type.upper().startswith("IVF"):
            return str(index.name)
    return None
