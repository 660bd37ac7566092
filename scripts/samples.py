"""The sample tables of ``make ui``: articles for the example DAGs, and reviews with finished jobs.

``reviews`` has a vector column, a column whose function failed on some rows, and a view. Whatever is there already is
left as it is.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.functions import UdfColumn

HERE = Path(__file__).resolve().parent.parent
LONG_ARTICLES = "SELECT id, upper(text) AS shout, text_length FROM articles WHERE text_length > 50"
GOOD_REVIEWS = "SELECT id, product, text, stars FROM reviews WHERE stars >= 4"
REVIEWS = 2000
PRODUCTS = ("kettle", "desk lamp", "headphones", "backpack", "bicycle bell")
OPINIONS = ("broke after a week", "does what it should", "worth every cent", "arrived late", "a pleasure every morning")


def stars(text: str) -> int:
    """The number of stars that a review gives. A review without one is a failed row."""
    for word in text.split():
        if word.isdigit():
            return int(word)
    raise ValueError(f"no number of stars in {text!r}")


def create_tables(client: LanceClient, rows: int) -> None:
    """Create the tables and views that are not there."""
    there = set(client.list_tables({"id": []}).tables)
    if "articles" not in there:
        client.create_table({"id": "articles"}, example("lance_quickstart").articles(0, rows))
        client.alter_table_add_columns(
            {"id": "articles", "new_columns": [{"name": "text_length", "computed": "length(text)"}]}
        )
    if "long_articles" not in there:
        client.create_materialized_view({"id": "long_articles", "query": LONG_ARTICLES, "with_no_data": True})
    if "reviews" not in there:
        client.create_table({"id": "reviews"}, reviews())
        embed = example("lance_embed")
        columns = {
            "embedding": UdfColumn(embed.embed, ["text"], f"float32[{embed.DIMENSIONS}]", {"call": "batch"}),
            "stars": UdfColumn(stars, ["text"], "int64", {"on_error": "null"}),
        }
        new = [{"name": name, "virtual_column": column.entry(name)} for name, column in columns.items()]
        client.alter_table_add_columns({"id": "reviews", "new_columns": new})
    if "good_reviews" not in there:
        client.create_materialized_view({"id": "good_reviews", "query": GOOD_REVIEWS, "with_no_data": True})


def reviews() -> Any:
    """Generate short texts. One of a hundred gives no stars."""
    import pyarrow as pa

    def text(number: int) -> str:
        verdict = "no stars" if number % 100 == 99 else f"{1 + number * 7 % 5} of 5 stars"
        return f"The {PRODUCTS[number % 5]} {OPINIONS[number // 5 % 5]}: {verdict}."

    return pa.table(
        {
            "id": pa.array(range(REVIEWS), pa.int64()),
            "product": [PRODUCTS[number % 5] for number in range(REVIEWS)],
            "text": [text(number) for number in range(REVIEWS)],
        }
    )


def run_jobs(url: str, seconds: float) -> list[Job]:
    """Run the jobs of the sample tables that never ran, and wait for them. The result has those that have ended."""
    until = time.monotonic() + seconds
    with Wire(url) as wire:
        backfills = [
            _job(wire, "reviews", column, lambda column=column: _backfill(wire, column))  # type: ignore[misc]
            for column in ("embedding", "stars")
        ]
        ended = [job for job in (_wait(wire, job_id, until) for job_id in backfills) if job is not None]
        if len(ended) == len(backfills) and all(job.state is JobState.DONE for job in ended):
            refresh = _job(wire, "good_reviews", None, lambda: _refresh(wire))
            ended += [job for job in [_wait(wire, refresh, until)] if job is not None]
    return ended


def _backfill(wire: Wire, column: str) -> str:
    return str(wire.call("alter_table_backfill_columns", {"id": ["reviews"], "column": column}).value["job_id"])


def _refresh(wire: Wire) -> str:
    return str(wire.call("refresh_materialized_view", {"id": ["good_reviews"]}).value["job_id"])


def _job(wire: Wire, table: str, column: str | None, submit: Callable[[], str]) -> str:
    """The newest job of a column or view that did not fail, else a new one."""
    rows = wire.call("list_jobs", {}).value.get("jobs") or []
    for job in (wire.job(str(row["job_id"])) for row in rows):
        request = job.spec.get("request") or {}
        same = job.table == table and (column is None or request.get("column") == column)
        if same and (not job.state.terminal or job.state is JobState.DONE):
            return job.job_id
    return submit()


def _wait(wire: Wire, job_id: str, until: float) -> Job | None:
    while True:
        job = wire.job(job_id)
        if job.state.terminal:
            return job
        if time.monotonic() > until:
            return None
        time.sleep(0.5)


def example(name: str) -> Any:
    """The module of an example DAG, for its generator of rows or its function."""
    spec = importlib.util.spec_from_file_location(name, HERE / "dags" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
