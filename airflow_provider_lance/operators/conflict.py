"""A job of somebody else is in the way of a submit: which job it is, and whether its request is ours.

For every operator that submits a job. A task that waits for another job, or joins it, never cancels it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowTaskTimeout

from airflow_provider_lance.hooks.reasons import failure_lines
from airflow_provider_lance.operators.result import look

if TYPE_CHECKING:
    from airflow_provider_lance.api.errors import WireError
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

OnConflict = Literal["fail", "join", "wait"]


def job_in_the_way(hook: LanceNamespaceHook, error: WireError) -> Job | None:
    """The job that a refused submit names; ``None`` where the submit was refused for another reason."""
    from airflow_provider_lance.api.jobs import Job

    if not error.conflict or not error.instance:
        return None
    found = look(hook, error.instance)
    return found if isinstance(found, Job) else None


def conflict_failure(error: WireError, other: Job, *, may_join: bool = True) -> AirflowException:
    """Why the task fails, and what would wait instead."""
    ways = "on_conflict='wait' waits for its end and then submits"
    if may_join and error.differing_fields == ():
        ways += "; on_conflict='join' waits for it and takes its result, because its request is the same"
    # The server's own sentence names the job already; other servers' may not.
    holder = "" if other.job_id in error.reason else f" Job {other.job_id} holds it."
    return AirflowException("\n".join(filter(None, (f"{error.reason}{holder}", f"{ways}.", error.detail))))


def join_failure(error: WireError, other: Job, request: Mapping[str, Any]) -> AirflowException | None:
    """Why the other job cannot be joined; ``None`` where its request is equal to ``request``."""
    wait = "on_conflict='wait' waits for its end and then submits this one."
    if error.differing_fields is None:
        return AirflowException(
            f"Job {other.job_id} is in the way, and the server does not tell whether it does the same: it cannot be "
            f"joined. {wait}\n{failure_lines(error)}"
        )
    if not error.differing_fields:
        return None
    theirs = {**_mapping(other.spec.get("request")), **_mapping(other.spec.get("options"))}
    fields = "; ".join(
        f"{name} is {request.get(name)!r} here and {theirs.get(name)!r} there"
        if name in request or name in theirs
        else name
        for name in error.differing_fields
    )
    return AirflowException(
        f"Job {other.job_id} is in the way and does something else, so it cannot be joined: {fields}. {wait}"
    )


def wait_failure(error: WireError, other: Job) -> AirflowException:
    """The server names a job that was waited for and has ended."""
    return AirflowException(
        f"Job {other.job_id} has ended, and the server still refuses this request.\n{failure_lines(error)}"
    )


def wait_timeout(job_id: str) -> AirflowTaskTimeout:
    """The task's own time is over while the other job still runs; nothing was submitted, and nothing is cancelled."""
    return AirflowTaskTimeout(
        f"Job {job_id} was in the way for as long as this task may take, so nothing was submitted. It goes on: another "
        "task or person started it."
    )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
