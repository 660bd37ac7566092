"""Views in Spark SQL: joins, GROUP BY, DISTINCT, windows and unions over Lance tables.

Spark plans and runs the query. A rebuild is written by the Python workers as Lance fragments, and only fragment
metadata comes back to the driver. A refresh computes only the rows of affected keys, where the plan tells which ones
these are (``incremental/``).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.refresh_policy import AUTO
from airflow_provider_lance.definitions.sql.text import repeated_names
from airflow_provider_lance.definitions.view_binding import columns_text
from airflow_provider_lance.engine.job.context import JobCancelledError, JobError
from airflow_provider_lance.engine.spark.arrow_frames import arrow_frame
from airflow_provider_lance.engine.spark.driver_wait import run_action
from airflow_provider_lance.engine.spark.session import default_parallelism
from airflow_provider_lance.engine.views.incremental.affected import Key, Sources
from airflow_provider_lance.engine.views.incremental.changed_rows import read_changed_rows
from airflow_provider_lance.engine.views.incremental.cost import Estimate
from airflow_provider_lance.engine.views.incremental.key_values import same_comparison
from airflow_provider_lance.engine.views.incremental.lineage import Lineage
from airflow_provider_lance.engine.views.incremental.replacement import (
    AFFECTED_KEYS,
    NOTHING_READ_CHANGED,
    Replacement,
    Rows,
    check_can_follow,
    find_replacement,
    no_key_reason,
)
from airflow_provider_lance.engine.views.incremental.source_columns import SourceColumns, TermReader
from airflow_provider_lance.engine.views.incremental.source_rows import read_rows
from airflow_provider_lance.engine.views.incremental.spark_tree import read_lineage
from airflow_provider_lance.engine.views.incremental.view_rows import KeepKeys, delete_keys
from airflow_provider_lance.engine.views.kinds import Computed, Prospect, ViewKind
from airflow_provider_lance.engine.views.publish import RowChanges
from airflow_provider_lance.engine.views.scan_tasks import FragmentWriter, WriteTarget, count_rows
from airflow_provider_lance.engine.views.source_changes import Changes, NotComparable, find_changes
from airflow_provider_lance.engine.views.spark_plan import QueryPlan, TableReads, plan_query, scans
from airflow_provider_lance.engine.views.spark_source import (
    BATCH_ROWS,
    FILTERING,
    LanceSource,
    pick,
    placeholder_struct,
    readable_columns,
    spark_struct,
    spark_table,
    spark_type,
)
from airflow_provider_lance.storage.view_state import RefreshDetails

if TYPE_CHECKING:
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
#: The result for up to so many source rows is written by the driver, which starts no Python worker.
DRIVER_RESULT_ROWS = 200_000
#: So many rows of the sources are read into the driver at most.
MOST_DRIVER_ROWS = 4_000_000


@dataclass(frozen=True)
class PlannedQuery:
    """The view's query in a session of its own, and what Spark planned for it."""

    session: SparkSession
    query: str
    #: The name of the temporary view that stands for each source.
    names: Mapping[str, str]
    plan: QueryPlan

    def reads(self, source: str) -> TableReads:
        return self.plan.reads[self.names[source]]


