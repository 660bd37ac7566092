"""Views in Spark SQL: joins, GROUP BY, DISTINCT and unions over Lance tables, computed whole.

Spark plans and runs the query. The Python workers write the result as Lance fragments, and only fragment metadata comes
back to the driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.sql.text import repeated_names
from airflow_provider_lance.definitions.view_binding import columns_text
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.spark.driver_wait import run_action
from airflow_provider_lance.engine.spark.session import default_parallelism
from airflow_provider_lance.engine.views.kinds import AlwaysRebuilt, Computed
from airflow_provider_lance.engine.views.scan_tasks import FragmentWriter, WriteTarget
from airflow_provider_lance.engine.views.spark_plan import TableReads, read_plan, scans
from airflow_provider_lance.engine.views.spark_source import (
    BATCH_ROWS,
    FILTERING,
    LanceSource,
    placeholder_struct,
    readable_columns,
    spark_table,
    spark_type,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class SparkView(AlwaysRebuilt):
    """A view whose query is Spark SQL."""

    rebuild_reason = "its query is Spark SQL"

    def rebuild(self) -> Computed:
        from pyspark.errors import PySparkException

        from airflow_provider_lance.definitions.sql.spark_sql import SparkQuery

        refresh = self.refresh
        refresh.meter.phase("plan")
        session = self._session()
        names = {name: f"lance_source_{number}" for number, name in enumerate(refresh.sources)}
        query = SparkQuery(refresh.definition.query).renamed(names)
        try:
            reads = self._reads(session, query, names)
            once = [name for name in refresh.sources if reads[name].once]
            frame = self._frame(session, query, names, reads, push_filters=once)
            target, is_first = self._target(arrow_schema(frame))
            result = self._written(frame, target)
            if any(count > 1 for source, count in scans(result).items() if source.startswith(FILTERING)):
                # The plan that will run scans a table more often than the one over empty tables.
                result = self._written(self._frame(session, query, names, reads, push_filters=()), target)
        except PySparkException as error:
            raise JobError("plan", f"Spark cannot plan the view's query: {_first_line(error)}") from error
        refresh.meter.phase("compute")
        rows = run_action(refresh.context, result.collect)
        written = [FragmentWriter.read(number, row.written) for number, row in enumerate(rows)]
        computed = self.replace_all_rows(written)
        if not is_first:
            return computed
        return replace(computed, changes=replace(computed.changes, removed=[], schema=target.schema))

    def _written(self, frame: DataFrame, target: WriteTarget) -> DataFrame:
        if self.refresh.request.concurrency:
            frame = frame.coalesce(self.refresh.request.concurrency)
        return frame.mapInArrow(FragmentWriter(target), "written string")

    def _session(self) -> SparkSession:
        # The job has a session of its own, so that its temporary views and settings end with it.
        session = self.refresh.context.spark.newSession()
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
        schemas = {
            names[name]: placeholder_struct(source.dataset.schema) for name, source in self.refresh.sources.items()
        }
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
        for name, source in self.refresh.sources.items():
            schema = source.dataset.schema
            # Spark's Python data sources cannot prune columns themselves. They need one column, also for count(*).
            columns = [column for column in schema.names if column in reads[name].columns]
            columns = columns or readable_columns(schema)[:1]
            lance_source = LanceSource.of(source.table, source.dataset, columns, partitions)
            frame = spark_table(session, lance_source, push_filters=name in push_filters)
            _with_unread(frame, lance_source, schema).createOrReplaceTempView(names[name])
        return session.sql(query)

    def _target(self, yields: pa.Schema) -> tuple[WriteTarget, bool]:
        """Where the rows go, and whether this refresh decides the view's schema: a view may be created without one."""
        stored = self.refresh.state.schema
        if not len(stored):
            target = replace(self.refresh.target, schema=_nullable(yields), new_schema=True)
            return target, True
        same_names = yields.names == stored.names
        if not same_names or any(
            spark_type(there.type) != spark_type(here.type) and not _integers(there.type, here.type)
            for there, here in zip(stored, yields, strict=True)
        ):
            raise JobError(
                "plan",
                f"the view's columns are ({columns_text(stored)}), but its query yields ({columns_text(yields)}).",
            )
        return self.refresh.target, False


def _with_unread(frame: DataFrame, source: LanceSource, schema: pa.Schema) -> DataFrame:
    """``frame`` with all columns of its table. A column that was planned as unread fails a query that reads it."""
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
    # Spark 4.0 and 4.1 have no such argument and always use UTC.
    if "timezone" not in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(frame.schema)
    return to_arrow_schema(frame.schema, timezone="UTC")


def _nullable(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _integers(stored: pa.DataType, yields: pa.DataType) -> bool:
    """Integers may differ in width: a value that does not fit fails the refresh, it is not cut."""
    import pyarrow as pa

    return all(pa.types.is_integer(kind) for kind in (stored, yields))


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
