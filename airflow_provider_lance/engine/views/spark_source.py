"""Lance tables as Spark tables: fragments are partitions, only needed columns are read, simple filters are pushed down.

Views in Spark SQL read their sources this way. Each table is registered as a data source class of its own that holds
the location and the credentials, so that no Spark plan, log or UI shows them. Spark plans in short-lived Python
processes, so this module imports Lance only when rows are read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from airflow_provider_lance.definitions.sql.text import quote
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.spark.python_worker import prepare_python_worker
from airflow_provider_lance.storage.shares import contiguous_shares
from airflow_provider_lance.storage.table import TableRef, fragments_of

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructField, StructType

# Rows per Arrow batch on the way into the JVM; Spark's default of 10,000 spends its time on batch borders.
BATCH_ROWS = 65_536
_WAY_OUT = "Cast it in a view of that table alone, which Lance computes, and let this view read that one."
# The names of sources that filters are pushed to begin with this.
FILTERING = "filtering_"
_COMPARISONS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


@dataclass(frozen=True)
class LanceSource:
    """One version of a table, reduced to the columns a query reads, as groups of fragments: one per Spark task."""

    table: TableRef
    version: int
    schema: pa.Schema
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, table: TableRef, dataset: lance.LanceDataset, columns: Sequence[str], partitions: int) -> LanceSource:
        """Neighbouring fragments go together, so that every group has about the same number of rows."""
        schema = pick(dataset.schema, columns)
        fragments = dataset.get_fragments()
        numbers = [fragment.fragment_id for fragment in fragments]
        rows = [fragment.count_rows() for fragment in fragments]
        shares = contiguous_shares(numbers, rows, min(partitions, len(fragments)))
        return cls(table, dataset.version, schema, tuple(map(tuple, shares)))


def pick(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """Some columns of a table, by name and type alone."""
    import pyarrow as pa

    return pa.schema([pa.field(name, schema.field(name).type) for name in columns])


@dataclass
class FragmentGroup(InputPartition):
    """Neighbouring fragments that one Spark task reads."""

    fragments: tuple[int, ...]


def spark_table(session: SparkSession, source: LanceSource, *, push_filters: bool = False) -> DataFrame:
    """A DataFrame over ``source``, registered in ``session`` under a name of its own.

    ``push_filters`` is right only where a plan scans the DataFrame once: Spark keeps the answer of ``pushFilters`` per
    registered source, so the scan that is planned last would decide which rows every scan reads.
    """
    name = f"{FILTERING if push_filters else ''}lance_{uuid.uuid4().hex}"

    # Spark pickles the class into its workers, so each table has a class with its own location in it.
    class Registered(LanceTable):
        lance_source = source
        pushes_filters = push_filters

        @classmethod
        def name(cls) -> str:
            return name

    session.dataSource.register(Registered)
    return session.read.format(name).schema(spark_struct(source.schema)).load()


def spark_struct(schema: pa.Schema) -> StructType:
    """The Spark types of a table's columns; JobError names the one that has none."""
    from pyspark.sql.types import StructType

    fields = []
    for field in schema:
        converted = _spark_field(field)
        if converted is None:
            raise JobError("plan", f"Spark has no type for column {field.name} ({field.type}). {_WAY_OUT}")
        fields.append(converted)
    return StructType(fields)


def readable_columns(schema: pa.Schema) -> list[str]:
    """The columns of a table that have a Spark type."""
    return [field.name for field in schema if _spark_field(field) is not None]


def placeholder_struct(schema: pa.Schema) -> StructType:
    """The Spark types of a table's columns, for planning: a column that has none is of type void."""
    from pyspark.sql.types import NullType, StructField, StructType

    return StructType([_spark_field(field) or StructField(field.name, NullType()) for field in schema])


def _spark_field(field: pa.Field[pa.DataType]) -> StructField | None:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    if _too_precise(field.type):
        return None
    try:
        # Spark 4.0 would make instants of timestamps without a time zone.
        (converted,) = from_arrow_schema(spark_schema([field]), prefer_timestamp_ntz=True).fields
    except PySparkException:
        return None
    return converted


