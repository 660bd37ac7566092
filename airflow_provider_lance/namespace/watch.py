"""Views with ``auto_refresh`` and columns with ``auto_backfill``: submit their jobs when their sources have moved.

Cheap on purpose: a round opens no table that has not changed since the round before. What counts as a change is read
from the transactions, so that compactions, indices and backfills of columns a target does not read start nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_words import JobState, JobType
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.engine.columns import VIRTUAL, VIRTUAL_DEFINITION, VIRTUAL_GROUP, column_rule
from airflow_provider_lance.engine.expressions import format_path
from airflow_provider_lance.engine.history import read_commit
from airflow_provider_lance.engine.table import field_ids
from airflow_provider_lance.engine.view_binding import columns_read
from airflow_provider_lance.engine.view_definition import AUTO_REFRESH_KEY
from airflow_provider_lance.engine.view_table import read_state
from airflow_provider_lance.namespace.catalog import Catalog
from airflow_provider_lance.namespace.columns import Columns
from airflow_provider_lance.namespace.job_requests import JobRequests
from airflow_provider_lance.namespace.tree import Tree
from airflow_provider_lance.namespace.views import Views

if TYPE_CHECKING:
    import lance

log = logging.getLogger(__name__)

# Commits after which every row still has the values it had.
_HARMLESS = frozenset({"CreateIndex", "Project", "ReserveFragments", "Rewrite", "UpdateConfig"})
# Reading transactions costs a request each; a source that moved further than this has changed for all we care.
_LOOK_BACK = 50


@dataclass(frozen=True)
class WatchSettings:
    """When a source has moved far enough. Both thresholds must be reached; a threshold of 0 or 1 asks for any change.

    ``versions``: commits that change rows. ``rows``: rows inserted, updated or deleted. ``cooldown``: seconds between
    two jobs for one target. ``interval``: seconds between two looks.
    """

    versions: int = 1
    rows: int = 0
    cooldown: float = 60.0
    interval: float = 10.0

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> WatchSettings:
        """From string properties ``watch.versions``, ``watch.rows`` …"""
        values: dict[str, Any] = {}
        for known in fields(cls):
            text = properties.get(f"watch.{known.name}")
            if text is None:
                continue
            try:
                values[known.name] = int(text) if known.name in {"versions", "rows"} else float(text)
            except ValueError:
                raise InvalidInputError(f"watch.{known.name} is {text!r}; it must be a number.") from None
            if not 0 <= values[known.name] < float("inf"):
                raise InvalidInputError(f"watch.{known.name} is {text!r}; it must be 0 or more.")
        return cls(**values)


@dataclass(frozen=True)
class Target:
    """Something to keep fresh: a view (``column`` is None) or a column of a table."""

    table_id: tuple[str, ...]
    column: str | None = None

    def __str__(self) -> str:
        return join_id(self.table_id) + (f"|{self.column}" if self.column else "")


@dataclass
class _Seen:
    """A table as the last round saw it. ``sources``: the tables a view reads, once they were looked up."""

    dataset: lance.LanceDataset
    targets: tuple[Target, ...]
    sources: dict[str, list[str]] | None = None


@dataclass
class _Progress:
    """The sources' versions that the last job read and the last look found, and when that job was asked for."""

    done: dict[str, int] | None = None
    checked: dict[str, int] | None = None
    submitted_at: float = field(default=float("-inf"))
    job_id: str | None = None


