"""Commits: at the version that was read, through the namespace where it manages versions, never twice.

Knows Lance's transactions and nothing of Spark, columns or views. A conflict is the caller's to solve; an answer that
got lost is settled here, by looking for the commit's own id in the table's history.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.table import TableRef

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation
    from lance_namespace import LanceNamespace

log = logging.getLogger(__name__)

JOB_ID = "job_id"
COMMIT_ID = "commit_id"
ATTEMPTS = 4


class CommitConflict(Exception):
    """Another writer changed what this commit touches; nothing was committed."""


@dataclass(frozen=True)
class Committer:
    """Commits the operations of one job to one table."""

    table: TableRef
    job_id: str
    namespace: LanceNamespace | None = None
    table_id: tuple[str, ...] = ()
    managed: bool = False

    def commit(
        self,
        operation: LanceOperation.BaseOperation,
        *,
        dataset: LanceDataset,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Commit ``operation``, made from ``dataset`` at its version, and return the version that holds it.

        Raises :class:`CommitConflict` when a concurrent change to the same rows won. ``dataset`` must be the one the
        workers read: committing against the head would silently undo updates made in between.
        """
        import lance
        from lance.commit import CommitConflictError

        commit_id = uuid.uuid4().hex
        transaction = lance.Transaction(
            read_version=dataset.version,
            operation=operation,
            transaction_properties={**(properties or {}), JOB_ID: self.job_id, COMMIT_ID: commit_id},
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return int(lance.LanceDataset.commit(dataset, transaction, **self._through()).version)
            except CommitConflictError as error:
                # A first try that went through without its answer makes the second one conflict with itself.
                if attempt > 1 and (version := self.find(dataset.version, commit_id)):
                    return version
                raise CommitConflict(str(error)) from error
            except OSError as error:
                if version := self.find(dataset.version, commit_id):
                    log.warning("Version %d was committed although its answer was lost: %s", version, error)
                    return version
                # The same transaction again cannot apply twice: Lance refuses a second one on the same fragments.
                if attempt == ATTEMPTS or "Invalid user input" in str(error):
                    raise
                log.warning("Commit attempt %d failed, trying again: %s", attempt, error)
                time.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    def _through(self) -> dict[str, Any]:
        if not self.managed:
            return {"storage_options": self.table.storage_options or None}
        return {
            "storage_options": self.table.storage_options or None,
            "namespace_client": self.namespace,
            "table_id": list(self.table_id),
            "namespace_client_managed_versioning": True,
        }

    def find(self, after: int, commit_id: str) -> int | None:
        """The version after ``after`` whose transaction carries ``commit_id``."""
        head = self.table.open()
        for version in range(head.version, after, -1):
            transaction = read_transaction(head, version)
            if transaction is not None and (transaction.transaction_properties or {}).get(COMMIT_ID) == commit_id:
                return version
        return None


def read_transaction(dataset: LanceDataset, version: int) -> Any | None:
    """A version's transaction, or None where it was cleaned up or is of a kind this pylance cannot read."""
    try:
        return dataset.read_transaction(version)
    except (OSError, ValueError, NotImplementedError):
        return None
