"""Which job a try belongs to: the key that leads to it on the server, and the mark an earlier try left in Airflow.

For every operator that submits a job. Airflow 3.2 has no task state store: there the key alone leads to a job that
still runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, conf

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_words import JobState

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

STATE_KEY = "lance_job"
_CANCEL_SECONDS = 120.0


def idempotency_key(context: Context, operation: str, table_id: list[str]) -> str:
    """The same for every try of one run of a task, another after a clear (which raises ``max_tries``)."""
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


def rejoin(context: Context, hook: LanceNamespaceHook, log: Any) -> Job | None:
    """The job of an earlier try of the same run, if this try should wait for that one.

    A crash leaves ``max_tries`` as it was, a clear raises it: after a clear the old job is ended and a new one runs.
    """
    saved = read_mark(context)
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
        return job
    if not job.state.terminal:
        log.info("The task was cleared: ending job %s of the earlier run first.", job_id)
        cancel_and_wait(hook, job_id)
    return None


def remember(context: Context, job_id: str) -> None:
    """Leave the mark, before anything is waited for."""
    store = context.get("task_state_store")
    if store is not None:  # an empty store is falsy
        store.set(STATE_KEY, {"job_id": job_id, "max_tries": context["ti"].max_tries})


def conclude(context: Context) -> None:
    """The job is done, and its task about to succeed.

    The mark stays: until Airflow has written the success down it may still decide on another try (a worker dies, or a
    late message of an earlier process fails the task), and that try must find the job instead of submitting another.
    """
    store, saved = context.get("task_state_store"), read_mark(context)
    if store is not None and saved is not None:
        store.set(STATE_KEY, {**saved, "concluded_at_clear": _clears(context)})


def forget(context: Context) -> None:
    """Take the job out of the mark: the next try must not rejoin one that is about to end."""
    store = context.get("task_state_store")
    if store is not None:
        store.set(STATE_KEY, {"max_tries": context["ti"].max_tries})


def submitted_before(context: Context) -> bool:
    """Whether an earlier try of the same run has submitted a job, whatever became of it."""
    store = context.get("task_state_store")
    saved = store.get(STATE_KEY) if store is not None else None
    return isinstance(saved, dict) and _same_run(saved, context)


def read_mark(context: Context) -> dict[str, Any] | None:
    """What an earlier try remembered, with at least a ``job_id``."""
    store = context.get("task_state_store")
    saved = store.get(STATE_KEY) if store is not None else None
    return dict(saved) if isinstance(saved, dict) and saved.get("job_id") else None


def cancel_and_wait(hook: LanceNamespaceHook, job_id: str) -> None:
    """Until the job has ended, because it holds what the next one wants to write."""
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


def _same_run(saved: dict[str, Any], context: Context) -> bool:
    if saved.get("max_tries") != context["ti"].max_tries:
        return False
    # Clearing a finished task whose `retries` were lowered meanwhile can leave max_tries as it was.
    return "concluded_at_clear" not in saved or saved["concluded_at_clear"] == _clears(context)


def _clears(context: Context) -> int | None:
    """How often anything in this DAG run was cleared."""
    return getattr(context.get("dag_run"), "clear_number", None)