class SparkView(ViewKind[Replacement]):
    """A view whose query is Spark SQL."""

    def find_changes(self) -> Replacement:
        if self._nothing_changed():
            return Replacement(NOTHING_READ_CHANGED, {}, 0)
        try:
            return self._affordable(find_replacement(self._sources, self._usable_keys()))
        except (NotComparable, JobError, JobCancelledError):
            raise
        except Exception as error:
            # Spark's plans are no public interface, so whatever goes wrong here may only cost time.
            log.info("the change cannot be followed", exc_info=error)
            raise NotComparable(f"the change could not be followed: {_first_line(error)}") from error

    def _affordable(self, found: Replacement) -> Replacement:
        """What was found, unless a rebuild is the cheaper way; raises NotComparable with the reason then."""
        if found.rows_read_into_driver > MOST_DRIVER_ROWS:
            raise NotComparable(
                f"the affected rows need {found.rows_read_into_driver} rows of the sources, more than the "
                f"{MOST_DRIVER_ROWS} that a driver reads",
                self.explain(found),
            )
        if self.refresh.request.policy == AUTO and self._estimate(found).rebuild_is_cheaper:
            raise NotComparable(_expensive(found), self.explain(found))
        return found

    def _estimate(self, found: Replacement) -> Estimate:
        compared = self._sources.values_read
        if found.keys is not None:
            compared += self.refresh.state.dataset.count_rows() * len(found.key)
        return Estimate.of(
            rows_read=found.rows_read,
            source_rows=found.source_rows,
            keys_compared=compared,
            rebuilt=self.refresh.state.rebuilt,
        )

    def _nothing_changed(self) -> bool:
        """Whether there was nothing but compactions, indices and metadata; Spark is not needed to know that."""
        try:
            for name, source in self.refresh.sources.items():
                changes = self._changes(name, source.dataset.schema.names)
                deleted = changes.deleted is not None and len(changes.deleted)
                if deleted or count_rows(source.dataset, changes.fragments, changes.written):
                    return False
            return True
        except NotComparable:
            return False

    def _changes(self, name: str, columns: Collection[str]) -> Changes:
        source, points = self.refresh.sources[name], self.refresh.state.points
        assert points is not None
        if name not in points:
            raise NotComparable(f"the view was not refreshed from {name} before")
        try:
            return find_changes(source.table, source.dataset, points[name], columns)
        except NotComparable as because:
            raise NotComparable(f"{name}: {because}") from None

    @cached_property
    def _sources(self) -> Sources:
        """What the query does with its sources, what they have and what changed."""
        planned = self._planned
        lineage = read_lineage(planned.session, planned.plan, {view: name for name, view in planned.names.items()})
        reader = TermReader(planned.session)
        columns, changed = {}, {}
        for name in dict.fromkeys(lineage.tables):
            dataset = self.refresh.sources[name].dataset
            columns[name] = SourceColumns(dataset, reader)
            read = [column for column in dataset.schema.names if column in planned.reads(name).columns]
            changes = self._changes(name, read)
            if changes.empty:
                continue
            keys = [column for column in read if column in lineage.key_columns(name)]
            rows = read_changed_rows(dataset, changes, read, keys)
            if len(rows):
                changed[name] = rows
        return Sources(lineage, columns, changed, reader)

    def _usable_keys(self) -> list[str]:
        yields = arrow_schema(self._frame({}))
        stored = self.refresh.state.dataset.schema
        if stored.names != yields.names:
            raise NotComparable("the query yields other columns than the view has")
        return [name for name in yields.names if same_comparison(stored.field(name).type, yields.field(name).type)]

    def prospects(self) -> dict[str, Prospect]:
        names = {view: name for name, view in self._planned.names.items()}
        try:
            lineage = read_lineage(self._planned.session, self._planned.plan, names)
        except NotComparable as because:
            return {name: Prospect(reason=str(because)) for name in self.refresh.sources}
        found = {}
        for name in self.refresh.sources:
            found[name] = self.refresh.unstable_source(name) or _prospect(lineage, name)
        return found

    def explain(self, changes: Replacement) -> RefreshDetails:
        if changes.technique == NOTHING_READ_CHANGED:
            return RefreshDetails(changes.technique)
        return RefreshDetails(
            changes.technique,
            changes.key,
            None if changes.keys is None else len(changes.keys),
            {name: rows.count for name, rows in changes.rows.items()},
            changes.source_rows,
            self._estimate(changes).to_dict(),
        )

    def rows_to_read(self, changes: Replacement) -> int:
        return changes.rows_read

    def follow(self, changes: Replacement) -> Computed:
        """Delete the rows of the affected keys and write what the query yields for them."""
        from pyspark.errors import PySparkException

        refresh, keys = self.refresh, changes.keys
        if not changes.rows:
            return Computed(RowChanges(), 0, 0)
        try:
            frame = self._frame(changes.rows)
            target, _ = self._target(arrow_schema(frame))
        except PySparkException as error:
            raise JobError("plan", f"Spark cannot plan the view's query: {_first_line(error)}") from error
        refresh.meter.phase("compute")
        updated: list[FragmentMetadata] = []
        removed: list[int] = []
        deleted = 0
        keep = None
        if keys is not None:
            keep = KeepKeys(changes.key, keys)
            updated, removed, deleted = delete_keys(refresh.view.table, refresh.state.dataset, keep)
        writer = FragmentWriter(target, keep)
        if changes.rows_read <= DRIVER_RESULT_ROWS:
            table = run_action(refresh.context, frame.toArrow)
            written = [writer.write(table.to_batches())]
        else:
            rows = run_action(refresh.context, frame.mapInArrow(writer, "written string").collect)
            written = [FragmentWriter.read(number, row.written) for number, row in enumerate(rows)]
        new = [fragment for one in written for fragment in one.metadata()]
        return Computed(RowChanges(new, updated, removed), sum(one.rows for one in written), deleted)

    def rebuild(self) -> Computed:
        from pyspark.errors import PySparkException

        refresh = self.refresh
        refresh.meter.phase("plan")
        try:
            once = [name for name in refresh.sources if self._planned.reads(name).once]
            frame = self._frame({}, push_filters=once)
            target, is_first = self._target(arrow_schema(frame))
            result = self._written(frame, target)
            if any(count > 1 for source, count in scans(result).items() if source.startswith(FILTERING)):
                # The plan that will run scans a table more often than the one over empty tables.
                result = self._written(self._frame({}), target)
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

    @cached_property
    def _planned(self) -> PlannedQuery:
        from airflow_provider_lance.definitions.sql.spark_sql import SparkQuery

        sources = self.refresh.sources
        session = self._session()
        names = {name: f"lance_source_{number}" for number, name in enumerate(sources)}
        query = SparkQuery(self.refresh.definition.query).renamed(names)
        schemas = {names[name]: placeholder_struct(source.dataset.schema) for name, source in sources.items()}
        return PlannedQuery(session, query, names, plan_query(session, query, schemas))

    def _session(self) -> SparkSession:
        # The job has a session of its own, so that its temporary views and settings end with it.
        session = self.refresh.context.spark.newSession()
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
        session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        session.conf.set("spark.sql.session.timeZone", "UTC")
        # Small results become one fragment, not one per core.
        session.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
        # A filter made of another table is a subquery, and it would hide which rows of that table matter.
        session.conf.set("spark.sql.optimizer.runtime.bloomFilter.enabled", "false")
        # The optimizer evaluates projections of a local relation at once, also those of columns that nobody reads.
        session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
        if not session.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
            # Spark's default of 200 would be 200 Python tasks, and as many small fragments, for any result.
            session.conf.set("spark.sql.shuffle.partitions", str(2 * default_parallelism(session.sparkContext)))
        return session

    def _frame(self, rows: Mapping[str, Rows], *, push_filters: Collection[str] = ()) -> DataFrame:
        """The query over its sources, each of them a temporary view: over ``rows`` of them, or over all rows."""
        planned = self._planned
        session = planned.session
        partitions = default_parallelism(session.sparkContext)
        for name, source in self.refresh.sources.items():
            schema = source.dataset.schema
            # Spark's Python data sources cannot prune columns themselves. They need one column, also for count(*).
            columns = [column for column in schema.names if column in planned.reads(name).columns]
            columns = columns or readable_columns(schema)[:1]
            if name in rows and not rows[name].all:
                table = read_rows(self._sources.columns[name], rows[name], columns)
                types = spark_struct(pick(schema, columns))
                frame = arrow_frame(session, table, types)
            else:
                lance_source = LanceSource.of(source.table, source.dataset, columns, partitions)
                frame = spark_table(session, lance_source, push_filters=name in push_filters)
            _with_unread(frame, columns, schema).createOrReplaceTempView(planned.names[name])
        return session.sql(planned.query)

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


