"""A column's rule tried on a few rows: inputs, results and seconds, without writing anything.

The rows are spread over the table. Functions run in a Spark worker, as in a backfill; SQL runs in the driver.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeoutError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict

from airflow_provider_lance.definitions.column_rules import ColumnRule
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy, Retry, Skip, UdfError
from airflow_provider_lance.engine.backfill.apply_function import opened_function
from airflow_provider_lance.engine.backfill.evaluate import RowSelection, evaluate_rule, matching_rows, read_inputs
from airflow_provider_lance.engine.backfill.records.failed_rows import decode_rows, encode_rows
from airflow_provider_lance.engine.backfill.row_batches import batch_sizer_for
from airflow_provider_lance.engine.backfill.target import BackfillTarget
from airflow_provider_lance.engine.backfill.task import TaskFailure
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.spark.driver_wait import start_spark
from airflow_provider_lance.engine.spark.python_worker import limit_threads, prepare_python_worker
from airflow_provider_lance.engine.spark.task_resources import slots, with_resources
from airflow_provider_lance.engine.spark.worker_errors import worker_death, worker_error
from airflow_provider_lance.storage.row_address import row_address
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    from lance import LanceDataset

_FRAGMENTS = 8
_MOST_TEXT = 200
_MOST_ITEMS = 8
_WAIT_SECONDS = 0.2
_BATCH_SECONDS = 1.0


class SampledRow(TypedDict):
    """One row of a sample. Long texts and lists are cut; ``error`` is there where the rule failed."""

    row_address: int
    inputs: dict[str, object]
    outputs: dict[str, object]
    error: NotRequired[str]


class Sample(TypedDict):
    """The result of a sample. ``seconds_per_row`` leaves out what ``setup_seconds`` has."""

    rows: list[SampledRow]
    rows_failed: int
    seconds_per_row: float
    setup_seconds: float


@dataclass(frozen=True)
class SampleTask:
    """What a worker needs to try a rule; ``rows`` are encoded row numbers by fragment."""

    table: TableRef
    version: int
    rule: ColumnRule
    policy: ErrorPolicy
    rows: dict[int, str]


def run_sample(target: BackfillTarget, count: int) -> Sample:
    """Try the rule of a backfill on at most ``count`` rows."""
    task = SampleTask(
        table=target.table,
        version=target.dataset.version,
        rule=target.rule,
        policy=_reporting(target.request.error_policy(target.rule)),
        rows=choose_rows(target.dataset, target.request.where, count),
    )
    answer = attempt_sample(task) if target.rule.envelope is None else _on_spark(target, task)
    if isinstance(answer, TaskFailure):
        raise JobError(
            answer.phase, f"{target.name}: {answer.message}", retryable=answer.retryable, traceback=answer.traceback
        )
    return answer


def choose_rows(dataset: LanceDataset, where: str | None, count: int) -> dict[int, str]:
    """At most ``count`` live rows that the clause selects, spread over some fragments and over their rows."""
    import numpy as np

    fragments = [each for each in dataset.get_fragments() if each.physical_rows > each.num_deletions]
    spread = fragments[:: max(1, len(fragments) // _FRAGMENTS)]
    chosen: dict[int, str] = {}
    missing = count
    # Where the clause selects too few rows of these fragments, the other ones are searched.
    for number, fragment in enumerate([*spread, *(each for each in fragments if each not in spread)]):
        if not missing:
            break
        rows = matching_rows(fragment, where)
        share = min(len(rows), -(-missing // max(1, len(spread) - number)))
        if share:
            chosen[fragment.fragment_id] = encode_rows(rows[np.linspace(0, len(rows) - 1, share).astype(int)])
            missing -= share
    return chosen


def attempt_sample(task: SampleTask) -> Sample | TaskFailure:
    """What Spark runs: failures of the rule are returned."""
    if task.rule.envelope is not None:
        limit_threads(task.rule.envelope.num_cpus)
        prepare_python_worker()
    try:
        return _try_rows(task)
    except JobError as error:
        return TaskFailure(error.phase, str(error), error.retryable, error.traceback)
    except UdfError as error:
        return TaskFailure("load", str(error), retryable=False)


def _try_rows(task: SampleTask) -> Sample:
    import pyarrow as pa

    dataset = task.table.open(task.version)
    schema = pa.schema([dataset.schema.field(name).remove_metadata() for name in task.rule.targets])
    rows: list[SampledRow] = []
    seconds = 0.0
    with ExitStack() as stack:
        began = time.monotonic()
        if task.rule.envelope is not None and task.rows:
            stack.enter_context(opened_function(task.rule.envelope))
        setup_seconds = time.monotonic() - began
        for fragment_id, numbers in task.rows.items():
            fragment = dataset.get_fragment(fragment_id)
            assert fragment is not None
            selected = RowSelection(0, fragment.physical_rows, numbers=decode_rows(numbers))
            inputs = read_inputs(task.table, fragment, task.rule, selected)
            began = time.monotonic()
            sizer = batch_sizer_for(task.rule, None, _BATCH_SECONDS)
            computed = list(
                evaluate_rule(task.table, fragment, task.rule, schema, task.policy, selected, batch_sizer=sizer)
            )
            seconds += time.monotonic() - began
            for batch in computed:
                errors = dict(batch.failed)
                for offset, outputs in zip(batch.offsets.tolist(), batch.values.to_pylist(), strict=True):
                    row = SampledRow(
                        row_address=row_address(fragment_id, offset),
                        inputs={name: _shown(value) for name, value in inputs.get(offset, {}).items()},
                        outputs={name: _shown(value) for name, value in outputs.items()},
                    )
                    if offset in errors:
                        row["error"] = errors[offset]
                    rows.append(row)
    return Sample(
        rows=rows,
        rows_failed=sum("error" in row for row in rows),
        seconds_per_row=round(seconds / len(rows), 6) if rows else 0.0,
        setup_seconds=round(setup_seconds, 3),
    )


def estimated_seconds(sample: Sample, rows: int, parallel: int) -> float:
    """How long ``rows`` rows would take on ``parallel`` cores, if all were like those of the sample."""
    return round(sample["setup_seconds"] + sample["seconds_per_row"] * rows / max(1, parallel), 3)


def sample_parallelism(target: BackfillTarget) -> int:
    """How many tasks of the rule run at once."""
    context, envelope = target.context, target.rule.envelope
    if envelope is None or not context.spark_started:
        return target.request.concurrency or 1
    at_once = slots(context.spark.sparkContext, envelope)
    return min(target.request.concurrency or at_once, at_once)


def _on_spark(target: BackfillTarget, task: SampleTask) -> Sample | TaskFailure:
    """Run the task in a worker, while the driver watches for a cancellation."""
    context, envelope = target.context, target.rule.envelope
    assert envelope is not None
    start_spark(context)
    spark = context.spark.sparkContext
    slots(spark, envelope)  # refuses what no worker has
    group = f"{context.job_id}-sample"

    def run() -> Sample | TaskFailure:
        spark.setJobGroup(group, f"sample of {target.name}", interruptOnCancel=True)
        found: Sample | TaskFailure = with_resources(
            spark.parallelize([task], 1).map(attempt_sample), spark, envelope
        ).collect()[0]
        return found

    with ThreadPoolExecutor(1, thread_name_prefix="sample") as pool:
        answer = pool.submit(run)
        try:
            while True:
                context.reporter.check()
                try:
                    return answer.result(_WAIT_SECONDS)
                except WaitTimeoutError:
                    if answer.done():
                        raise
        except JobError:
            spark.cancelJobGroup(group)
            raise
        except Exception as error:
            spark.cancelJobGroup(group)
            if not answer.done():
                raise
            reason = worker_death(error, "the function") or f"Spark gave up on the sample: {worker_error(error)}"
            raise JobError("compute", f"{target.name}: {reason}", retryable=True) from error


def _reporting(policy: ErrorPolicy) -> ErrorPolicy:
    """The same retries, and then the row is reported as failed, so that a sample shows all rows that fail."""
    return ErrorPolicy("null", policy.retries, (*(rule for rule in policy.rules if isinstance(rule, Retry)), Skip()))


def _shown(value: object) -> object:
    """A value for JSON, with long texts and lists cut."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has neither NaN nor infinity
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, dict):
        return {str(name): _shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        shown = [_shown(each) for each in value[:_MOST_ITEMS]]
        return [*shown, f"… {len(value):,} items"] if len(value) > _MOST_ITEMS else shown
    text = str(value)
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
