"""One round of a backfill: compute the fragments of a plan on Spark and commit them as they are finished."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from airflow_provider_lance.definitions.backfill_request import BackfillRequest
from airflow_provider_lance.definitions.functions.envelope import RESOURCES
from airflow_provider_lance.engine.backfill.plan import Plan, group_tasks
from airflow_provider_lance.engine.backfill.publisher import Published, Publisher
from airflow_provider_lance.engine.backfill.records.checkpoint import FilledFragment
from airflow_provider_lance.engine.backfill.records.failed_rows import FailedRow, describe_failed_row
from airflow_provider_lance.engine.backfill.target import BackfillTarget
from airflow_provider_lance.engine.backfill.task import FillSettings, FlushPolicy, FragmentWork, TaskFailure, TaskResult
from airflow_provider_lance.engine.backfill.task_pool import DriverTaskPool, SparkTaskPool
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.job.driver_work import fits_driver
from airflow_provider_lance.engine.job.progress import COMPUTE, ProgressMeter, TaskFigures
from airflow_provider_lance.engine.spark.driver_wait import ExecutorWatch
from airflow_provider_lance.engine.spark.session import default_parallelism
from airflow_provider_lance.engine.spark.task_resources import slots
from airflow_provider_lance.engine.spark.worker_errors import worker_death, worker_error
from airflow_provider_lance.storage.commits import Committer
from airflow_provider_lance.storage.table import fragments_of

MAX_REPORTED_FAILURES = 20
_WAIT_SECONDS = 0.2


@dataclass
class JobTotals:
    """What the job has done so far. It is counted in place, because a cancelled job reports it too."""

    published: Published
    tasks: int = 0
    rounds: int = 0
    rows_computed: int = 0


@dataclass(frozen=True)
class FailureLimit:
    """How many rows may fail, and the limit of the request as a message names it."""

    rows: int
    name: str


def failure_limit(request: BackfillRequest, target: BackfillTarget, scope_rows: int) -> FailureLimit | None:
    """The stricter of the request's limits. ``scope_rows`` are the rows that a ``where`` clause selects."""
    rows, share = request.max_failed_rows, request.max_failed_fraction
    limits = [] if rows is None else [FailureLimit(rows, f"max_failed_rows {rows:,}")]
    if share is not None:
        # It is a share of all live rows, so that a second run, which computes only the failed rows, has the same limit.
        live = scope_rows if request.where is not None else target.dataset.count_rows()
        limits.append(FailureLimit(int(share * live), f"max_failed_fraction {share:g} of {live:,} rows"))
    return min(limits, key=lambda limit: limit.rows, default=None)


@dataclass(frozen=True)
class _Round:
    target: BackfillTarget
    plan: Plan
    totals: JobTotals
    meter: ProgressMeter
    publisher: Publisher
    limit: FailureLimit | None
    failed_before: int  # rows that failed in earlier attempts, which the meter does not count


def fits_in_driver(target: BackfillTarget, plan: Plan) -> bool:
    """Whether the driver computes a plan itself, by the same rule as a refresh. Functions always run on Spark."""
    if target.rule.expression is None:
        return False
    request, dataset = target.request, target.versions.open(plan.version)
    return fits_driver(
        sum(work.rows for work in plan.works),  # a column file has all rows of its fragment
        fragments_of(dataset, [work.fragment_id for work in plan.works]),
        driver_rows=target.context.driver_rows,
        concurrency=request.concurrency or request.intra_applier_concurrency,
    )


def execute_plan(
    target: BackfillTarget, plan: Plan, totals: JobTotals, meter: ProgressMeter, limit: FailureLimit | None
) -> list[FilledFragment]:
    """Compute and commit a plan; returns the fragments that could not be committed at its version."""
    published = totals.published
    # The meter also counts fragments that an earlier round computed and could not commit.
    failed_before = published.failed - meter.rows_failed
    meter.phase(COMPUTE, fragments_total=published.fragments + plan.fragments, rows_total=published.rows + plan.rows)
    publisher = _publisher(target, plan, published)
    this = _Round(target, plan, totals, meter, publisher, limit, failed_before)
    for filled in plan.ready:
        meter.task_done(f"ready-{filled.key}", TaskFigures(1, filled.counts.rows, filled.counts.failed))
        publisher.add(filled)
    _check_failures(this)
    if plan.works:
        _compute(this)
    publisher.commit_all()
    return publisher.conflicts


def _publisher(target: BackfillTarget, plan: Plan, published: Published) -> Publisher:
    context, request = target.context, target.request
    spec = context.spec
    namespace = context.namespace if spec.managed else None
    return Publisher(
        committer=Committer(target.table, context.job_id, namespace, tuple(spec.table_id), spec.managed),
        reporter=context.reporter,
        dataset=target.versions.open(plan.version),
        rule=target.rule.fingerprint,
        target_ids=target.target_ids,
        published=published,
        granularity=request.commit_granularity,
        retry_alone=request.read_version is not None,
    )


