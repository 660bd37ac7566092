"""The contract of the kinds of views: what a kind is given, what it answers, and what it returns.

The kinds are ``query_view.py``, ``chunker_view.py``, ``table_function_view.py`` and ``spark_view.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from airflow_provider_lance.definitions.json_types import JsonObject
from airflow_provider_lance.definitions.refresh_request import RefreshRequest
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.job.context import JobContext
from airflow_provider_lance.engine.job.progress import ProgressMeter
from airflow_provider_lance.engine.views.commit_next import ViewTable
from airflow_provider_lance.engine.views.publish import RowChanges
from airflow_provider_lance.engine.views.scan_tasks import DEFAULT_ROWS_PER_FILE, WriteTarget, WrittenFragments
from airflow_provider_lance.engine.views.source_changes import Changes, NotComparable
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.view_state import RefreshDetails, SourcePoint, ViewState

if TYPE_CHECKING:
    import lance

C = TypeVar("C")


@dataclass(frozen=True)
class Source:
    """A source table of the view, at the version that the refresh reads."""

    table: TableRef
    dataset: lance.LanceDataset
    point: SourcePoint


@dataclass(frozen=True)
class Refresh:
    """One attempt to refresh a view: the job and its request, the view as it was read, and its sources by name."""

    context: JobContext
    meter: ProgressMeter
    request: RefreshRequest
    view: ViewTable
    state: ViewState
    sources: Mapping[str, Source]

    @property
    def definition(self) -> ViewDefinition:
        return self.state.definition

    @property
    def source(self) -> Source:
        """The source of a view that reads one table."""
        return next(iter(self.sources.values()))

    def unstable_source(self, name: str) -> Prospect | None:
        """The reason for a source whose rows cannot be told apart from version to version."""
        if self.sources[name].dataset.has_stable_row_ids:
            return None
        return Prospect(reason=f"{name} has no stable row ids: create it with enable_stable_row_ids")

    @property
    def points(self) -> dict[str, SourcePoint]:
        return {name: source.point for name, source in self.sources.items()}

    @property
    def target(self) -> WriteTarget:
        return WriteTarget(
            self.view.table,
            self.state.schema,
            self.request.max_rows_per_fragment or DEFAULT_ROWS_PER_FILE,
            self.state.dataset.data_storage_version,
            new_schema=self.state.new_schema is not None,
        )


@dataclass(frozen=True)
class Prospect:
    """How later changes of a source will be followed: by a technique, or not at all for a reason."""

    technique: str | None = None
    key: tuple[str, ...] = ()
    reason: str | None = None

    def to_dict(self) -> JsonObject:
        if self.reason is not None:
            return {"reason": self.reason}
        return {"technique": self.technique} | ({"key": list(self.key)} if self.key else {})


@dataclass(frozen=True)
class Computed:
    """The row changes of a refresh, ready to commit, and their figures."""

    changes: RowChanges
    rows_written: int
    rows_deleted: int
    trimmed_to: int | None = None
    skipped: int = 0


class ViewKind(ABC, Generic[C]):
    """A kind of view: how its rows are computed. A kind writes fragments and commits nothing.

    ``C`` is what the kind knows of a change of its sources.
    """

    def __init__(self, refresh: Refresh) -> None:
        self.refresh = refresh

    @abstractmethod
    def find_changes(self) -> C:
        """What changed in the sources since the last refresh.

        Raises :class:`NotComparable` with the reason where the view must be rebuilt.
        """

    @abstractmethod
    def follow(self, changes: C) -> Computed:
        """The row changes for ``changes``. Raises :class:`NotComparable` as :meth:`find_changes` does."""

    @abstractmethod
    def rows_to_read(self, changes: C) -> int:
        """How many source rows :meth:`follow` reads."""

    @abstractmethod
    def prospects(self) -> dict[str, Prospect]:
        """How changes of each source will be followed, as far as the query alone tells."""

    def explain(self, changes: C) -> RefreshDetails:
        """How :meth:`follow` does its work, for the result of the job."""
        return RefreshDetails()

    @abstractmethod
    def rebuild(self) -> Computed:
        """The row changes that replace all rows of the view."""

    def replace_all_rows(self, written: Sequence[WrittenFragments]) -> Computed:
        """Remove the view's rows and add ``written`` in one commit, so that no reader sees the view empty."""
        state = self.refresh.state
        old = [fragment.fragment_id for fragment in state.dataset.get_fragments()]
        new = [fragment for one in written for fragment in one.metadata()]
        if state.new_schema is None:
            changes = RowChanges(new, removed=old, overwrites=True)
        else:
            changes = RowChanges(new, schema=state.schema)
        return Computed(
            changes,
            sum(one.rows for one in written),
            state.dataset.count_rows() if old else 0,
            skipped=sum(one.skipped for one in written),
        )


class AlwaysRebuilt(ViewKind[Changes]):
    """A kind of view that is computed whole whenever a source changed."""

    #: Completes the sentence "the source changed, and …".
    rebuild_reason: ClassVar[str]

    def find_changes(self) -> Changes:
        raise NotComparable(f"the source changed, and {self.rebuild_reason}")

    def follow(self, changes: Changes) -> Computed:
        return self.rebuild()

    def rows_to_read(self, changes: Changes) -> int:
        return 0

    def prospects(self) -> dict[str, Prospect]:
        return {name: Prospect(reason=self.rebuild_reason) for name in self.refresh.sources}
