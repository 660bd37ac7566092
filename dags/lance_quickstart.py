"""All parts in one DAG: a table, a computed column, a view, a version and a tag.

It creates an empty table, loads generated articles into it, declares a computed column and backfills it on Spark. It
creates a materialized view, appends rows and refreshes the view for these rows only. It publishes a staged version and
moves a tag.

`make demo` runs it. In the UI, press Trigger and choose the number of rows. A run begins by dropping the tables of the
run before, so no other example uses these tables.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.materialized_view import (
    LanceCreateMaterializedViewOperator,
    LanceRefreshMaterializedViewOperator,
)
from airflow_provider_lance.operators.table import LanceCreateEmptyTableOperator, LanceDropTableOperator
from airflow_provider_lance.operators.tag import LanceUpdateTagOperator
from airflow_provider_lance.operators.version import LanceCreateTableVersionOperator

ARTICLES = ["quickstart_articles"]
LONG_ARTICLES = ["quickstart_long_articles"]
DIMENSIONS = 32
CLUSTER = "{{ params.cluster or '' }}"
WORDS = (
    "the a of to and in that is was for on with as at by from this an be it or are data table column vector index "
    "fragment version commit query search model feature row batch stream view spark lance night morning river"
)


def articles(start: int, rows: int) -> Any:
    """Generate articles as a stream of Arrow batches. Each has a text and a vector."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pa.array(WORDS.split())
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), DIMENSIONS))])

    def batches() -> Any:
        for first in range(start, start + rows, 65_536):
            count = min(65_536, start + rows - first)
            random = np.random.default_rng(first)
            columns = [words.take(pa.array(random.integers(0, len(words), count))) for _ in range(12)]
            lengths = pa.array(random.integers(20, 80, count))
            text = pc.binary_join_element_wise(*columns, " ")
            text = pc.if_else(pc.less(lengths, 50), pc.utf8_slice_codeunits(text, 0, 40), text)
            vectors = pa.array(random.random(count * DIMENSIONS, dtype=np.float32))
            yield pa.record_batch(
                [
                    pa.array(range(first, first + count), pa.int64()),
                    text,
                    pa.FixedSizeListArray.from_arrays(vectors, DIMENSIONS),
                ],
                schema=schema,
            )

    return pa.RecordBatchReader.from_batches(schema, batches())


with DAG(
    "lance_quickstart",
    description="A table, a computed column, a view, a version and a tag: everything once",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    tags=["lance", "example"],
    params={
        "rows": Param(100_000, type="integer", minimum=1_000, maximum=100_000_000, description="articles to generate"),
        "cluster": Param(None, type=["null", "string"], description="where jobs run: a name of the server's, or empty"),
    },
) as dag:

    @task.lance
    def load(rows: str, *, namespace: Any) -> dict[str, Any]:
        """Write the articles through the namespace, which records each commit as a version."""
        import lance

        table = lance.write_dataset(
            articles(0, int(rows)),
            namespace_client=namespace,
            table_id=ARTICLES,
            mode="append",
            max_rows_per_file=max(10_000, int(rows) // 16),
            enable_stable_row_ids=True,
        )
        return {"rows": table.count_rows(), "version": table.version}

    @task.lance
    def append(rows: str, *, namespace: Any) -> dict[str, Any]:
        """Append one percent more articles."""
        import lance

        more = max(1, int(rows) // 100)
        table = lance.write_dataset(
            articles(int(rows), more), namespace_client=namespace, table_id=ARTICLES, mode="append"
        )
        return {"rows": more, "version": table.version}

    @task.lance
    def stage(*, namespace: Any) -> dict[str, Any]:
        """Prepare a version without publishing it, in which the shortest articles are deleted."""
        from airflow_provider_lance.operators.version import stage_version

        return stage_version(namespace, ARTICLES, lambda table: table.delete("text_length < 20"))

    drop_view = LanceDropTableOperator(task_id="drop_old_view", table_id=LONG_ARTICLES, if_missing="skip")
    drop_table = LanceDropTableOperator(task_id="drop_old_table", table_id=ARTICLES, if_missing="skip")
    create = LanceCreateEmptyTableOperator(task_id="create_empty_table", table_id=ARTICLES)
    declare = LanceAddColumnsOperator(
        task_id="declare_column", table_id=ARTICLES, computed={"text_length": "length(text)"}
    )
    backfill = LanceBackfillColumnOperator(
        task_id="backfill_column", table_id=ARTICLES, column="text_length", cluster=CLUSTER
    )
    view = LanceCreateMaterializedViewOperator(
        task_id="create_view",
        table_id=LONG_ARTICLES,
        query="SELECT id, upper(text) AS shout, text_length FROM quickstart_articles WHERE text_length > 50",
    )
    fill_new = LanceBackfillColumnOperator(
        task_id="backfill_new_rows", table_id=ARTICLES, column="text_length", cluster=CLUSTER
    )
    refresh = LanceRefreshMaterializedViewOperator(task_id="refresh_view", table_id=LONG_ARTICLES, cluster=CLUSTER)
    staged = stage()
    publish = LanceCreateTableVersionOperator(task_id="create_version", table_id=ARTICLES, staged=staged)
    promote = LanceUpdateTagOperator(
        task_id="move_tag", table_id=ARTICLES, tag="production", version="latest", create_if_missing=True
    )

    loaded, appended = load("{{ params.rows }}"), append("{{ params.rows }}")
    drop_view >> drop_table >> create >> loaded >> declare >> backfill >> view
    view >> appended >> fill_new >> refresh >> staged >> publish >> promote
