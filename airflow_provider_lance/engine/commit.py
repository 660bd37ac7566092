"""Commits: at the version that was read, through the namespace where it manages versions, never twice.

Knows Lance's transactions and nothing of Spark, columns or views. A conflict is the caller's to solve; an answer that
got lost is settled here, by looking for the commit's own id in the table's history.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.history import read_transaction
from airflow_provider_lance.engine.table import TableRef

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation
    from lance_namespace import LanceNamespace

log = logging.getLogger(__name__)

JOB_ID = "job_id"
COMMIT_ID = "commit_id"
ATTEMPTS = 4
_FEW_VERSIONS = 32
_READERS = 16


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
        for version, transaction in read_transactions(self.table, head, after):
            if transaction is not None and (transaction.transaction_properties or {}).get(COMMIT_ID) == commit_id:
                return version
        return None


def read_transactions(table: TableRef, head: LanceDataset, after: int) -> Iterator[tuple[int, Any | None]]:
    """The transactions after a version up to ``head``, in order; None where one was cleaned up or cannot be read."""
    versions = range(after + 1, head.version + 1)
    if len(versions) <= _FEW_VERSIONS:
        for version in versions:
            yield version, read_transaction(head, version)
        return
    # A dataset object reads one transaction at a time ("Already borrowed"): each thread has its own.
    own = threading.local()

    def read(version: int) -> Any | None:
        if not hasattr(own, "dataset"):
            own.dataset = table.open(head.version)
        return read_transaction(own.dataset, version)

    with ThreadPoolExecutor(_READERS) as pool:
        yield from zip(versions, pool.map(read, versions), strict=True)
