"""The plan of a backfill: which fragments and which of their rows are computed, and in which Spark tasks.

Planning reads only metadata and the columns of the ``where`` clause. It writes nothing and needs no Spark.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.backfill_request import BackfillRequest
from airflow_provider_lance.definitions.column_rules import ColumnRule
from airflow_provider_lance.definitions.expressions import check_filter
from airflow_provider_lance.engine.backfill.evaluate import column_bytes, evaluation_failure, matching_rows
from airflow_provider_lance.engine.backfill.publisher import CommittedFile
from airflow_provider_lance.engine.backfill.records.checkpoint import (
    Checkpoint,
    FilledFragment,
    missing_ranges,
    without_overlaps,
)
from airflow_provider_lance.engine.backfill.records.failed_rows import encode_rows
from airflow_provider_lance.engine.backfill.records.fragment_identity import FragmentIdentity, identify
from airflow_provider_lance.engine.backfill.records.freshness import FreshFragment, FreshnessRecord
from airflow_provider_lance.engine.backfill.task import FragmentWork
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.storage.row_address import fragment_ids
from airflow_provider_lance.storage.table import TableRef, field_ids

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset, LanceFragment

    # Reads the failed rows of a fragment; None means that they are not known, except that they are null.
    ReadFailed = Callable[[FreshFragment], np.ndarray | None]

TASKS_PER_CORE = 4
# A task costs Spark about 40 ms, which is noticeable for less than a second of work. These rows take about a second on
# one core: Lance evaluates SQL at 7 M rows/s, Arrow kernels run at 5 M; the speed of a scalar function is not known.
SQL_ROWS_PER_TASK = 6_000_000
BATCH_ROWS_PER_TASK = 4_000_000
SCALAR_ROWS_PER_TASK = 1
_SAMPLED_FRAGMENTS = 32


@dataclass(frozen=True)
class Plan:
    """The work at one version. ``ready`` are fragments that an earlier attempt finished but did not commit."""

    version: int
    works: tuple[FragmentWork, ...]
    ready: tuple[FilledFragment, ...] = ()
    left_fragments: int = 0
    left_rows: int = 0

    @property
    def fragments(self) -> int:
        return len(self.works) + len(self.ready)

    @property
    def rows(self) -> int:
        return sum(work.live for work in self.works) + sum(filled.counts.rows for filled in self.ready)


def make_plan(
    dataset: LanceDataset,
    rule: ColumnRule,
    request: BackfillRequest,
    record: FreshnessRecord,
    *,
    finished: Mapping[str, FilledFragment],
    checkpoints: Mapping[str, list[Checkpoint]],
    read_failed: ReadFailed,
    committed: Mapping[int, CommittedFile],
    limit: int | None = None,
) -> Plan:
    """Select fragments and rows.

    ``committed`` are the fragments that this job has committed already; ``limit`` is how many more it may fill.
    """
    select = _Selection(dataset, rule, request, record, read_failed, committed)
    works: list[FragmentWork] = []
    ready: list[FilledFragment] = []
    left_fragments = left_rows = 0
    for fragment in dataset.get_fragments():
        work = select.work(fragment)
        if work is None:
            continue
        if limit is not None and len(works) + len(ready) >= limit:
            left_fragments += 1
            left_rows += work.live
            continue
        filled = finished.get(work.key)
        if filled is not None:
            ready.append(filled)
        else:
            works.append(replace(work, checkpoints=tuple(without_overlaps(checkpoints.get(work.key, ())))))
    return Plan(dataset.version, tuple(works), tuple(ready), left_fragments, left_rows)


class _Selection:
    """Decides, fragment by fragment, which rows have work."""

    def __init__(
        self,
        dataset: LanceDataset,
        rule: ColumnRule,
        request: BackfillRequest,
        record: FreshnessRecord,
        read_failed: ReadFailed,
        committed: Mapping[int, CommittedFile],
    ) -> None:
        self.rule = rule
        self.where = where = request.where
        self.only_failed = request.only == "failed"
        self.record = record
        self.read_failed = read_failed
        self.identities = record.identities.at(dataset)
        self.committed = committed
        self.version = dataset.version
        self.target_ids = record.target_ids
        self.input_ids = record.input_ids
        self.key_ids = record.input_ids
        self.matches: Counter[int] = Counter()
        # A column of the same id may have had another type when an earlier job computed its values.
        self.types = [str(dataset.schema.field(name).type) for name in rule.targets]
        if where is not None:
            self.key_ids = record.input_ids | field_ids(dataset, check_filter(dataset.schema, where))
            self.matches = count_matches(dataset, where)

    def work(self, fragment: LanceFragment) -> FragmentWork | None:
        live = fragment.physical_rows - fragment.num_deletions
        identity = self.identities[fragment.fragment_id]
        done = self.committed.get(identity.fragment_id)
        if live <= 0 or (done is not None and (done.path in identity.targets or done.version > self.version)):
            return None
        entry = self.record.get(identity)
        if self.only_failed:
            return None if entry is None else self._failed_work(fragment, identity, entry)
        if self.where is not None:
            matched = self.matches[identity.fragment_id]
            if not matched:
                return None
            failed = None if entry is None else self.read_failed(entry)
            if failed is None:
                return self._work(fragment, identity, matched, self.where, whole=False)
            # Rows that the clause does not select stay fresh or failed.
            work = self._work(fragment, identity, matched, self.where, whole=True)
            return replace(work, failed=_left_out(fragment, failed, self.where))
        if entry is None:
            return self._work(fragment, identity, live, None, whole=True)
        return self._failed_work(fragment, identity, entry)

    def _failed_work(
        self, fragment: LanceFragment, identity: FragmentIdentity, entry: FreshFragment
    ) -> FragmentWork | None:
        """The failed rows of a fresh fragment, and of these only those that the clause selects."""
        import numpy as np

        failed = again = failed_rows(fragment, entry, self.rule, self.read_failed)
        if self.where is not None and len(failed):
            again = np.intersect1d(failed, matching_rows(fragment, self.where), assume_unique=True)
        if not len(again):
            return None
        work = self._work(fragment, identity, len(again), None, encode_rows(again), whole=True)
        if len(again) == len(failed):
            return work
        return replace(work, failed=encode_rows(np.setdiff1d(failed, again, assume_unique=True)))

    def _work(
        self,
        fragment: LanceFragment,
        identity: FragmentIdentity,
        live: int,
        where: str | None,
        selected: str | None = None,
        *,
        whole: bool,
    ) -> FragmentWork:
        read = identity
        if self.key_ids != self.input_ids:
            read = identify(fragment.metadata, self.key_ids, self.target_ids)
        # A partial run copies the values of the other rows, so their files are inputs too.
        rows = where if selected is None else f"rows {selected}"
        kept = read.targets if rows is not None else ()
        return FragmentWork(
            fragment_id=identity.fragment_id,
            key=read.key(self.rule.fingerprint, self.types, sorted(self.target_ids), sorted(self.key_ids), rows, kept),
            rows=identity.rows,
            live=live,
            start=0,
            stop=identity.rows,
            filter=where,
            selected=selected,
            whole=whole or live == fragment.physical_rows - fragment.num_deletions,
        )


def failed_rows(fragment: LanceFragment, entry: FreshFragment, rule: ColumnRule, read_failed: ReadFailed) -> np.ndarray:
    """The live rows of a fresh fragment on which the rule failed; all nulls where those are not known."""
    failed = read_failed(entry)
    if failed is None:
        return matching_rows(fragment, f"{rule.target_paths[0]} IS NULL")
    if not fragment.num_deletions or not len(failed):
        return failed
    import numpy as np

    return np.intersect1d(failed, matching_rows(fragment), assume_unique=True)


def count_failed(fragment: LanceFragment, entry: FreshFragment, rule: ColumnRule, read_failed: ReadFailed) -> int:
    """The number of :func:`failed_rows`, which are not read where their number is known."""
    if entry.failed is not None and (not fragment.num_deletions or not entry.failed.count):
        return entry.failed.count
    return len(failed_rows(fragment, entry, rule, read_failed))


def _left_out(fragment: LanceFragment, failed: np.ndarray, where: str) -> str | None:
    """The failed rows of a fresh fragment that a clause does not select, encoded."""
    if not len(failed):
        return None
    import numpy as np

    return encode_rows(np.setdiff1d(failed, matching_rows(fragment, where), assume_unique=True))


def count_matches(dataset: LanceDataset, where: str) -> Counter[int]:
    """How many live rows of each fragment the clause selects."""
    import numpy as np

    found: Counter[int] = Counter()
    try:
        for batch in dataset.scanner(
            columns=[], filter=where, with_row_address=True, use_scalar_index=False
        ).to_batches():
            ids, counts = np.unique(fragment_ids(batch.column("_rowaddr").to_numpy()), return_counts=True)
            for fragment_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
                found[fragment_id] += count
    except ValueError as error:
        reason = evaluation_failure(error)
        if reason is None:
            raise
        raise JobError("plan", f"The where clause {where!r} fails on some row: {reason}") from error
    return found


def group_tasks(plan: Plan, rule: ColumnRule, request: BackfillRequest, parallel: int) -> list[list[FragmentWork]]:
    """The Spark tasks of a plan: lists of whole fragments, or one range of a fragment that ``task_size`` splits."""
    pieces: list[list[FragmentWork]] = []
    whole: list[FragmentWork] = []
    size = request.task_size or _task_size(plan, rule, parallel)
    for work in plan.works:
        missing = missing_ranges(0, work.rows, work.checkpoints)
        if work.rows <= size or not missing:
            whole.append(work)
            continue
        for low, high in missing:
            for start in range(low, high, size):
                stop = min(high, start + size)
                live = math.ceil(work.live * (stop - start) / work.rows)
                pieces.append([replace(work, start=start, stop=stop, live=live, assemble=False)])
    if not whole:
        return pieces
    rows = sum(work.live for work in whole)
    if request.task_size:
        count = math.ceil(rows / request.task_size)
    else:
        # Every core gets the same number of tasks, so that none is idle while the last task runs.
        per_core = min(math.ceil(rows / _rows_per_task(rule) / parallel), TASKS_PER_CORE)
        count = max(1, per_core) * parallel
        if rule.envelope is not None and request.commit_granularity:
            # Fragments reach the driver when their task ends, so a task has not more of them than a commit.
            count = max(count, math.ceil(len(whole) / request.commit_granularity))
    return pieces + _balanced(whole, max(1, min(count, len(whole))))


def _rows_per_task(rule: ColumnRule) -> int:
    if rule.envelope is None:
        return SQL_ROWS_PER_TASK
    return SCALAR_ROWS_PER_TASK if rule.envelope.call == "scalar" else BATCH_ROWS_PER_TASK


def _task_size(plan: Plan, rule: ColumnRule, parallel: int) -> int:
    """The size above which fragments are split: few large ones are, so that every core has work."""
    if len(plan.works) >= parallel:
        return max((work.rows for work in plan.works), default=1)
    smallest = SQL_ROWS_PER_TASK if rule.envelope is None else 1024
    return max(smallest, math.ceil(sum(work.rows for work in plan.works) / (2 * parallel)))


def _balanced(works: list[FragmentWork], count: int) -> list[list[FragmentWork]]:
    """Distribute fragments over ``count`` tasks: the largest first, each to the task with the fewest rows so far."""
    tasks: list[list[FragmentWork]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for work in sorted(works, key=lambda work: -work.live):
        load, index = heapq.heappop(heap)
        tasks[index].append(work)
        heapq.heappush(heap, (load + work.live, index))
    return [sorted(task, key=lambda work: work.fragment_id) for task in tasks if task]


def describe_plan(
    plan: Plan, table: TableRef, dataset: LanceDataset, rule: ColumnRule, request: BackfillRequest, parallel: int
) -> dict[str, object]:
    """The plan as a job's result: how much would be read and written, in how many tasks and commits."""
    inputs = rule.inputs
    if request.where is not None:
        inputs = tuple(dict.fromkeys([*inputs, *check_filter(dataset.schema, request.where)]))
    chosen = {work.fragment_id for work in plan.works[:: max(1, len(plan.works) // _SAMPLED_FRAGMENTS)]}
    sample = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in chosen][:_SAMPLED_FRAGMENTS]
    sampled_rows = sum(fragment.physical_rows for fragment in sample)
    read = sum(column_bytes(table, fragment, inputs) for fragment in sample) if inputs else 0
    rows = sum(work.rows for work in plan.works)
    width = read / sampled_rows if sampled_rows else 0.0
    written = sum(_width(dataset.schema.field(target).type, width) for target in rule.targets) * rows
    tasks = group_tasks(plan, rule, request, parallel)
    fragments = plan.fragments
    return {
        "column": request.column,
        "columns": list(rule.targets),
        "inputs": list(rule.inputs),
        "source_version": plan.version,
        "fragments": fragments,
        "fragments_ready": len(plan.ready),
        "fragments_left": plan.left_fragments,
        "rows": plan.rows,
        "rows_left": plan.left_rows,
        "bytes_read": round(width * rows),
        "bytes_written": round(written),
        "tasks": len(tasks),
        "concurrency": parallel,
        "commits": math.ceil(fragments / (request.commit_granularity or max(1, fragments))),
    }


def _width(kind: pa.DataType, fallback: float) -> float:
    """Bytes per value, or ``fallback`` for types without a fixed width."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size * _width(kind.value_type, fallback))
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(i).type, fallback) for i in range(kind.num_fields))
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return fallback
