"""Views with ``auto_refresh`` and columns with ``auto_backfill``: submit their jobs when their sources have changed.

A round opens only tables that have a new version since the previous round. The transactions tell what a new version
changed, so that compactions, indices and backfills of columns that a target does not read submit no job.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from lance_namespace import AlterTableBackfillColumnsRequest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_states import JobState, JobType
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.models import ListJobsRequest
from airflow_provider_lance.definitions.column_rules import VIRTUAL, VIRTUAL_DEFINITION, VIRTUAL_GROUP, column_rule
from airflow_provider_lance.definitions.expressions import format_path
from airflow_provider_lance.definitions.view_binding import columns_read
from airflow_provider_lance.definitions.view_definition import AUTO_REFRESH_KEY
from airflow_provider_lance.namespace.tables.catalog import Catalog
from airflow_provider_lance.namespace.tables.columns import Columns
from airflow_provider_lance.namespace.tables.job_requests import JobRequests
from airflow_provider_lance.namespace.tables.namespaces import Namespaces
from airflow_provider_lance.namespace.tables.views import Views
from airflow_provider_lance.storage.history import KEEPS_VALUES, UNNAMED, keeps_files, read_commit
from airflow_provider_lance.storage.table import field_ids
from airflow_provider_lance.storage.view_state import read_state

if TYPE_CHECKING:
    import lance

log = logging.getLogger(__name__)

_Number = TypeVar("_Number", int, float)

# Each transaction costs a request, so a source with more new versions than this counts as changed without reading them.
_MOST_TRANSACTIONS = 50


@dataclass(frozen=True)
class WatchSettings:
    """When the changes of a source are enough for a job. Both thresholds must be reached; 0 or 1 means any change.

    ``versions`` counts commits that change rows, ``rows`` the rows inserted, updated or deleted. ``cooldown`` is the
    number of seconds between two jobs for one target, ``interval`` that between two rounds.
    """

    versions: int = 1
    rows: int = 0
    cooldown: float = 60.0
    interval: float = 10.0

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> WatchSettings:
        """The settings in the string properties ``watch.versions``, ``watch.rows``, and so on."""
        return cls(
            versions=_read_number(properties, "versions", cls.versions),
            rows=_read_number(properties, "rows", cls.rows),
            cooldown=_read_number(properties, "cooldown", cls.cooldown),
            interval=_read_number(properties, "interval", cls.interval),
        )


def _read_number(properties: Mapping[str, str], name: str, default: _Number) -> _Number:
    text = properties.get(f"watch.{name}")
    if text is None:
        return default
    try:
        value = type(default)(text)
    except ValueError:
        raise InvalidInputError(f"watch.{name} is {text!r}; it must be a number.") from None
    if not 0 <= value < float("inf"):
        raise InvalidInputError(f"watch.{name} is {text!r}; it must be 0 or more.")
    return value


@dataclass(frozen=True)
class _Automatic:
    """A view that is refreshed automatically (``column`` is None), or a column that is filled automatically."""

    table_id: tuple[str, ...]
    column: str | None = None

    def __str__(self) -> str:
        return join_id(self.table_id) + (f"|{self.column}" if self.column else "")


@dataclass
class _OpenTable:
    """A table as the last round opened it. ``sources`` are the tables that a view reads, once they are known."""

    dataset: lance.LanceDataset
    targets: tuple[_Automatic, ...]
    sources: dict[str, list[str]] | None = None


@dataclass
class _Progress:
    """The versions of its sources that a target's last job read and the last round checked, and that job."""

    done: dict[str, int] | None = None
    checked: dict[str, int] | None = None
    submitted_at: float = field(default=float("-inf"))
    job_id: str | None = None


