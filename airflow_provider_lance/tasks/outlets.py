"""The asset events of the tables that a task has changed. Every operator and ``@task.lance`` write them here.

An event belongs to a declared outlet. A task whose table is known only when it runs declares an ``AssetAlias``, to
which the asset of its table is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from airflow.providers.common.compat.sdk import Asset, AssetAlias

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.assets.lance import alias_authority, assets_of, create_asset, table_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from pydantic import JsonValue

    from airflow_provider_lance.hooks.lance import LanceNamespaceHook
    from airflow_provider_lance.hooks.table_use import TableUse
    from airflow_provider_lance.tasks.errors import TaskLog


class TaskWithOutlets(Protocol):
    """What is needed of an operator."""

    outlets: list[object]
    inlets: list[object]


def asset_authority(hook: LanceNamespaceHook, assets: Iterable[object]) -> str:
    """The authority of this namespace's assets: that of the connection, else of the task's assets, else its host."""
    if hook.resolved.asset_authority:
        return hook.resolved.asset_authority
    for asset in assets:
        authority = alias_authority(asset) if isinstance(asset, AssetAlias) else (table_of(asset) or (None,))[0]
        if authority is not None:
            return authority
    return hook.resolved.default_authority


def outlet_uris(task: TaskWithOutlets, hook: LanceNamespaceHook, table_id: Sequence[str]) -> list[str]:
    """The URIs of the assets whose events a change of this table writes."""
    uris = [str(asset.uri) for asset in assets_of(task.outlets, table_id)]
    uris += [_alias_asset(task, hook, alias, table_id).uri for alias in _aliases(task)]
    return list(dict.fromkeys(uris))


def publish_change(
    task: TaskWithOutlets, context: Context, hook: LanceNamespaceHook, table_id: Sequence[str], **extra: JsonValue
) -> None:
    """Write the events of the outlets that are this table, and add the table's asset to every alias among them.

    The values of ``extra`` that are ``None`` are left out.
    """
    known: dict[str, JsonValue] = {key: value for key, value in extra.items() if value is not None}
    for asset in assets_of(task.outlets, table_id):
        context["outlet_events"][asset].extra.update(known)
    for alias in _aliases(task):
        asset = _alias_asset(task, hook, alias, table_id)
        accessor = context["outlet_events"][alias]
        if all(event.dest_asset_key.uri != asset.uri for event in accessor.asset_alias_events):
            accessor.add(asset, extra=known)


def is_mapped(context: Context) -> bool:
    """Whether the task is one of several that a mapped operator was expanded to."""
    map_index = context["ti"].map_index
    return map_index is not None and map_index >= 0


def drop_other_tables(task: TaskWithOutlets, table_ids: Collection[Sequence[str]]) -> None:
    """Take the Lance assets of other tables out of a task's outlets, so that Airflow records no event for them.

    The tasks of a mapped operator share their outlets, and each of them changes one of the tables.
    """
    changed = [list(table_id) for table_id in table_ids]
    task.outlets = [outlet for outlet in task.outlets if (named := table_of(outlet)) is None or named[1] in changed]


class ChangedTables:
    """The tables that the function of a task changes through its namespace.

    Lance writes straight to storage after it has opened a table. So a table that was opened is asked for its version
    at once and at the end, where ``watch_opened`` tells that somebody wants to know.
    """

    def __init__(self, hook: LanceNamespaceHook, log: TaskLog, *, watch_opened: bool) -> None:
        self.uses: list[TableUse] = []
        self._hook = hook
        self._log = log
        self._watch_opened = watch_opened
        self._opened: dict[tuple[str, ...], int | None] = {}

    def note(self, use: TableUse) -> None:
        self.uses.append(use)
        if self._watch_opened and not use.changes and use.table_id not in self._opened:
            self._opened[use.table_id] = self.version(use.table_id)

    def version(self, table_id: Sequence[str]) -> int | None:
        """The newest version of a table; ``None`` where there is none, or where the namespace does not tell."""
        try:
            return self._hook.current_version(list(table_id))
        except WireError as error:
            self._log.info("The version of table %s is not known: %s", self._hook.join_id(table_id), error)
            return None

    def changes(self) -> dict[tuple[str, ...], dict[str, JsonValue]]:
        """Each changed table with the ``extra`` of its event. A table that is gone has none."""
        found: dict[tuple[str, ...], dict[str, JsonValue]] = {}
        for use in self.uses:
            if use.changes and use.table_id not in found and (version := self.version(use.table_id)) is not None:
                found[use.table_id] = {"version": version}
            if use.job_id is not None:
                found[use.table_id] = {"job_id": use.job_id}
        for table_id, before in self._opened.items():
            if table_id not in found and (version := self.version(table_id)) != before:
                found[table_id] = {"version": version}
        return found

    def lineage(self) -> list[TableUse]:
        """The uses without repetitions, and without those that opened a table only to change it."""
        changed = {use.table_id for use in self.uses if use.changes}
        kept = (use._replace(job_id=None) for use in self.uses if use.changes or use.table_id not in changed)
        return list(dict.fromkeys(kept))


def publish_function_changes(
    task: TaskWithOutlets, context: Context, hook: LanceNamespaceHook, changed: ChangedTables
) -> None:
    """Write the events of a function's task: every declared table's version, and the changed tables of an alias."""
    if not task.outlets:
        return
    found = changed.changes()
    if found and is_mapped(context):
        drop_other_tables(task, list(found))
    for table_id, extra in found.items():
        publish_change(task, context, hook, table_id, **extra)
    for outlet in task.outlets:
        named = table_of(outlet)
        if named is None or tuple(named[1]) in found or hook.resolved.asset_authority not in (None, named[0]):
            continue
        events = context["outlet_events"][outlet]  # type: ignore[index] # table_of accepts assets and references only
        if "version" not in events.extra and (version := changed.version(named[1])) is not None:
            events.extra["version"] = version


def _aliases(task: TaskWithOutlets) -> list[AssetAlias]:
    return [outlet for outlet in task.outlets if isinstance(outlet, AssetAlias)]


def _alias_asset(task: TaskWithOutlets, hook: LanceNamespaceHook, alias: AssetAlias, table_id: Sequence[str]) -> Asset:
    authority = alias_authority(alias) or asset_authority(hook, [*task.outlets, *task.inlets])
    return create_asset(authority=authority, table_id=list(table_id))
