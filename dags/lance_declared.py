"""Declare a table and its views in a file, and let the tasks follow from it.

``lance_declared.yaml`` beside this file says what there should be. ``apply`` compares it with the namespace, logs the
differences and makes them. The task group has a backfill for each computed column and a refresh for each view, in the
order in which they read each other, then the checks, and moves the tag ``production`` at the end. To change a rule or
a view, change the file.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from airflow_provider_lance.operators.apply import LanceApplyOperator
from airflow_provider_lance.operators.write import LanceWriteOperator
from airflow_provider_lance.task_groups.lance import LanceTaskGroup

DECLARATION = "lance_declared.yaml"
SUBJECTS = ("printer on fire", "forgot my password", "the river rises", "no coffee")


def tickets() -> list[dict[str, Any]]:
    """Make two hundred tickets."""
    return [
        {
            "id": number,
            "subject": SUBJECTS[number % 4],
            "body": " ".join(["please", "help", *["soon"] * (number % 7)]),
            "priority": number % 5,
        }
        for number in range(200)
    ]


with DAG(
    "lance_declared",
    description="A table and its views as a file declares them",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lance", "example"],
    default_args={"retries": 1},
) as dag:
    apply = LanceApplyOperator(task_id="apply", declaration=DECLARATION)
    load = LanceWriteOperator(task_id="load", table_id="tickets", data=tickets, mode="upsert", on="id")
    fill = LanceTaskGroup("fill", declaration=DECLARATION, apply=False, backfill_args={"deferrable": True})
    apply >> load >> fill
