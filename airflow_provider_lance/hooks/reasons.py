"""Why a request failed, in lines for a task's log: the reason first, then the way out, the operation and its codes.

Operators, sensors and triggers share it, so that the same failure reads the same wherever it happens.
"""

from __future__ import annotations

from airflow_provider_lance.api.errors import UNSUPPORTED, WireError
from airflow_provider_lance.api.operations import OPERATIONS

_NO_JOBS = (
    "This namespace executes no jobs; backfills and views need a server that does, such as `airflow-lance serve`.",
    "Without a server, LanceSparkSubmitOperator runs a job from its `spec`.",
)
_NO_RULES = (
    "This namespace has no computed or virtual columns; they need a server such as `airflow-lance serve`.",
    "`expressions` work everywhere: their values are written at once.",
)
# pylance answers with these words where it reads past what it does not have: code and status say something else.
_READ_PAST = {
    ("alter_table_add_columns", "Expression is required for new column"): _NO_RULES,
    ("create_materialized_view", "missing field `kind`"): _NO_JOBS,
}


def failure_lines(error: WireError) -> str:
    """The lines of a failed request."""
    lacks = _lacks(error)
    said = f"It said: {error.reason}" if lacks else error.reason
    return "\n".join(filter(None, (*lacks, said, error.detail)))


def hopeless(error: WireError) -> bool:
    """Whether the same request can only fail again, because the namespace lacks what was asked of it."""
    return error.code == UNSUPPORTED or bool(_lacks(error))


def _lacks(error: WireError) -> tuple[str, ...]:
    """What a namespace lacks altogether, and the way out; empty for every other refusal, which has its own words."""
    for (operation, words), sentences in _READ_PAST.items():
        if error.operation == operation and words in error.reason:
            return sentences
    row = OPERATIONS.get(error.operation)
    if error.code != UNSUPPORTED or row is None or not row.about_jobs:
        return ()
    phrases = (f"{row.name} not implemented", f"has no {row.name}", "has no jobs")
    return _NO_JOBS if error.route_missing or any(phrase in error.reason for phrase in phrases) else ()
