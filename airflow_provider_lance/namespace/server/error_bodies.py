"""Every error of the server as a Lance error body: ``{error, code, detail, instance}`` and the status it belongs to."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from http import HTTPStatus

from lance_namespace.errors import LanceNamespaceError

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import DIFFERING_FIELDS
from airflow_provider_lance.namespace.jobs.database import RegistryUnavailableError

log = logging.getLogger(__name__)

#: The HTTP status of each Lance error code, as the spec pairs them.
STATUS_OF_CODE = {
    ErrorCode.UNSUPPORTED: 406,
    ErrorCode.NAMESPACE_NOT_FOUND: 404,
    ErrorCode.NAMESPACE_ALREADY_EXISTS: 409,
    ErrorCode.NAMESPACE_NOT_EMPTY: 409,
    ErrorCode.TABLE_NOT_FOUND: 404,
    ErrorCode.TABLE_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_INDEX_NOT_FOUND: 404,
    ErrorCode.TABLE_INDEX_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_TAG_NOT_FOUND: 404,
    ErrorCode.TABLE_TAG_ALREADY_EXISTS: 409,
    ErrorCode.TRANSACTION_NOT_FOUND: 404,
    ErrorCode.TABLE_VERSION_NOT_FOUND: 404,
    ErrorCode.TABLE_COLUMN_NOT_FOUND: 404,
    ErrorCode.INVALID_INPUT: 400,
    ErrorCode.CONCURRENT_MODIFICATION: 409,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.SERVICE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL: 500,
    ErrorCode.INVALID_TABLE_STATE: 409,
    ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: 400,
    ErrorCode.THROTTLING: 429,
    ErrorCode.TABLE_BRANCH_NOT_FOUND: 404,
    ErrorCode.TABLE_BRANCH_ALREADY_EXISTS: 409,
}
_CODE_OF_STATUS = {
    404: ErrorCode.UNSUPPORTED,  # no such route
    405: ErrorCode.UNSUPPORTED,
    413: ErrorCode.INVALID_INPUT,
    503: ErrorCode.SERVICE_UNAVAILABLE,
    504: ErrorCode.SERVICE_UNAVAILABLE,
}


class HttpProblem(Exception):
    """A refusal that belongs to HTTP rather than to Lance: too large, too many, too slow, no such route."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def outcome_unknown(why: str) -> HttpProblem:
    """A request that failed after it was begun. Its status is not 503, which promises that nothing was done."""
    return HttpProblem(504, f"{why} It may still be carried out: look before you send it again.")


@dataclass(frozen=True)
class Problem:
    """What is sent: a status, headers and a body."""

    status: int
    code: int
    error: str
    detail: str
    instance: str
    headers: dict[str, str]
    differing_fields: list[str] | None = None

    def body(self) -> bytes:
        body = {"error": self.error, "code": self.code, "detail": self.detail, "instance": self.instance}
        if self.differing_fields is not None:
            body[DIFFERING_FIELDS] = self.differing_fields
        return json.dumps(body).encode()


def problem_of(error: BaseException, request_id: str) -> Problem:
    """The answer to any exception. An unforeseen one is logged with its traceback and answered without its text."""
    # Our errors name a job in ``instance``. Others use the name otherwise: on SQLAlchemy's errors it is a class method.
    named = getattr(error, "instance", None)
    instance = named if isinstance(named, str) and named else request_id
    headers: dict[str, str] = {}
    message = str(error)
    if isinstance(error, HttpProblem):
        status, headers = error.status, error.headers
        code = _CODE_OF_STATUS.get(status, ErrorCode.INVALID_INPUT)
        if error.__cause__ is not None:
            log.error("Request %s failed: %s", request_id, message, exc_info=error)
    elif isinstance(error, NotImplementedError):
        code, message = ErrorCode.UNSUPPORTED, message or "This server does not support the operation."
        status = STATUS_OF_CODE[code]
    elif isinstance(error, LanceNamespaceError):
        code = ErrorCode(error.code)
        status = STATUS_OF_CODE[code]
        if status >= 500:
            log.error("Request %s failed: %s", request_id, message, exc_info=error)
    elif isinstance(error, RegistryUnavailableError):
        log.error("Request %s found the registry away: %s", request_id, error)
        code, status = ErrorCode.SERVICE_UNAVAILABLE, 503
        message = "The registry's database does not answer at the moment: try again."
        if error.outcome_unknown:
            unknown = outcome_unknown("The registry's database went away while it stored the request.")
            status, message = unknown.status, str(unknown)
    else:
        code, status = ErrorCode.INTERNAL, 500
        log.error("Request %s failed", request_id, exc_info=error)
        message = f"Something the server did not foresee ({type(error).__name__}); its log has it as {request_id}."
    if status == 401:
        headers = {"www-authenticate": "Bearer", **headers}
    if status == 503:
        headers = {"retry-after": "1", **headers}
    differing = getattr(error, DIFFERING_FIELDS, None)
    return Problem(status, int(code), message, HTTPStatus(status).phrase, instance, headers, differing)
