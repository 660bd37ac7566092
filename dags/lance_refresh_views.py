"""Refresh every materialized view of a namespace, each after the views that it reads, and skip unchanged ones.

The instances of one mapped task have no order, so there is one mapped task for each level. The views of tables come
first, then the views of these views, up to four levels.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_lance.operators.materialized_view import LanceRefreshMaterializedViewOperator

LEVELS = 4

with DAG(
    "lance_refresh_views",
    description="Refresh all materialized views in the order of their dependencies",
    doc_md=__doc__,
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    params={"namespace": Param("", type="string", title="Namespace", description="with $ between parts; empty = root")},
) as dag:

    @task.lance
    def discover(*, namespace: Any, params: dict[str, Any] | None = None) -> list[list[list[str]]]:
        """The views by level. A view is one level above the highest view that it reads."""
        from airflow.sdk.exceptions import AirflowFailException

        parts = [part for part in (params or {}).get("namespace", "").split("$") if part]
        found = namespace.iterate("list_materialized_views", {"id": parts})
        names = [each if isinstance(each, str) else each["name"] for each in found]
        sources = {}
        for name in names:
            view = namespace.describe_materialized_view({"id": [*parts, name]})
            sources[name] = reads(view, parts)
        level: dict[str, int] = {}

        def level_of(name: str, path: tuple[str, ...] = ()) -> int:
            if name in path:
                raise AirflowFailException(f"These views read each other: {' → '.join((*path, name))}.")
            if name not in level:
                below = [level_of(source, (*path, name)) for source in sources[name] & set(sources)]
                level[name] = 1 + max(below, default=-1)
            return level[name]

        for name in names:
            if level_of(name) >= LEVELS:
                raise AirflowFailException(f"The view {name} is more than {LEVELS} levels above its tables.")
        return [[[*parts, name] for name in names if level[name] == number] for number in range(LEVELS)]

    def reads(view: Any, parts: list[str]) -> set[str]:
        """The tables of this namespace that a view reads. If the server does not list them, the names in its query."""
        import re

        if view.sources:
            ids = [source.table_id or [] for source in view.sources]
            return {table_id[-1] for table_id in ids if table_id[:-1] == parts and table_id}
        return {view.source_table} if view.source_table else set(re.findall(r"[\w.]+", view.query or ""))

    @task
    def views_of(levels: list[list[list[str]]], number: int) -> list[list[str]]:
        return levels[number]

    levels = discover()
    above = None
    for number in range(LEVELS):
        refresh = LanceRefreshMaterializedViewOperator.partial(
            task_id=f"refresh_level_{number}",
            skip_if_unchanged=True,
            on_conflict="wait",
            deferrable=True,
            retries=2,
            trigger_rule="none_failed",
            max_active_tis_per_dagrun=4,
        ).expand(table_id=views_of.override(task_id=f"level_{number}")(levels, number))
        if above is not None:
            above >> refresh
        above = refresh
