"""A job's history as an Arrow stream, the way LanceDB's client asks for it, with an optional SQL filter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.expressions import check_filter, one_expression
from airflow_provider_lance.namespace.jobs.registry import EventRow, Registry

if TYPE_CHECKING:
    import pyarrow as pa

_DEFAULT_LIMIT = 10_000
_MOST = 100_000


def event_stream(registry: Registry, job_id: str | None, limit: int | None, condition: str | None) -> bytes:
    """Events in the order they happened; ``condition`` is a Lance filter over them, e.g. ``state = 'FAILED'``."""
    import pyarrow as pa

    limit = min(_DEFAULT_LIMIT if limit is None else limit, _MOST)
    # With a filter the limit counts the events that pass it.
    rows = registry.history(job_id, _MOST if condition else limit, newest=bool(condition))
    table = pa.Table.from_pylist([_event(row) for row in rows], schema=_schema())
    if condition:
        table = _filtered(table, condition).slice(0, limit)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _schema() -> pa.Schema:
    import pyarrow as pa

    columns: list[tuple[str, pa.DataType]] = [
        ("event_id", pa.int64()),
        ("job_id", pa.string()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("state", pa.string()),
        ("attempt", pa.int32()),
        ("message", pa.string()),
        ("updated_by", pa.string()),
        ("emitted_from", pa.string()),
        ("emitted_by", pa.string()),
        ("claim_entity", pa.string()),
        ("rows_processed", pa.int64()),
        ("fields", pa.string()),
    ]
    return pa.schema(columns)


def _event(row: EventRow) -> dict[str, object]:
    return {
        "event_id": row["event_id"],
        "job_id": row["job_id"],
        "state": row["state"],
        "attempt": row["attempt"],
        "message": row["message"],
        "emitted_by": row["emitted_by"],
        "timestamp": row["at_ms"],
        "updated_by": row["emitted_by"],
        "emitted_from": "airflow-provider-lance",
        "claim_entity": row["claim_entity"],
        "rows_processed": row["rows_processed"],
        "fields": json.dumps(row["fields"]) if row["fields"] else None,
    }


def _filtered(table: pa.Table, condition: str) -> pa.Table:
    """The events that pass a filter. Lance evaluates it, so it has the grammar of all other filters."""
    import lance

    try:
        check_filter(table.schema, condition, "filter")
        dataset = lance.write_dataset(table, "memory://")
        return dataset.to_table(filter=one_expression(condition, "filter").text)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"`filter` cannot be used on a job's events: {str(error)[:500]}") from None
