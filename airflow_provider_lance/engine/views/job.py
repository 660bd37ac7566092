"""Refresh a materialized view: find what changed, compute it, publish it in one commit, write the bookmark.

Rows are committed first and the bookmark second, each of them exactly on the version that was read. The next refresh
finishes one that was interrupted in between. A refresh that loses a race starts over from the version of the winner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_lance.definitions.backfill_request import only_plans
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.definitions.json_types import JsonObject
from airflow_provider_lance.definitions.refresh_policy import AUTO, STRICT
from airflow_provider_lance.definitions.refresh_request import RefreshRequest
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.job.context import JobContext, JobError
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.progress import ProgressMeter
from airflow_provider_lance.engine.spark.session import progress_host
from airflow_provider_lance.engine.views.chunker_view import ChunkerView
from airflow_provider_lance.engine.views.commit_next import ViewMovedError, ViewTable
from airflow_provider_lance.engine.views.kinds import C, Computed, Refresh, Source, ViewKind
from airflow_provider_lance.engine.views.publish import write_bookmark, write_rows
from airflow_provider_lance.engine.views.query_view import QueryView
from airflow_provider_lance.engine.views.source_changes import NotComparable
from airflow_provider_lance.engine.views.table_function_view import UdtfView
from airflow_provider_lance.storage.manifests import version_timestamp
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.view_state import (
    Outcome,
    Rebuilt,
    SourcePoint,
    ViewState,
    read_finished,
    read_state,
)

ATTEMPTS = 5


def _spark_view(refresh: Refresh) -> ViewKind[Any]:
    # The module has classes of Spark's data sources, so it imports PySpark.
    from airflow_provider_lance.engine.views.spark_view import SparkView

    return SparkView(refresh)


#: How a view is computed, by the kind and the dialect of its definition.
KINDS: Mapping[tuple[str, str], Callable[[Refresh], ViewKind[Any]]] = {
    ("query", "lance"): QueryView,
    ("query", "spark"): _spark_view,
    ("chunker", "lance"): ChunkerView,
    ("udtf", "lance"): UdtfView,
}


def run_refresh(context: JobContext) -> JsonObject:
    """Bring the view of ``context.spec`` up to its source.

    Returns ``{mode, rows_written, rows_deleted, source_version, version, seconds}``, with ``reason`` for a rebuild and
    wherever there is something to explain, and with how the rows were found (:class:`RefreshDetails`). Raises
    :class:`JobError` with the phase that failed.
    """
    started = time.monotonic()
    view = _view(context)
    with ProgressMeter(context.reporter, host=lambda: progress_host(context)) as meter:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result = _refresh(context, view, meter)
            except ViewMovedError as moved:
                # What was computed is dropped, because rows are only added to the version that they were made for.
                context.reporter.event(f"{moved}; starting over", attempt=attempt)
                continue
            except refusals() as error:
                raise JobError("plan", str(error)) from error
            return {**result, "seconds": round(time.monotonic() - started, 3)}
    raise JobError("commit", f"the view was changed by others during {ATTEMPTS} refreshes in a row", retryable=True)


def _refresh(context: JobContext, view: ViewTable, meter: ProgressMeter) -> JsonObject:
    meter.phase("plan")
    context.reporter.check()
    only_planned = only_plans(context.spec.options)
    state = _state(view)
    context.runs(state.definition.user_code)
    request = RefreshRequest.parse(state.definition, context.spec.request)
    finished: JsonObject | None = None
    if state.unfinished is not None and not only_planned:
        finished = _finish(context, view, state, state.unfinished)
        state = _state(view)
    refresh = Refresh(context, meter, request, view, state, _open_sources(context, state.definition, request))
    earlier = read_finished(state, context.job_id) if context.attempt > 1 else None
    if earlier is not None and _is_up_to_date(replace(refresh, request=replace(request, policy=AUTO))):
        return _result(*earlier)  # an earlier attempt did all of it, and its report was lost
    if _is_up_to_date(refresh):
        return finished or _result(Outcome(refresh.points, "no_op"), state.version)
    kind = _kind(refresh)
    if only_planned:
        return _plan(refresh, kind)
    _check_can_follow(refresh, kind)
    outcome, computed = _compute(refresh, kind)
    version = state.version
    meter.phase("commit")
    if not computed.changes.empty:
        context.reporter.check_commit()
        failpoint("view-before-rows")
        version = write_rows(view, state, computed.changes, outcome, context.job_id)
    failpoint("view-between-commits")
    context.reporter.check_commit()
    version = write_bookmark(view, version, outcome, context.job_id)
    meter.phase("done")
    return _result(outcome, version)


def _kind(refresh: Refresh) -> ViewKind[Any]:
    definition = refresh.definition
    kind = KINDS.get((definition.kind, definition.dialect))
    if kind is None:
        raise JobError("plan", "the view's table function reads one table, and its source query is Spark SQL")
    return kind(refresh)


def _compute(refresh: Refresh, kind: ViewKind[C]) -> tuple[Outcome, Computed]:
    """The row changes from the view as it is to what it should be, incrementally where that is right."""
    mode, reason, rebuilt = "incremental", None, None
    try:
        changes = _changes(refresh, kind)
        details = kind.explain(changes)
        computed = kind.follow(changes)
    except NotComparable as because:
        _refuse_rebuild(refresh, because)
        mode, reason = "rebuild", str(because)
        details = because.details
        refresh.context.reporter.event(f"rebuilding the view: {reason}")
        started = time.monotonic()
        computed = kind.rebuild()
        rebuilt = Rebuilt(round(time.monotonic() - started, 3), _source_rows(refresh))
    outcome = Outcome(
        refresh.points,
        mode,
        computed.rows_written,
        computed.rows_deleted,
        computed.skipped,
        reason,
        computed.trimmed_to,
        details,
        rebuilt,
    )
    return outcome, computed


def _plan(refresh: Refresh, kind: ViewKind[C]) -> JsonObject:
    """What a refresh would do: its mode, its reason, and how many source rows it would read."""
    try:
        changes = _changes(refresh, kind)
        outcome = Outcome(refresh.points, "incremental", details=kind.explain(changes))
        rows = kind.rows_to_read(changes)
    except NotComparable as because:
        refused = _refusal(refresh, because)
        mode = "rebuild" if refused is None else "refused"
        outcome = Outcome(refresh.points, mode, reason=refused or str(because), details=because.details)
        rows = _source_rows(refresh)
    follows: JsonObject = {name: prospect.to_dict() for name, prospect in kind.prospects().items()}
    return {**_result(outcome, refresh.state.version), "plan": {"source_rows": rows, "follows": follows}}


def _check_can_follow(refresh: Refresh, kind: ViewKind[Any]) -> None:
    """Refuse the first rows of a view that must follow its sources and never could."""
    if refresh.request.policy != STRICT or refresh.state.has_rows:
        return
    for name, prospect in kind.prospects().items():
        if prospect.reason is not None:
            raise JobError(
                "plan",
                f"Changes of {name} can never be followed, which refresh_policy incremental_strict demands: "
                f"{prospect.reason}. Change the query, or choose the policy auto.",
            )


def _refuse_rebuild(refresh: Refresh, because: NotComparable) -> None:
    refused = _refusal(refresh, because)
    if refused is not None:
        raise JobError("plan", refused)


def _refusal(refresh: Refresh, because: NotComparable) -> str | None:
    """Why a view must not be rebuilt, or None where it may. The first rows are always computed whole."""
    if refresh.request.policy != STRICT or not refresh.state.has_rows:
        return None
    return (
        f"The view would have to be computed anew, and refresh_policy incremental_strict forbids that: {because}. "
        "A refresh with refresh_policy full or auto does it."
    )


def _source_rows(refresh: Refresh) -> int:
    return sum(source.dataset.count_rows() for source in refresh.sources.values())


def _changes(refresh: Refresh, kind: ViewKind[C]) -> C:
    """What changed since the last refresh; raises NotComparable with the reason where only a rebuild is right."""
    if refresh.request.full:
        raise NotComparable("a full refresh was asked for")
    if refresh.state.points is None:
        raise NotComparable(refresh.state.doubt or "the view's state is not known")
    return kind.find_changes()


def _finish(context: JobContext, view: ViewTable, state: ViewState, outcome: Outcome) -> JsonObject:
    """Write the bookmark of a refresh that was interrupted after its row commit; its rows are not touched again."""
    context.reporter.event("finishing a refresh that was interrupted between its two commits")
    context.reporter.check_commit()
    version = write_bookmark(view, state.version, outcome, context.job_id)
    return _result(replace(outcome, reason="finished a refresh that was interrupted between its two commits"), version)


def _is_up_to_date(refresh: Refresh) -> bool:
    state, limit = refresh.state, refresh.request.output_limit
    if refresh.request.full or state.points != refresh.points:
        return False
    if state.trimmed_to == limit:
        return True
    # A view that was not trimmed may be within the limit anyway.
    return state.trimmed_to is None and (limit is None or state.dataset.count_rows() <= limit)


def _result(outcome: Outcome, version: int) -> JsonObject:
    first = next(iter(outcome.points.values()))
    result: JsonObject = {
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
    return result | outcome.details.to_result()


def _view(context: JobContext) -> ViewTable:
    spec = context.spec
    table = TableRef(spec.location, storage_options=context.storage_options)
    return ViewTable(table, lambda: context.namespace, tuple(spec.table_id), spec.managed)


def _state(view: ViewTable) -> ViewState:
    try:
        return read_state(view.table)
    except (OSError, ValueError) as error:
        raise JobError("plan", f"the view cannot be opened: {error}") from error


def _open_sources(context: JobContext, definition: ViewDefinition, request: RefreshRequest) -> dict[str, Source]:
    wanted = request.src_version
    sources = {}
    for name in definition.sources:
        location = context.spec.tables.get(name)
        if location is None:
            raise JobError("plan", f"the view reads {name}, and the job was given no location for it")
        table = TableRef(location, storage_options=context.storage_options)
        try:
            dataset = table.open(wanted)
        except (OSError, ValueError) as error:
            at = f" at version {wanted}" if wanted else ""
            raise JobError("plan", f"the view's source {name} cannot be opened{at}: {error}") from error
        point = SourcePoint(dataset.version, version_timestamp(table, dataset.version))
        sources[name] = Source(table, dataset, point)
    return sources
