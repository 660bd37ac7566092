"""The backfill job: plan, compute on Spark, commit as results arrive, start over where another writer was faster.

This is the driver's story from request to result; each chapter lives in its own module.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine import faults
from airflow_provider_lance.engine.checkpoint import (
    FilledFragment,
    Part,
    column_folder,
    job_name,
    read_remains,
    whole_files,
)
from airflow_provider_lance.engine.columns import column_rule
from airflow_provider_lance.engine.commit import Committer
from airflow_provider_lance.engine.context import JobCancelledError, JobContext, JobError
from airflow_provider_lance.engine.fill import FlushPolicy, Order, TaskFailure, TaskResult
from airflow_provider_lance.engine.freshness import Fresh, load_record, save_record
from airflow_provider_lance.engine.orphans import remove_orphans
from airflow_provider_lance.engine.plan import Plan, count_failed, describe_plan, group_tasks, make_plan
from airflow_provider_lance.engine.progress import ProgressMeter, TaskFigures
from airflow_provider_lance.engine.publish import Published, Publisher
from airflow_provider_lance.engine.request import BackfillRequest, validate_request
from airflow_provider_lance.engine.runner import SparkRunner
from airflow_provider_lance.engine.session import default_parallelism
from airflow_provider_lance.engine.table import TableRef, field_ids
from airflow_provider_lance.engine.watched import Room

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset

log = logging.getLogger(__name__)

MAX_ROUNDS = 8
_REPORTED_FAILURES = 20


def run_backfill(context: JobContext) -> dict[str, Any]:
    """Execute the job of ``context`` and return its result."""
    return _Backfill(context).run()


class _Backfill:
    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.reporter = context.reporter
        self.started = time.monotonic()
        self.request = BackfillRequest.parse(context.spec.request, context.spec.options)
        # The same dict, not a copy: credentials renewed by a heartbeat reach the tasks that start after it.
        self.table = TableRef(context.spec.location, self.request.branch, context.storage_options)
        self.committer = Committer(
            self.table, context.job_id, context.namespace, tuple(context.spec.table_id), context.spec.managed
        )
        dataset = self._pin()
        self.rule = column_rule(dataset.schema, self.request.column)
        self.pinned = dataset
        self.target_ids = field_ids(dataset, self.rule.target_paths)
        self.input_ids = field_ids(dataset, self.rule.inputs)
        self.files = self.table.files()
        self.folder = column_folder(min(self.target_ids))
        self.published = Published()
        self.source_version = dataset.version
        self.tasks = 0
        self.rounds = 0
        self.rows_computed = 0
        self.scope_rows = 0
        self.versions = {dataset.version: dataset}

    def _pin(self) -> LanceDataset:
        dataset = self.table.open(self.request.read_version)
        validate_request(
            self.context.spec.request,
            dataset.schema,
            options=self.context.spec.options,
            storage_version=dataset.data_storage_version,
        )
        return dataset

    def _open(self, version: int | None = None) -> LanceDataset:
        if version is None or version not in self.versions:
            dataset = self.table.open(version)
            self.versions[dataset.version] = dataset
            return dataset
        return self.versions[version]

    # --- the story ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        self.record = load_record(self.files, self.folder, self.rule, self.input_ids, self.target_ids)
        self.saved_version = self.record.version
        self.record.follow(self.table, self.pinned, self._open)
        remains = read_remains(self.files, self.folder)
        self.left_behind = bool(remains.journals or remains.parts or remains.markers)
        # Where failed rows fail the job, none of them is its own.
        own = self.context.job_id if self.request.error_policy(self.rule).on_error == "null" else ""
        self.finished = whole_files(self.table, remains.finished_for(own), self._target_types(self.pinned))
        self.parts = remains.parts_for(own)
        self._resume()
        plan = self._plan(self.pinned)
        self.scope_rows = self.published.assigned + self.published.failed + plan.rows + plan.left_rows
        if self.request.plan:
            parallel = self.request.concurrency or os.cpu_count() or 1
            return {
                "plan": describe_plan(plan, self.table, self.pinned, self.rule, self.request, parallel),
                **self._result(),
            }
        try:
            if plan.fragments:
                self._mark()
                self._work(plan)
            return self._finish(plan)
        except JobCancelledError as error:
            error.result = self._result()
            raise

    def _plan(self, dataset: LanceDataset) -> Plan:
        limit = self.request.num_frags
        if limit is not None:
            limit = max(0, limit - self.published.fragments)
        return make_plan(
            dataset,
            self.rule,
            self.request,
            self.record,
            finished=self.finished,
            parts=self.parts,
            read_failed=self._read_failed,
            done=self.published.files,
            limit=limit,
        )

    def _read_failed(self, entry: Fresh) -> np.ndarray | None:
        if entry.failed is None:
            return None
        return entry.failed.read(self.files, self.folder, entry.targets)

    def _work(self, plan: Plan) -> None:
        if plan.works:
            self._start_spark()
        with ProgressMeter(self.reporter, host=self._progress_host(plan)) as self.meter:
            while self.rounds < MAX_ROUNDS:
                self.rounds += 1
                conflicts = self._round(plan)
                if not conflicts:
                    return
                if self.request.read_version is not None:
                    self.reporter.event(
                        f"{len(conflicts)} fragments changed since version {plan.version} and were left as they are"
                    )
                    return
                self.reporter.check()
                dataset = self._open()
                self._check_column(dataset)
                self.record.follow(self.table, dataset, self._open)
                self.finished |= {filled.key: filled for filled in conflicts}
                plan = self._plan(dataset)
                self.reporter.event(
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

    def _check_column(self, dataset: LanceDataset) -> None:
        """Whether this is still the column that was planned for.

        Lance gives the id of a dropped column to the next one, so nothing else keeps the values out of a column they
        were not made for.
        """
        from lance_namespace.errors import LanceNamespaceError

        try:
            rule = column_rule(dataset.schema, self.request.column)
            same = (
                rule.fingerprint == self.rule.fingerprint
                and field_ids(dataset, rule.target_paths) == self.target_ids
                and field_ids(dataset, rule.inputs) == self.input_ids
                and self._target_types(dataset) == self._target_types(self.pinned)
            )
            reason = "Its rule, its type or its inputs are others now: run the backfill again."
        except LanceNamespaceError as error:
            same, reason = False, str(error)
        if not same:
            raise JobError(
                "commit",
                f"Column {self.request.column!r} was dropped or redefined while it was filled; version "
                f"{dataset.version} is left as it is. {reason}",
            )

    def _target_types(self, dataset: LanceDataset) -> list[pa.DataType]:
        return [dataset.schema.field(name).type for name in self.rule.targets]

    def _start_spark(self) -> None:
        """Starting Spark takes seconds, on a busy cluster minutes: a job can be cancelled meanwhile."""
        self.reporter.progress(Progress("starting Spark"))
        started: Future[object] = Future()

        def start() -> None:
            try:
                started.set_result(self.context.spark)
            except BaseException as error:
                started.set_exception(error)

        # A daemon: a cancelled job does not wait for a session it will not use.
        threading.Thread(target=start, name="start-spark", daemon=True).start()
        while not started.done():
            wait([started], timeout=0.2)
            self.reporter.check()
        started.result()

    def _round(self, plan: Plan) -> list[FilledFragment]:
        """Compute and commit one plan; returns the fragments that could not be committed at its version."""
        done = self.published.fragments
        # The meter also counts what an earlier round computed and could not commit.
        self.failed_before = self.published.failed - self.meter.rows_failed
        self.meter.phase(
            "compute",
            fragments_total=done + plan.fragments,
            rows_total=self.published.assigned + self.published.failed + plan.rows,
        )
        publisher = Publisher(
            committer=self.committer,
            reporter=self.reporter,
            dataset=self._open(plan.version),
            rule=self.rule.fingerprint,
            target_ids=self.target_ids,
            published=self.published,
            granularity=self.request.commit_granularity,
            stubborn=self.request.read_version is not None,
        )
        for filled in plan.ready:
            self.meter.task_done(f"ready-{filled.key}", TaskFigures(1, filled.tally.rows, filled.tally.failed))
            publisher.add(filled)
        self._check_failures(publisher)
        if plan.works:
            self._compute(plan, publisher)
        publisher.commit_all()
        return publisher.conflicts

    def _compute(self, plan: Plan, publisher: Publisher) -> None:
        spark = self.context.spark
        parallel = self.request.concurrency or default_parallelism(spark.sparkContext)
        tasks = group_tasks(plan, self.rule, self.request, parallel)
        self.tasks += len(tasks)
        works = {work.key: work for work in plan.works}
        waiting: dict[str, int] = {}
        pieces: dict[str, list[Part]] = {work.key: list(work.parts) for work in plan.works}
        for task in tasks:
            if not task[0].assemble:
                waiting[task[0].key] = waiting.get(task[0].key, 0) + 1
        order = self._order(plan)
        label = f"backfill {self.request.column}"
        group = f"{self.context.job_id}-{self.rounds}"
        room = Room(self.context)
        # Without a limit on them, the next task of each core waits inside Spark, not for the driver to send it.
        at_once = self.request.concurrency or 2 * parallel
        with SparkRunner(spark, group, label, at_once) as runner:
            pending = {runner.submit(order, task): task for task in tasks}
            while pending:
                done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                self.reporter.check()
                room.look()
                self._check_failures(publisher)
                for future in done:
                    task = pending.pop(future)
                    result = self._answer(future)
                    self.meter.task_done(result.task, result.figures)
                    self.rows_computed += result.rows_computed
                    for filled in result.filled:
                        publisher.add(filled)
                    if not task[0].assemble:
                        key = task[0].key
                        pieces[key].extend(result.parts)
                        waiting[key] -= 1
                        if not waiting[key]:
                            whole = [replace(works[key], parts=tuple(pieces[key]))]
                            pending[runner.submit(order, whole)] = whole
                self._check_failures(publisher)
                publisher.commit_due()

    def _order(self, plan: Plan) -> Order:
        request = self.request
        return Order(
            table=self.table,
            version=plan.version,
            rule=self.rule,
            policy=request.error_policy(self.rule),
            folder=self.folder,
            job_id=self.context.job_id,
            flush=FlushPolicy(
                request.flush_seconds,
                request.checkpoint_size,
                request.min_checkpoint_size,
                request.max_checkpoint_size,
            ),
            threads=request.intra_applier_concurrency or 1,
            address=self.meter.address,
        )

    def _answer(self, future: Future[TaskResult | TaskFailure]) -> TaskResult:
        try:
            answer = future.result()
        except Exception as error:
            reason = worker_death(error, self._function_name()) or f"Spark gave up on a task: {_last_words(error)}"
            raise JobError("compute", f"{self._about}: {reason}", retryable=True) from error
        if isinstance(answer, TaskFailure):
            raise JobError(
                answer.phase,
                f"{self._about}: {answer.message}",
                retryable=answer.retryable,
                traceback=answer.traceback,
            )
        return answer

    @property
    def _about(self) -> str:
        """The column as messages begin with it."""
        return f"{'.'.join(self.context.spec.table_id)}.{self.request.column}"

    def _function_name(self) -> str:
        envelope = self.rule.envelope
        return f"the function {envelope.path}" if envelope is not None and envelope.path else "its rule"

    def _check_failures(self, publisher: Publisher) -> None:
        """Fail the job as soon as it is known that too many rows fail, and before any commit that has them."""
        limits = self._failure_limits()
        if not limits:
            return
        limit, words = min(limits)
        # Running tasks tell of what they compute; finished fragments also of what an earlier attempt had computed.
        running = self.failed_before + self.meter.rows_failed
        finished = self.published.failed + sum(filled.tally.failed for filled in publisher.waiting)
        failed = max(running, finished)
        if failed > limit:
            examples = [*self.published.samples, *(row for filled in publisher.waiting for row in filled.samples)]
            if not examples and self.meter.example:
                examples = [{"message": self.meter.example}]
            first = f"; the first: {describe_failed_row(examples[0])}" if examples else ""
            raise JobError(
                "compute",
                f"{self._about}: {failed:,} rows failed, more than {words}{first}",
                rows_failed=failed,
                failed_rows=examples[:_REPORTED_FAILURES],
            )

    def _failure_limits(self) -> list[tuple[int, str]]:
        """How many rows may fail, by each limit of the request, and how a message calls it."""
        rows, share = self.request.max_failed_rows, self.request.max_failed_fraction
        limits = [] if rows is None else [(rows, f"max_failed_rows {rows:,}")]
        if share is not None:
            # Of all live rows, so that a second run, which computes the failed rows only, has the same limit.
            live = self.scope_rows if self.request.where is not None else self.pinned.count_rows()
            limits.append((int(share * live), f"max_failed_fraction {share:g} of {live:,} rows"))
        return limits

    # --- beginning and end -------------------------------------------------------------------------------------------

    @property
    def _marker(self) -> str:
        return f"{self.folder}/job-{job_name(self.context.job_id)}.json"

    def _mark(self) -> None:
        """Where this job began, for the attempt that may have to continue it."""
        if not self.files.exists(self._marker):
            marker = {"job_id": self.context.job_id, "source_version": self.source_version}
            self.files.write_json(self._marker, marker)

    def _resume(self) -> None:
        """Take over what an earlier attempt of this very job committed."""
        marker = self.files.read_json(self._marker)
        if isinstance(marker, dict) and marker.get("job_id") == self.context.job_id:
            self.source_version = int(marker["source_version"])
        elif self.record.job is not None and self.record.job[0] == self.context.job_id:
            self.source_version = self.record.job[1]
        else:
            return
        self.published.recall(self.table, self._open(), self.source_version, self.context.job_id)
        if self.published.fragments:
            earlier = self.published.fragments
            self.reporter.event(f"Continuing: {earlier} fragments were committed by an earlier attempt")

    def _finish(self, plan: Plan) -> dict[str, Any]:
        if self.published.failed:
            rows = self.published.failed + self.published.assigned
            first = f"; the first: {describe_failed_row(self.published.samples[0])}" if self.published.samples else ""
            self.reporter.event(f"{self.published.failed:,} of {rows:,} rows failed and have no value{first}")
        head = self._open()
        self.record.follow(self.table, head, self._open)
        if self.published.version is not None or self.record.version - self.saved_version > 50:
            self.record.prune(head)
            if self.published.version is not None:
                self.record.job = (self.context.job_id, self.source_version)
            save_record(self.files, self.folder, self.record)
        faults.reach("record-saved")
        if plan.fragments or self.left_behind:
            removed = remove_orphans(self.table, self.files, self.folder, head, self.target_ids)
            log.info("Removed %d files of finished and dead attempts", len(removed))
        return self._result()

    def _result(self) -> dict[str, Any]:
        return {
            "rows_assigned": self.published.assigned,
            "rows_failed": self.published.failed,
            "rows_remaining": self._remaining(),
            "source_version": self.source_version,
            "published_version": self.published.version,
            "columns": list(self.rule.targets),
            "fragments": self.published.fragments,
            "tasks": self.tasks,
            "rounds": self.rounds,
            "rows_computed": self.rows_computed,
            "seconds": round(time.monotonic() - self.started, 3),
            "failed_rows": self.published.samples[:_REPORTED_FAILURES],
        }

    def _remaining(self) -> int:
        """Live rows in scope that still have no fresh value."""
        if self.request.where is not None:
            return max(0, self.scope_rows - self.published.assigned)
        head = self._open()
        self.record.follow(self.table, head, self._open)
        remaining = 0
        identities = self.record.identities.of(head)
        for fragment in head.get_fragments():
            entry = self.record.get(identities[fragment.fragment_id])
            if entry is None:
                remaining += fragment.physical_rows - fragment.num_deletions
            else:
                remaining += count_failed(fragment, entry, self.rule, self._read_failed)
        return remaining

    def _progress_host(self, plan: Plan) -> str | None:
        """The address executors reach this driver at; None is this machine."""
        if not plan.works:
            return None
        context = self.context.spark.sparkContext
        return None if context.master.startswith("local") else context.getConf().get("spark.driver.host")


def describe_failed_row(row: dict[str, Any]) -> str:
    """``row 17: ValueError: …``."""
    return f"row {row['row_id']}: {row['message']}" if "row_id" in row else str(row["message"])


def worker_death(error: Exception, rule: str) -> str | None:
    """Why a task came to nothing, where the Python worker process ended under it; None for any other reason."""
    text = str(error)
    if not any(sign in text for sign in ("Python worker exited unexpectedly", "EOFException", "Connection reset")):
        return None
    code = re.search(r"exit(?:ed with)? (?:code|status)[: ]+(-?\d+)", text)
    ending = f" (exit code {code[1]})" if code else ""
    return (
        f"the Python worker process died{ending} while it ran {rule}. It may have run out of memory, called os._exit "
        "or crashed in native code; the executor's log may say more."
    )


def _last_words(error: Exception) -> str:
    """A worker's traceback ends with what went wrong; Java's begins with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if not line.startswith(("File ", "^", "~", "at ", "Traceback", "SQLSTATE"))]
    return (python[-1] if "Traceback" in str(error) else python[0])[:1000] if python else type(error).__name__
