"""How a try of a task finds the job of an earlier try: by a key on the server and an entry in Airflow's state store.

Every operator that submits a job uses this module. Airflow 3.2 has no task state store; there the key alone leads to
a job that still runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException, conf

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY, LEASE_SECONDS, JobState
from airflow_provider_lance.api.requester import Requester

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook
    from airflow_provider_lance.tasks.errors import TaskLog

STATE_KEY = "lance_job"
_CANCEL_SECONDS = 120.0


def submit_context(context: Context, operation: str, table_id: list[str], lease_seconds: int) -> dict[str, str]:
    """The context entries of every submit."""
    return {
        **requester_context(context),
        IDEMPOTENCY_KEY: idempotency_key(context, operation, table_id),
        LEASE_SECONDS: str(lease_seconds),
    }


def requester_context(context: Context) -> dict[str, str]:
    """The context entries that tell a server which task asks, for people who look at its jobs."""
    ti = context["ti"]
    map_index = ti.map_index if ti.map_index is not None else -1
    return Requester(ti.dag_id, ti.run_id, ti.task_id, map_index, ti.try_number).to_context()


def idempotency_key(context: Context, operation: str, table_id: list[str]) -> str:
    """A key that is the same for every try of one run of a task. A clear raises ``max_tries``, which changes it."""
    ti = context["ti"]
    parts = [
        conf.get("api", "base_url", fallback=""),
        ti.dag_id,
        ti.run_id,
        ti.task_id,
        ti.map_index,
        ti.max_tries,
        operation,
        table_id,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def rejoin(context: Context, hook: LanceNamespaceHook, log: TaskLog) -> Job | None:
    """The job of an earlier try of the same run, if this try should wait for it.

    A crash leaves ``max_tries`` as it was, and a clear raises it. After a clear the old job is cancelled.
    """
    saved = read_saved_job(context)
    if saved is None:
        return None
    job_id = str(saved["job_id"])
    try:
        job = hook.find_job(job_id)
    except WireError as error:
        raise AirflowException(f"Whether job {job_id} of an earlier try still runs cannot be told: {error}") from None
    if job is None:
        return None
    if _same_run(saved, context) and not job.cancelling and (job.state is JobState.DONE or not job.state.terminal):
        log.info("Rejoined job %s of an earlier try; it is %s.", job_id, job.state.value)
        return job
    if not job.state.terminal:
        log.info("The task was cleared: ending job %s of the earlier run first.", job_id)
        cancel_and_wait(hook, job_id)
    return None


def save_job(context: Context, job_id: str) -> None:
    """Store the job for later tries. It is called before the task waits for anything."""
    store = context.get("task_state_store")
    if store is not None:  # an empty store is falsy
        store.set(STATE_KEY, {"job_id": job_id, "max_tries": context["ti"].max_tries})


def mark_concluded(context: Context) -> None:
    """Store that the job is done and the task is about to succeed.

    The entry stays. Airflow may decide on another try until it has stored the success, because a worker dies or
    because a late message of an earlier process fails the task. That try must find the job instead of submitting one.
    """
    store, saved = context.get("task_state_store"), read_saved_job(context)
    if store is not None and saved is not None:
        store.set(STATE_KEY, {**saved, "concluded_at_clear": _clears(context)})


def discard_job(context: Context) -> None:
    """Take the job out of the entry, so that the next try does not rejoin a job that is about to end."""
    store = context.get("task_state_store")
    if store is not None:
        store.set(STATE_KEY, {"max_tries": context["ti"].max_tries})


def submitted_before(context: Context) -> bool:
    """Whether an earlier try of the same run has submitted a job, whatever its end was."""
    saved = _saved(context)
    return saved is not None and _same_run(saved, context)


def read_saved_job(context: Context) -> JsonObject | None:
    """The entry of an earlier try, if it has a ``job_id``."""
    saved = _saved(context)
    return saved if saved is not None and saved.get("job_id") else None


def cancel_and_wait(hook: LanceNamespaceHook, job_id: str) -> None:
    """Cancel a job and wait for its end, because it holds what the next job wants to write."""
    failure: AirflowException
    try:
        hook.cancel_job(job_id)
        began = time.monotonic()
        while time.monotonic() - began < _CANCEL_SECONDS:
            job = hook.find_job(job_id)
            if job is None or job.state.terminal:
                return
            time.sleep(0.5)
        failure = AirflowException(f"Job {job_id} was told to end {_CANCEL_SECONDS:.0f} s ago and still runs.")
    except WireError as error:
        failure = AirflowException(f"Job {job_id} of an earlier try cannot be cancelled: {error}")
    raise failure


def _saved(context: Context) -> JsonObject | None:
    store = context.get("task_state_store")
    saved = store.get(STATE_KEY) if store is not None else None
    return dict(saved) if isinstance(saved, dict) else None


def _same_run(saved: JsonObject, context: Context) -> bool:
    if saved.get("max_tries") != context["ti"].max_tries:
        return False
    # Clearing a finished task whose `retries` were lowered meanwhile can leave max_tries as it was.
    return "concluded_at_clear" not in saved or saved["concluded_at_clear"] == _clears(context)


def _clears(context: Context) -> int | None:
    """How often anything in this DAG run was cleared."""
    return getattr(context.get("dag_run"), "clear_number", None)
