"""What a job means to a task: the dict it returns, or the exception it raises. For operators and sensors alike."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowTaskTimeout

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_words import JobState
from airflow_provider_lance.configuration import read_configuration
from airflow_provider_lance.operators.rendered import literal
from airflow_provider_lance.triggers.outcome import LOST, TIMEOUT, Event, Follower, job_event, public_result

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook


def look(hook: LanceNamespaceHook, job_id: str) -> Job | WireError | None:
    """One look at a job, in the shape a ``Follower`` takes."""
    try:
        return hook.find_job(job_id)
    except WireError as error:
        if error.refused:
            hook.reread()
        return error


def wait_for_job(
    hook: LanceNamespaceHook,
    job_id: str,
    log: Any,
    *,
    deadline: float | None = None,
    poll_interval: float | None = None,
) -> Event:
    """Wait on this worker for a job's end, or until the deadline; the event a trigger would have sent."""
    configuration = read_configuration()
    interval = poll_interval or configuration.poll_interval
    follower = Follower(
        job_id,
        deadline=deadline,
        errors=configuration.poll_errors,
        log=log,
    )
    pause = min(0.5, interval)
    while True:
        event = follower.see(look(hook, job_id))
        if event is not None:
            return event
        time.sleep(follower.pause_before_deadline(pause * (1 + 0.2 * random.random())))
        pause = min(interval, pause * 2)


def settled(hook: LanceNamespaceHook, event: Event) -> Event:
    """The event itself, or that of the job's end: it may have ended in time while nobody looked."""
    seen = look(hook, event["job_id"]) if event["state"] == TIMEOUT else None
    return job_event(seen) if seen is not None and not isinstance(seen, WireError) and seen.state.terminal else event


def job_result(
    job_id: str | None,
    job_type: str,
    table_id: list[str],
    state: str,
    result: dict[str, Any] | None,
    *,
    version: int | None = None,
) -> dict[str, Any]:
    """What job operators and job sensors return."""
    result = public_result(result)
    for key in ("published_version", "version"):
        if result is not None and result.get(key) is not None:
            version = int(result[key])
            break
    return {
        "job_id": job_id,
        "job_type": job_type,
        "table_id": table_id,
        "state": state,
        "version": version,
        "result": result,
    }


def job_rows(result: Mapping[str, Any] | None) -> int | None:
    """How many rows a job wrote, whichever kind it was."""
    return next((result[key] for key in ("rows_assigned", "rows_written") if key in result), None) if result else None


def warn_of_failed_rows(log: Any, result: Mapping[str, Any] | None) -> None:
    """Say in the task's log that a job which is DONE left rows without a value, and how to run them again."""
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


def show_traceback(log: Any, event: Event) -> None:
    """The lines of the user's own function that raised, where the job's failure has them."""
    traceback = (event.get("failure") or {}).get("traceback")
    if traceback:
        log.error("Where the function failed:\n%s", traceback)


def job_failure(event: Event, about: str = "", link: str | None = None) -> BaseException:
    """The exception of an event that is not DONE; one that forbids another try where it could not help.

    Its first line is the reason, which begins with what the job writes and ends with the job's id.

    :param about: what the job writes, such as ``articles.embedding``; not repeated where the reason begins with it.
    :param link: the job's page.
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
        reason = "The job was cancelled." + (f" {reason}" if reason else "")
        phase = ""
    else:
        rows = (event.get("result") or {}).get("rows_failed")
        if isinstance(rows, int) and rows:
            phase += f" {rows:,} rows failed."
        if failure.get("retryable"):
            kind = AirflowException
    reason = reason or "No reason was given."
    if about and not reason.startswith(about):
        reason = f"{about}: {reason}"
    lines = [f"{reason} (job {job_id})", more, phase, link or ""]
    return kind("\n".join(line for line in lines if line))


def job_table(hook: LanceNamespaceHook, job: Job) -> list[str]:
    """The table a job is about, as far as its server tells."""
    for found in (job.spec.get("table_id"), job.spec.get("id"), job.table):
        if isinstance(found, list):
            return [str(part) for part in found]
        if isinstance(found, str) and found:
            return hook.parse_id(found)
    return []


def describe_target(table_id: Sequence[str], column: str | None = None) -> str:
    """What a job writes, for messages: ``articles.embedding``, or a view's name."""
    return "$".join(table_id) + (f".{column}" if column else "")


def job_target(hook: LanceNamespaceHook, job: Job) -> str:
    """The same of a job that somebody else submitted, as far as its server tells."""
    column = job.spec.get("column")
    return describe_target(job_table(hook, job), column if isinstance(column, str) else None)


def needed_no_job(given: Any) -> dict[str, Any] | None:
    """What a job operator returned, where it had nothing for a job to do: that is the answer already."""
    found = literal(given)
    if isinstance(found, Mapping) and not found.get("job_id") and found.get("state") == JobState.DONE.value:
        return dict(found)
    return None


def read_job_id(given: str | Mapping[str, Any] | None) -> str:
    """A job's id out of itself or out of what a job operator returned; a rendered template may hold its text."""
    found = literal(given)
    text = str((found.get("job_id") if isinstance(found, Mapping) else found) or "").strip()
    if not text or text.startswith(("{", "[")):
        raise AirflowFailException("There is no job to look at: the job id is empty. Did the task that starts it run?")
    return text
