"""Every failed answer becomes one error with one sentence, whoever the server is.

    WireError                    what came back, read from any of the error bodies in use
      └─ lance_error(...)        → the class of ``lance_namespace.errors`` that says the same

Two generations of error bodies are on the wire (``code`` a Lance code 0–23, or an HTTP status 400–600),
besides plain text, HTML pages and nothing at all. Where a body's code contradicts the status, the status wins.
``WireError`` itself needs no ``lance_namespace``: triggers use it inside the event loop.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx
    from lance_namespace.errors import LanceNamespaceError

    from airflow_provider_lance.api.operations import Operation

UNSUPPORTED, INVALID_INPUT, CONFLICT, FORBIDDEN, UNAUTHENTICATED = 0, 13, 14, 15, 16
UNAVAILABLE, INTERNAL, THROTTLED = 17, 18, 21

#: In the body of a 409 that names a live job in ``instance``: the fields in which that job's request differs.
DIFFERING_FIELDS = "differing_fields"

# The statuses that agree with a Lance code. 5xx agrees with INTERNAL only.
_AGREEING = {
    0: {400, 404, 405, 406, 500, 501},
    1: {404},
    2: {409},
    3: {400, 409},
    4: {404},
    5: {409},
    6: {404},
    7: {409},
    8: {404},
    9: {409},
    10: {404},
    11: {404},
    12: {400, 404},
    13: {400, 413, 415, 422},
    14: {409, 412},
    15: {403},
    16: {401},
    17: {503, 502, 504},
    18: {500},
    19: {400, 409},
    20: {400, 422},
    21: {429},
    22: {404},
    23: {409},
}
_BY_STATUS = {
    400: INVALID_INPUT,
    401: UNAUTHENTICATED,
    403: FORBIDDEN,
    405: UNSUPPORTED,
    406: UNSUPPORTED,
    412: CONFLICT,
    413: INVALID_INPUT,
    415: INVALID_INPUT,
    422: INVALID_INPUT,
    429: THROTTLED,
    501: UNSUPPORTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}
_NOT_SUPPORTED = r"(?i)\b(not (yet )?(supported|implemented)|unsupported|unimplemented)\b"
_MISSING = frozenset({1, 4, 6, 8, 10, 11, 12, 22})
_MOST_TEXT = 2000
_PHRASES = frozenset(status.phrase for status in HTTPStatus)
_HTML_PAGE = "an HTML page: "
_ROUTERS_WORDS = {"", "not found", "page not found", "error not found", "http not found", "route not found"}


class WireError(Exception):
    """A request that failed, in words for the person who reads the log.

    The text is one line that begins with the operation. ``reason`` says only what is wrong, ``detail`` the rest (the
    operation, the status, ids), for a log that shows the reason first. ``code`` is the Lance error code (``None`` where
    the server used one we do not know), ``status`` the HTTP status (``None`` when no answer came), ``lance_body``
    whether the answer was a Lance error body at all, ``retry_after`` the seconds after which the server wants to be
    asked again, if it said so. ``differing_fields`` belongs to a submit that another job is in the way of: the fields
    in which the two requests differ, empty where they are equal, ``None`` where the server did not compare them.
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
        """Change the texts, each by itself."""
        self.args = (change(str(self)),)
        self.reason, self.detail = change(self.reason), change(self.detail)

    @property
    def transient(self) -> bool:
        """The same request may succeed later without anybody changing anything."""
        if self.code in {UNSUPPORTED, INVALID_INPUT}:
            return False
        return self.status is None or self.status == 429 or self.status >= 500

    @property
    def refused(self) -> bool:
        """Our credentials were: they may have been rotated, and the connection be worth reading again."""
        return self.code in {UNAUTHENTICATED, FORBIDDEN}

    @property
    def missing(self) -> bool:
        """The object is not there (and not: the route is missing)."""
        return not self.route_missing and (self.status == 404 or self.code in _MISSING)

    @property
    def conflict(self) -> bool:
        """Somebody else holds or changed the object."""
        return self.code == CONFLICT


