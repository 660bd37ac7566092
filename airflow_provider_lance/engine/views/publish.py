"""Write a refresh into its view: all row changes in one commit, then the bookmark that names the sources' versions.

Each of the two becomes the version after the one that was read, or fails (``commit_next.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.arrow_types import text_metadata
from airflow_provider_lance.engine.views.commit_next import ViewMovedError, ViewTable, commit_next
from airflow_provider_lance.storage.commits import JOB_ID
from airflow_provider_lance.storage.view_state import (
    FINISHED,
    OUTCOME,
    Outcome,
    ViewState,
    bookmark_updates,
    read_state,
)

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance import LanceOperation
    from lance.fragment import FragmentMetadata


@dataclass(frozen=True)
class RowChanges:
    """All row changes of one refresh. With ``schema`` the table is written anew under that schema.

    ``overwrites`` allows an Overwrite where all rows are replaced. After one, views over this view are rebuilt, because
    a row id may mean another row.
    """

    new: list[FragmentMetadata] = field(default_factory=list)
    updated: list[FragmentMetadata] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    schema: pa.Schema | None = None
    overwrites: bool = False

    @property
    def empty(self) -> bool:
        return not (self.new or self.updated or self.removed or self.schema)


def write_rows(view: ViewTable, state: ViewState, changes: RowChanges, outcome: Outcome, job_id: str) -> int:
    """Commit all row changes of a refresh as the view's next version; raises ViewMovedError if it moved."""
    operation = _row_operation(state.dataset, changes)
    return commit_next(view, state.version, operation, {OUTCOME: outcome.encode(), JOB_ID: job_id})


def _row_operation(dataset: lance.LanceDataset, changes: RowChanges) -> LanceOperation.BaseOperation:
    """The cheapest operation for these changes: an Update looks up every new row, two seconds for ten million of them.

    None of these operations stops another refresh at the same moment; :func:`commit_next` does.
    """
    from lance import LanceOperation

    if changes.schema is not None:
        return LanceOperation.Overwrite(changes.schema.with_metadata(dataset.schema.metadata), changes.new)
    if changes.new and not changes.updated:
        if not changes.removed:
            return LanceOperation.Append(changes.new)
        everything = changes.overwrites and len(changes.removed) == len(dataset.get_fragments())
        if everything and not dataset.describe_indices():  # an Overwrite would drop the indices
            return LanceOperation.Overwrite(dataset.lance_schema, changes.new)
    return LanceOperation.Update(
        removed_fragment_ids=changes.removed, updated_fragments=changes.updated, new_fragments=changes.new
    )


def write_bookmark(view: ViewTable, version: int, outcome: Outcome, job_id: str) -> int:
    """Say that the rows at ``version`` are those of ``outcome``; returns the version that says so.

    Another refresh may have finished this one, and a compaction may have committed meanwhile: both keep the rows.
    """
    from lance import LanceOperation

    while True:
        updates = bookmark_updates(outcome, version + 1, text_metadata(view.table.open().schema.metadata))
        operation = LanceOperation.UpdateConfig(schema_metadata_updates=LanceOperation.UpdateMap(updates))
        try:
            return commit_next(view, version, operation, {FINISHED: outcome.encode(), JOB_ID: job_id})
        except ViewMovedError:
            state = read_state(view.table)
            if state.points != outcome.points:
                raise
            if state.unfinished is None:
                return state.version
            version = state.version
