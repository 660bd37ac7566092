"""A submit that is refused because another job already writes the same column or view.

Every operator that submits a job uses this module. A task that waits for another job, or joins it, never cancels it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowTaskTimeout

from airflow_provider_lance.api.missing_features import describe_failure
from airflow_provider_lance.tasks.errors import TaskLog, log_failure, task_error
from airflow_provider_lance.tasks.job_follower import poll_job

if TYPE_CHECKING:
    from airflow_provider_lance.api.errors import WireError
    from airflow_provider_lance.api.jobs import Job
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

OnConflict = Literal["fail", "join", "wait"]


def find_job_to_follow(
    hook: LanceNamespaceHook,
    error: WireError,
    log: TaskLog,
    *,
    on_conflict: OnConflict,
    waited_for: str | None,
    request: Mapping[str, object] | None = None,
) -> Job:
    """The job that a refused submit conflicts with, if the task may join it or wait for it. Raises otherwise.

    :param hook: The namespace.
    :param error: What the submit raised.
    :param log: The task's log.
    :param on_conflict: The operator's argument.
    :param waited_for: The job that the task waited for last.
    :param request: The fields of the submit. They are compared with those of a job to join; ``None`` where the
        operator cannot join.
    """
    other = _conflicting_job(hook, error)
    failure: AirflowException | None = None
    if other is None:
        raise log_failure(log, task_error(error))
    if on_conflict == "fail":
        failure = _conflict_failure(error, other, may_join=request is not None)
    elif on_conflict == "join" and not other.cancelling:
        failure = _join_failure(error, other, request or {})
    elif other.job_id == waited_for:
        failure = AirflowException(
            f"Job {other.job_id} has ended, and the server still refuses this request.\n{describe_failure(error)}"
        )
    if failure is not None:
        raise log_failure(log, failure)
    return other


def wait_timeout(job_id: str) -> AirflowTaskTimeout:
    """The failure of a task whose time is over while the other job still runs."""
    return AirflowTaskTimeout(
        f"Job {job_id} was in the way for as long as this task may take, so nothing was submitted. It goes on: another "
        "task or person started it."
    )


def _conflicting_job(hook: LanceNamespaceHook, error: WireError) -> Job | None:
    """The job that a refused submit names; ``None`` where the submit was refused for another reason."""
    from airflow_provider_lance.api.jobs import Job

    if not error.conflict or not error.instance:
        return None
    polled = poll_job(hook, error.instance)
    return polled if isinstance(polled, Job) else None


def _conflict_failure(error: WireError, other: Job, *, may_join: bool) -> AirflowException:
    remedies = "on_conflict='wait' waits for its end and then submits"
    if may_join and error.differing_fields == ():
        remedies += "; on_conflict='join' waits for it and takes its result, because its request is the same"
    # This project's server names the job in its reason; the reason of another server may not.
    holder = "" if other.job_id in error.reason else f" Job {other.job_id} holds it."
    return AirflowException("\n".join(filter(None, (f"{error.reason}{holder}", f"{remedies}.", error.detail))))


def _join_failure(error: WireError, other: Job, request: Mapping[str, object]) -> AirflowException | None:
    """Why the other job cannot be joined; ``None`` where its request is equal to ``request``."""
    wait = "on_conflict='wait' waits for its end and then submits this one."
    if error.differing_fields is None:
        return AirflowException(
            f"Job {other.job_id} is in the way, and the server does not tell whether it does the same: it cannot be "
            f"joined. {wait}\n{describe_failure(error)}"
        )
    if not error.differing_fields:
        return None
    parts = (other.spec.get("request"), other.spec.get("options"))
    theirs = {name: value for part in parts if isinstance(part, Mapping) for name, value in part.items()}
    fields = "; ".join(
        f"{name} is {request.get(name)!r} here and {theirs.get(name)!r} there"
        if name in request or name in theirs
        else name
        for name in error.differing_fields
    )
    return AirflowException(
        f"Job {other.job_id} is in the way and does something else, so it cannot be joined: {fields}. {wait}"
    )
