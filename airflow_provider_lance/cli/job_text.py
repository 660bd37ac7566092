"""A job in words: what it writes, how far it is, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.cli.output import counted

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job


def job_task(job: Job) -> str:
    """The DAG and the task that asked for a job; empty where nobody said."""
    return f"{job.requester.dag_id} · {job.requester.task}" if job.requester is not None else ""


def outcome(job: Job) -> str:
    """One line on where a job is: its progress, its result, or the reason of its failure."""
    if job.state is JobState.DONE:
        return result_text(job.result)
    if job.state in {JobState.FAILED, JobState.CANCELLED}:
        return job.failure.message.strip().partition("\n")[0] if job.failure is not None else ""
    if job.cancelling:
        return "is being cancelled"
    if job.state is JobState.QUEUED or job.progress is None:
        return ""
    share = f"{job.progress.fraction:.0%} " if job.progress.fraction else ""
    return f"{share}{job.progress.describe()}"


def result_text(result: Mapping[str, object] | None) -> str:
    """What a job that is DONE wrote, or planned to write."""
    if not result:
        return ""
    plan = result.get("plan")
    if isinstance(plan, Mapping):
        return _plan_text(plan, result)
    mode = str(result.get("mode") or "")
    if mode == "no_op":
        return "nothing to do"
    parts = []
    for key, verb in (("rows_assigned", "computed"), ("rows_written", "written"), ("rows_deleted", "deleted")):
        rows = result.get(key)
        if isinstance(rows, int) and (rows or key != "rows_deleted"):
            parts.append(f"{counted(rows, 'row')} {verb}")
    failed = result.get("rows_failed")
    if isinstance(failed, int) and failed:
        parts.append(f"{failed:,} failed")
    version = result.get("published_version", result.get("version"))
    if version is not None:
        parts.append(f"version {version}")
    if mode:
        parts.append(f"by {'a rebuild' if mode == 'rebuild' else f'an {mode} refresh'}")
    return ", ".join(parts)


def _plan_text(plan: Mapping[str, object], result: Mapping[str, object]) -> str:
    source_rows, rows = plan.get("source_rows"), plan.get("rows")
    if isinstance(source_rows, int):
        work = "rebuild the view from" if result.get("mode") == "rebuild" else "apply the changes of"
        reason = f" ({result['reason']})" if result.get("reason") else ""
        return f"would {work} {counted(source_rows, 'source row')}{reason}"
    numbers = [(plan.get(key), noun) for key, noun in (("fragments", "fragment"), ("tasks", "task"))]
    inside = ", ".join(counted(number, noun) for number, noun in numbers if isinstance(number, int))
    return f"would compute {counted(rows if isinstance(rows, int) else 0, 'row')}" + (f" in {inside}" if inside else "")


def failed_rows_text(job: Job) -> str:
    """A warning for a job that is DONE and left rows without a value; empty where it left none."""
    result = job.result or {}
    failed, computed = result.get("rows_failed"), result.get("rows_assigned") or result.get("rows_written") or 0
    if not isinstance(failed, int) or not failed:
        return ""
    examples = result.get("failed_rows") or [{}]
    first = examples[0] if isinstance(examples, list) and isinstance(examples[0], dict) else {}
    example = f" The first: row {first['row_id']}: {first.get('message')}." if "row_id" in first else ""
    return f"{failed:,} of {failed + int(computed):,} rows failed and have no value.{example}"
