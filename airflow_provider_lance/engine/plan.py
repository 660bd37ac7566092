"""The plan of a backfill: which fragments have work, which rows of them, in which Spark tasks.

Reads metadata (and the ``where`` clause's columns) only. Nothing is written and Spark is not needed.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.checkpoint import FilledFragment, Part, disjoint, gaps
from airflow_provider_lance.engine.columns import ColumnRule
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.evaluate import column_bytes, evaluation_failure, matching_rows
from airflow_provider_lance.engine.expressions import check_filter
from airflow_provider_lance.engine.failed_rows import encode_rows
from airflow_provider_lance.engine.fill import FragmentWork
from airflow_provider_lance.engine.freshness import Fresh, FreshnessRecord
from airflow_provider_lance.engine.identity import FragmentIdentity, identify
from airflow_provider_lance.engine.request import BackfillRequest
from airflow_provider_lance.engine.table import TableRef, field_ids

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset, LanceFragment

    # The failed rows of a fragment, or None where only "some of the nulls" is known of them.
    ReadFailed = Callable[[Fresh], "np.ndarray | None"]

TASKS_PER_CORE = 4
# A task costs Spark about 40 ms; below a second of work that shows. Rows of about a second on one core: Lance evaluates
# SQL at 7 M rows/s, Arrow kernels do 5 M; of a function called row by row nothing is known.
SQL_ROWS_PER_TASK = 6_000_000
BATCH_ROWS_PER_TASK = 4_000_000
SCALAR_ROWS_PER_TASK = 1
_SAMPLED_FRAGMENTS = 32


@dataclass(frozen=True)
class Plan:
    """What is to be done at one version. ``ready`` are fragments an earlier attempt finished but did not commit."""

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
        return sum(work.live for work in self.works) + sum(filled.tally.rows for filled in self.ready)


def make_plan(
    dataset: LanceDataset,
    rule: ColumnRule,
    request: BackfillRequest,
    record: FreshnessRecord,
    *,
    finished: Mapping[str, FilledFragment],
    parts: Mapping[str, list[Part]],
    read_failed: ReadFailed,
    done: Mapping[int, tuple[str, int]] | None = None,
    limit: int | None = None,
) -> Plan:
    """Select fragments and rows. ``done`` maps fragments this job already committed to the file it put there and the
    version that did; ``limit`` is how many fragments it may still touch; ``read_failed`` tells a fragment's failed
    rows."""
    select = _Selection(dataset, rule, request.where, record, read_failed, done or {})
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
            works.append(replace(work, parts=tuple(disjoint(parts.get(work.key, ())))))
    return Plan(dataset.version, tuple(works), tuple(ready), left_fragments, left_rows)


class _Selection:
    """Decides, fragment by fragment, which rows have work."""

    def __init__(
        self,
        dataset: LanceDataset,
        rule: ColumnRule,
        where: str | None,
        record: FreshnessRecord,
        read_failed: ReadFailed,
        done: Mapping[int, tuple[str, int]],
    ) -> None:
        self.rule = rule
        self.where = where
        self.record = record
        self.read_failed = read_failed
        self.identities = record.identities.of(dataset)
        self.done = done
        self.version = dataset.version
        self.target_ids = record.target_ids
        self.input_ids = record.input_ids
        self.key_ids = record.input_ids
        self.matches: Counter[int] = Counter()
        # A file is made for a type: a column of the same id may have had another one when an earlier job filled it.
        self.types = [str(dataset.schema.field(name).type) for name in rule.targets]
        if where is not None:
            self.key_ids = record.input_ids | field_ids(dataset, check_filter(dataset.schema, where))
            self.matches = count_matches(dataset, where)

    def work(self, fragment: LanceFragment) -> FragmentWork | None:
        live = fragment.physical_rows - fragment.num_deletions
        identity = self.identities[fragment.fragment_id]
        path, version = self.done.get(identity.fragment_id, ("", 0))
        if live <= 0 or path in identity.targets or version > self.version:
            return None
        entry = self.record.get(identity)
        if self.where is not None:
            matched = self.matches[identity.fragment_id]
            if not matched:
                return None
            failed = None if entry is None else self.read_failed(entry)
            if failed is None:
                return self._work(fragment, identity, matched, self.where, whole=False)
            # Rows the clause leaves out stay what they are, fresh or failed.
            work = self._work(fragment, identity, matched, self.where, whole=True)
            return replace(work, failed=_left_out(fragment, failed, self.where))
        if entry is None:
            return self._work(fragment, identity, live, None, whole=True)
        again = failed_rows(fragment, entry, self.rule, self.read_failed)
        if not len(again):
            return None
        return self._work(fragment, identity, len(again), None, encode_rows(again), whole=True)

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
        # A partial run copies the values it leaves alone, so those are inputs too.
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


def failed_rows(fragment: LanceFragment, entry: Fresh, rule: ColumnRule, read_failed: ReadFailed) -> np.ndarray:
    """The live rows of a fresh fragment that are null because the rule failed on them; all nulls where only that is
    known."""
    failed = read_failed(entry)
    if failed is None:
        return matching_rows(fragment, f"{rule.target_paths[0]} IS NULL")
    if not fragment.num_deletions or not len(failed):
        return failed
    import numpy as np

    return np.intersect1d(failed, matching_rows(fragment), assume_unique=True)


def count_failed(fragment: LanceFragment, entry: Fresh, rule: ColumnRule, read_failed: ReadFailed) -> int:
    """As many as :func:`failed_rows`, without reading them where their number is known."""
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
    """How many live rows of each fragment the clause selects: fragments without any are not touched."""
    import numpy as np

    found: Counter[int] = Counter()
    try:
        for batch in dataset.scanner(
            columns=[], filter=where, with_row_address=True, use_scalar_index=False
        ).to_batches():
            ids, counts = np.unique(batch.column("_rowaddr").to_numpy() >> np.uint64(32), return_counts=True)
            for fragment_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
                found[fragment_id] += count
    except ValueError as error:
        reason = evaluation_failure(error)
        if reason is None:
            raise
        raise JobError("plan", f"The where clause {where!r} fails on some row: {reason}") from error
    return found


def group_tasks(plan: Plan, rule: ColumnRule, request: BackfillRequest, parallel: int) -> list[list[FragmentWork]]:
    """Spark tasks: lists of whole fragments, or one stretch of a fragment that ``task_size`` splits."""
    pieces: list[list[FragmentWork]] = []
    whole: list[FragmentWork] = []
    size = request.task_size or _task_size(plan, rule, parallel)
    for work in plan.works:
        missing = gaps(0, work.rows, work.parts)
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
        # As many on every core, or the last of them would leave the others idle.
        per_core = min(math.ceil(rows / _rows_per_task(rule) / parallel), TASKS_PER_CORE)
        count = max(1, per_core) * parallel
        if rule.envelope is not None and request.commit_granularity:
            # Fragments reach the driver when their task ends: a slow function must not hold up the commits asked for.
            count = max(count, math.ceil(len(whole) / request.commit_granularity))
    return pieces + _balanced(whole, max(1, min(count, len(whole))))


def _rows_per_task(rule: ColumnRule) -> int:
    if rule.envelope is None:
        return SQL_ROWS_PER_TASK
    return BATCH_ROWS_PER_TASK if rule.envelope.call == "batch" else SCALAR_ROWS_PER_TASK


def _task_size(plan: Plan, rule: ColumnRule, parallel: int) -> int:
    """Few large fragments are split so that every core has work."""
    if len(plan.works) >= parallel:
        return max((work.rows for work in plan.works), default=1)
    smallest = SQL_ROWS_PER_TASK if rule.envelope is None else 1024
    return max(smallest, math.ceil(sum(work.rows for work in plan.works) / (2 * parallel)))


def _balanced(works: list[FragmentWork], count: int) -> list[list[FragmentWork]]:
    """The largest first, each to the task with the least rows so far."""
    tasks: list[list[FragmentWork]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for work in sorted(works, key=lambda work: -work.live):
        load, index = heapq.heappop(heap)
        tasks[index].append(work)
        heapq.heappush(heap, (load + work.live, index))
    return [sorted(task, key=lambda work: work.fragment_id) for task in tasks if task]


def describe_plan(
    plan: Plan, table: TableRef, dataset: LanceDataset, rule: ColumnRule, request: BackfillRequest, parallel: int
) -> dict[str, Any]:
    """The plan as a job's result: how much would be read and written, in how many tasks and commits."""
    inputs = rule.inputs
    if request.where is not None:
        inputs = tuple(dict.fromkeys([*inputs, *check_filter(dataset.schema, request.where)]))
    sample = plan.works[:: max(1, len(plan.works) // _SAMPLED_FRAGMENTS)][:_SAMPLED_FRAGMENTS]
    sampled_rows = sum(work.rows for work in sample)
    read = sum(column_bytes(table, dataset.get_fragment(work.fragment_id), inputs) for work in sample) if inputs else 0
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
    """Bytes per value; of types without a fixed width, as much as the inputs have."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size * _width(kind.value_type, fallback))
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(i).type, fallback) for i in range(kind.num_fields))
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return fallback
