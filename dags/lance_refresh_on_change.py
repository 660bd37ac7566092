"""Refresh a view because its source changed, not because it is 3 a.m.

A watcher in the triggerer looks at the table ``articles``; each new version becomes an asset event, and the event runs
this DAG. Writers need not know of it: a Spark job, a notebook or LanceDB may have made the version.

Define an asset with its watcher in one file only: Airflow removes the watcher whenever it parses another file that
names the same asset without it.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, AssetWatcher, task

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.operators.materialized_view import LanceRefreshMaterializedViewOperator
from airflow_provider_lance.triggers.table import LanceTableTrigger

SOURCE, VIEW = ["articles"], ["long_articles"]

articles = create_asset(
    authority="demo",
    table_id=SOURCE,
    watchers=[AssetWatcher(name="articles_version", trigger=LanceTableTrigger(table_id=SOURCE))],
)
long_articles = create_asset(authority="demo", table_id=VIEW)

with DAG(
    "lance_refresh_on_change",
    description="Asset-driven: refresh the view when the version of its source moves",
    doc_md=__doc__,
    schedule=[articles],
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
) as dag:

    @task
    def what_changed(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """The versions that led to this run; a watcher's payload is nested, a task's outlet event is not."""
        events = [event for found in (triggering_asset_events or {}).values() for event in found]
        return [(event.extra or {}).get("payload", event.extra or {}) for event in events]

    refresh = LanceRefreshMaterializedViewOperator(
        task_id="refresh",
        table_id=VIEW,
        skip_if_unchanged=True,
        on_conflict="wait",
        deferrable=True,
        retries=1,
        outlets=[long_articles],
    )
    what_changed() >> refresh
