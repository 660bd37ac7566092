"""What the end of a job means to a task: the event a trigger sends, the dict a task returns, the exception it raises.

Operators, sensors and triggers share this module, so that the same end has the same meaning wherever it is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowTaskTimeout

from airflow_provider_lance.api.credentials import without_credentials
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import failure_sentence, result_text

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook
    from airflow_provider_lance.tasks.errors import TaskLog

#: The states of an event beside those of a job: the deadline has passed, or the job cannot be followed any longer.
TIMEOUT, LOST = "TIMEOUT", "LOST"
# Airflow keeps an event in its database and logs it.
_MOST_EVENT_BYTES = 32_000
_MOST_MESSAGE = 4000


class JobEvent(TypedDict):
    """What a trigger sends to its task; Airflow stores it as JSON."""

    job_id: str
    state: str
    result: JsonObject | None
    failure: JsonObject | None


class JobResult(TypedDict):
    """What job operators and job sensors return."""

    job_id: str | None
    job_type: str
    table_id: list[str]
    state: str
    version: int | None
    result: JsonObject | None


def ended_event(job: Job) -> JobEvent:
    """The event of a job that has ended."""
    failure: JsonObject | None = None
    if job.failure is not None:
        failure = job.failure.to_dict()
    elif job.state is JobState.FAILED:
        failure = {"phase": "unknown", "message": "The server gave no reason.", "retryable": False}
    return _event(job.job_id, job.state.value, failure, job.result)


def timeout_event(job_id: str, reason: str | None) -> JobEvent:
    """The event of a deadline that has passed; ``reason`` is why the last poll failed, if it did."""
    return _event(job_id, TIMEOUT, _wait_failure(reason, retryable=True) if reason else None)


def lost_event(job_id: str, reason: str, *, retryable: bool) -> JobEvent:
    """The event of a job that cannot be followed any longer."""
    return _event(job_id, LOST, _wait_failure(reason, retryable=retryable))


def job_result(
    job_id: str | None,
    job_type: str,
    table_id: list[str],
    state: str,
    result: Mapping[str, object] | None,
    *,
    version: int | None = None,
) -> JobResult:
    """The dict that a task returns. ``version`` holds where the job's result names no version."""
    public = public_result(result)
    for key in ("published_version", "version"):
        if public is not None and public.get(key) is not None:
            version = int(public[key])
            break
    return {
        "job_id": job_id,
        "job_type": job_type,
        "table_id": table_id,
        "state": state,
        "version": version,
        "result": public,
    }


def public_result(result: object) -> JsonObject | None:
    """A job's result without credentials."""
    return dict(without_credentials(result)) if isinstance(result, dict) else None


def written_rows(result: JsonObject | None) -> int | None:
    """How many rows a job wrote, according to its result; ``None`` where the result does not tell."""
    return next((result[key] for key in ("rows_assigned", "rows_written") if key in result), None) if result else None


def job_summary(target: str, job_id: str | None, result: JsonObject | None) -> str:
    """One line of what a job did, such as ``articles.n: 20,000 rows computed, version 7, in 1.2 s (job 5f…).``"""
    seconds = (result or {}).get("seconds")
    took = f", in {seconds:.1f} s" if isinstance(seconds, int | float) else ""
    return f"{target}: {result_text(result) or 'done'}{took} (job {job_id})."


def job_failure(event: JobEvent, target: str = "", link: str | None = None) -> BaseException:
    """The exception of an event that is not DONE. It ends the retries where another try could not help.

    Its first line is the reason, which begins with what the job writes and ends with the job's id.

    :param event: The event.
    :param target: What the job writes, such as ``articles.embedding``. It is not repeated where the reason begins
        with it.
    :param link: The job's page.
    """
    state, failure, job_id = event["state"], event.get("failure") or {}, event["job_id"]
    reason, _, more = str(failure.get("message") or "").strip().partition("\n")
    phase = f"Job {job_id} failed in {failure.get('phase', 'unknown')}."
    kind: type[BaseException] = AirflowFailException
    if state == TIMEOUT:
        kind = AirflowTaskTimeout
        reason = "The job did not end in time." + (f" The last look failed: {reason}" if reason else "")
        phase = ""
    elif state == LOST:
        kind = AirflowException if failure.get("retryable", True) else AirflowFailException
        phase = f"Job {job_id} cannot be followed any longer."
    elif state == JobState.CANCELLED.value:
        phase = ""
    else:
        rows = (event.get("result") or {}).get("rows_failed")
        if isinstance(rows, int) and rows:
            phase += f" {rows:,} rows failed."
        if failure.get("retryable"):
            kind = AirflowException
    sentence = failure_sentence(job_id, reason, target, cancelled=state == JobState.CANCELLED.value)
    lines = [sentence, more, phase, link or ""]
    return kind("\n".join(line for line in lines if line))


def warn_of_failed_rows(log: TaskLog, result: JsonObject | None) -> None:
    """Warn that a job which is DONE left rows without a value, and say how to compute them again."""
    failed = (result or {}).get("rows_failed")
    if not isinstance(failed, int) or not failed or result is None:
        return
    rows = failed + int(result.get("rows_assigned") or 0)
    examples = result.get("failed_rows") or [{}]
    first = f" The first: row {examples[0]['row_id']}: {examples[0].get('message')}." if "row_id" in examples[0] else ""
    log.warning(
        "%s of %s rows failed (%.1f %%) and have no value.%s Run the task again once the cause is gone: it computes "
        "only rows that failed or are missing. max_failed_rows or max_failed_fraction make such a job fail.",
        f"{failed:,}",
        f"{rows:,}",
        100 * failed / rows,
        first,
    )


def log_traceback(log: TaskLog, event: JobEvent) -> None:
    """Log the lines of the user's function that raised, where the job's failure has them."""
    traceback = (event.get("failure") or {}).get("traceback")
    if traceback:
        log.error("Where the function failed:\n%s", traceback)


def job_table(hook: LanceNamespaceHook, job: Job) -> list[str]:
    """The table that a job writes, as its server describes it; empty where the server does not tell."""
    for found in (job.spec.get("table_id"), job.spec.get("id"), job.table):
        if isinstance(found, list):
            return [str(part) for part in found]
        if isinstance(found, str) and found:
            return hook.parse_id(found)
    return []


def job_target(hook: LanceNamespaceHook, job: Job) -> str:
    """What a job writes, for messages, as its server describes it."""
    table_id = job_table(hook, job)
    return describe_target(hook.join_id(table_id) if table_id else "", job.spec.get("column"))


def describe_target(table: str, column: object = None) -> str:
    """What a job writes, for messages: ``articles.embedding``, or a view's name."""
    return f"{table}.{column}" if isinstance(column, str) and column else table


def _wait_failure(reason: str, *, retryable: bool) -> JsonObject:
    return {"phase": "wait", "message": reason, "retryable": retryable}


def _event(job_id: str, state: str, failure: JsonObject | None = None, result: object = None) -> JobEvent:
    """An event without credentials, small enough for Airflow's database and log."""
    if failure is not None:
        message = str(failure.get("message") or "")
        if len(message) > _MOST_MESSAGE:
            message = f"{message[: _MOST_MESSAGE - 20]} … (cut)"
        failure = {**failure, "message": message}
    public = public_result(result)
    event: JobEvent = {"job_id": job_id, "state": state, "result": public, "failure": failure}
    if public is not None and len(json.dumps(event, default=str).encode()) > _MOST_EVENT_BYTES:
        figures = {key: value for key, value in public.items() if isinstance(value, int | float | bool | None)}
        event["result"] = {**figures, "truncated": True}
    return event
