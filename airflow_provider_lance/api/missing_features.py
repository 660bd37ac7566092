"""What a namespace cannot do at all, in sentences with a remedy. Not every server has jobs, views and rules."""

from __future__ import annotations

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.operations import OPERATIONS

_NO_JOBS = (
    "This namespace executes no jobs; backfills and views need a server that does, such as `airflow-lance serve`.",
    "Without a server, LanceSparkSubmitOperator runs a job from its `spec`.",
)
_NO_RULES = (
    "This namespace has no computed or virtual columns; they need a server such as `airflow-lance serve`.",
    "`expressions` work everywhere: their values are written at once.",
)
_NO_WRITES = (
    "This namespace does not load files itself; `cluster` needs a server that does, such as `airflow-lance serve`.",
    "Without `cluster` the worker writes the rows, into a table of any namespace.",
)
# pylance ignores request fields that it does not know. It then answers with these words, and with a code and a status
# that tell of something else.
_IGNORED_FIELDS = {
    ("alter_table_add_columns", "Expression is required for new column"): _NO_RULES,
    ("create_materialized_view", "missing field `kind`"): _NO_JOBS,
}


def describe_failure(error: WireError) -> str:
    """The lines about a failed request: what the namespace lacks, the reason, and the request's details."""
    missing = missing_feature(error)
    said = f"It said: {error.reason}" if missing else error.reason
    return "\n".join(filter(None, (*missing, said, error.detail)))


def is_permanent(error: WireError) -> bool:
    """Whether the same request can only fail again, because the namespace lacks what was asked of it."""
    return error.code == ErrorCode.UNSUPPORTED or bool(missing_feature(error))


def missing_feature(error: WireError) -> tuple[str, ...]:
    """What the namespace cannot do at all, and the remedy; empty where it refused the request for another reason."""
    for (operation, words), sentences in _IGNORED_FIELDS.items():
        if error.operation == operation and words in error.reason:
            return sentences
    row = OPERATIONS.get(error.operation)
    if error.code != ErrorCode.UNSUPPORTED or row is None or not row.about_jobs:
        return ()
    phrases = (f"{row.name} not implemented", f"has no {row.name}", "has no jobs")
    if not error.route_missing and not any(phrase in error.reason for phrase in phrases):
        return ()
    return _NO_WRITES if row.name == "write_table" else _NO_JOBS
