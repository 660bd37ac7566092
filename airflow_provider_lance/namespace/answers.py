"""What an operation returned, as the HTTP answer its row in the operation table promises."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from airflow_provider_lance.api.arrow import ARROW_FILE, ARROW_STREAM
from airflow_provider_lance.api.job_words import IDEMPOTENCY_KEY
from airflow_provider_lance.api.operations import Answer, Operation
from airflow_provider_lance.api.settings import CONTEXT_PREFIX
from airflow_provider_lance.namespace.lancedb_dialect import to_lancedb

_JSON = "application/json"


def answer_of(operation: Operation, fields: Mapping[str, Any], result: Any, *, lancedb: bool = False) -> Response:
    """A namespace answers in models, the jobs service in dicts; both are welcome. ``lancedb``: in its dialect."""
    headers: dict[str, str] = {}
    key = (fields.get("context") or {}).get(IDEMPOTENCY_KEY)
    if operation.submits_job and key:
        headers[CONTEXT_PREFIX + IDEMPOTENCY_KEY] = key
    if operation.answer is Answer.NOTHING:
        return Response(status_code=operation.statuses[0])
    if operation.answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
        data = result if isinstance(result, bytes) else getattr(result, "data", None)
        kind = ARROW_FILE if operation.answer is Answer.ARROW_FILE else ARROW_STREAM
        return Response(bytes(data or b""), media_type=kind)
    value: Any = plain(result)
    if operation.answer is Answer.COUNT and isinstance(value, Mapping):
        value = value.get("count")
    elif operation.answer is Answer.TEXT and isinstance(value, Mapping):
        value = value.get("plan") or value.get("analysis") or ""
    elif operation.answer is Answer.METADATA and isinstance(value, Mapping):
        value = value.get("metadata") or {}
    if lancedb:
        value = to_lancedb(operation.name, value)
    status = _status(operation, fields, value)
    text = json.dumps(value, default=_text)
    return Response(text.encode(), status_code=status, media_type=_JSON, headers=headers)


def _text(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(f"An answer holds a {type(value).__name__}, which JSON has no word for.")


def plain(result: Any) -> Any:
    """A model's fields without its context (headers to a client, of no use in a body)."""
    if result is None:
        return {}
    if hasattr(result, "to_dict"):
        result = result.to_dict()
    elif hasattr(result, "model_dump"):
        result = result.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(result, dict):
        result.pop("context", None)
    return result


def _status(operation: Operation, fields: Mapping[str, Any], value: Any) -> int:
    """The first status of the row, except for LanceDB's way to create a view: 202 when a job fills it."""
    if operation.name == "create_materialized_view" and "query" in fields and value.get("job_id"):
        return 202
    return operation.statuses[0]
