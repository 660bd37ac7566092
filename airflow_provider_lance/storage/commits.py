"""Commits at the version that was read, through the namespace where it manages versions, and never twice.

Every commit carries an id of its own. Where the answer to a commit got lost, the table's history is searched for that
id. A conflict is raised for the caller to solve.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.storage.history import read_transactions
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation, Transaction
    from lance_namespace import LanceNamespace

log = logging.getLogger(__name__)

JOB_ID = "job_id"
COMMIT_ID = "commit_id"
ATTEMPTS = 4


class CommitConflict(Exception):
    """Another writer changed what this commit touches; nothing was committed."""


@dataclass(frozen=True)
class Committer:
    """Commits the operations of one writer to one table. ``job_id`` is written into each commit of a job."""

    table: TableRef
    job_id: str | None = None
    namespace: LanceNamespace | None = None
    table_id: tuple[str, ...] = ()
    managed: bool = False

    def commit(
        self,
        operation: LanceOperation.BaseOperation,
        *,
        dataset: LanceDataset,
        properties: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> int:
        """Commit ``operation``, made from ``dataset`` at its version, and return the version that holds it.

        Raises :class:`CommitConflict` when a concurrent change to the same rows won. ``dataset`` must be the one the
        workers read: committing against the head would silently undo updates made in between. ``attempts`` must be 1
        for an operation that could apply twice, such as an append.
        """
        import lance
        from lance.commit import CommitConflictError

        commit_id = uuid.uuid4().hex
        job = {} if self.job_id is None else {JOB_ID: self.job_id}
        transaction = lance.Transaction(
            read_version=dataset.version,
            operation=operation,
            transaction_properties={**(properties or {}), **job, COMMIT_ID: commit_id},
        )
        for attempt in range(1, attempts + 1):
            try:
                return self._commit(dataset, transaction)
            except CommitConflictError as error:
                # The first attempt may have succeeded without an answer; the second one then conflicts with it.
                if attempt > 1 and (version := self.find(dataset.version, commit_id)):
                    return version
                raise CommitConflict(str(error)) from error
            except OSError as error:
                if version := self.find(dataset.version, commit_id):
                    log.warning("Version %d was committed although its answer was lost: %s", version, error)
                    return version
                # The transaction cannot apply twice: Lance refuses a second one on the same fragments.
                if attempt == attempts or "Invalid user input" in str(error):
                    raise
                log.warning("Commit attempt %d failed, trying again: %s", attempt, error)
                time.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    def _commit(self, dataset: LanceDataset, transaction: Transaction) -> int:
        import lance

        committed = lance.LanceDataset.commit(
            dataset,
            transaction,
            storage_options=self.table.storage_options or None,
            namespace_client=self.namespace if self.managed else None,
            table_id=list(self.table_id) if self.managed else None,
            namespace_client_managed_versioning=self.managed,
        )
        return committed.version

    def find(self, after: int, commit_id: str) -> int | None:
        """The version after ``after`` whose transaction carries ``commit_id``."""
        head = self.table.open()
        for version, transaction in read_transactions(head, after):
            if transaction is not None and (transaction.transaction_properties or {}).get(COMMIT_ID) == commit_id:
                return version
        return None
