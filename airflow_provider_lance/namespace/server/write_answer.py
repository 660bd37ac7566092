"""The result of an operation as the HTTP answer that its row in the operation table promises."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping

from pydantic import BaseModel
from starlette.responses import Response

from airflow_provider_lance.api.arrow import ARROW_FILE, ARROW_STREAM
from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY
from airflow_provider_lance.api.operations import Answer, Operation
from airflow_provider_lance.api.plain_data import Fields
from airflow_provider_lance.api.settings import CONTEXT_PREFIX
from airflow_provider_lance.namespace.server.lancedb_dialect import to_lancedb

_JSON = "application/json"


def answer_of(operation: Operation, fields: Fields, result: object, *, lancedb: bool = False) -> Response:
    """The answer to a request with these fields; ``lancedb`` asks for the dialect of LanceDB's client."""
    if operation.answer is Answer.NOTHING:
        return Response(status_code=operation.statuses[0])
    if operation.answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
        data = result if isinstance(result, bytes) else getattr(result, "data", None)
        kind = ARROW_FILE if operation.answer is Answer.ARROW_FILE else ARROW_STREAM
        return Response(bytes(data or b""), media_type=kind)
    value = _bare(operation.answer, _plain(result))
    if lancedb:
        value = to_lancedb(operation.lancedb_answer, value)
    status = operation.statuses[0]
    if operation.in_lancedb_dialect(fields) and isinstance(value, dict) and value.get("job_id"):
        status = 202  # LanceDB's client tells by the status whether a job fills the view
    text = json.dumps(value, default=_text)
    headers = _key_header(fields) if operation.submits_job else {}
    return Response(text.encode(), status_code=status, media_type=_JSON, headers=headers)


def _key_header(fields: Fields) -> dict[str, str]:
    """The idempotency key of a submit, which tells its sender that this server honours keys."""
    context = fields.get("context")
    key = context.get(IDEMPOTENCY_KEY) if isinstance(context, Mapping) else None
    return {CONTEXT_PREFIX + IDEMPOTENCY_KEY: key} if key else {}


def _bare(answer: Answer, value: object) -> object:
    """The value that the wire has without the object around it."""
    if not isinstance(value, dict):
        return value
    if answer is Answer.COUNT:
        return value.get("count")
    if answer is Answer.TEXT:
        return value.get("plan") or value.get("analysis") or ""
    return value.get("metadata") or {} if answer is Answer.METADATA else value


def _text(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(f"An answer holds a {type(value).__name__}, which JSON has no word for.")


def _plain(result: object) -> object:
    """A model's fields without its context, which a client fills from the headers."""
    if result is None:
        return {}
    if hasattr(result, "to_dict"):
        result = result.to_dict()
    elif isinstance(result, BaseModel):
        result = result.model_dump(by_alias=True, exclude_none=True, mode="json")
    if isinstance(result, dict):
        result.pop("context", None)
    return result
