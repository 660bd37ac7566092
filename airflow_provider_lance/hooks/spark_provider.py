"""The classes of Airflow's Spark provider, which is optional: only ``LanceSparkSubmitOperator`` needs it."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    raise AirflowOptionalProviderFeatureException(
        "LanceSparkSubmitOperator needs Airflow's Spark provider, where DAGs are parsed and where its tasks run: "
        f"`pip install 'airflow-provider-lance[spark-submit]'`. ({error})"
    ) from error

__all__ = ["SparkSubmitHook", "SparkSubmitOperator"]
