"""The keyword arguments that operators and sensors pass on to their base classes, so that an editor completes them.

Each base class documents its own arguments; a test compares these names with the signatures of the base classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Required, TypedDict

if TYPE_CHECKING:
    from collections.abc import Collection, MutableMapping, Sequence
    from datetime import datetime, timedelta

    from airflow.sdk import DAG, TaskGroup
    from airflow.sdk.bases.operator import TaskPostExecuteHook, TaskPreExecuteHook
    from airflow.sdk.definitions._internal.abstractoperator import TaskStateChangeCallbackAttrType
    from airflow.sdk.definitions.retry_policy import RetryPolicy
    from airflow.sdk.types import WeightRuleParam

    from airflow_provider_lance.api.ids import Identifier
    from airflow_provider_lance.tasks.conflict import OnConflict


class AirflowArguments(TypedDict, total=False):
    """The arguments of Airflow's ``BaseOperator``."""

    task_id: Required[str]
    owner: str
    email: str | Sequence[str] | None
    email_on_retry: bool
    email_on_failure: bool
    retries: int | None
    retry_delay: timedelta | float
    retry_exponential_backoff: float
    max_retry_delay: timedelta | float | None
    retry_policy: RetryPolicy | None
    start_date: datetime | None
    end_date: datetime | None
    depends_on_past: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    wait_for_downstream: bool
    dag: DAG | None
    params: MutableMapping[str, Any] | None
    default_args: dict[str, Any] | None
    priority_weight: int
    weight_rule: WeightRuleParam
    queue: str
    pool: str | None
    pool_slots: int
    sla: timedelta | None
    execution_timeout: timedelta | None
    on_execute_callback: TaskStateChangeCallbackAttrType
    on_failure_callback: TaskStateChangeCallbackAttrType
    on_success_callback: TaskStateChangeCallbackAttrType
    on_retry_callback: TaskStateChangeCallbackAttrType
    on_skipped_callback: TaskStateChangeCallbackAttrType
    pre_execute: TaskPreExecuteHook | None
    post_execute: TaskPostExecuteHook | None
    trigger_rule: str
    resources: dict[str, Any] | None
    run_as_user: str | None
    map_index_template: str | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    executor: str | None
    executor_config: dict[str, Any] | None
    do_xcom_push: bool
    multiple_outputs: bool
    inlets: Collection[object] | None
    outlets: Collection[object] | None
    task_group: TaskGroup | None
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    task_display_name: str | None
    logger_name: str | None
    allow_nested_operators: bool
    render_template_as_native_obj: bool | None


class LanceArguments(AirflowArguments, total=False):
    """The arguments of ``LanceBaseOperator``."""

    lance_conn_id: str


class TableArguments(LanceArguments):
    """The arguments of the operators of one table."""

    table_id: Required[Identifier]


class JobArguments(TableArguments, total=False):
    """The arguments of ``LanceJobOperator``."""

    wait_for_completion: bool
    deferrable: bool
    poll_interval: float | None
    timeout: timedelta | float | None
    cancel_on_kill: bool
    on_conflict: OnConflict
    lease_seconds: int | None
    skip_if_unchanged: bool
    request_context: dict[str, str] | None


class AirflowSensorArguments(AirflowArguments, total=False):
    """The arguments of Airflow's ``BaseSensorOperator`` besides ``poke_interval``."""

    timeout: timedelta | float | None
    soft_fail: bool
    mode: str
    exponential_backoff: bool
    max_wait: timedelta | float | None
    silent_fail: bool
    never_fail: bool


class SensorArguments(AirflowSensorArguments, total=False):
    """The arguments of ``LanceBaseSensor``."""

    lance_conn_id: str
    deferrable: bool
    poke_interval: timedelta | float | None


class TableSensorArguments(SensorArguments):
    """The arguments of the sensors of one table."""

    table_id: Required[Identifier]