class Watcher:
    """Looks at every table in turn; :meth:`round` is one look, :meth:`start` repeats it in a thread of its own."""

    def __init__(
        self,
        catalog: Catalog,
        tree: Tree,
        columns: Columns,
        views: Views,
        jobs: JobRequests,
        settings: WatchSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._tree = tree
        self._columns = columns
        self._views = views
        self._jobs = jobs
        self._settings = settings
        self._clock = clock
        self._seen: dict[tuple[str, ...], _Seen] = {}
        self._progress: dict[Target, _Progress] = {}
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
            except Exception:  # one bad round must not end the watch
                log.exception("Looking for views and columns to bring up to date failed; trying again.")

    def round(self) -> list[str]:
        """Look once; the ids of the jobs that were submitted."""
        submitted = []
        table_ids = [tuple(table_id) for table_id in self._tree.tables()]
        for gone in self._seen.keys() - set(table_ids):
            del self._seen[gone]
        for table_id in table_ids:
            for target in self._targets(table_id):
                try:
                    job_id = self._bring_up(target)
                except LanceNamespaceError as error:
                    # A source that is gone, a job that runs already: the next round sees whether it lasts.
                    log.info("%s is not brought up to date now: %s", target, error)
                    continue
                if job_id is not None:
                    log.info("Submitted job %s to bring %s up to date.", job_id, target)
                    submitted.append(job_id)
        return submitted

    def _targets(self, table_id: tuple[str, ...]) -> tuple[Target, ...]:
        seen = self._seen.get(table_id)
        try:
            if seen is None or seen.dataset.latest_version != seen.dataset.version:
                dataset = self._catalog.open(list(table_id))
                self._seen[table_id] = seen = _Seen(dataset, _find_targets(table_id, dataset))
        except (LanceNamespaceError, ValueError, OSError):
            self._seen.pop(table_id, None)  # only declared, or dropped in this moment
            return ()
        return seen.targets

    def _bring_up(self, target: Target) -> str | None:
        progress = self._progress.setdefault(target, _Progress())
        if self._clock() - progress.submitted_at < self._settings.cooldown or self._is_live(progress):
            return None
        sources = self._sources(target)
        now = {name: dataset.version for name, dataset in sources.items()}
        if now == progress.checked:
            return None  # nothing moved since the last look, which found too little
        done = self._done(target, progress)
        moved = (
            self._moved_enough(dataset, done.get(name, 0), self._reads(target, dataset))
            for name, dataset in sources.items()
        )
        if not any(moved):
            progress.checked = now
            return None
        if target.column is None:
            job_id = self._views.refresh(list(target.table_id), {})
        else:
            job_id = self._columns.backfill(list(target.table_id), {"column": target.column})
        progress.submitted_at, progress.job_id = self._clock(), job_id
        progress.done = progress.checked = now
        return job_id

    def _is_live(self, progress: _Progress) -> bool:
        if progress.job_id is None:
            return False
        job = self._describe(progress.job_id)
        if job is not None and not job.state.terminal:
            return True
        if job is None or job.state is not JobState.DONE:
            # It brought nothing: after the cooldown its versions count again.
            progress.done = progress.checked = None
        progress.job_id = None
        return False

    def _sources(self, target: Target) -> dict[str, lance.LanceDataset]:
        """What a target is made from: the tables a view reads by their names in its query, or the column's table."""
        seen = self._seen[target.table_id]
        if target.column is not None:
            return {target.column: seen.dataset}
        if seen.sources is None:
            view_id = list(target.table_id)
            seen.sources = self._views.source_ids(view_id, self._views.definition(view_id)[1])
        return {name: self._open_seen(table_id) for name, table_id in seen.sources.items()}

    def _done(self, target: Target, progress: _Progress) -> Mapping[str, int]:
        """The version of each source that the target shows."""
        if target.column is not None:
            return progress.done or {target.column: self._last_backfilled(target)}
        state = read_state(self._catalog.table(list(target.table_id)))
        return {name: point.version for name, point in (state.points or {}).items()}

    def _last_backfilled(self, target: Target) -> int:
        """The version the column's last finished backfill read; 0 if there is none in the registry."""
        request = {"table": join_id(target.table_id), "state": [JobState.DONE.value]}
        for row in self._jobs.service.list_jobs(request)["jobs"]:
            job = Job.from_wire(row)
            if job.job_type == JobType.BACKFILL.value and job.spec["request"].get("column") == target.column:
                return int((job.result or {}).get("source_version") or 0)
        return 0

    def _reads(self, target: Target, source: lance.LanceDataset) -> frozenset[int] | None:
        """The ids of the fields of ``source`` that the target is made from; None where that may be all of them."""
        if target.column is not None:
            return field_ids(source, column_rule(source.schema, target.column).inputs)
        select = self._views.definition(list(target.table_id))[1].select
        if select is None:
            return None
        return field_ids(source, [format_path([name]) for name in columns_read(select, source.schema.names)])

    def _moved_enough(self, source: lance.LanceDataset, done: int, reads: frozenset[int] | None) -> bool:
        newer = range(max(done, source.version - _LOOK_BACK) + 1, source.version + 1)
        changed = sum(_changes_rows(source, version, reads) for version in newer)
        if source.version - done > _LOOK_BACK:
            changed = max(changed, self._settings.versions)
        if changed < max(self._settings.versions, 1):
            return False
        return self._settings.rows <= 1 or _rows_changed(source, done) >= self._settings.rows

    def _open_seen(self, table_id: list[str]) -> lance.LanceDataset:
        self._targets(tuple(table_id))
        seen = self._seen.get(tuple(table_id))
        return seen.dataset if seen is not None else self._catalog.open(table_id)

    def _describe(self, job_id: str) -> Job | None:
        rows = self._jobs.service.list_jobs({"job_ids": [job_id]})["jobs"]
        return Job.from_wire(rows[0], job_id) if rows else None


def _find_targets(table_id: tuple[str, ...], dataset: lance.LanceDataset) -> tuple[Target, ...]:
    targets = []
    if (dataset.schema.metadata or {}).get(AUTO_REFRESH_KEY.encode()) == b"true":
        targets.append(Target(table_id))
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
            groups.add(group)  # one function fills all its outputs
            targets.append(Target(table_id, column.name))
    return tuple(targets)


def _changes_rows(source: lance.LanceDataset, version: int, reads: frozenset[int] | None) -> bool:
    commit = read_commit(source, version)
    if commit is None:
        return True  # cleaned up: nobody can say, so it counts
    if commit.replaced and reads is not None:
        return not reads.isdisjoint(commit.replaced)
    return commit.operation not in _HARMLESS


def _rows_changed(source: lance.LanceDataset, done: int) -> int:
    """Rows inserted, updated or deleted after version ``done``; every row where nothing finer can be known."""
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
