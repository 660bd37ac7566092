"""What a backfill fills: the validated request, the table at the version it reads, and the column with its rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.backfill_request import BackfillRequest
from airflow_provider_lance.definitions.column_rules import ColumnRule, column_rule
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.engine.backfill.records.checkpoint import column_folder
from airflow_provider_lance.engine.job.context import JobContext, JobError
from airflow_provider_lance.storage.table import TableFiles, TableRef, field_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset


class TableVersions:
    """Opens the versions of a table, each of them once."""

    def __init__(self, table: TableRef) -> None:
        self.table = table
        self._opened: dict[int, LanceDataset] = {}

    def open(self, version: int | None = None) -> LanceDataset:
        """The table at ``version``; without one, at its newest version, which is looked up each time."""
        if version is None or version not in self._opened:
            dataset = self.table.open(version)
            version = dataset.version
            self._opened[version] = dataset
        return self._opened[version]


@dataclass(frozen=True)
class BackfillTarget:
    """``dataset`` is the table at the version the job reads; ``folder`` holds the files of the column's backfills."""

    context: JobContext
    request: BackfillRequest
    versions: TableVersions
    dataset: LanceDataset
    rule: ColumnRule
    target_ids: frozenset[int]
    input_ids: frozenset[int]
    files: TableFiles
    folder: str

    @property
    def table(self) -> TableRef:
        return self.versions.table

    @property
    def name(self) -> str:
        """The column's name with that of its table, with which messages begin."""
        return f"{'.'.join(self.context.spec.table_id)}.{self.request.column}"

    def types(self, dataset: LanceDataset) -> list[pa.DataType]:
        """The types of the target columns at the version of ``dataset``."""
        return [dataset.schema.field(name).type for name in self.rule.targets]


def open_target(context: JobContext) -> BackfillTarget:
    """Open the table of a job and check its request."""
    spec = context.spec
    request = BackfillRequest.parse(spec.request, spec.options)
    # The table gets the same dict and no copy, so that renewed credentials reach the tasks that start later.
    versions = TableVersions(TableRef(spec.location, request.branch, context.storage_options))
    dataset = versions.open(request.read_version)
    rule = request.check(dataset.schema, storage_version=dataset.data_storage_version)
    context.runs(rule.user_code)
    _check_secrets(context, rule, request)
    target_ids = field_ids(dataset, rule.target_paths)
    return BackfillTarget(
        context=context,
        request=request,
        versions=versions,
        dataset=dataset,
        rule=rule,
        target_ids=target_ids,
        input_ids=field_ids(dataset, rule.inputs),
        files=versions.table.files(),
        folder=column_folder(min(target_ids)),
    )


def _check_secrets(context: JobContext, rule: ColumnRule, request: BackfillRequest) -> None:
    """Fail before any row if the server had no value for a secret of the function."""
    needed = rule.envelope.secrets if rule.envelope is not None else {}
    missing = [needed[name] for name in sorted(needed) if name not in context.secrets]
    if missing and not request.plan:
        raise JobError(
            "load",
            f"The function of {request.column!r} needs the secret {', '.join(missing)}, which the job did not get. "
            "Create it, and run the job on a server that has the key of its secrets.",
        )


def check_same_column(target: BackfillTarget, dataset: LanceDataset) -> None:
    """Raise if the column was dropped or redefined since the plan.

    Lance gives the id of a dropped column to the next one, so a commit alone could put values into a column that they
    were not made for.
    """
    try:
        rule = column_rule(dataset.schema, target.request.column)
        same = (
            rule.fingerprint == target.rule.fingerprint
            and field_ids(dataset, rule.target_paths) == target.target_ids
            and field_ids(dataset, rule.inputs) == target.input_ids
            and target.types(dataset) == target.types(target.dataset)
        )
        reason = "Its rule, its type or its inputs are others now: run the backfill again."
    except refusals() as error:
        same, reason = False, str(error)
    if not same:
        raise JobError(
            "commit",
            f"Column {target.request.column!r} was dropped or redefined while it was filled; version "
            f"{dataset.version} is left as it is. {reason}",
        )