def _prospect(lineage: Lineage, table: str) -> Prospect:
    if table not in lineage.tables:
        return Prospect(NOTHING_READ_CHANGED)
    try:
        check_can_follow(lineage, [table])
    except NotComparable as because:
        return Prospect(reason=str(because))
    occurrences = [number for number, name in enumerate(lineage.tables) if name == table]
    for column in lineage.output:
        key = Key.of(lineage, [column.name])
        if all(key.leads_from(number) for number in occurrences):
            return Prospect(AFFECTED_KEYS, (column.name,))
    return Prospect(reason=no_key_reason(lineage, [table]))


def _expensive(found: Replacement) -> str:
    affected = (
        f"{len(found.keys)} keys ({', '.join(found.key)}) are" if found.keys is not None else "the added rows are"
    )
    return (
        f"{affected} affected, which need {100 * found.share:.0f} % of the source rows, so computing all rows is "
        "cheaper"
    )


def _with_unread(frame: DataFrame, read_columns: Sequence[str], schema: pa.Schema) -> DataFrame:
    """``frame`` with all columns of its table. A column that was planned as unread fails a query that reads it."""
    from pyspark.sql import functions

    if list(read_columns) == schema.names:
        return frame
    # By position: a name may contain dots and backticks.
    frame = frame.toDF(*(f"c{at}" for at in range(len(read_columns))))
    read = {name: functions.col(f"c{at}") for at, name in enumerate(read_columns)}
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
