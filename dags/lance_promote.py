"""Compute a column, check it, and only then show it to readers, who follow the tag ``production``.

The backfill's version gets the tag ``candidate``. A check counts its rows and nulls. If the check succeeds,
``production`` moves to the candidate. Otherwise the candidate is deleted and ``production`` stays where it was. To roll
back later, move the tag to the ``previous_version`` that ``promote`` returned.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.check import LanceTableCheckOperator
from airflow_provider_lance.operators.tag import LanceDeleteTagOperator, LanceUpdateTagOperator

TABLE = "{{ params.table }}"

with DAG(
    "lance_promote",
    description="Backfill, check a candidate, move the production tag or roll back",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    params={
        "table": Param("articles", type="string", minLength=1, title="Table"),
        "column": Param("text_length", type="string", minLength=1, title="Column"),
        "min_rows": Param(1, type="integer", minimum=0, title="At least this many rows"),
        "max_nulls": Param(0.0, type="number", minimum=0, title="Nulls allowed", description="a count, or a share < 1"),
    },
) as dag:
    backfill = LanceBackfillColumnOperator(
        task_id="backfill",
        table_id=TABLE,
        column="{{ params.column }}",
        on_conflict="wait",
        deferrable=True,
        retries=1,
    )
    candidate = LanceUpdateTagOperator(
        task_id="tag_candidate", table_id=TABLE, tag="candidate", version="latest", create_if_missing=True
    )
    check = LanceTableCheckOperator(
        task_id="check",
        table_id=TABLE,
        version="{{ ti.xcom_pull('tag_candidate')['version'] }}",
        min_rows="{{ params.min_rows }}",
        not_null=["{{ params.column }}"],
        max_nulls="{{ params.max_nulls }}",
    )
    promote = LanceUpdateTagOperator(
        task_id="promote",
        table_id=TABLE,
        tag="production",
        version="candidate",
        create_if_missing=True,
    )
    roll_back = LanceDeleteTagOperator(
        task_id="roll_back", table_id=TABLE, tag="candidate", if_missing="skip", trigger_rule="one_failed"
    )
    backfill >> candidate >> check >> promote
    check >> roll_back
