"""The backfill job: plan, compute on Spark, commit as results arrive, and plan again after a conflict.

The steps are functions that take values and return values: request, plan, compute, checkpoint, commit, report. Only
:class:`~airflow_provider_lance.engine.backfill.execute_plan.JobTotals` and the freshness record change on the way.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict

from airflow_provider_lance.engine.backfill.execute_plan import (
    MAX_REPORTED_FAILURES,
    FailureLimit,
    JobTotals,
    execute_plan,
    failure_limit,
    fits_in_driver,
)
from airflow_provider_lance.engine.backfill.plan import Plan, count_failed, describe_plan, make_plan
from airflow_provider_lance.engine.backfill.publisher import Published, read_published
from airflow_provider_lance.engine.backfill.records.checkpoint import (
    Checkpoint,
    FilledFragment,
    SavedWork,
    job_name,
    read_saved_work,
    usable_fragments,
)
from airflow_provider_lance.engine.backfill.records.failed_rows import FailedRow, describe_failed_row
from airflow_provider_lance.engine.backfill.records.freshness import (
    FreshFragment,
    FreshnessRecord,
    load_record,
    save_record,
)
from airflow_provider_lance.engine.backfill.records.leftovers import remove_leftovers
from airflow_provider_lance.engine.backfill.sample import Sample, estimated_seconds, run_sample, sample_parallelism
from airflow_provider_lance.engine.backfill.target import BackfillTarget, check_same_column, open_target
from airflow_provider_lance.engine.job.context import JobCancelledError, JobContext, JobError
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.progress import ProgressMeter
from airflow_provider_lance.engine.spark.driver_wait import start_spark
from airflow_provider_lance.engine.spark.session import progress_host

if TYPE_CHECKING:
    import numpy as np
    from lance import LanceDataset

log = logging.getLogger(__name__)

MAX_ROUNDS = 8
_UNSAVED_VERSIONS = 50  # a record that is further behind its table is saved although nothing was committed


class BackfillResult(TypedDict):
    """The result of a backfill, as its job reports it."""

    rows_assigned: int
    rows_failed: int
    rows_remaining: int
    source_version: int
    published_version: int | None
    columns: list[str]
    fragments: int
    tasks: int
    rounds: int
    rows_computed: int
    seconds: float
    failed_rows: list[FailedRow]
    plan: NotRequired[dict[str, object]]
    sample: NotRequired[Sample]
    estimated_seconds: NotRequired[float]


@dataclass(frozen=True)
class _Start:
    """What is known when the job starts: which fragments are fresh, and what earlier attempts left.

    ``source_version`` is the version at which the first attempt of the job began; ``saved_version`` is the one up to
    which the record was saved.
    """

    record: FreshnessRecord
    saved_version: int
    saved_work: SavedWork
    finished: Mapping[str, FilledFragment]
    checkpoints: Mapping[str, list[Checkpoint]]
    source_version: int
    totals: JobTotals


def run_backfill(context: JobContext) -> BackfillResult:
    """Execute the job of ``context`` and return its result."""
    started = time.monotonic()
    target = open_target(context)
    request = target.request
    start = _read_start(target)
    plan = _plan(target, start, start.finished, target.dataset)
    scope_rows = start.totals.published.rows + plan.rows + plan.left_rows

    def result() -> BackfillResult:
        return _result(target, start, scope_rows, time.monotonic() - started)

    if request.plan or request.sample is not None:
        return {**result(), **_described(target, plan)}
    try:
        if plan.fragments:
            _write_marker(target, start)
            _fill(target, start, plan, failure_limit(request, target, scope_rows))
        _finish(target, start, cleanup=bool(plan.fragments) or start.saved_work.has_leftovers)
        return result()
    except JobCancelledError as error:
        error.result = result()
        raise


class _Described(TypedDict):
    """What a job reports that changes nothing."""

    plan: NotRequired[dict[str, object]]
    sample: NotRequired[Sample]
    estimated_seconds: NotRequired[float]


def _described(target: BackfillTarget, plan: Plan) -> _Described:
    """The plan of a backfill, what its rule makes of some rows, and from both how long it would take."""
    request = target.request
    parallel = request.concurrency or os.cpu_count() or 1
    described: _Described = {}
    if request.sample is not None:
        sample = described["sample"] = run_sample(target, request.sample)
        parallel = sample_parallelism(target)
        described["estimated_seconds"] = estimated_seconds(sample, plan.rows, parallel)
    if request.plan:
        described["plan"] = describe_plan(plan, target.table, target.dataset, target.rule, request, parallel)
        if request.sample is not None:
            described["plan"]["estimated_seconds"] = described["estimated_seconds"]
    return described


def _read_start(target: BackfillTarget) -> _Start:
    """Read the freshness record and what earlier attempts saved and committed."""
    job_id = target.context.job_id
    record = load_record(target.files, target.folder, target.rule, target.input_ids, target.target_ids)
    saved_version = record.version
    record.advance(target.dataset, target.versions.open)
    saved_work = read_saved_work(target.files, target.folder)
    # Where a failed row fails the job, not even the failed rows of an earlier attempt may be used.
    own = job_id if target.request.error_policy(target.rule).on_error == "null" else ""
    source_version = _first_version(target, record)
    published = Published()
    if source_version is not None:
        published = read_published(target.versions.open(), source_version, job_id)
        if published.fragments:
            target.context.reporter.event(
                f"Continuing: {published.fragments} fragments were committed by an earlier attempt"
            )
    return _Start(
        record=record,
        saved_version=saved_version,
        saved_work=saved_work,
        finished=usable_fragments(target.table, saved_work.finished_for(own), target.types(target.dataset)),
        checkpoints=saved_work.checkpoints_for(own),
        source_version=target.dataset.version if source_version is None else source_version,
        totals=JobTotals(published),
    )


def _first_version(target: BackfillTarget, record: FreshnessRecord) -> int | None:
    """The version at which an earlier attempt of this very job began; None if this is the first attempt."""
    job_id = target.context.job_id
    marker = target.files.read_json(_marker_path(target))
    if isinstance(marker, dict) and marker.get("job_id") == job_id:
        return int(marker["source_version"])
    return record.job[1] if record.job is not None and record.job[0] == job_id else None


def _write_marker(target: BackfillTarget, start: _Start) -> None:
    """Save the version at which this job begins, for the attempt that may have to continue it."""
    path = _marker_path(target)
    if not target.files.exists(path):
        marker = {"job_id": target.context.job_id, "source_version": start.source_version}
        target.files.write_json(path, marker)


def _marker_path(target: BackfillTarget) -> str:
    return f"{target.folder}/job-{job_name(target.context.job_id)}.json"


def _plan(target: BackfillTarget, start: _Start, finished: Mapping[str, FilledFragment], dataset: LanceDataset) -> Plan:
    published, limit = start.totals.published, target.request.num_frags
    return make_plan(
        dataset,
        target.rule,
        target.request,
        start.record,
        finished=finished,
        checkpoints=start.checkpoints,
        read_failed=lambda entry: _read_failed(target, entry),
        committed=published.files,
        limit=None if limit is None else max(0, limit - published.fragments),
    )


def _read_failed(target: BackfillTarget, entry: FreshFragment) -> np.ndarray | None:
    if entry.failed is None:
        return None
    return entry.failed.read(target.files, target.folder, entry.targets)


def _fill(target: BackfillTarget, start: _Start, plan: Plan, limit: FailureLimit | None) -> None:
    """Compute and commit a plan, and plan again for the fragments that other writers changed meanwhile."""
    context, reporter = target.context, target.context.reporter
    finished = dict(start.finished)
    with ProgressMeter(reporter, host=lambda: progress_host(context)) as meter:
        for number in range(1, MAX_ROUNDS + 1):
            start.totals.rounds = number
            if plan.works and not context.spark_started:
                if fits_in_driver(target, plan):
                    reporter.event(f"Computing {plan.rows:,} rows in the driver, without Spark")
                else:
                    start_spark(context)
            conflicts = execute_plan(target, plan, start.totals, meter, limit)
            if not conflicts:
                return
            if target.request.read_version is not None:
                reporter.event(
                    f"{len(conflicts)} fragments changed since version {plan.version} and were left as they are"
                )
                return
            reporter.check()
            dataset = target.versions.open()
            check_same_column(target, dataset)
            start.record.advance(dataset, target.versions.open)
            finished |= {filled.key: filled for filled in conflicts}
            plan = _plan(target, start, finished, dataset)
            reporter.event(
                f"{len(conflicts)} fragments changed meanwhile; continuing at version {dataset.version} with "
                f"{len(plan.works)} fragments to compute and {len(plan.ready)} to commit again"
            )
            if not plan.fragments:
                return
    raise JobError(
        "commit",
        f"Other writers changed the same fragments in each of {MAX_ROUNDS} rounds. What was committed stays; run "
        "the backfill again when the table is quieter.",
        retryable=True,
    )


def _finish(target: BackfillTarget, start: _Start, *, cleanup: bool) -> None:
    """Report failed rows, save the freshness record and remove files that are no longer needed."""
    published, record = start.totals.published, start.record
    if published.failed:
        first = f"; the first: {describe_failed_row(published.samples[0])}" if published.samples else ""
        target.context.reporter.event(
            f"{published.failed:,} of {published.rows:,} rows failed and have no value{first}"
        )
    head = target.versions.open()
    record.advance(head, target.versions.open)
    if published.version is not None or record.version - start.saved_version > _UNSAVED_VERSIONS:
        record.prune(head)
        if published.version is not None:
            record.job = (target.context.job_id, start.source_version)
        save_record(target.files, target.folder, record)
    failpoint("record-saved")
    if cleanup:
        removed = remove_leftovers(target.files, target.folder, head, target.target_ids)
        log.info("Removed %d files of finished and dead attempts", len(removed))


def _result(target: BackfillTarget, start: _Start, scope_rows: int, seconds: float) -> BackfillResult:
    totals = start.totals
    published = totals.published
    return {
        "rows_assigned": published.assigned,
        "rows_failed": published.failed,
        "rows_remaining": _remaining_rows(target, start.record, published, scope_rows),
        "source_version": start.source_version,
        "published_version": published.version,
        "columns": list(target.rule.targets),
        "fragments": published.fragments,
        "tasks": totals.tasks,
        "rounds": totals.rounds,
        "rows_computed": totals.rows_computed,
        "seconds": round(seconds, 3),
        "failed_rows": published.samples[:MAX_REPORTED_FAILURES],
    }


def _remaining_rows(target: BackfillTarget, record: FreshnessRecord, published: Published, scope_rows: int) -> int:
    """The live rows in scope that still have no fresh value."""
    if target.request.where is not None:
        return max(0, scope_rows - published.assigned)
    head = target.versions.open()
    record.advance(head, target.versions.open)
    remaining = 0
    identities = record.identities.at(head)
    for fragment in head.get_fragments():
        entry = record.get(identities[fragment.fragment_id])
        if entry is None:
            remaining += fragment.physical_rows - fragment.num_deletions
        else:
            remaining += count_failed(fragment, entry, target.rule, lambda entry: _read_failed(target, entry))
    return remaining
