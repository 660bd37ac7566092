"""Every failed answer becomes one error with one sentence, whichever server sent it.

    WireError                    what came back, read from any of the error bodies in use
      └─ lance_error(...)        → the class of ``lance_namespace.errors`` that says the same

Two generations of error bodies are on the wire (``code`` a Lance code 0–23, or an HTTP status 400–600),
besides plain text, HTML pages and empty bodies. Where a body's code contradicts the status, the status counts.
``WireError`` itself needs no ``lance_namespace``, because triggers use it inside the event loop.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeGuard

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.plain_data import JsonObject

if TYPE_CHECKING:
    import httpx
    from lance_namespace.errors import LanceNamespaceError

    from airflow_provider_lance.api.operations import Operation

#: In the body of a 409 that names a live job in ``instance``: the fields in which that job's request differs.
DIFFERING_FIELDS = "differing_fields"

# The statuses that agree with a Lance code.
_AGREEING: dict[int, set[int]] = {
    ErrorCode.UNSUPPORTED: {400, 404, 405, 406, 500, 501},
    ErrorCode.NAMESPACE_NOT_FOUND: {404},
    ErrorCode.NAMESPACE_ALREADY_EXISTS: {409},
    ErrorCode.NAMESPACE_NOT_EMPTY: {400, 409},
    ErrorCode.TABLE_NOT_FOUND: {404},
    ErrorCode.TABLE_ALREADY_EXISTS: {409},
    ErrorCode.TABLE_INDEX_NOT_FOUND: {404},
    ErrorCode.TABLE_INDEX_ALREADY_EXISTS: {409},
    ErrorCode.TABLE_TAG_NOT_FOUND: {404},
    ErrorCode.TABLE_TAG_ALREADY_EXISTS: {409},
    ErrorCode.TRANSACTION_NOT_FOUND: {404},
    ErrorCode.TABLE_VERSION_NOT_FOUND: {404},
    ErrorCode.TABLE_COLUMN_NOT_FOUND: {400, 404},
    ErrorCode.INVALID_INPUT: {400, 413, 415, 422},
    ErrorCode.CONCURRENT_MODIFICATION: {409, 412},
    ErrorCode.PERMISSION_DENIED: {403},
    ErrorCode.UNAUTHENTICATED: {401},
    ErrorCode.SERVICE_UNAVAILABLE: {503, 502, 504},
    ErrorCode.INTERNAL: {500},
    ErrorCode.INVALID_TABLE_STATE: {400, 409},
    ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: {400, 422},
    ErrorCode.THROTTLING: {429},
    ErrorCode.TABLE_BRANCH_NOT_FOUND: {404},
    ErrorCode.TABLE_BRANCH_ALREADY_EXISTS: {409},
}
_BY_STATUS = {
    400: ErrorCode.INVALID_INPUT,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.PERMISSION_DENIED,
    405: ErrorCode.UNSUPPORTED,
    406: ErrorCode.UNSUPPORTED,
    412: ErrorCode.CONCURRENT_MODIFICATION,
    413: ErrorCode.INVALID_INPUT,
    415: ErrorCode.INVALID_INPUT,
    422: ErrorCode.INVALID_INPUT,
    429: ErrorCode.THROTTLING,
    501: ErrorCode.UNSUPPORTED,
    502: ErrorCode.SERVICE_UNAVAILABLE,
    503: ErrorCode.SERVICE_UNAVAILABLE,
    504: ErrorCode.SERVICE_UNAVAILABLE,
}
_NOT_SUPPORTED = r"(?i)\b(not (yet )?(supported|implemented)|unsupported|unimplemented)\b"
_MISSING = frozenset(code for code in ErrorCode if code.name.endswith("_NOT_FOUND"))
# The word that a 404's text has where it is about a part of a table and not about the table.
_WORD_OF_MISSING = {
    ErrorCode.TABLE_INDEX_NOT_FOUND: "index",
    ErrorCode.TABLE_TAG_NOT_FOUND: "tag",
    ErrorCode.TABLE_VERSION_NOT_FOUND: "version",
    ErrorCode.TABLE_COLUMN_NOT_FOUND: "column",
    ErrorCode.TABLE_BRANCH_NOT_FOUND: "branch",
}
_MOST_TEXT = 2000
_PHRASES = frozenset(status.phrase for status in HTTPStatus)
_HTML_PAGE = "an HTML page: "
_WORDS_OF_ROUTERS = {"", "not found", "page not found", "error not found", "http not found", "route not found"}


class WireError(Exception):
    """A request that failed, in words for the person who reads the log.

    The text is one line that begins with the operation. ``reason`` says only what is wrong, and ``detail`` the rest
    (the operation, the status, ids), for a log that shows the reason first. ``code`` is the Lance error code, or
    ``None`` for a code that this package does not know. ``status`` is the HTTP status, or ``None`` when no answer came.
    ``lance_body`` says whether the answer was a Lance error body. ``retry_after`` is the number of seconds after which
    the server wants to be asked again, if it said so. ``unknown_outcome`` says that the request may have been carried
    out. ``differing_fields`` belongs to a submit that conflicts with a live job: the fields in which the two requests
    differ, empty where they are equal, ``None`` where the server did not compare them.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int | None,
        status: int | None = None,
        operation: str = "",
        instance: str | None = None,
        request_id: str | None = None,
        lance_body: bool = False,
        route_missing: bool = False,
        unknown_outcome: bool = False,
        retry_after: float | None = None,
        differing_fields: tuple[str, ...] | None = None,
        reason: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.detail = detail
        self.code = code
        self.status = status
        self.operation = operation
        self.instance = instance
        self.request_id = request_id
        self.lance_body = lance_body
        self.route_missing = route_missing
        self.unknown_outcome = unknown_outcome
        self.retry_after = retry_after
        self.differing_fields = differing_fields

    def reword(self, change: Callable[[str], str]) -> None:
        """Apply a function to each of the texts."""
        self.args = (change(str(self)),)
        self.reason, self.detail = change(self.reason), change(self.detail)

    def advise(self, sentence: str) -> None:
        """Add to the texts what a person can do."""
        self.args = (f"{self} {sentence}",)
        self.reason = f"{self.reason} {sentence}"

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later although nothing about it is changed."""
        if self.code in {ErrorCode.UNSUPPORTED, ErrorCode.INVALID_INPUT}:
            return False
        return self.status is None or self.status == 429 or self.status >= 500

    @property
    def refused(self) -> bool:
        """Whether the credentials were refused. They may have been rotated, so reading the connection anew may help."""
        return self.code in {ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED}

    @property
    def missing(self) -> bool:
        """Whether the object does not exist. A missing route does not count."""
        return not self.route_missing and (self.status == 404 or self.code in _MISSING)

    @property
    def conflict(self) -> bool:
        """Whether another request holds or changed the object."""
        return self.code == ErrorCode.CONCURRENT_MODIFICATION


def read_answer_error(
    operation: Operation, target: str, response: httpx.Response, advice: Mapping[int, str] | None = None
) -> WireError:
    """Read a failed answer, whatever its body. ``advice`` says what to do about a Lance error code."""
    status, body = response.status_code, _read_body(response)
    bare = body.code is None and _names_no_object(body.text, operation.path)
    route_missing = (status == 404 and operation.optional and bare) or status == 405
    code = ErrorCode.UNSUPPORTED if route_missing else _code_of_answer(operation, status, body)
    name = _code_name(code) if code is not None else f"unknown Lance error code {body.code}"
    said = body.text
    if 300 <= status < 400:
        said = f"the server redirects to {response.headers.get('location', 'nowhere')}: check the address and base path"
    if route_missing:
        said = "the server has no such route" + (f" ({said})" if said and not bare else "")
    said = said or "the server gave no reason"
    request_id = response.headers.get("x-request-id") or response.headers.get("x-amzn-requestid")
    # An id that the sentence has already is not repeated.
    ids = (("instance", body.instance), ("request id", request_id if request_id != body.instance else None))
    trace = ", ".join(f"{label} {value}" for label, value in ids if value and value not in said)
    message = f"{operation.name} {target} failed with HTTP {status} ({name}): {said}" + (f" [{trace}]" if trace else "")
    about = target.strip("'")
    named = not operation.takes_id or re.search(rf"(?<!\w){re.escape(about)}(?!\w)", said)
    reason = said if named else f"{about}: {said}"
    todo = (advice or {}).get(code) if code is not None else None
    if todo:
        message += f" {todo}" if message.endswith((".", "]")) else f". {todo}"
        # Which credentials were refused matters more than the server's own words, which come after that.
        reason = (
            f"{todo} The server says: {said}" if code == ErrorCode.UNAUTHENTICATED else f"{said.rstrip('.')}. {todo}"
        )
    return WireError(
        message,
        code=code,
        status=status,
        operation=operation.name,
        instance=body.instance,
        request_id=request_id,
        lance_body=body.is_lance,
        route_missing=route_missing,
        differing_fields=body.differing_fields,
        reason=reason,
        detail=f"{operation.name} {target}: HTTP {status}, {name}" + (f", {trace}" if trace else ""),
    )


def _code_of_answer(operation: Operation, status: int, body: _ErrorBody) -> int | None:
    """The Lance code behind an answer; ``None`` for a code that only a newer server knows."""
    says_unsupported = re.search(_NOT_SUPPORTED, body.text) and status not in {401, 403}
    if says_unsupported and body.code in {None, ErrorCode.UNSUPPORTED, ErrorCode.INTERNAL}:
        return ErrorCode.UNSUPPORTED
    if body.code is not None and body.code not in _AGREEING:
        return None
    if body.code is not None and status in _AGREEING[body.code]:
        return body.code
    if status == 404:
        return _missing_code(operation, body.text)
    if status == 409:
        return operation.taken
    return _BY_STATUS.get(status, ErrorCode.INVALID_INPUT if status < 500 else ErrorCode.INTERNAL)


def _missing_code(operation: Operation, said: str) -> ErrorCode:
    """Which object a 404 without a code is about: the operation's own, unless the words name its table."""
    own_word, lowered = _WORD_OF_MISSING.get(operation.missing), said.lower()
    if own_word is not None and own_word not in lowered and "table" in lowered:
        return ErrorCode.TABLE_NOT_FOUND
    return operation.missing


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).words
    except ValueError:
        return f"code {code}"


