"""Refresh a materialized view: decide what is to do, have it computed, publish it in one commit, move the bookmark.

The order is the promise: rows first, bookmark second, each exactly on the version that was read. A refresh that was
interrupted in between is finished by the next one; a refresh that loses a race starts over from what the winner left.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError

from airflow_provider_lance.engine.changes import Changes, NotComparable, SourcePoint, find_changes, version_timestamp
from airflow_provider_lance.engine.context import JobContext, JobError
from airflow_provider_lance.engine.faults import reach
from airflow_provider_lance.engine.progress import ProgressMeter
from airflow_provider_lance.engine.request import only_plans
from airflow_provider_lance.engine.row_view import Computed, Kind, QueryView, Work, changed_rows
from airflow_provider_lance.engine.table import TableRef
from airflow_provider_lance.engine.view_binding import check_same, columns_read, output_schema
from airflow_provider_lance.engine.view_commit import ViewMovedError, ViewTable
from airflow_provider_lance.engine.view_definition import SOURCE_ROW_ID, validate_refresh_request
from airflow_provider_lance.engine.view_table import (
    Outcome,
    ViewState,
    read_finished,
    read_state,
    write_bookmark,
    write_rows,
)

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

ATTEMPTS = 5


def run_refresh(context: JobContext) -> dict[str, Any]:
    """Bring the view of ``context.spec`` up to its source.

    Returns ``{mode, rows_written, rows_deleted, source_version, version, seconds}``, with ``reason`` for a rebuild and
    wherever there is something to explain. Raises :class:`JobError` with the phase that failed.
    """
    started = time.monotonic()
    view = _view(context)
    with ProgressMeter(context.reporter, host=_progress_host()) as meter:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result = _refresh(context, view, meter)
            except ViewMovedError as moved:
                # What was computed is dropped: rows are only ever added to the version they were made for.
                context.reporter.event(f"{moved}; starting over", attempt=attempt)
                continue
            except LanceNamespaceError as error:
                raise JobError("plan", str(error)) from error
            return {**result, "seconds": round(time.monotonic() - started, 3)}
    raise JobError("commit", f"the view was changed by others during {ATTEMPTS} refreshes in a row", retryable=True)


def _refresh(context: JobContext, view: ViewTable, meter: ProgressMeter) -> dict[str, Any]:
    meter.phase("plan")
    context.reporter.check()
    state = _state(view)
    request = {key: value for key, value in context.spec.request.items() if value is not None}
    validate_refresh_request(state.definition, request)
    finished: dict[str, Any] | None = None
    if state.unfinished is not None and not _only_planned(context):
        finished = _finish(context, view, state, state.unfinished)
        state = _state(view)
    sources = _open_sources(context, state, request)
    points = {name: SourcePoint(source.version, version_timestamp(source)) for name, source in sources.items()}
    earlier = read_finished(state, context.job_id) if context.attempt > 1 else None
    if earlier is not None and _up_to_date(state, points, {**request, "full": None}):
        return _result(*earlier)  # an attempt that was not heard has done it all, also what was asked for in full
    if _up_to_date(state, points, request):
        return finished or _result(Outcome(points, "no_op"), state.version)
    kind = _kind(context, view, state, sources, request, meter)
    if _only_planned(context):
        return _plan(kind, state, sources, points, request)
    outcome, computed = _compute(context, kind, state, sources, points, request)
    version = state.version
    meter.phase("commit")
    if not computed.changes.empty:
        context.reporter.check_commit()
        reach("view-before-rows")
        version = write_rows(view, state, computed.changes, outcome, context.job_id)
    reach("view-between-commits")
    context.reporter.check_commit()
    version = write_bookmark(view, version, outcome, context.job_id)
    meter.phase("done")
    return _result(outcome, version)


def _compute(
    context: JobContext,
    kind: Kind,
    state: ViewState,
    sources: Mapping[str, lance.LanceDataset],
    points: Mapping[str, SourcePoint],
    request: Mapping[str, Any],
) -> tuple[Outcome, Computed]:
    """The row changes from the view as it is to what it should be, incrementally where that is right."""
    try:
        computed = _followed(kind, state, sources, request)
        mode, reason = "incremental", None
    except NotComparable as because:
        mode, reason = "rebuild", str(because)
        context.reporter.event(f"rebuilding the view: {reason}")
        computed = kind.rebuild()
    outcome = Outcome(
        points,
        mode,
        computed.rows_written,
        computed.rows_deleted,
        computed.skipped,
        reason,
        computed.trimmed_to,
    )
    return outcome, computed


def _plan(
    kind: Kind,
    state: ViewState,
    sources: Mapping[str, lance.LanceDataset],
    points: Mapping[str, SourcePoint],
    request: Mapping[str, Any],
) -> dict[str, Any]:
    """What a refresh would do, without doing any of it: mode, reason, and how many source rows it would read."""
    try:
        _, changes = _changes(kind, state, sources, request)
        outcome = Outcome(points, "incremental")
        rows = changed_rows(next(iter(sources.values())), changes.fragments, changes.written)
    except NotComparable as because:
        outcome = Outcome(points, "rebuild", reason=str(because))
        rows = sum(source.count_rows() for source in sources.values())
    return {**_result(outcome, state.version), "plan": {"source_rows": rows}}


def _only_planned(context: JobContext) -> bool:
    return only_plans(context.spec.options)


def _followed(
    kind: Kind, state: ViewState, sources: Mapping[str, lance.LanceDataset], request: Mapping[str, Any]
) -> Computed:
    view, changes = _changes(kind, state, sources, request)
    return view.follow(changes)


def _changes(
    kind: Kind, state: ViewState, sources: Mapping[str, lance.LanceDataset], request: Mapping[str, Any]
) -> tuple[QueryView, Changes]:
    """What changed since the last refresh; raises NotComparable with the reason where only a rebuild is right."""
    if request.get("full"):
        raise NotComparable("a full refresh was asked for")
    if state.points is None:
        raise NotComparable(state.doubt or "the view's state is not known")
    if not isinstance(kind, QueryView):
        udtf = state.definition.kind == "udtf"
        what = "its table function sees all rows together" if udtf else "its query is Spark SQL"
        raise NotComparable(f"the source changed, and {what}")
    (name,) = state.definition.sources
    source = sources[name]
    return kind, find_changes(source, state.points[name], columns_read(kind.select, source.schema.names))


def _kind(
    context: JobContext,
    view: ViewTable,
    state: ViewState,
    sources: Mapping[str, lance.LanceDataset],
    request: Mapping[str, Any],
    meter: ProgressMeter,
) -> Kind:
    definition = state.definition
    name, source = next(iter(sources.items()))
    work = Work(context, request, view.table, state, _table(context, name), source, meter)
    if definition.dialect == "lance" and definition.kind == "query":
        _check_still_holds(state, source.schema)
        return QueryView(work)
    if definition.dialect == "lance" and definition.kind == "chunker":
        from airflow_provider_lance.engine.chunker import ChunkerView

        assert definition.select is not None
        output_schema(definition.select, source.schema)
        return ChunkerView(work)
    if definition.dialect == "lance" and definition.kind == "udtf":
        from airflow_provider_lance.engine.udtf import UdtfView

        return UdtfView(work)
    if definition.udtf is not None:
        raise JobError("plan", "the view's table function reads one table, and its source query is Spark SQL")
    from airflow_provider_lance.engine.spark_view import SparkView

    return SparkView(work, {name: (_table(context, name), dataset) for name, dataset in sources.items()})


def _check_still_holds(state: ViewState, source: pa.Schema) -> None:
    """The source may have changed under the view: a column gone, or of another type than the view stores."""
    assert state.definition.select is not None
    try:
        now = output_schema(state.definition.select, source)
        stored = state.schema
        check_same(stored.remove(stored.get_field_index(SOURCE_ROW_ID)), now, "the view", "its query")
    except LanceNamespaceError as error:
        raise JobError(
            "plan",
            f"the view's definition no longer holds over its source: {error} Bring the column back, or drop the view "
            "and create it anew.",
        ) from error


def _finish(context: JobContext, view: ViewTable, state: ViewState, outcome: Outcome) -> dict[str, Any]:
    """The second commit of a refresh that was interrupted after its first; its rows are not touched again."""
    context.reporter.event("finishing a refresh that was interrupted between its two commits")
    context.reporter.check_commit()
    version = write_bookmark(view, state.version, outcome, context.job_id)
    return _result(replace(outcome, reason="finished a refresh that was interrupted between its two commits"), version)


def _up_to_date(state: ViewState, points: Mapping[str, SourcePoint], request: Mapping[str, Any]) -> bool:
    if request.get("full") or state.points != points:
        return False
    return state.trimmed_to == request.get("output_limit") or _fits(state, request.get("output_limit"))


def _fits(state: ViewState, limit: int | None) -> bool:
    """Whether a view that was not cut is within ``limit`` anyway."""
    return state.trimmed_to is None and (limit is None or state.dataset.count_rows() <= limit)


def _result(outcome: Outcome, version: int) -> dict[str, Any]:
    first = next(iter(outcome.points.values()))
    result: dict[str, Any] = {
        "mode": outcome.mode,
        "rows_written": outcome.rows_written,
        "rows_deleted": outcome.rows_deleted,
        "source_version": first.version,
        "version": version,
    }
    if outcome.rows_failed:
        result["rows_failed"] = outcome.rows_failed
    if outcome.reason is not None:
        result["reason"] = outcome.reason
    return result


def _progress_host() -> str | None:
    """The address executors reach this driver at; None is this machine. Asked before anything has started Spark."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf()
    if str(conf.get("spark.master", "local")).startswith("local"):
        return None
    return conf.get("spark.driver.host") or socket.getfqdn()


def _view(context: JobContext) -> ViewTable:
    spec = context.spec
    table = TableRef(spec.location, storage_options=context.storage_options)
    return ViewTable(table, context.namespace, tuple(spec.table_id), spec.managed)


def _state(view: ViewTable) -> ViewState:
    try:
        return read_state(view.table)
    except (OSError, ValueError) as error:
        raise JobError("plan", f"the view cannot be opened: {error}") from error


def _table(context: JobContext, name: str) -> TableRef:
    location = context.spec.tables.get(name)
    if location is None:
        raise JobError("plan", f"the view reads {name}, and the job was given no location for it")
    return TableRef(location, storage_options=context.storage_options)


def _open_sources(context: JobContext, state: ViewState, request: Mapping[str, Any]) -> dict[str, lance.LanceDataset]:
    wanted = request.get("src_version")
    sources = {}
    for name in state.definition.sources:
        try:
            sources[name] = _table(context, name).open(wanted)
        except (OSError, ValueError) as error:
            at = f" at version {wanted}" if wanted else ""
            raise JobError("plan", f"the view's source {name} cannot be opened{at}: {error}") from error
    return sources
