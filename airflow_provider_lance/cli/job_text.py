"""A job in words: what it writes, how far it is, what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import result_text
from airflow_provider_lance.cli.output import print_table

if TYPE_CHECKING:
    from airflow_provider_lance.api.jobs import Job


_MOST_CELL = 60


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


def print_sample(result: Mapping[str, object] | None) -> None:
    """The rows of a sample as a table; nothing for other results."""
    sample = (result or {}).get("sample")
    rows = sample.get("rows") if isinstance(sample, Mapping) else None
    if not isinstance(rows, list) or not rows:
        return
    inputs, outputs = list(rows[0]["inputs"]), list(rows[0]["outputs"])
    body = [
        [
            *(_cell(row["inputs"].get(name)) for name in inputs),
            *(_cell(row["outputs"].get(name)) for name in outputs),
            str(row.get("error", "")),
        ]
        for row in rows
    ]
    print_table([*inputs, *(f"-> {name}" for name in outputs), "error"], body)


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CELL else text[: _MOST_CELL - 1] + "…"


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
