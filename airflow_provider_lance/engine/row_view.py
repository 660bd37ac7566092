"""Views whose rows come each from one source row: computed for the rows that changed, or for all of them.

``query`` views (one row each) and chunkers (any number each) differ only in their producer. Decides where the work
runs and what the view loses and gains; commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_lance.engine.changes import Changes, NotComparable
from airflow_provider_lance.engine.context import JobContext
from airflow_provider_lance.engine.progress import ProgressMeter
from airflow_provider_lance.engine.scan_tasks import (
    DEFAULT_ROWS_PER_FILE,
    DRIVER_BYTES,
    DRIVER_ROWS,
    ROWS_PER_SPARK_TASK,
    Producer,
    QueryProducer,
    Scan,
    ScanTask,
    Target,
    Written,
    plan_tasks,
    run_in_driver,
    run_on_spark,
)
from airflow_provider_lance.engine.session import default_parallelism
from airflow_provider_lance.engine.table import TableRef
from airflow_provider_lance.engine.udtf_spec import UdtfSpec
from airflow_provider_lance.engine.view_definition import SOURCE_ROW_ID
from airflow_provider_lance.engine.view_rows import delete_source_rows
from airflow_provider_lance.engine.view_table import RowChanges, ViewState

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True)
class Work:
    """What a view is computed with: the job, the view as it is, and its one source at the wanted version."""

    context: JobContext
    request: Mapping[str, Any]
    view: TableRef
    state: ViewState
    source_table: TableRef
    source: lance.LanceDataset
    meter: ProgressMeter

    @property
    def target(self) -> Target:
        dataset = self.state.dataset
        return Target(
            self.view,
            self.state.schema,
            self.request.get("max_rows_per_fragment") or DEFAULT_ROWS_PER_FILE,
            dataset.data_storage_version,
            new_schema=self.state.new_schema is not None,
        )


@dataclass(frozen=True)
class Computed:
    """The row changes of a refresh, ready to commit, and their figures."""

    changes: RowChanges
    rows_written: int
    rows_deleted: int
    trimmed_to: int | None = None
    skipped: int = 0


class Kind(Protocol):
    """A kind of view can always be computed from scratch; a :class:`QueryView` can also follow its source."""

    def rebuild(self) -> Computed: ...


class QueryView:
    """``SELECT … FROM one table [WHERE …] [LIMIT n]``."""

    driver_rows = DRIVER_ROWS

    def __init__(self, work: Work) -> None:
        assert work.state.definition.select is not None
        self.work = work
        self.select = work.state.definition.select

    def producer(self, extra: str | None) -> Producer:
        work = self.work
        columns = {item.name: item.expression for item in self.select.items} | {SOURCE_ROW_ID: "_rowid"}
        return QueryProducer(Scan(work.source_table, work.source.version, both(self.select.filter, extra)), columns)

    def rebuild(self) -> Computed:
        """All rows anew; the old fragments go in the same commit."""
        written = self.rows(None, None, self.select.limit)
        return replaced(self.work.state, written)

    def follow(self, changes: Changes) -> Computed:
        """Only what changed: rows of gone and updated source rows leave, rows of new and updated ones come."""
        gone = gone_rows(self.work.source, changes)
        limit = self.select.limit
        if limit is not None:
            if len(gone):
                raise NotComparable("rows of the source were updated or deleted, and a LIMIT decides by their order")
            limit = max(0, limit - self.work.state.dataset.count_rows())
        updated, removed, deleted = delete_source_rows(self.work.view, self.work.state.dataset, gone)
        written = self.rows(changes.fragments, changes.written, limit) if changes.fragments else []
        new = [fragment for one in written for fragment in one.metadata()]
        skipped = sum(one.skipped for one in written)
        return Computed(RowChanges(new, updated, removed), sum(one.rows for one in written), deleted, skipped=skipped)

    def rows(self, fragments: tuple[int, ...] | None, extra: str | None, limit: int | None) -> list[Written]:
        work = self.work
        rows = changed_rows(work.source, fragments, extra)
        if not rows:
            return []
        producer = self.producer(extra)
        if limit is not None:
            # In order and only so many: that is one reader's work.
            everything = tuple(f.fragment_id for f in work.source.get_fragments()) if fragments is None else fragments
            tasks = [ScanTask(0, everything, limit, limit=limit)] if limit else []
            return run_in_driver(work.context, tasks, producer, work.target, work.meter)
        return run_tasks(
            work, producer, fragments, extra, rows, driver_rows=self.driver_rows, udtf=work.state.definition.udtf
        )


def run_tasks(
    work: Work,
    producer: Producer,
    fragments: tuple[int, ...] | None,
    extra: str | None,
    rows: int,
    *,
    driver_rows: int,
    udtf: UdtfSpec | None = None,
) -> list[Written]:
    """Cut ``rows`` source rows into tasks and run them where that is cheaper, honouring the request's sizes."""
    # Nobody knows how many rows a function makes of these.
    total = rows if udtf is None else 0
    work.meter.phase("compute", rows_total=total, fragments_total=len(fragments or work.source.get_fragments()))
    size = work.request.get("source_task_size")
    small = rows <= driver_rows and _bytes(work.source, fragments, rows) <= DRIVER_BYTES
    asked_for_spark = any(work.request.get(key) for key in ("concurrency", "intra_applier_concurrency"))
    if small and not asked_for_spark:
        per_task = size or rows
        tasks = plan_tasks(work.source, fragments, rows_per_task=per_task, exact=bool(size), filter=extra)
        return run_in_driver(work.context, tasks, producer, work.target, work.meter)
    cores = default_parallelism(work.context.spark.sparkContext)
    threads = work.request.get("intra_applier_concurrency") or 1
    share = -(-rows // ((work.request.get("concurrency") or cores) * threads))
    tasks = plan_tasks(
        work.source,
        fragments,
        rows_per_task=size or max(1, min(share, ROWS_PER_SPARK_TASK)),
        exact=bool(size) or extra is not None,
        filter=extra,
    )
    return run_on_spark(
        work.context,
        tasks,
        producer,
        work.target,
        work.meter,
        concurrency=work.request.get("concurrency"),
        threads=work.request.get("intra_applier_concurrency"),
        udtf=udtf,
    )


def replaced(state: ViewState, written: list[Written]) -> Computed:
    """Everything the view holds goes, ``written`` comes: in one commit, so that no reader sees the view empty."""
    old = [fragment.fragment_id for fragment in state.dataset.get_fragments()]
    new = [fragment for one in written for fragment in one.metadata()]
    anew = state.new_schema is not None
    return Computed(
        RowChanges(new, [], [] if anew else old, state.schema if anew else None),
        sum(one.rows for one in written),
        state.dataset.count_rows() if old else 0,
        skipped=sum(one.skipped for one in written),
    )


def gone_rows(source: lance.LanceDataset, changes: Changes) -> Any:
    """Ids of source rows whose view rows are no longer right: deleted ones and updated ones."""
    import numpy as np

    deleted = changes.deleted if changes.deleted is not None else np.empty(0, np.uint64)
    if not changes.fragments:
        return deleted
    updated = source.scanner(
        columns=["_rowid"],
        filter=changes.updated,
        fragments=[source.get_fragment(number) for number in changes.fragments],
        use_scalar_index=False,
    ).to_table()
    return np.concatenate([deleted, updated["_rowid"].to_numpy()])


def changed_rows(source: lance.LanceDataset, fragments: tuple[int, ...] | None, extra: str | None) -> int:
    """How many rows a run will read; under ``extra`` they are counted by their versions, which is cheap."""
    if fragments is None:
        return int(source.count_rows())
    if not fragments:
        return 0
    chosen = [source.get_fragment(number) for number in fragments]
    scanner = source.scanner(columns=[], filter=extra, fragments=chosen, with_row_id=True, use_scalar_index=False)
    return int(scanner.count_rows())


def both(first: str | None, second: str | None) -> str | None:
    conditions = [condition for condition in (first, second) if condition]
    return " AND ".join(f"({condition})" for condition in conditions) or None


def _bytes(source: lance.LanceDataset, fragments: tuple[int, ...] | None, rows: int) -> int:
    """About how many bytes of data files ``rows`` rows of these fragments are; wide rows belong on Spark."""
    chosen: Iterator[Any] = (
        iter(source.get_fragments()) if fragments is None else (source.get_fragment(number) for number in fragments)
    )
    size = total = 0
    for fragment in chosen:
        size += sum(file.file_size_bytes or 0 for file in fragment.data_files())
        total += fragment.physical_rows
    return size * rows // total if total else 0
