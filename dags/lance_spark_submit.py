"""Execute a job through a Spark connection of Airflow, while a sensor waits for it.

``cluster="external"`` tells the namespace to launch nothing and to wait for a claim. The Spark task claims the job and
runs the engine with ``spark-submit`` on the connection ``spark_default``. The sensor waits for the same job by its id.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.spark import LanceSparkSubmitOperator
from airflow_provider_lance.sensors.job import LanceJobSensor

with DAG(
    "lance_spark_submit",
    description="A Lance job executed by SparkSubmit on an Airflow connection",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["lance", "example"],
    params={
        "table": Param("articles", type="string", minLength=1, title="Table"),
        "column": Param("text_length", type="string", minLength=1, title="Column"),
    },
) as dag:
    submit = LanceBackfillColumnOperator(
        task_id="submit",
        table_id="{{ params.table }}",
        column="{{ params.column }}",
        cluster="external",
        on_conflict="wait",
        wait_for_completion=False,
    )
    execute = LanceSparkSubmitOperator(
        task_id="execute", job_id=submit.output, conn_id="spark_default", name="lance backfill"
    )
    watch = LanceJobSensor(
        task_id="watch", job_id=submit.output, deferrable=True, poke_interval=5, timeout=3600, retries=1
    )
    submit >> [execute, watch]
