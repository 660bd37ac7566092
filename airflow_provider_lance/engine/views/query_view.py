"""Views whose rows come each from one source row: computed for the rows that changed, or for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.definitions.view_binding import check_same_columns, columns_read, output_schema
from airflow_provider_lance.definitions.view_definition import SOURCE_ROW_ID
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.job.driver_work import fits_driver
from airflow_provider_lance.engine.job.progress import COMPUTE
from airflow_provider_lance.engine.spark.driver_wait import start_spark
from airflow_provider_lance.engine.spark.session import default_parallelism
from airflow_provider_lance.engine.views.delete_rows import delete_source_rows
from airflow_provider_lance.engine.views.kinds import Computed, Prospect, Refresh, ViewKind
from airflow_provider_lance.engine.views.publish import RowChanges
from airflow_provider_lance.engine.views.scan_tasks import (
    ROWS_PER_SPARK_TASK,
    Producer,
    QueryProducer,
    Scan,
    ScanTask,
    WrittenFragments,
    count_rows,
    plan_tasks,
    run_in_driver,
    run_on_spark,
)
from airflow_provider_lance.engine.views.source_changes import Changes, NotComparable, find_changes
from airflow_provider_lance.storage.table import fragments_of
from airflow_provider_lance.storage.view_state import RefreshDetails

if TYPE_CHECKING:
    import lance
    import numpy as np
    from numpy.typing import NDArray

#: The technique of views whose rows come each from one source row.
CHANGED_ROWS = "changed rows"


class QueryView(ViewKind[Changes]):
    """``SELECT … FROM one table [WHERE …] [LIMIT n]``: each view row comes from one source row."""

    #: Up to this many source rows are computed in the driver.
    runs_in_driver = True  # where the rows are few

    def __init__(self, refresh: Refresh) -> None:
        super().__init__(refresh)
        assert refresh.definition.select is not None
        self.select = refresh.definition.select
        self.check_definition()

    def check_definition(self) -> None:
        """Refuse a source that lost a column of the query, or whose column no longer has the type the view stores."""
        stored = self.refresh.state.schema
        try:
            found = output_schema(self.select, self.refresh.source.dataset.schema)
            columns = stored.remove(stored.get_field_index(SOURCE_ROW_ID))
            check_same_columns(columns, found, "the view", "its query")
        except refusals() as error:
            raise JobError(
                "plan",
                f"the view's definition no longer holds over its source: {error} Bring the column back, or drop the "
                "view and create it anew.",
            ) from error

    def producer(self, extra: str | None) -> Producer:
        """Yields the view rows of a task. ``extra`` is a filter beside the one of the query."""
        return QueryProducer(self.scan(extra), self.columns())

    def scan(self, extra: str | None) -> Scan:
        source = self.refresh.source
        conditions = [condition for condition in (self.select.filter, extra) if condition]
        condition = " AND ".join(f"({condition})" for condition in conditions) or None
        return Scan(source.table, source.dataset.version, condition)

    def columns(self) -> dict[str, str]:
        """The columns that a scan yields, by name: an expression each."""
        return {item.name: item.expression for item in self.select.items} | {SOURCE_ROW_ID: "_rowid"}

    def concurrency(self) -> int | None:
        """How many Spark tasks run at once; None where the request does not say."""
        return self.refresh.request.concurrency

    def find_changes(self) -> Changes:
        points = self.refresh.state.points
        assert points is not None
        ((name, source),) = self.refresh.sources.items()
        columns = columns_read(self.select, source.dataset.schema.names)
        return find_changes(source.table, source.dataset, points[name], columns)

    def follow(self, changes: Changes) -> Computed:
        """Delete the view rows of deleted and updated source rows; write those of new and updated ones."""
        state = self.refresh.state
        gone = gone_rows(self.refresh.source.dataset, changes)
        limit = self.select.limit
        if limit is not None:
            if len(gone):
                raise NotComparable("rows of the source were updated or deleted, and a LIMIT decides by their order")
            limit = max(0, limit - state.dataset.count_rows())
        updated, removed, deleted = delete_source_rows(self.refresh.view.table, state.dataset, gone)
        written = self.write_rows(changes.fragments, changes.written, limit) if changes.fragments else []
        new = [fragment for one in written for fragment in one.metadata()]
        skipped = sum(one.skipped for one in written)
        return Computed(RowChanges(new, updated, removed), sum(one.rows for one in written), deleted, skipped=skipped)

    def rows_to_read(self, changes: Changes) -> int:
        return count_rows(self.refresh.source.dataset, changes.fragments, changes.written)

    def prospects(self) -> dict[str, Prospect]:
        return {name: self.refresh.unstable_source(name) or Prospect(CHANGED_ROWS) for name in self.refresh.sources}

    def explain(self, changes: Changes) -> RefreshDetails:
        return RefreshDetails(technique=CHANGED_ROWS)

    def rebuild(self) -> Computed:
        return self.replace_all_rows(self.write_rows(None, None, self.select.limit))

    def write_rows(
        self, fragments: tuple[int, ...] | None, extra: str | None, limit: int | None
    ) -> list[WrittenFragments]:
        """Compute the view rows of these source fragments (None: of all) under the filter ``extra``."""
        refresh = self.refresh
        rows = count_rows(refresh.source.dataset, fragments, extra)
        if not rows:
            return []
        if limit is None:
            return self._run_tasks(fragments, extra, rows)
        # The first rows in their order are the work of one reader.
        numbers = tuple(fragment.fragment_id for fragment in fragments_of(refresh.source.dataset, fragments))
        tasks = [ScanTask(0, numbers, limit, limit=limit)] if limit else []
        return run_in_driver(refresh.context, tasks, self.producer(extra), refresh.target, refresh.meter)

    def _run_tasks(self, fragments: tuple[int, ...] | None, extra: str | None, rows: int) -> list[WrittenFragments]:
        """Cut ``rows`` source rows into tasks and run them: in the driver if they are few, otherwise on Spark."""
        refresh, request, dataset = self.refresh, self.refresh.request, self.refresh.source.dataset
        udtf = refresh.definition.udtf
        in_driver = self.runs_in_driver and fits_driver(
            rows,
            fragments_of(dataset, fragments),
            driver_rows=refresh.context.driver_rows,
            concurrency=request.concurrency or request.intra_applier_concurrency,
        )
        if not in_driver and not refresh.context.spark_started:
            start_spark(refresh.context)
        refresh.meter.phase(
            COMPUTE,
            rows_total=rows if udtf is None else 0,  # nobody knows how many rows a function makes of these
            fragments_total=len(fragments or dataset.get_fragments()),
        )
        producer, size = self.producer(extra), request.source_task_size
        if in_driver:
            tasks = plan_tasks(dataset, fragments, rows_per_task=size or rows, exact=bool(size), filter=extra)
            return run_in_driver(refresh.context, tasks, producer, refresh.target, refresh.meter)
        concurrency, threads = self.concurrency(), request.intra_applier_concurrency
        tasks_at_once = concurrency or default_parallelism(refresh.context.spark.sparkContext)
        share = -(-rows // (tasks_at_once * (threads or 1)))
        tasks = plan_tasks(
            dataset,
            fragments,
            rows_per_task=size or max(1, min(share, ROWS_PER_SPARK_TASK)),
            exact=bool(size) or extra is not None,
            filter=extra,
        )
        return run_on_spark(
            refresh.context,
            tasks,
            producer,
            refresh.target,
            refresh.meter,
            concurrency=concurrency,
            threads=threads,
            udtf=udtf,
        )


def gone_rows(source: lance.LanceDataset, changes: Changes) -> NDArray[np.uint64]:
    """The ids of source rows whose view rows are no longer right: deleted ones and updated ones."""
    import numpy as np

    deleted = changes.deleted if changes.deleted is not None else np.empty(0, np.uint64)
    if not changes.fragments:
        return deleted
    updated = source.scanner(
        columns=["_rowid"],
        filter=changes.updated,
        fragments=fragments_of(source, changes.fragments),
        use_scalar_index=False,
    ).to_table()
    return np.concatenate([deleted, updated["_rowid"].to_numpy()])