def _too_precise(kind: pa.DataType) -> bool:
    """Whether a type has a decimal of more digits than Spark's 38, also inside lists and structs."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return bool(kind.precision > 38)
    if pa.types.is_dictionary(kind):
        return _too_precise(kind.value_type)
    return any(_too_precise(kind.field(at).type) for at in range(kind.num_fields))


class LanceTable(DataSource):
    """The data source behind :func:`spark_table`."""

    lance_source: LanceSource
    pushes_filters: bool

    def schema(self) -> StructType:
        return spark_struct(self.lance_source.schema)

    def reader(self, schema: StructType) -> LanceReader:
        return FilteringReader(self.lance_source) if self.pushes_filters else LanceReader(self.lance_source)


class LanceReader(DataSourceReader):
    """Reads fragment groups with pylance inside Spark's Python workers. Spark evaluates all filters.

    This class has no ``pushFilters``, because Spark pushes filters wherever that method exists.
    """

    def __init__(self, source: LanceSource) -> None:
        self.source = source
        self.filter: str | None = None

    def partitions(self) -> Sequence[InputPartition]:
        return [FragmentGroup(group) for group in self.source.groups] or [FragmentGroup(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FragmentGroup)
        if not partition.fragments:
            return
        prepare_python_worker()
        dataset = self.source.table.open(self.source.version)
        schema = spark_schema(self.source.schema)
        same = schema.equals(self.source.schema)
        batches = dataset.scanner(
            columns=self.source.schema.names,
            filter=self.filter,
            fragments=fragments_of(dataset, partition.fragments),
            batch_size=BATCH_ROWS,
            blob_handling="all_binary",
            use_scalar_index=False,  # an index may be stale, and wrong rows would be stored in the view
        ).to_batches()
        for batch in batches:
            yield batch if same else cast_batch(batch, schema)


class FilteringReader(LanceReader):
    """Reads only the rows that pass the filters of the one scan that its source has in a plan."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that Lance evaluates exactly as Spark does, and return the others to Spark."""
        taken = []
        for spark_filter in filters:
            condition = lance_filter(spark_filter, self.source.schema)
            if condition is None:
                yield spark_filter
            else:
                taken.append(condition)
        self.filter = " AND ".join(taken) or None


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of ``schema``; ValueError says which column Spark cannot hold."""
    import pyarrow as pa

    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise ValueError(f"Spark cannot hold what column {field.name} has: {error}. {_WAY_OUT}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def spark_schema(schema: Iterable[pa.Field[pa.DataType]]) -> pa.Schema:
    """The nearest fields that Spark can hold."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, spark_type(field.type), field.nullable) for field in schema])


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The nearest type that Spark can hold.

    Spark has no unsigned integers, no fixed-size lists and no half floats. It has one unit for each kind of time.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if types.is_uint32(kind):
        return pa.int64()
    if types.is_uint16(kind):
        return pa.int32()
    if types.is_uint8(kind):
        return pa.int16()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_fixed_size_list(kind) or types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(spark_type(kind.value_type))
    if types.is_fixed_size_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_large_string(kind) or types.is_dictionary(kind):
        return pa.string() if not types.is_dictionary(kind) else spark_type(kind.value_type)
    if types.is_decimal256(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_date(kind):
        return pa.date32()
    if types.is_map(kind):
        return pa.map_(spark_type(kind.key_type), spark_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(child.name, spark_type(child.type), child.nullable) for child in kind])
    return kind


def lance_filter(spark_filter: Filter, schema: pa.Schema) -> str | None:
    """The condition in Lance's SQL, or None where the two might disagree (dates, decimals, nested names)."""
    name = type(spark_filter).__name__
    attribute = getattr(spark_filter, "attribute", None)
    if attribute is None or len(attribute) != 1 or schema.get_field_index(attribute[0]) < 0:
        return None
    kind = schema.field(attribute[0]).type
    column = quote(attribute[0])
    if name in ("IsNull", "IsNotNull"):
        return f"{column} IS {'NOT ' if name == 'IsNotNull' else ''}NULL"
    value = getattr(spark_filter, "value", None)
    if name in _COMPARISONS:
        literal = _literal(value, kind)
        return None if literal is None else f"{column} {_COMPARISONS[name]} {literal}"
    if name == "In":
        literals = [_literal(one, kind) for one in value or ()]
        return None if None in literals or not literals else f"{column} IN ({', '.join(map(str, literals))})"
    return None


def _literal(value: object, kind: pa.DataType) -> str | None:
    import pyarrow as pa

    if isinstance(value, bool):
        return str(value).lower() if pa.types.is_boolean(kind) else None
    if isinstance(value, int) and pa.types.is_signed_integer(kind):
        return str(value)
    if isinstance(value, str) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return "'" + value.replace("'", "''") + "'"
    # Spark evaluates filters on floats: there NaN equals itself and is the largest value, in Arrow it is not.
    return None
