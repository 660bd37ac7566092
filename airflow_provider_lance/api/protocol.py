"""The protocol, written once without I/O: generators that yield what to do and receive what came of it.

A flow yields :class:`Send`, :class:`Sleep` or :class:`Gather` and returns its value; ``client.py`` drives it with a
blocking or an async httpx client. Values are plain dicts: models are the clients' business, and triggers need none.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from airflow_provider_lance.api import errors
from airflow_provider_lance.api.arrow import ARROW_STREAM, ArrowBody
from airflow_provider_lance.api.auth import API_KEY_HEADER, ONE_SHOT
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, InvalidIdentifierError, parse_id, quote_id
from airflow_provider_lance.api.job_words import IDEMPOTENCY_KEY
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, Operation
from airflow_provider_lance.api.retry import NEVER_SENT, may_retry_answer, may_retry_error, retry_after
from airflow_provider_lance.api.settings import InvalidSettingsError, Settings, context_headers


@dataclass(frozen=True)
class Send:
    """Send this request, give back the whole response or throw the ``httpx`` error."""

    request: httpx.Request


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Gather:
    """Run these flows, at most ``limit`` at once where the driver can; give back values and ``WireError``s in order."""

    flows: Sequence[Flow]
    limit: int = 8


Effect = Send | Sleep | Gather
Flow = Generator[Effect, Any, Any]


@dataclass(frozen=True)
class Reply:
    """A successful answer: its value as plain data, and its headers."""

    value: Any
    headers: httpx.Headers
    status: int


_NOT_IN_BODY = ("id", "identity", "context")


class Protocol:
    """Turns an operation and its fields into requests, and answers into values or one clear error."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        #: Whether the server lists jobs by their ids; ``None`` until it was asked.
        self.filters_jobs: bool | None = None
        self._timeout = httpx.Timeout(settings.timeout, connect=settings.connect_timeout).as_dict()

    def call(self, operation: Operation, fields: Mapping[str, Any], data: Any = None) -> Flow:
        """One operation with its retries; returns a :class:`Reply`."""
        settings, policy = self.settings, self.settings.retry
        body = ArrowBody(data) if operation.body is Body.ARROW else None
        refused: ValueError | None = None
        try:
            request = self.build(operation, fields, body)
        except (InvalidIdentifierError, InvalidSettingsError) as error:
            refused = error
        if refused is not None:
            raise WireError(str(refused), code=errors.INVALID_INPUT, operation=operation.name)
        started = policy.clock()
        attempt = 0
        while True:
            attempt += 1
            response: httpx.Response | None = None
            broken: httpx.RequestError | None = None
            unsigned: WireError | None = None
            try:
                response = yield Send(request)
            except httpx.RequestError as error:
                broken = error
            except WireError as error:  # of whoever signs requests: this one never left
                unsigned = error
            # Raised outside of the except block: a chained httpx frame would show header values in a traceback.
            if response is not None:
                if response.status_code in operation.statuses:
                    return self._read(operation, fields, response)
                failure = errors.read_answer_error(
                    operation, self._target(operation, fields), response, settings.advice
                )
                code = errors.own_lance_code(response)
                again = failure.code != errors.UNSUPPORTED and may_retry_answer(
                    response.status_code, response.headers, code, replayable=operation.replayable
                )
                # A gateway's word, also where it comes from the server itself: the work may go on behind it.
                unsure = code is None or response.status_code in {502, 504}
                failure.unknown_outcome = response.status_code >= 500 and not again and unsure
                failure.retry_after = retry_after(response.headers)
            elif unsigned is not None:
                failure, again = unsigned, unsigned.transient
            else:
                assert broken is not None
                again = may_retry_error(broken, replayable=operation.replayable)
                failure = errors.no_answer_error(
                    operation,
                    self._target(operation, fields),
                    str(request.url),
                    broken,
                    sent=not isinstance(broken, NEVER_SENT),
                )
            if again and attempt < policy.attempts and (body is None or body.can_send):
                pause = policy.delay(attempt, failure.retry_after)
                if policy.clock() - started + pause <= policy.total_seconds:
                    yield Sleep(pause)
                    request = self.build(operation, fields, body)
                    continue
            if attempt > 1:
                gave_up = f" Gave up after {attempt} tries in {policy.clock() - started:.1f} s."
                failure.args = (f"{failure}{gave_up}",)
                failure.detail = f"{failure.detail}.{gave_up}".lstrip(". ")
            failure.reword(settings.redact)
            raise failure

    def create_empty_table(self, fields: Mapping[str, Any]) -> Flow:
        """``create-empty``, or ``declare`` (the same under its newer name) where that route is missing."""
        try:
            return (yield from self.call(OPERATIONS["create_empty_table"], fields))
        except WireError as error:
            if not error.route_missing:
                raise
        return (yield from self.call(OPERATIONS["declare_table"], fields))

    def submit(self, operation: Operation, fields: Mapping[str, Any]) -> Flow:
        """Start a job exactly once: an answer that was lost is settled by asking, never by sending blindly again."""
        context = dict(fields.get("context") or {})
        key = context.setdefault(IDEMPOTENCY_KEY, uuid.uuid4().hex)
        fields = {**fields, "context": context}
        began = time.time()
        for last in (False, True):
            try:
                return (yield from self.call(operation, fields))
            except WireError as error:
                if not error.unknown_outcome or error.code == errors.UNSUPPORTED:
                    raise
                lost = error
            found = yield from self._settle(operation, fields, key, began, lost)
            if found is not None:
                return found
            if last:
                raise lost
            # The server knows keys and has no job with ours: with the same key it cannot become two.
        raise AssertionError("unreachable")

    def _settle(self, operation: Operation, fields: Mapping[str, Any], key: str, began: float, lost: WireError) -> Flow:
        """Find the job a lost submit started. ``None``: the server honours keys and it does not exist."""
        parts = parse_id(fields.get("id"), self.settings.delimiter)
        for pause in (0.2, 1.0, 3.0):
            yield Sleep(pause)
            try:
                reply = yield from self.call(OPERATIONS["list_jobs"], {"idempotency_key": key})
            except WireError as error:
                if error.transient:
                    continue
                break
            rows = [row for row in reply.value.get("jobs") or [] if isinstance(row, Mapping)]
            if reply.value.get("filtered"):
                if rows:
                    return (yield from self._settled(operation, fields, str(rows[0]["job_id"]), reply))
                return None
            server_clock = _date_ms(reply.headers) or time.time() * 1000
            since = server_clock - (time.time() - began) * 1000 - 2000
            names = {parts[-1], ".".join(parts), self.settings.delimiter.join(parts), "/".join(parts)}
            recent = [
                row for row in rows if row.get("table") in names and float(row.get("created_at_millis") or 0) >= since
            ]
            matching = []
            for row in recent:
                described = yield from self.describe_job(str(row["job_id"]))
                column = (described.get("spec") or {}).get("column") if isinstance(described, dict) else None
                if column in (None, fields.get("column")):
                    matching.append(str(row["job_id"]))
            if len(matching) == 1:
                return (yield from self._settled(operation, fields, matching[0], reply))
        raise WireError(
            f"{lost} Asking the server which jobs run did not settle whether this one was started: look at its jobs "
            "before submitting again.",
            code=lost.code,
            status=lost.status,
            operation=lost.operation,
            unknown_outcome=True,
        )

    def _settled(self, operation: Operation, fields: Mapping[str, Any], job_id: str, reply: Reply) -> Flow:
        value: dict[str, Any] = {"job_id": job_id}
        if operation.name == "create_materialized_view":
            table = yield from self.call(OPERATIONS["describe_table"], {"id": fields.get("id")})
            value["version"] = table.value.get("version") or 1
        return Reply(value, reply.headers, reply.status)

    def describe_job(self, job_id: str) -> Flow:
        """A job's description as a dict; a server without the jobs API is asked for the transaction of that id."""
        try:
            reply = yield from self.call(OPERATIONS["describe_job"], {"job_id": job_id})
        except WireError as error:
            if not error.route_missing:
                raise
        else:
            return {**reply.value, "job_id": reply.value.get("job_id") or job_id}
        try:
            reply = yield from self.call(OPERATIONS["describe_transaction"], {"id": job_id})
        except WireError as error:
            if error.code not in {errors.UNSUPPORTED, errors.INVALID_INPUT}:
                raise
            none = error  # pylance's server has transactions of tables, and takes the id for a malformed one
        else:
            return {**reply.value, "job_id": job_id}
        reason = f"The server at {self.settings.base_url} has no jobs."
        raise WireError(
            f"{reason} {none}",
            code=errors.UNSUPPORTED,
            status=none.status,
            operation="describe_job",
            reason=reason,
            detail=none.detail,
        )

    def describe_jobs(self, job_ids: Sequence[str]) -> Flow:
        """Many jobs at once: ``{job_id: description}``, unknown ids absent.

        One request per thousand ids where the server filters by id, else a description each, eight at once; one that
        cannot be had is a ``WireError`` in its place.
        """
        found: dict[str, dict[str, Any] | WireError] = {}
        for start in range(0, len(job_ids), 1000):
            chunk = list(job_ids[start : start + 1000])
            rows = (yield from self._listed_jobs(chunk)) if self.filters_jobs is not False else None
            if rows is not None:
                found |= {str(row["job_id"]): dict(row) for row in rows}
                continue
            answers = yield Gather([self.describe_job(job_id) for job_id in chunk])
            for job_id, answer in zip(chunk, answers, strict=True):
                if not (isinstance(answer, WireError) and answer.status == 404):
                    found[job_id] = answer
        return found

    def _listed_jobs(self, job_ids: Sequence[str]) -> Flow:
        """The rows of these jobs; ``None`` where the server does not list by id, or does not let us."""
        try:
            reply = yield from self.call(OPERATIONS["list_jobs"], {"job_ids": job_ids})
        except WireError as error:
            # A list that always breaks must not stand in the way of those who can be asked one by one.
            breaks = error.status == 500 and self.filters_jobs is None
            if (error.transient and not breaks) or error.code == errors.UNAUTHENTICATED:
                raise
            self.filters_jobs = None if breaks else False
            return None
        self.filters_jobs = bool(reply.value.get("filtered"))
        return (reply.value.get("jobs") or []) if self.filters_jobs else None

    def build(self, operation: Operation, fields: Mapping[str, Any], body: ArrowBody | None = None) -> httpx.Request:
        """The request of one operation. Identity and context become headers, listed fields the query string."""
        settings = self.settings
        path = operation.path
        query: list[tuple[str, str]] = []
        if operation.takes_id:
            path = path.replace("{id}", quote_id(self._parts(fields.get("id")), settings.delimiter))
        if "{index_name}" in path:
            index = fields.get("index_name")
            if not index:
                raise InvalidIdentifierError(f"{operation.name} needs `index_name`.")
            path = path.replace("{index_name}", quote_id([str(index)]))
        if any(segment in {".", ".."} for segment in path.split("/")):
            # Dots survive percent-encoding, and clients and proxies fold such a segment into another path.
            raise InvalidIdentifierError(
                f"{operation.name} needs a path with a segment of dots ({path}), which no URL can carry: rename the "
                "object, or choose another delimiter for this connection."
            )
        if settings.delimiter != DEFAULT_DELIMITER:
            query.append(("delimiter", settings.delimiter))
        for name in operation.query:
            value = fields.get(name)
            for item in value if isinstance(value, list) else [value]:
                if item is not None:
                    query.append((name, _query_value(item)))
        headers = context_headers(fields.get("context") or {})
        identity = fields.get("identity") or {}
        if identity.get("api_key"):
            headers[API_KEY_HEADER] = identity["api_key"]
        if identity.get("auth_token"):
            headers["authorization"] = f"Bearer {identity['auth_token']}"
        content: bytes | None = None
        if operation.body is Body.METADATA:
            content = json.dumps(fields.get("metadata") or {}).encode()
        elif operation.body is Body.JSON:
            kept = {key: value for key, value in fields.items() if key not in _NOT_IN_BODY and value is not None}
            content = json.dumps(kept).encode()
        if content is not None:
            headers.setdefault("content-type", "application/json")
        request = httpx.Request(
            operation.method,
            f"{settings.base_url}{path}",
            params=tuple(query) or None,
            headers=settings.headers | headers,
            content=content,
            extensions={"timeout": self._timeout},
        )
        if body is not None:
            request.stream = body
            request.extensions[ONE_SHOT] = not body.replayable
            request.headers["content-type"] = ARROW_STREAM
            if body.length is None:
                request.headers.pop("content-length", None)
                request.headers["transfer-encoding"] = "chunked"
            else:
                request.headers["content-length"] = str(body.length)
        return request

    def _parts(self, identifier: Any) -> list[str]:
        return parse_id(identifier, self.settings.delimiter)

    def _target(self, operation: Operation, fields: Mapping[str, Any]) -> str:
        """What the operation is about, for messages."""
        if operation.takes_id:
            return repr(self.settings.delimiter.join(self._parts(fields.get("id"))) or "the root namespace")
        return f"of job {fields['job_id']!r}" if fields.get("job_id") else f"at {self.settings.base_url}"

    def _read(self, operation: Operation, fields: Mapping[str, Any], response: httpx.Response) -> Reply:
        answer = operation.answer
        value: Any = None
        problem = ""
        if answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
            value = response.content
        elif answer is not Answer.NOTHING:
            try:
                value = json.loads(response.content) if response.content else {}
            except (ValueError, RecursionError) as error:
                value, problem = None, f"it is not JSON ({error})"
            if answer is Answer.TEXT and problem:
                value, problem = response.text, ""
            value, problem = _shape(answer, value, problem)
        if problem:
            raise errors.junk_answer_error(operation, self._target(operation, fields), response, problem)
        return Reply(value, response.headers, response.status_code)


def _shape(answer: Answer, value: Any, problem: str) -> tuple[Any, str]:
    """Both the bare values of the REST wire and the objects other servers wrap them in."""
    if problem:
        return value, problem
    if answer is Answer.COUNT:
        count = value.get("count") if isinstance(value, dict) else value
        ok = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        return ({"count": count}, "") if ok else (None, "it holds no row count")
    if answer is Answer.TEXT:
        if isinstance(value, dict):
            value = value.get("plan") or value.get("analysis") or ""
        return (value, "") if isinstance(value, str) else (None, "it is not a text")
    if answer is Answer.METADATA:
        wrapped = value.get("metadata") if isinstance(value, dict) else None
        return ({"metadata": wrapped if isinstance(wrapped, dict) else value}, "")
    return (value, "") if isinstance(value, dict) else (None, "it is not a JSON object")


def _query_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(value)


def _date_ms(headers: httpx.Headers) -> float | None:
    seconds = retry_after(httpx.Headers({"retry-after": headers.get("date", "")}), now=lambda: 0.0)
    return seconds * 1000 if seconds else None