def _names_no_object(said: str, path: str) -> bool:
    """Whether the text of a 404 comes from a router or a proxy that has no such route."""
    words = re.sub(r"[\W\d_]+", " ", said.removeprefix(_HTML_PAGE)).strip().lower()
    names_path = all(piece.strip("/") in said for piece in re.split(r"\{\w+\}", path))
    return words in _WORDS_OF_ROUTERS or said.startswith(_HTML_PAGE) or names_path


def own_lance_code(response: httpx.Response) -> int | None:
    """The Lance code in an error body, if it has one, which decides whether a request is sent again."""
    return _read_body(response).code


def no_answer_error(operation: Operation, target: str, url: str, error: Exception, *, sent: bool) -> WireError:
    """The error of a request without an answer, which says what was tried and what to check."""
    reason = str(error).strip() or type(error).__name__
    kind = type(error).__name__
    if kind == "ConnectError":
        lowered = reason.lower()
        if "certificate" in lowered or "ssl" in lowered:
            advice = "TLS failed: check the CA bundle (`verify`), the host name, or whether the server speaks https."
        elif "name or service" in lowered or "nodename" in lowered or "name resolution" in lowered:
            advice = "The host name is unknown: check the connection's host."
        else:
            advice = "Check that the server runs there, its host and port."
    elif kind in {"ConnectTimeout", "PoolTimeout"}:
        advice = "No connection in time: check the address, a firewall, or raise `connect_timeout`."
    elif kind in {"ReadTimeout", "WriteTimeout"}:
        advice = "The server did not answer in time: raise `timeout`, or look at the server."
    elif kind in {"UnsupportedProtocol", "InvalidURL", "ProxyError"}:
        advice = "Check the connection's host, schema and proxy."
    else:
        advice = "The connection broke before the answer was complete."
    if sent:
        advice += " The request may have been carried out."
    return WireError(
        f"{operation.name} {target} got no answer from {url}: {reason}. {advice}",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        operation=operation.name,
        unknown_outcome=sent,
        reason=f"No answer: {reason}. {advice}",
        detail=f"{operation.name} {target} at {url}",
    )


