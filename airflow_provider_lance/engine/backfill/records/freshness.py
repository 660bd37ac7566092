"""Which fragments hold fresh values: a record built from the table's history, and a sidecar file that caches it.

Every backfill commit says in its transaction what it filled and by which rule; compactions say which fragments replace
which. Both together, read in order, give the record after any crash. The sidecar saves reading the whole history again
and keeps the record when old versions are cleaned up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.errors import missing_columns
from airflow_provider_lance.engine.backfill.records.failed_rows import FailedRows
from airflow_provider_lance.engine.backfill.records.fragment_identity import (
    FragmentIdentities,
    FragmentIdentity,
    identify,
)
from airflow_provider_lance.storage.history import read_transactions
from airflow_provider_lance.storage.table import field_ids, is_missing

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation, Transaction

    from airflow_provider_lance.definitions.column_rules import ColumnRule
    from airflow_provider_lance.storage.table import TableFiles

log = logging.getLogger(__name__)

RULE = "backfill.rule"
PARTIAL = "backfill.partial"
FAILED_ROWS = "backfill.failed_rows"  # the number of failed rows in each fragment
_FAILED_LISTS = "backfill.failed"  # commits of release 0.1 name the rows themselves

# Older versions since the sidecar was written are not read, so what they filled is computed again.
MAX_VERSIONS = 10_000


@dataclass(frozen=True)
class FreshFragment:
    """One fragment whose live rows all have a value of the recorded rule.

    ``failed`` are the rows that are null because the rule failed on them. None means that some of the nulls are, which
    is all that is known after a compaction.
    """

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    rows: int
    failed: FailedRows | None


@dataclass
class FreshnessRecord:
    """The fresh fragments of one column under one rule, as of ``version``. ``inputs`` are the rule's, as field paths.

    ``job`` is the last job that filled some, with the version it began at. If its end was not reported, its next
    attempt finds here what was done.
    """

    rule: str
    inputs: tuple[str, ...]
    input_ids: frozenset[int]
    target_ids: frozenset[int]
    version: int = 0
    fragments: dict[int, FreshFragment] = field(default_factory=dict)
    job: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        self.identities = FragmentIdentities(self.input_ids, self.target_ids)

    def get(self, identity: FragmentIdentity) -> FreshFragment | None:
        """The entry of a fragment that is still made of the recorded files; None if it is stale or unknown."""
        entry = self.fragments.get(identity.fragment_id)
        if entry is None or (entry.inputs, entry.targets, entry.rows) != (
            identity.inputs,
            identity.targets,
            identity.rows,
        ):
            return None
        return entry

    def advance(self, head: LanceDataset, open_version: Callable[[int], LanceDataset]) -> None:
        """Bring the record from its version to ``head``'s, transaction by transaction."""
        if head.version <= self.version or not self._needs_history(head):
            self.version = max(self.version, head.version)
            return
        after = max(1, self.version)
        if head.version - after > MAX_VERSIONS:
            log.warning("%d versions since the last backfill: the older ones are not read", head.version - after)
            after = head.version - MAX_VERSIONS
        for _, transaction in read_transactions(head, after):
            if transaction is not None:
                self._apply(transaction, open_version)
        self.version = head.version

    def _needs_history(self, head: LanceDataset) -> bool:
        """Whether the history matters: fragments that never had a file of this column are stale anyway."""
        return any(identity.targets and self.get(identity) is None for identity in self.identities.at(head).values())

    def _apply(self, transaction: Transaction, open_version: Callable[[int], LanceDataset]) -> None:
        from lance import LanceOperation

        operation = transaction.operation
        if isinstance(operation, LanceOperation.Rewrite):
            for rewritten in operation.groups:
                self._rewrite(rewritten)
        elif isinstance(operation, LanceOperation.DataReplacement):
            properties = transaction.transaction_properties or {}
            mine = [group for group in operation.replacements if not self.target_ids.isdisjoint(group.new_file.fields)]
            if not mine:
                return
            same_rule = properties.get(RULE) == self.rule
            read = self._as_read(transaction.read_version, open_version) if same_rule else None
            if read is None:
                for group in mine:
                    self.fragments.pop(group.fragment_id, None)
            else:
                self._fill(mine, properties, read)

    def _as_read(self, version: int, open_version: Callable[[int], LanceDataset]) -> LanceDataset | None:
        """The table as a backfill read it; None where that version is gone or had other inputs by these names."""
        try:
            read = open_version(version)
            return read if field_ids(read, self.inputs) == self.input_ids else None
        except missing_columns():
            return None
        except (ValueError, OSError) as error:
            if is_missing(error):
                return None
            raise

    def _fill(
        self, groups: list[LanceOperation.DataReplacementGroup], properties: dict[str, str], read: LanceDataset
    ) -> None:
        partial = set(json.loads(properties.get(PARTIAL, "[]")))
        counts = json.loads(properties.get(FAILED_ROWS, "{}"))
        failed = {int(key): FailedRows(count) for key, count in counts.items()}
        lists = json.loads(properties.get(_FAILED_LISTS, "{}"))
        failed |= {int(key): FailedRows.from_list(offsets) for key, offsets in lists.items()}
        identities = self.identities.at(read)
        for group in groups:
            if group.fragment_id in partial:
                self.fragments.pop(group.fragment_id, None)
                continue
            # Another backfill may have replaced an input before this commit, so the inputs of the version read count.
            identity = identities.get(group.fragment_id)
            if identity is None:
                continue
            self.fragments[group.fragment_id] = FreshFragment(
                inputs=identity.inputs,
                targets=(str(group.new_file.path),),
                rows=identity.rows,
                failed=failed.get(group.fragment_id, FailedRows()),
            )

    def _rewrite(self, group: LanceOperation.RewriteGroup) -> None:
        old = [self.get(identify(part, self.input_ids, self.target_ids)) for part in group.old_fragments]
        for part in group.old_fragments:
            self.fragments.pop(part.id, None)
        if not all(old):
            return
        some_failed = any(entry is not None and (entry.failed is None or entry.failed.count) for entry in old)
        for part in group.new_fragments:
            identity = identify(part, self.input_ids, self.target_ids)
            self.fragments[part.id] = FreshFragment(
                identity.inputs, identity.targets, identity.rows, None if some_failed else FailedRows()
            )

    def prune(self, head: LanceDataset) -> None:
        """Drop entries of fragments that are gone or stale, so that the sidecar does not grow with the history."""
        entries = {number: self.get(identity) for number, identity in self.identities.at(head).items()}
        self.fragments = {number: entry for number, entry in entries.items() if entry is not None}