def _compute(this: _Round) -> None:
    target, totals, publisher = this.target, this.totals, this.publisher
    context, request = target.context, target.request
    in_driver = not context.spark_started
    parallel = 1 if in_driver else _tasks_at_once(target)
    tasks = group_tasks(this.plan, target.rule, request, parallel)
    totals.tasks += len(tasks)
    split = _SplitFragments(this.plan, tasks)
    settings = _settings(this)
    executors = None if in_driver else ExecutorWatch(context)
    # Without a limit, the next task of each core waits inside Spark and not for the driver to send it.
    demanding = target.rule.envelope is not None and not target.rule.envelope.limits.keys().isdisjoint(RESOURCES)
    at_once = parallel if demanding else request.concurrency or 2 * parallel
    group, label = f"{context.job_id}-{totals.rounds}", f"backfill {request.column}"
    with DriverTaskPool() if in_driver else SparkTaskPool(context.spark, group, label, at_once) as pool:
        pending = {pool.submit(settings, task): task for task in tasks}
        while pending:
            done, _ = wait(pending, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
            context.reporter.check()
            if executors is not None:
                executors.check()
            _check_failures(this)
            for future in done:
                task = pending.pop(future)
                result = _task_result(target, future)
                this.meter.task_done(result.task, result.figures)
                totals.rows_computed += result.rows_computed
                for filled in result.filled:
                    publisher.add(filled)
                whole = split.finish(task, result)
                if whole is not None:
                    pending[pool.submit(settings, whole)] = whole
            _check_failures(this)
            publisher.commit_due()


def _tasks_at_once(target: BackfillTarget) -> int:
    """As many tasks as the request asks for and the cluster has resources for."""
    context, envelope = target.context.spark.sparkContext, target.rule.envelope
    if envelope is None or envelope.limits.keys().isdisjoint(RESOURCES):
        return target.request.concurrency or default_parallelism(context)
    at_once = slots(context, envelope)
    return min(target.request.concurrency or at_once, at_once)


class _SplitFragments:
    """The fragments that several tasks compute; when the last of these ends, another task writes the column file."""

    def __init__(self, plan: Plan, tasks: list[list[FragmentWork]]) -> None:
        self._works = {work.key: work for work in plan.works}
        self._checkpoints = {work.key: list(work.checkpoints) for work in plan.works}
        self._running: dict[str, int] = {}
        for first, *_ in tasks:
            if not first.assemble:
                self._running[first.key] = self._running.get(first.key, 0) + 1

    def finish(self, task: list[FragmentWork], result: TaskResult) -> list[FragmentWork] | None:
        """Keep what a task of a split fragment saved; returns the work to write its file after the last of them."""
        if task[0].assemble:
            return None
        key = task[0].key
        self._checkpoints[key].extend(result.checkpoints)
        self._running[key] -= 1
        if self._running[key]:
            return None
        return [replace(self._works[key], checkpoints=tuple(self._checkpoints[key]))]


def _settings(this: _Round) -> FillSettings:
    target, request = this.target, this.target.request
    return FillSettings(
        table=target.table,
        version=this.plan.version,
        rule=target.rule,
        policy=request.error_policy(target.rule),
        folder=target.folder,
        job_id=target.context.job_id,
        flush=FlushPolicy(
            request.flush_seconds, request.checkpoint_size, request.min_checkpoint_size, request.max_checkpoint_size
        ),
        threads=request.intra_applier_concurrency or 1,
        address=this.meter.address if target.context.spark_started else None,
        secrets=target.context.secrets,
    )


def _task_result(target: BackfillTarget, future: Future[TaskResult | TaskFailure]) -> TaskResult:
    try:
        answer = future.result()
    except Exception as error:
        reason = worker_death(error, _rule_name(target)) or f"Spark gave up on a task: {worker_error(error)}"
        raise JobError("compute", f"{target.name}: {reason}", retryable=True) from error
    if isinstance(answer, TaskFailure):
        raise JobError(
            answer.phase, f"{target.name}: {answer.message}", retryable=answer.retryable, traceback=answer.traceback
        )
    return answer


def _rule_name(target: BackfillTarget) -> str:
    envelope = target.rule.envelope
    return f"the function {envelope.path}" if envelope is not None and envelope.path else "its rule"


def _check_failures(this: _Round) -> None:
    """Fail the job as soon as it is known that too many rows fail, and before any commit that has them."""
    limit, published, waiting = this.limit, this.totals.published, this.publisher.waiting
    if limit is None:
        return
    # The meter knows the rows of running tasks; finished fragments also have what an earlier attempt computed.
    running = this.failed_before + this.meter.rows_failed
    finished = published.failed + sum(filled.counts.failed for filled in waiting)
    failed = max(running, finished)
    if failed > limit.rows:
        examples = [*published.samples, *(row for filled in waiting for row in filled.samples)]
        if not examples and this.meter.example:
            examples = [FailedRow(message=this.meter.example)]
        first = f"; the first: {describe_failed_row(examples[0])}" if examples else ""
        raise JobError(
            "compute",
            f"{this.target.name}: {failed:,} rows failed, more than {limit.name}{first}",
            rows_failed=failed,
            failed_rows=examples[:MAX_REPORTED_FAILURES],
        )