class Watcher:
    """Checks every table in turn; :meth:`round` does so once, and :meth:`start` repeats it in a thread."""

    def __init__(
        self,
        catalog: Catalog,
        namespaces: Namespaces,
        columns: Columns,
        views: Views,
        jobs: JobRequests,
        settings: WatchSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._namespaces = namespaces
        self._columns = columns
        self._views = views
        self._jobs = jobs
        self._settings = settings
        self.clock = clock
        self._open_tables: dict[tuple[str, ...], _OpenTable] = {}
        self._progress: dict[_Automatic, _Progress] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lance-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stop.wait(self._settings.interval):
            try:
                self.round()
            except Exception:  # A failed round must not end the thread.
                log.exception("Looking for views and columns to bring up to date failed; trying again.")

    def round(self) -> list[str]:
        """Check every table once; return the ids of the jobs that were submitted."""
        submitted = []
        table_ids = [tuple(table_id) for table_id in self._namespaces.tables()]
        for dropped in self._open_tables.keys() - set(table_ids):
            del self._open_tables[dropped]
        for table_id in table_ids:
            for target in self._targets(table_id):
                try:
                    job_id = self._submit_if_due(target)
                except LanceNamespaceError as error:
                    # A source may have been dropped, or another job may write the target. The next round tries again.
                    log.info("%s is not brought up to date now: %s", target, error)
                    continue
                if job_id is not None:
                    log.info("Submitted job %s to bring %s up to date.", job_id, target)
                    submitted.append(job_id)
        return submitted

    def _targets(self, table_id: tuple[str, ...]) -> tuple[_Automatic, ...]:
        """The targets in a table, which is opened again if it has a new version."""
        known = self._open_tables.get(table_id)
        try:
            if known is None or known.dataset.latest_version != known.dataset.version:
                dataset = self._catalog.open(list(table_id))
                self._open_tables[table_id] = known = _OpenTable(dataset, _find_targets(table_id, dataset))
        except (LanceNamespaceError, ValueError, OSError):
            self._open_tables.pop(table_id, None)  # The table is only declared, or was dropped in the meantime.
            return ()
        return known.targets

    def _submit_if_due(self, target: _Automatic) -> str | None:
        """Submit the job of a target whose sources have changed enough; return its id."""
        progress = self._progress.setdefault(target, _Progress())
        if self.clock() - progress.submitted_at < self._settings.cooldown or self._is_live(progress):
            return None
        sources = self._sources(target)
        now = {name: dataset.version for name, dataset in sources.items()}
        if now == progress.checked:
            return None  # No source has a new version since the last round, which found too few changes.
        done = self._done(target, progress)
        changed = (
            self._changed_enough(dataset, done.get(name, 0), self._reads(target, dataset))
            for name, dataset in sources.items()
        )
        if not any(changed):
            progress.checked = now
            return None
        if target.column is None:
            job_id = self._views.refresh(list(target.table_id), {})
        else:
            request = AlterTableBackfillColumnsRequest(id=list(target.table_id), column=target.column)
            job_id = self._columns.backfill(request)
        progress.submitted_at, progress.job_id = self.clock(), job_id
        progress.done = progress.checked = now
        return job_id

    def _is_live(self, progress: _Progress) -> bool:
        if progress.job_id is None:
            return False
        job = self._describe(progress.job_id)
        if job is not None and not job.state.terminal:
            return True
        if job is None or job.state is not JobState.DONE:
            # The job changed nothing, so the versions that it read count again after the cooldown.
            progress.done = progress.checked = None
        progress.job_id = None
        return False

    def _sources(self, target: _Automatic) -> dict[str, lance.LanceDataset]:
        """The tables that a view reads, by their names in its query, or the table of a column."""
        table = self._open_tables[target.table_id]
        if target.column is not None:
            return {target.column: table.dataset}
        if table.sources is None:
            view_id = list(target.table_id)
            table.sources = self._views.source_ids(view_id, self._views.definition(view_id)[1])
        return {name: self._open_source(table_id) for name, table_id in table.sources.items()}

    def _done(self, target: _Automatic, progress: _Progress) -> Mapping[str, int]:
        """The version of each source from which the target was computed."""
        if target.column is not None:
            return progress.done or {target.column: self._last_backfilled(target)}
        state = read_state(self._catalog.table(list(target.table_id)))
        return {name: point.version for name, point in (state.points or {}).items()}

    def _last_backfilled(self, target: _Automatic) -> int:
        """The version that the column's last finished backfill read; 0 if the registry has none."""
        wanted = ListJobsRequest(table=join_id(target.table_id), state=[JobState.DONE.value])
        for job in self._jobs.find_jobs(wanted):
            if job.job_type == JobType.BACKFILL.value and job.spec["request"].get("column") == target.column:
                return int((job.result or {}).get("source_version") or 0)
        return 0

    def _reads(self, target: _Automatic, source: lance.LanceDataset) -> frozenset[int] | None:
        """The ids of the fields of ``source`` that the target reads; None where they are not known."""
        if target.column is not None:
            return field_ids(source, column_rule(source.schema, target.column).inputs)
        select = self._views.definition(list(target.table_id))[1].select
        if select is None:
            return None
        return field_ids(source, [format_path([name]) for name in columns_read(select, source.schema.names)])

    def _changed_enough(self, source: lance.LanceDataset, done: int, reads: frozenset[int] | None) -> bool:
        """Whether the changes of a source since version ``done`` reach both thresholds."""
        newer = range(max(done, source.version - _MOST_TRANSACTIONS) + 1, source.version + 1)
        changed = sum(_changes_rows(source, version, reads) for version in newer)
        if source.version - done > _MOST_TRANSACTIONS:
            changed = max(changed, self._settings.versions)
        if changed < max(self._settings.versions, 1):
            return False
        return self._settings.rows <= 1 or _rows_changed(source, done) >= self._settings.rows

    def _open_source(self, table_id: list[str]) -> lance.LanceDataset:
        self._targets(tuple(table_id))
        known = self._open_tables.get(tuple(table_id))
        return known.dataset if known is not None else self._catalog.open(table_id)

    def _describe(self, job_id: str) -> Job | None:
        return next(iter(self._jobs.find_jobs(ListJobsRequest(job_ids=[job_id]))), None)


def _find_targets(table_id: tuple[str, ...], dataset: lance.LanceDataset) -> tuple[_Automatic, ...]:
    targets = []
    if (dataset.schema.metadata or {}).get(AUTO_REFRESH_KEY.encode()) == b"true":
        targets.append(_Automatic(table_id))
    groups = set()
    for column in dataset.schema:
        metadata = column.metadata or {}
        if metadata.get(VIRTUAL.encode()) != b"true":
            continue
        try:
            definition = json.loads(metadata.get(VIRTUAL_DEFINITION.encode(), b"{}"))
        except ValueError:
            continue
        group = metadata.get(VIRTUAL_GROUP.encode(), column.name.encode())
        if definition.get("auto_backfill") is True and group not in groups:
            groups.add(group)  # One job fills all outputs of a function.
            targets.append(_Automatic(table_id, column.name))
    return tuple(targets)


def _changes_rows(source: lance.LanceDataset, version: int, reads: frozenset[int] | None) -> bool:
    commit = read_commit(source, version)
    if commit is None:
        return True  # The transaction was cleaned up, so the version may have changed rows.
    if commit.replaced and reads is not None:
        return not reads.isdisjoint(commit.replaced)
    if commit.operation == UNNAMED:
        return not keeps_files(source, version)
    return commit.operation not in KEEPS_VALUES


def _rows_changed(source: lance.LanceDataset, done: int) -> int:
    """The number of rows inserted, updated or deleted after version ``done``; all rows where that is not known."""
    now = source.count_rows()
    if not source.has_stable_row_ids or done < 1:
        return int(now)
    try:
        before = source.checkout_version(done).count_rows()
    except (ValueError, OSError):
        return int(now)
    written = source.count_rows(f"_row_last_updated_at_version > {done}")
    inserted = source.count_rows(f"_row_created_at_version > {done}")
    return int(written + max(before + inserted - now, 0))