def read_answer_error(
    operation: Operation, target: str, response: httpx.Response, advice: Mapping[int, str] | None = None
) -> WireError:
    """Read a failed answer, whatever its body. ``advice``: what to do about a Lance error code."""
    status = response.status_code
    body = _json_object(response)
    own_code, said, instance, lance_body = _read_body(body)
    if body is None:
        said = _plain_text(response)
    bare = own_code is None and _names_no_object(said, operation.path)
    route_missing = (status == 404 and operation.optional and bare) or status == 405
    code: int | None
    says_unsupported = bool(said and re.search(_NOT_SUPPORTED, said)) and own_code in {
        None,
        UNSUPPORTED,
        INTERNAL,
    }
    if route_missing or (says_unsupported and status not in {401, 403}):
        code = UNSUPPORTED
    elif own_code is not None and own_code not in _AGREEING:
        code = None  # a newer server's code: keep it in words, do not guess a class
    elif own_code is not None and status in _AGREEING[own_code]:
        code = own_code
    else:
        code = _code_of_status(status, operation, said)
    request_id = response.headers.get("x-request-id") or response.headers.get("x-amzn-requestid")
    name = _code_name(code) if code is not None else f"unknown Lance error code {own_code}"
    if 300 <= status < 400:
        said = f"the server redirects to {response.headers.get('location', 'nowhere')}: check the address and base path"
    if route_missing:
        said = "the server has no such route" + (f" ({said})" if said and not bare else "")
    said = said or "the server gave no reason"
    message = f"{operation.name} {target} failed with HTTP {status} ({name}): {said}"
    # An id that the sentence has already is not repeated.
    ids = (("instance", instance), ("request id", request_id if request_id != instance else None))
    trace = ", ".join(f"{label} {value}" for label, value in ids if value and value not in said)
    if trace:
        message += f" [{trace}]"
    about = target.strip("'")
    named = not operation.takes_id or re.search(rf"(?<!\w){re.escape(about)}(?!\w)", said)
    reason = said if named else f"{about}: {said}"
    todo = (advice or {}).get(code) if code is not None else None
    if todo:
        message += f" {todo}" if message.endswith((".", "]")) else f". {todo}"
        # Who is refused wants to know which credentials; the server's own words come after that.
        reason = f"{todo} The server says: {said}" if code == UNAUTHENTICATED else f"{said.rstrip('.')}. {todo}"
    return WireError(
        message,
        code=code,
        status=status,
        operation=operation.name,
        instance=instance,
        request_id=request_id,
        lance_body=lance_body,
        route_missing=route_missing,
        differing_fields=_differing_fields(body),
        reason=reason,
        detail=f"{operation.name} {target}: HTTP {status}, {name}" + (f", {trace}" if trace else ""),
    )


def _names_no_object(said: str, path: str) -> bool:
    """Whether a 404's words are those of a router (or a proxy's page) that has no such route."""
    words = re.sub(r"[\W\d_]+", " ", said.removeprefix(_HTML_PAGE)).strip().lower()
    names_path = all(piece.strip("/") in said for piece in re.split(r"\{\w+\}", path))
    return words in _ROUTERS_WORDS or said.startswith(_HTML_PAGE) or names_path


def own_lance_code(response: httpx.Response) -> int | None:
    """The Lance code in an error body, if it has one (for the retry decision)."""
    return _read_body(_json_object(response))[0]


def no_answer_error(operation: Operation, target: str, url: str, error: Exception, *, sent: bool) -> WireError:
    """No answer came: say what was tried and what to check."""
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
        code=UNAVAILABLE,
        operation=operation.name,
        unknown_outcome=sent,
        reason=f"No answer: {reason}. {advice}",
        detail=f"{operation.name} {target} at {url}",
    )


def junk_answer_error(operation: Operation, target: str, response: httpx.Response, problem: str) -> WireError:
    """A success status with an answer that cannot be read."""
    kind = response.headers.get("content-type", "no content type")
    return WireError(
        f"{operation.name} {target} was answered with HTTP {response.status_code}, but its answer ({kind}) "
        f"cannot be read: {problem}. Is this address really a Lance namespace server?",
        code=INTERNAL,
        status=response.status_code,
        operation=operation.name,
        unknown_outcome=True,
    )


