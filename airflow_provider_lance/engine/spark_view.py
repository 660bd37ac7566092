"""Views in Spark SQL: joins, GROUP BY, DISTINCT, unions over Lance tables. Computed whole, written as Lance fragments.

Spark plans and runs the query; its result leaves Spark as Arrow inside the workers and only fragment metadata comes
back. Commits nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.sql_text import repeated_names
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.datasource import BATCH_ROWS, LanceSource, spark_table, spark_type
from airflow_provider_lance.engine.row_view import Computed, Work, replaced
from airflow_provider_lance.engine.scan_tasks import FragmentWriter, Target
from airflow_provider_lance.engine.session import default_parallelism
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

        work = self.work
        work.meter.phase("plan")
        session = self._session()
        try:
            frame = session.sql(self._register(session))
            yields = arrow_schema(frame)
        except PySparkException as error:
            raise JobError("plan", f"Spark cannot plan the view's query: {_first_line(error)}") from error
        target, settled = self._target(yields)
        if work.request.get("concurrency"):
            frame = frame.coalesce(work.request["concurrency"])
        work.meter.phase("compute")
        rows = run_watched(work.context, frame.mapInArrow(FragmentWriter(target), "written string").collect)
        written = [FragmentWriter.read(number, row.written) for number, row in enumerate(rows)]
        computed = replaced(work.state, written)
        if not settled:
            return computed
        return replace(computed, changes=replace(computed.changes, removed=[], schema=target.schema))

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

    def _register(self, session: SparkSession) -> str:
        """Make every source a temporary view and return the query over those views."""
        from airflow_provider_lance.definitions.spark_sql import SparkQuery

        query, names = SparkQuery(self.query), {}
        for number, (name, (table, dataset)) in enumerate(self.sources.items()):
            columns = query.columns_named(dataset.schema.names)
            source = LanceSource.of(table, dataset, columns, default_parallelism(session.sparkContext))
            view = f"lance_source_{number}"
            spark_table(session, source).createOrReplaceTempView(view)
            names[name] = view
        return query.renamed(names)

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
