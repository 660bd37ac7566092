"""Refresh a view when its source changes, instead of at a fixed time.

A watcher in the triggerer polls the table ``articles``. Each new version becomes an asset event, and the event runs
this DAG. Any program may write the table, such as a Spark job, a notebook or LanceDB.

Define an asset with its watcher in one file only. Airflow removes the watcher when it parses another file that names
the same asset without it.
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
        """The versions that triggered this run. Only the event of a watcher has a payload."""
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
