"""The protocol of the wire, written once without I/O as generators, which a blocking and an async client run.

A flow yields what to do (:class:`Send`, :class:`Sleep` or :class:`Gather`), receives what came of it, and returns its
value. ``wire.py`` runs flows with httpx. Values are plain dicts, because triggers do without models.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from airflow_provider_lance.api import errors
from airflow_provider_lance.api.arrow import ARROW_STREAM, ArrowBody
from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.http.auth import API_KEY_HEADER, ONE_SHOT
from airflow_provider_lance.api.http.retry import NEVER_SENT, may_retry_answer, may_retry_error, retry_after
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, InvalidIdentifierError, parse_id, quote_id
from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, Operation
from airflow_provider_lance.api.plain_data import REQUEST_ENVELOPE, Fields, JsonObject
from airflow_provider_lance.api.settings import InvalidSettingsError, Settings, context_headers

if TYPE_CHECKING:
    from airflow_provider_lance.api.arrow import ArrowData


@dataclass(frozen=True)
class Send:
    """Send this request; the flow receives the whole response, or the error that took its place."""

    request: httpx.Request


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Gather:
    """Run these flows, at most ``limit`` at once where the client can; the flow receives values and errors in order."""

    flows: Sequence[Flow[JsonObject]]
    limit: int = 8


Effect = Send | Sleep | Gather
_Value = TypeVar("_Value")
# Each kind of effect has another outcome, and the type of a generator has one type for all of them.
Flow = Generator[Effect, Any, _Value]
_Outcome = httpx.Response | httpx.RequestError | WireError


@dataclass(frozen=True)
class Reply:
    """A successful answer: its value as plain data, and its headers.

    The value is a JSON object, except for the bare texts and the Arrow bytes that some operations answer with.
    """

    value: Any
    headers: httpx.Headers
    status: int


class Protocol:
    """Turns an operation and its fields into requests, and answers into values or one clear error."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        #: Whether the server lists jobs by their ids; ``None`` until it was asked.
        self.filters_jobs: bool | None = None
        self._timeout = httpx.Timeout(settings.timeout, connect=settings.connect_timeout).as_dict()

    def run(self, operation: Operation, fields: Fields, data: ArrowData | None = None) -> Flow[Reply]:
        """One operation: a submit starts one job only, and a route that is missing may have a substitute."""
        if operation.submits_job:
            return self.submit(operation, fields)
        if operation.replaced_by is not None:
            return self._call_or_replace(operation, OPERATIONS[operation.replaced_by], fields)
        return self.call(operation, fields, data)

    def call(self, operation: Operation, fields: Fields, data: ArrowData | None = None) -> Flow[Reply]:
        """One operation with its retries."""
        policy = self.settings.retry
        body = ArrowBody(data) if operation.body is Body.ARROW else None
        started, attempt = policy.clock(), 0
        while True:
            attempt += 1
            request = self._build_or_refuse(operation, fields, body)
            outcome: _Outcome = yield Send(request)
            if isinstance(outcome, httpx.Response) and outcome.status_code in operation.statuses:
                return self._read(operation, fields, outcome)
            failure, again = self._failure(operation, fields, request, outcome)
            if again and attempt < policy.attempts and (body is None or body.can_send):
                pause = policy.delay(attempt, failure.retry_after)
                if policy.clock() - started + pause <= policy.total_seconds:
                    yield Sleep(pause)
                    continue
            if attempt > 1:
                gave_up = f" Gave up after {attempt} tries in {policy.clock() - started:.1f} s."
                failure.args = (f"{failure}{gave_up}",)
                failure.detail = f"{failure.detail}.{gave_up}".lstrip(". ")
            failure.reword(self.settings.redact)
            raise failure

    def _failure(
        self, operation: Operation, fields: Fields, request: httpx.Request, outcome: _Outcome
    ) -> tuple[WireError, bool]:
        """What went wrong with a request, and whether to send it again."""
        if isinstance(outcome, WireError):  # a token could not be had, so the request was never sent
            return outcome, outcome.transient
        target = self._target(operation, fields)
        if isinstance(outcome, httpx.RequestError):
            sent = not isinstance(outcome, NEVER_SENT)
            failure = errors.no_answer_error(operation, target, str(request.url), outcome, sent=sent)
            return failure, may_retry_error(outcome, replayable=operation.replayable)
        failure = errors.read_answer_error(operation, target, outcome, self.settings.advice)
        code, status = errors.own_lance_code(outcome), outcome.status_code
        again = failure.code != ErrorCode.UNSUPPORTED and may_retry_answer(
            status, outcome.headers, code, replayable=operation.replayable
        )
        # With a gateway's status the work may go on behind it, also where the server itself answers with that status.
        unsure = code is None or status in {502, 504}
        failure.unknown_outcome = status >= 500 and not again and unsure
        failure.retry_after = retry_after(outcome.headers)
        return failure, again

    def _call_or_replace(self, operation: Operation, substitute: Operation, fields: Fields) -> Flow[Reply]:
        """An operation, or its substitute where the server lacks the route."""
        try:
            return (yield from self.call(operation, fields))
        except WireError as error:
            if not error.route_missing:
                raise
        return (yield from self.call(substitute, fields))

    def submit(self, operation: Operation, fields: Fields) -> Flow[Reply]:
        """Start a job exactly once: when an answer is lost, the server is asked for the job before another try."""
        context = dict(_strings(fields, "context"))
        key = context.setdefault(IDEMPOTENCY_KEY, uuid.uuid4().hex)
        fields = {**fields, "context": context}
        began = time.time()
        for last in (False, True):
            try:
                return (yield from self.call(operation, fields))
            except WireError as error:
                if not error.unknown_outcome or error.code == ErrorCode.UNSUPPORTED:
                    raise
                lost = error
            found = yield from self._find_submitted(operation, fields, key, began, lost)
            if found is not None:
                return found
            if last:
                raise lost
            # The server knows keys and has no job with this one, so sending it again cannot start two.
        raise AssertionError("unreachable")

    def _find_submitted(
        self, operation: Operation, fields: Fields, key: str, began: float, lost: WireError
    ) -> Flow[Reply | None]:
        """The reply to a submit whose answer was lost; ``None`` where the server honours keys and has no such job."""
        for pause in (0.2, 1.0, 3.0):
            yield Sleep(pause)
            try:
                reply = yield from self.call(OPERATIONS["list_jobs"], {"idempotency_key": key})
            except WireError as error:
                if error.transient:
                    continue
                break
            rows = [row for row in reply.value.get("jobs") or [] if isinstance(row, dict)]
            if reply.value.get("filtered"):
                return (yield from self._submitted(operation, fields, str(rows[0]["job_id"]), reply)) if rows else None
            server_clock = _date_ms(reply.headers) or time.time() * 1000
            since = server_clock - (time.time() - began) * 1000 - 2000
            matching = yield from self._matching_jobs(rows, fields, since)
            if len(matching) == 1:
                return (yield from self._submitted(operation, fields, matching[0], reply))
        raise WireError(
            f"{lost} Asking the server which jobs run did not settle whether this one was started: look at its jobs "
            "before submitting again.",
            code=lost.code,
            status=lost.status,
            operation=lost.operation,
            unknown_outcome=True,
        )

    def _matching_jobs(self, rows: Sequence[JsonObject], fields: Fields, since_ms: float) -> Flow[list[str]]:
        """The ids of the recent jobs on a request's table and column, for a server that does not know keys."""
        parts = self._parts(fields)
        names = {parts[-1], ".".join(parts), self.settings.delimiter.join(parts), "/".join(parts)}
        found = []
        for row in rows:
            if row.get("table") not in names or float(row.get("created_at_millis") or 0) < since_ms:
                continue
            job_id = str(row["job_id"])
            described = yield from self.describe_job(job_id)
            if (described.get("spec") or {}).get("column") in (None, fields.get("column")):
                found.append(job_id)
        return found

    def _submitted(self, operation: Operation, fields: Fields, job_id: str, reply: Reply) -> Flow[Reply]:
        value: JsonObject = {"job_id": job_id}
        if operation.answers_version:
            table = yield from self.call(OPERATIONS["describe_table"], {"id": fields.get("id")})
            value["version"] = table.value.get("version") or 1
        return Reply(value, reply.headers, reply.status)

    def describe_job(self, job_id: str) -> Flow[JsonObject]:
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
            if error.code not in {ErrorCode.UNSUPPORTED, ErrorCode.INVALID_INPUT}:
                raise
            none = error  # pylance's server has transactions of tables only, and calls the id malformed
        else:
            return {**reply.value, "job_id": job_id}
        reason = f"The server at {self.settings.base_url} has no jobs."
        raise WireError(
            f"{reason} {none}",
            code=ErrorCode.UNSUPPORTED,
            status=none.status,
            operation="describe_job",
            reason=reason,
            detail=none.detail,
        )

    def describe_jobs(self, job_ids: Sequence[str]) -> Flow[dict[str, JsonObject | WireError]]:
        """Many jobs at once: ``{job_id: description}``, without the ids that the server does not know.

        It takes one request per thousand ids where the server filters by id, else one per job, eight at once. A job
        that cannot be described has a ``WireError`` in its place.
        """
        found: dict[str, JsonObject | WireError] = {}
        for start in range(0, len(job_ids), 1000):
            chunk = list(job_ids[start : start + 1000])
            rows = (yield from self._list_jobs(chunk)) if self.filters_jobs is not False else None
            if rows is not None:
                found |= {str(row["job_id"]): dict(row) for row in rows}
                continue
            answers: list[JsonObject | WireError] = yield Gather([self.describe_job(job_id) for job_id in chunk])
            for job_id, answer in zip(chunk, answers, strict=True):
                if not (isinstance(answer, WireError) and answer.status == 404):
                    found[job_id] = answer
        return found

    def _list_jobs(self, job_ids: Sequence[str]) -> Flow[list[JsonObject] | None]:
        """The rows of these jobs; ``None`` where the server cannot list by id, or does not allow it."""
        try:
            reply = yield from self.call(OPERATIONS["list_jobs"], {"job_ids": job_ids})
        except WireError as error:
            # A server whose listing always fails may still describe each job.
            breaks = error.status == 500 and self.filters_jobs is None
            if (error.transient and not breaks) or error.code == ErrorCode.UNAUTHENTICATED:
                raise
            self.filters_jobs = None if breaks else False
            return None
        self.filters_jobs = bool(reply.value.get("filtered"))
        return (reply.value.get("jobs") or []) if self.filters_jobs else None

    def _build_or_refuse(self, operation: Operation, fields: Fields, body: ArrowBody | None) -> httpx.Request:
        try:
            return self.build(operation, fields, body)
        except (InvalidIdentifierError, InvalidSettingsError) as error:
            reason = str(error)
        # Outside of the except block, because a chained frame would show header values in a traceback.
        raise WireError(reason, code=ErrorCode.INVALID_INPUT, operation=operation.name)

    def build(self, operation: Operation, fields: Fields, body: ArrowBody | None = None) -> httpx.Request:
        """The request of one operation. Identity and context become headers, listed fields the query string."""
        content = _json_content(operation, fields)
        headers = self.settings.headers | _request_headers(fields)
        if content is not None:
            headers.setdefault("content-type", "application/json")
        request = httpx.Request(
            operation.method,
            f"{self.settings.base_url}{self._path(operation, fields)}",
            params=self._query(operation, fields) or None,
            headers=headers,
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

    def _path(self, operation: Operation, fields: Fields) -> str:
        path = operation.path
        if operation.takes_id:
            path = path.replace("{id}", quote_id(self._parts(fields), self.settings.delimiter))
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
        return path

    def _query(self, operation: Operation, fields: Fields) -> tuple[tuple[str, str], ...]:
        query = []
        if self.settings.delimiter != DEFAULT_DELIMITER:
            query.append(("delimiter", self.settings.delimiter))
        for name in operation.query:
            value = fields.get(name)
            for item in value if isinstance(value, list) else [value]:
                if item is not None:
                    query.append((name, _query_value(item)))
        return tuple(query)

    def _parts(self, fields: Fields) -> list[str]:
        return parse_id(fields.get("id"), self.settings.delimiter)

    def _target(self, operation: Operation, fields: Fields) -> str:
        """What the operation is about, for messages."""
        if operation.takes_id:
            return repr(self.settings.delimiter.join(self._parts(fields)) or "the root namespace")
        return f"of job {fields['job_id']!r}" if fields.get("job_id") else f"at {self.settings.base_url}"

    def _read(self, operation: Operation, fields: Fields, response: httpx.Response) -> Reply:
        value, problem = _read_value(operation.answer, response)
        if problem:
            raise errors.junk_answer_error(operation, self._target(operation, fields), response, problem)
        return Reply(value, response.headers, response.status_code)


def _request_headers(fields: Fields) -> dict[str, str]:
    """The headers that carry a request's context and identity."""
    headers, identity = context_headers(_strings(fields, "context")), _strings(fields, "identity")
    if identity.get("api_key"):
        headers[API_KEY_HEADER] = identity["api_key"]
    if identity.get("auth_token"):
        headers["authorization"] = f"Bearer {identity['auth_token']}"
    return headers


def _strings(fields: Fields, name: str) -> Mapping[str, str]:
    value = fields.get(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidSettingsError(f"`{name}` must be an object of strings, not {type(value).__name__}.")
    return value


def _json_content(operation: Operation, fields: Fields) -> bytes | None:
    if operation.body is Body.METADATA:
        return json.dumps(fields.get("metadata") or {}).encode()
    if operation.body is not Body.JSON:
        return None
    kept = {key: value for key, value in fields.items() if key not in REQUEST_ENVELOPE and value is not None}
    return json.dumps(kept).encode()


def _read_value(answer: Answer, response: httpx.Response) -> tuple[object, str]:
    """An answer's value, and what is wrong with it (empty if nothing is).

    Both the bare values of the REST wire and the objects that other servers wrap them in are read.
    """
    if answer is Answer.NOTHING:
        return None, ""
    if answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
        return response.content, ""
    try:
        value: object = json.loads(response.content) if response.content else {}
    except (ValueError, RecursionError) as error:
        return (response.text, "") if answer is Answer.TEXT else (None, f"it is not JSON ({error})")
    wrapped = value if isinstance(value, dict) else {}
    if answer is Answer.COUNT:
        count = wrapped.get("count") if wrapped else value
        ok = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        return ({"count": count}, "") if ok else (None, "it holds no row count")
    if answer is Answer.TEXT:
        text = wrapped.get("plan") or wrapped.get("analysis") or "" if isinstance(value, dict) else value
        return (text, "") if isinstance(text, str) else (None, "it is not a text")
    if answer is Answer.METADATA:
        metadata = wrapped.get("metadata")
        return {"metadata": metadata if isinstance(metadata, dict) else value}, ""
    return (value, "") if isinstance(value, dict) else (None, "it is not a JSON object")


def _query_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _date_ms(headers: httpx.Headers) -> float | None:
    seconds = retry_after(httpx.Headers({"retry-after": headers.get("date", "")}), now=lambda: 0.0)
    return seconds * 1000 if seconds else None
