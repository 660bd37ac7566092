"""Commits of finished column files: they are checked, grouped and committed, and set aside on a conflict."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_lance.engine.backfill.records.checkpoint import FilledFragment
from airflow_provider_lance.engine.backfill.records.failed_rows import FailedRow
from airflow_provider_lance.engine.backfill.records.freshness import FAILED_ROWS, PARTIAL, RULE
from airflow_provider_lance.engine.job.context import JobError, Reporter
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.storage.commits import JOB_ID, CommitConflict, Committer
from airflow_provider_lance.storage.history import read_transactions

if TYPE_CHECKING:
    from lance import LanceDataset

ROWS_ASSIGNED = "backfill.rows_assigned"
ROWS_FAILED = "backfill.rows_failed"
COMMIT_SECONDS = 60.0  # without commit_granularity, finished fragments are committed together this often


class CommittedFile(NamedTuple):
    """The column file that a job committed for a fragment, and the version that has it."""

    path: str
    version: int


@dataclass
class Published:
    """What a job has committed so far in all its attempts; ``files`` is by fragment id."""

    assigned: int = 0
    failed: int = 0
    version: int | None = None
    fragments: int = 0
    samples: list[FailedRow] = field(default_factory=list)
    files: dict[int, CommittedFile] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.assigned + self.failed


def read_published(head: LanceDataset, since: int, job_id: str) -> Published:
    """What earlier attempts of a job committed after version ``since``, read from the table's transactions."""
    from lance import LanceOperation

    published = Published()
    for version, transaction in read_transactions(head, since):
        properties = (transaction.transaction_properties if transaction else None) or {}
        if transaction is None or properties.get(JOB_ID) != job_id:
            continue
        assert isinstance(transaction.operation, LanceOperation.DataReplacement)
        replacements = transaction.operation.replacements
        published.assigned += int(properties.get(ROWS_ASSIGNED, 0))
        published.failed += int(properties.get(ROWS_FAILED, 0))
        published.version = version
        published.fragments += len(replacements)
        for group in replacements:
            published.files[group.fragment_id] = CommittedFile(str(group.new_file.path), version)
    return published


@dataclass
class Publisher:
    """Commits the fragments of one plan, all at the version the plan was made for.

    ``retry_alone`` commits each changed fragment once more by itself: a plan with a fixed version has no next round
    that would tell a deletion, which does not matter, from a real conflict.
    """

    committer: Committer
    reporter: Reporter
    dataset: LanceDataset
    rule: str
    target_ids: frozenset[int]
    published: Published
    granularity: int | None = None
    retry_alone: bool = False
    waiting: list[FilledFragment] = field(default_factory=list)
    conflicts: list[FilledFragment] = field(default_factory=list)
    _last_commit: float = field(default_factory=time.monotonic)

    def add(self, filled: FilledFragment) -> None:
        """Take a finished fragment, or raise if its file does not fit the table."""
        planned = self.dataset.get_fragment(filled.fragment_id)
        fields = filled.file.fields
        fits = planned is not None and planned.physical_rows == filled.rows
        if not fits or not fields or not self.target_ids.issuperset(fields):
            raise JobError("commit", f"The column file of fragment {filled.fragment_id} does not fit; not committed")
        self.waiting.append(filled)

    def commit_due(self) -> None:
        """Commit full groups; without a group size, commit everything once enough time has passed."""
        while self.granularity is not None and len(self.waiting) >= self.granularity:
            self._commit(self._next(self.granularity))
        if self.granularity is None and self.waiting and time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self._commit(self._next(len(self.waiting)))

    def commit_all(self) -> None:
        while self.waiting:
            self._commit(self._next(self.granularity or len(self.waiting)))

    def _next(self, size: int) -> list[FilledFragment]:
        group, self.waiting = self.waiting[:size], self.waiting[size:]
        return group

    def _commit(self, group: list[FilledFragment]) -> None:
        """Commit a group; if that conflicts, set aside the fragments that changed and commit the others."""
        self._last_commit = time.monotonic()
        if self._try(group):
            return
        changed = self._changed(group)
        # Where no fragment looks different, the one in conflict is not known and all of them are computed again.
        aside = [filled for filled in group if filled.fragment_id in changed] if changed else group
        rest = [filled for filled in group if changed and filled.fragment_id not in changed]
        if self.retry_alone and len(group) > 1:
            self.conflicts += [filled for filled in aside if not self._try([filled])]
        else:
            self.conflicts += aside
        if rest:
            self._commit(rest)

    def _try(self, group: list[FilledFragment]) -> bool:
        self.reporter.check()
        self.reporter.check_commit()
        failpoint("before-commit")
        try:
            version = self._replace(group)
        except CommitConflict:
            return False
        failpoint("after-commit")
        for filled in group:
            self.published.assigned += filled.counts.rows - filled.counts.failed
            self.published.failed += filled.counts.failed
            self.published.samples += filled.samples
            self.published.files[filled.fragment_id] = CommittedFile(filled.file.path, version)
        self.published.fragments += len(group)
        self.published.version = version
        self.reporter.event(f"Committed {len(group)} fragments as version {version}", version=version)
        return True

    def _replace(self, group: list[FilledFragment]) -> int:
        from lance import LanceOperation

        operation = LanceOperation.DataReplacement(
            [LanceOperation.DataReplacementGroup(filled.fragment_id, filled.file) for filled in group]
        )
        return self.committer.commit(operation, dataset=self.dataset, properties=self._properties(group))

    def _properties(self, group: list[FilledFragment]) -> dict[str, str]:
        """What the transaction tells the freshness record and a later attempt."""
        partial = [filled.fragment_id for filled in group if not filled.covered]
        # Readers of the table load the transaction, so it has only the number of failed rows; a file lists them.
        failed = {filled.fragment_id: filled.failed_rows for filled in group if filled.covered and filled.failed_rows}
        return {
            RULE: self.rule,
            ROWS_ASSIGNED: str(sum(filled.counts.rows - filled.counts.failed for filled in group)),
            ROWS_FAILED: str(sum(filled.counts.failed for filled in group)),
            PARTIAL: json.dumps(sorted(partial)),
            FAILED_ROWS: json.dumps(failed),
        }

    def _changed(self, group: list[FilledFragment]) -> set[int]:
        """Fragments that another writer removed or changed since the plan's version."""
        now = {fragment.fragment_id: fragment.metadata for fragment in self.committer.table.open().get_fragments()}
        changed = set()
        for filled in group:
            fragment = self.dataset.get_fragment(filled.fragment_id)
            assert fragment is not None, "add() checked it"
            planned, current = fragment.metadata, now.get(filled.fragment_id)
            if (
                current is None
                or current.deletion_file != planned.deletion_file
                or [file.path for file in current.files] != [file.path for file in planned.files]
            ):
                changed.add(filled.fragment_id)
        return changed