def junk_answer_error(operation: Operation, target: str, response: httpx.Response, problem: str) -> WireError:
    """The error of an answer with a status of success that cannot be read."""
    kind = response.headers.get("content-type", "no content type")
    return WireError(
        f"{operation.name} {target} was answered with HTTP {response.status_code}, but its answer ({kind}) "
        f"cannot be read: {problem}. Is this address really a Lance namespace server?",
        code=ErrorCode.INTERNAL,
        status=response.status_code,
        operation=operation.name,
        unknown_outcome=True,
    )


def lance_error(error: WireError) -> LanceNamespaceError:
    """The same error as a class of ``lance_namespace.errors``, with the status, the instance and the request id."""
    from lance_namespace.errors import LanceNamespaceError, from_error_code

    if error.code is None:
        result: LanceNamespaceError = LanceNamespaceError(str(error))
    else:
        result = from_error_code(error.code, str(error))
    for name in (
        "status",
        "operation",
        "instance",
        "request_id",
        "lance_body",
        "unknown_outcome",
        "transient",
        DIFFERING_FIELDS,
    ):
        setattr(result, name, getattr(error, name))
    return result


@dataclass(frozen=True)
class _ErrorBody:
    """What the body of a failed answer says. ``code`` is a Lance code, ``is_lance`` is set for a Lance error body."""

    text: str
    code: int | None = None
    instance: str | None = None
    is_lance: bool = False
    differing_fields: tuple[str, ...] | None = None