def lance_error(error: WireError) -> LanceNamespaceError:
    """The ``lance_namespace.errors`` class that says the same; keeps status, instance and request id as attributes."""
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


def _differing_fields(body: dict[str, Any] | None) -> tuple[str, ...] | None:
    found = (body or {}).get(DIFFERING_FIELDS)
    return tuple(found) if isinstance(found, list) and all(isinstance(name, str) for name in found) else None


def _read_body(body: dict[str, Any] | None) -> tuple[int | None, str, str | None, bool]:
    """``(Lance code, what it says, instance, is it a Lance error body)`` of either generation."""
    if body is None:
        return None, "", None, False
    nested = body.get("error")
    if isinstance(nested, dict):  # {"error": {"message": …, "code": …}} as some gateways wrap it
        body = {**nested, "error": nested.get("error") or nested.get("message")}
    code = body.get("code")
    code = code if isinstance(code, int) and not isinstance(code, bool) else None
    sentences = [body.get(key) for key in ("error", "title", "message", "detail")]
    texts: list[str] = []
    for sentence in sentences:
        text = sentence.strip() if isinstance(sentence, str) else ""
        if text and not any(text in other for other in texts):
            texts.append(text)
    if len(texts) > 1:  # a title that only repeats the status says nothing more
        texts = [text for text in texts if text not in _PHRASES] or texts[:1]
    instance = body.get("instance")
    generation_known = code is not None or "error" in body or ("type" in body and "detail" in body)
    lance_code = code if code is not None and not 400 <= code <= 600 else None
    said = ": ".join([*(text.rstrip(".") for text in texts[:-1]), *texts[-1:]])[:_MOST_TEXT]
    return lance_code, said, instance if isinstance(instance, str) and instance else None, generation_known


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = json.loads(response.content)
    except (ValueError, UnicodeDecodeError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _plain_text(response: httpx.Response) -> str:
    text = response.content[: 20 * _MOST_TEXT].decode("utf-8", "replace").strip()
    if "<" in text and re.search(r"<(!doctype|html|head|body|title)\b", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        page = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.IGNORECASE | re.DOTALL)
        text = _HTML_PAGE + (title[1] if title else re.sub(r"<[^>]*>", " ", page))
        text = html.unescape(text)
    return re.sub(r"\s+", " ", text)[:400]


def _code_of_status(status: int, operation: Operation, said: str) -> int:
    if status == 404:
        return _missing_code(operation, said)
    if status == 409:
        return operation.taken
    return _BY_STATUS.get(status, INVALID_INPUT if status < 500 else INTERNAL)


def _missing_code(operation: Operation, said: str) -> int:
    """Which object a 404 without a code is about: the operation's own, unless the words name its table."""
    table, namespace = 4, 1
    lowered = said.lower()
    if operation.missing not in {table, namespace} and "/table/" in operation.path:
        own_word = {6: "index", 8: "tag", 11: "version", 12: "column", 22: "branch"}[operation.missing]
        if own_word not in lowered and "table" in lowered:
            return table
    return operation.missing


def _code_name(code: int) -> str:
    return _NAMES[code] if 0 <= code < len(_NAMES) else f"code {code}"


_NAMES = (
    "Unsupported",
    "NamespaceNotFound",
    "NamespaceAlreadyExists",
    "NamespaceNotEmpty",
    "TableNotFound",
    "TableAlreadyExists",
    "TableIndexNotFound",
    "TableIndexAlreadyExists",
    "TableTagNotFound",
    "TableTagAlreadyExists",
    "TransactionNotFound",
    "TableVersionNotFound",
    "TableColumnNotFound",
    "InvalidInput",
    "ConcurrentModification",
    "PermissionDenied",
    "Unauthenticated",
    "ServiceUnavailable",
    "Internal",
    "InvalidTableState",
    "TableSchemaValidationError",
    "Throttling",
    "TableBranchNotFound",
    "TableBranchAlreadyExists",
)
