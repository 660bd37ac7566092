"""Finished column files on their way into the table: grouped, checked, committed, and set aside on a conflict."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine import faults
from airflow_provider_lance.engine.checkpoint import FilledFragment
from airflow_provider_lance.engine.commit import JOB_ID, CommitConflict, Committer, read_transactions
from airflow_provider_lance.engine.context import JobError, Reporter
from airflow_provider_lance.engine.freshness import FAILED_ROWS, PARTIAL, RULE

if TYPE_CHECKING:
    from lance import LanceDataset

    from airflow_provider_lance.engine.table import TableRef

ROWS_ASSIGNED = "backfill.rows_assigned"
ROWS_FAILED = "backfill.rows_failed"
COMMIT_SECONDS = 60.0  # without commit_granularity, finished fragments wait this long for company


@dataclass
class Published:
    """What a job has committed, over all its attempts. ``files`` maps a fragment to (its new file, the version)."""

    assigned: int = 0
    failed: int = 0
    version: int | None = None
    fragments: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    files: dict[int, tuple[str, int]] = field(default_factory=dict)

    def recall(self, table: TableRef, head: LanceDataset, since: int, job_id: str) -> None:
        """Add what earlier attempts of the same job committed after version ``since``: the transactions tell."""
        for version, transaction in read_transactions(table, head, since):
            properties = (transaction.transaction_properties if transaction else None) or {}
            if transaction is None or properties.get(JOB_ID) != job_id:
                continue
            self.assigned += int(properties.get(ROWS_ASSIGNED, 0))
            self.failed += int(properties.get(ROWS_FAILED, 0))
            self.version = version
            for group in transaction.operation.replacements:
                self.files[group.fragment_id] = (str(group.new_file.path), version)
            self.fragments += len(transaction.operation.replacements)


@dataclass
class Publisher:
    """Commits the fragments of one plan, all at the version the plan was made for.

    ``stubborn`` tries each changed fragment once more by itself, because a plan with a fixed version has no next round
    in which a mere deletion would be told from a real conflict.
    """

    committer: Committer
    reporter: Reporter
    dataset: LanceDataset
    rule: str
    target_ids: frozenset[int]
    published: Published
    granularity: int | None = None
    stubborn: bool = False
    waiting: list[FilledFragment] = field(default_factory=list)
    conflicts: list[FilledFragment] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def add(self, filled: FilledFragment) -> None:
        """Take a finished fragment; one whose file does not fit the table never gets near a commit."""
        planned = self.dataset.get_fragment(filled.fragment_id)
        fields = filled.file["fields"]
        if (
            planned is None
            or planned.physical_rows != filled.rows
            or not fields
            or not self.target_ids.issuperset(fields)
        ):
            raise JobError("commit", f"The column file of fragment {filled.fragment_id} does not fit; not committed")
        self.waiting.append(filled)

    def commit_due(self) -> None:
        """Commit full groups; without a group size, whatever has waited long enough."""
        while self.granularity is not None and len(self.waiting) >= self.granularity:
            self._commit(self._next(self.granularity))
        if self.granularity is None and self.waiting and time.monotonic() - self._last >= COMMIT_SECONDS:
            self._commit(self._next(len(self.waiting)))

    def commit_all(self) -> None:
        while self.waiting:
            self._commit(self._next(self.granularity or len(self.waiting)))

    def _next(self, size: int) -> list[FilledFragment]:
        group, self.waiting = self.waiting[:size], self.waiting[size:]
        return group

    def _commit(self, group: list[FilledFragment]) -> None:
        """One conflicting fragment fails its whole group: set aside what changed, commit the others."""
        self._last = time.monotonic()
        if self._try(group):
            return
        changed = self._changed(group)
        # Where no fragment looks different the conflict cannot be pinned down: all of them start over.
        aside = [filled for filled in group if filled.fragment_id in changed] if changed else group
        rest = [filled for filled in group if changed and filled.fragment_id not in changed]
        if self.stubborn and len(group) > 1:
            self.conflicts += [filled for filled in aside if not self._try([filled])]
        else:
            self.conflicts += aside
        if rest:
            self._commit(rest)

    def _try(self, group: list[FilledFragment]) -> bool:
        self.reporter.check()
        self.reporter.check_commit()
        faults.reach("before-commit")
        try:
            version = self._replace(group)
        except CommitConflict:
            return False
        faults.reach("after-commit")
        for filled in group:
            self.published.assigned += filled.tally.rows - filled.tally.failed
            self.published.failed += filled.tally.failed
            self.published.samples += filled.samples
            self.published.files[filled.fragment_id] = (filled.path, version)
        self.published.fragments += len(group)
        self.published.version = version
        self.reporter.event(f"Committed {len(group)} fragments as version {version}", version=version)
        return True

    def _replace(self, group: list[FilledFragment]) -> int:
        from lance import LanceOperation
        from lance.fragment import DataFile

        operation = LanceOperation.DataReplacement(
            [LanceOperation.DataReplacementGroup(filled.fragment_id, DataFile(**filled.file)) for filled in group]
        )
        return self.committer.commit(operation, dataset=self.dataset, properties=self._properties(group))

    def _properties(self, group: list[FilledFragment]) -> dict[str, str]:
        """What the freshness record and a later attempt read back from the transaction."""
        partial = [filled.fragment_id for filled in group if not filled.covered]
        # Only how many: readers of the table load the transaction. Which ones is written beside the column's files.
        failed = {filled.fragment_id: filled.failed_rows for filled in group if filled.covered and filled.failed_rows}
        return {
            RULE: self.rule,
            ROWS_ASSIGNED: str(sum(filled.tally.rows - filled.tally.failed for filled in group)),
            ROWS_FAILED: str(sum(filled.tally.failed for filled in group)),
            PARTIAL: json.dumps(sorted(partial)),
            FAILED_ROWS: json.dumps(failed),
        }

    def _changed(self, group: list[FilledFragment]) -> set[int]:
        """Fragments that another writer removed or changed since the plan's version."""
        now = {fragment.fragment_id: fragment.metadata for fragment in self.committer.table.open().get_fragments()}
        changed = set()
        for filled in group:
            planned = self.dataset.get_fragment(filled.fragment_id).metadata
            current = now.get(filled.fragment_id)
            if (
                current is None
                or current.deletion_file != planned.deletion_file
                or [file.path for file in current.files] != [file.path for file in planned.files]
            ):
                changed.add(filled.fragment_id)
        return changed