def sidecar_path(folder: str) -> str:
    return f"{folder}/fresh.json"


def load_record(
    files: TableFiles, folder: str, rule: ColumnRule, input_ids: frozenset[int], target_ids: frozenset[int]
) -> FreshnessRecord:
    """The saved record if it is of this rule and of these inputs, else an empty one, by which all values are stale."""
    record = FreshnessRecord(rule.fingerprint, rule.inputs, input_ids, target_ids)
    document = files.read_json(sidecar_path(folder))
    if not isinstance(document, dict) or document.get("format") not in (1, 2) or document.get("rule") != record.rule:
        return record
    if document.get("input_ids", sorted(input_ids)) != sorted(input_ids):
        return record
    record.version = int(document["version"])
    record.job = tuple(document["job"]) if document.get("job") else None
    for fragment_id, (inputs, targets, rows, failed) in document["fragments"].items():
        record.fragments[int(fragment_id)] = FreshFragment(tuple(inputs), tuple(targets), rows, _read_failed(failed))
    return record


def _read_failed(saved: int | list[int] | None) -> FailedRows | None:
    """Format 2 saves the number of rows, format 1 saved a list of them."""
    if saved is None:
        return None
    return FailedRows(saved) if isinstance(saved, int) else FailedRows.from_list(saved)


def _saved_failed(failed: FailedRows | None) -> int | tuple[int, ...] | None:
    if failed is None:
        return None
    return failed.count if failed.listed is None else failed.listed


def save_record(files: TableFiles, folder: str, record: FreshnessRecord) -> None:
    document = {
        "format": 2,
        "rule": record.rule,
        "input_ids": sorted(record.input_ids),
        "version": record.version,
        "job": record.job,
        "fragments": {
            str(fragment_id): [entry.inputs, entry.targets, entry.rows, _saved_failed(entry.failed)]
            for fragment_id, entry in sorted(record.fragments.items())
        },
    }
    files.write_json(sidecar_path(folder), document)
