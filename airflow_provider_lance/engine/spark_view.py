"""Views in Spark SQL: joins, GROUP BY, DISTINCT, unions over Lance tables. Computed whole, written as Lance fragments.

Spark plans and runs the query; its result leaves Spark as Arrow inside the workers and only fragment metadata comes
back. Commits nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.sql_text import repeated_names
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.datasource import (
    BATCH_ROWS,
    FILTERING,
    LanceSource,
    placeholder_struct,
    readable_columns,
    spark_table,
    spark_type,
)
from airflow_provider_lance.engine.row_view import Computed, Work, replaced
from airflow_provider_lance.engine.scan_tasks import FragmentWriter, Target
from airflow_provider_lance.engine.session import default_parallelism
from airflow_provider_lance.engine.spark_plan import TableReads, read_plan, scans
from airflow_provider_lance.engine.table import TableRef
from airflow_provider_lance.engine.watched import run_watched

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class SparkView:
    """A view whose query only Spark understands."""

    def __init__(self, work: Work, sources: Mapping[str, tuple[TableRef, lance.LanceDataset]]) -> None:
        self.work, self.sources = work, sources
        self.query = work.state.definition.query

    def rebuild(self) -> Computed:
        from pyspark.errors import PySparkException

        from airflow_provider_lance.definitions.spark_sql import SparkQuery

        work = self.work
        work.meter.phase("plan")
        session = self._session()
        names = {name: f"lance_source_{number}" for number, name in enumerate(self.sources)}
        query = SparkQuery(self.query).renamed(names)
        try:
            reads = self._reads(session, query, names)
            once = [name for name in self.sources if reads[name].once]
            frame = self._frame(session, query, names, reads, push_filters=once)
            target, settled = self._target(arrow_schema(frame))
            result = self._written(frame, target)
            if any(count > 1 for source, count in scans(result).items() if source.startswith(FILTERING)):
                # The plan that will run differs from the one over empty tables.
                result = self._written(self._frame(session, query, names, reads, push_filters=()), target)
        except PySparkException as error:
            raise JobError("plan", f"Spark cannot plan the view's query: {_first_line(error)}") from error
        work.meter.phase("compute")
        rows = run_watched(work.context, result.collect)
        written = [FragmentWriter.read(number, row.written) for number, row in enumerate(rows)]
        computed = replaced(work.state, written)
        if not settled:
            return computed
        return replace(computed, changes=replace(computed.changes, removed=[], schema=target.schema))

    def _written(self, frame: DataFrame, target: Target) -> DataFrame:
        if self.work.request.get("concurrency"):
            frame = frame.coalesce(self.work.request["concurrency"])
        return frame.mapInArrow(FragmentWriter(target), "written string")

    def _session(self) -> SparkSession:
        # A session of its own: temporary views and settings of this job end with it.
        session = self.work.context.spark.newSession()
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
        session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        session.conf.set("spark.sql.session.timeZone", "UTC")
        # Small results become one fragment, not one per core.
        session.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
        if not session.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
            # Spark's default of 200 would be 200 Python tasks, and as many small fragments, for any result.
            session.conf.set("spark.sql.shuffle.partitions", str(2 * default_parallelism(session.sparkContext)))
        return session

    def _reads(self, session: SparkSession, query: str, names: Mapping[str, str]) -> dict[str, TableReads]:
        """What the query reads of each source."""
        schemas = {names[name]: placeholder_struct(dataset.schema) for name, (_, dataset) in self.sources.items()}
        reads = read_plan(session, query, schemas)
        return {name: reads[view] for name, view in names.items()}

    def _frame(
        self,
        session: SparkSession,
        query: str,
        names: Mapping[str, str],
        reads: Mapping[str, TableReads],
        *,
        push_filters: Collection[str],
    ) -> DataFrame:
        """The query over its sources, each of them a temporary view."""
        partitions = default_parallelism(session.sparkContext)
        for name, (table, dataset) in self.sources.items():
            # Spark's Python data sources cannot prune columns themselves. They need one, also for count(*).
            columns = [column for column in dataset.schema.names if column in reads[name].columns]
            source = LanceSource.of(table, dataset, columns or readable_columns(dataset.schema)[:1], partitions)
            frame = spark_table(session, source, push_filters=name in push_filters)
            _with_unread(frame, source, dataset.schema).createOrReplaceTempView(names[name])
        return session.sql(query)

    def _target(self, yields: pa.Schema) -> tuple[Target, bool]:
        """Where the rows go. The first refresh settles the schema of a view that was created without one."""
        stored = self.work.state.schema
        if not len(stored):
            target = replace(self.work.target, schema=_nullable(yields), new_schema=True)
            return target, True
        same_names = yields.names == stored.names
        if not same_names or any(
            spark_type(there.type) != spark_type(here.type) and not _integers(there.type, here.type)
            for there, here in zip(stored, yields, strict=True)
        ):
            say = lambda schema: ", ".join(f"{field.name}: {field.type}" for field in schema)  # noqa: E731
            raise JobError("plan", f"the view's columns are ({say(stored)}), but its query yields ({say(yields)}).")
        return self.work.target, False


def _with_unread(frame: DataFrame, source: LanceSource, schema: pa.Schema) -> DataFrame:
    """``frame`` with all columns of its table. Those that are not read fail the query that reads them after all."""
    from pyspark.sql import functions

    if source.schema.names == schema.names:
        return frame
    # By position: a name may contain dots and backticks.
    frame = frame.toDF(*(f"c{at}" for at in range(len(source.schema))))
    read = {name: functions.col(f"c{at}") for at, name in enumerate(source.schema.names)}
    columns = []
    for field in placeholder_struct(schema):
        unread = functions.raise_error(functions.lit(f"column {field.name} was planned as one that is not read"))
        columns.append(read.get(field.name, unread.cast(field.dataType)).alias(field.name))
    return frame.select(*columns)


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns a query yields, as Spark hands them to its workers; refuses what no table can hold."""
    from pyspark.sql.pandas.types import to_arrow_schema

    repeated = repeated_names(frame.columns)
    if repeated:
        raise JobError("plan", f"two columns of the view have the same name: {repeated}. Name them apart with AS.")
    # Spark 4.0 and 4.1 take UTC, the session's time zone here, for granted.
    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(frame.schema, **({"timezone": "UTC"} if takes_zone else {}))


def _nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _integers(stored: pa.DataType, yields: pa.DataType) -> bool:
    """Widths of integers may differ: a value that does not fit fails the refresh instead of being cut."""
    import pyarrow as pa

    return all(pa.types.is_integer(kind) for kind in (stored, yields))


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