def _read_body(response: httpx.Response) -> _ErrorBody:
    """Read an error body of either generation, or any other text."""
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return _ErrorBody(_plain_text(response))
    differing = body.get(DIFFERING_FIELDS)
    nested = body.get("error")
    if isinstance(nested, dict):  # {"error": {"message": …, "code": …}} as some gateways wrap it
        body = {**nested, "error": nested.get("error") or nested.get("message")}
    code = body.get("code")
    code = code if isinstance(code, int) and not isinstance(code, bool) else None
    instance = body.get("instance")
    return _ErrorBody(
        _sentences(body),
        code=code if code is not None and not 400 <= code <= 600 else None,
        instance=instance if isinstance(instance, str) and instance else None,
        is_lance=code is not None or "error" in body or ("type" in body and "detail" in body),
        differing_fields=tuple(differing) if _are_strings(differing) else None,
    )


def _sentences(body: JsonObject) -> str:
    """What an error body says in words, without repetitions."""
    texts: list[str] = []
    for key in ("error", "title", "message", "detail"):
        sentence = body.get(key)
        text = sentence.strip() if isinstance(sentence, str) else ""
        if text and not any(text in other for other in texts):
            texts.append(text)
    if len(texts) > 1:  # a title that only repeats the status says nothing more
        texts = [text for text in texts if text not in _PHRASES] or texts[:1]
    return ": ".join([*(text.rstrip(".") for text in texts[:-1]), *texts[-1:]])[:_MOST_TEXT]


def _are_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _plain_text(response: httpx.Response) -> str:
    text = response.content[: 20 * _MOST_TEXT].decode("utf-8", "replace").strip()
    if "<" in text and re.search(r"<(!doctype|html|head|body|title)\b", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        page = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.IGNORECASE | re.DOTALL)
        text = _HTML_PAGE + (title[1] if title else re.sub(r"<[^>]*>", " ", page))
        text = html.unescape(text)
    return re.sub(r"\s+", " ", text)[:400]
