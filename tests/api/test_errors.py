"""Every kind of failed answer becomes the right class with a sentence that names what matters."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace import errors as lance

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import lance_error, read_answer_error
from airflow_provider_lance.api.operations import OPERATIONS


def read(name: str, response: httpx.Response) -> lance.LanceNamespaceError:
    return lance_error(read_answer_error(OPERATIONS[name], "'a$b'", response))


def new(status: int, code: int, error: str = "it went wrong", **more: str) -> httpx.Response:
    return httpx.Response(status, json={"error": error, "code": code, **more})


def old(status: int, error: str = "it went wrong", **more: str) -> httpx.Response:
    return httpx.Response(status, json={"error": error, "code": status, "type": "/errors/x", **more})


UNSUPPORTED = lance.UnsupportedOperationError
SPRING = {"timestamp": "2026-01-01T00:00:00Z", "status": 404, "error": "Not Found", "path": "/v1/jobs/describe"}
NO_RESOURCE = "No static resource v1/jobs/describe."


@pytest.mark.parametrize("code", list(lance.ErrorCode))
def test_each_lance_code_has_its_class(code: lance.ErrorCode) -> None:
    status = {0: 406, 13: 400, 14: 409, 15: 403, 16: 401, 17: 503, 18: 500, 19: 409, 20: 400, 21: 429}.get(int(code))
    status = status or (409 if "ALREADY" in code.name or "NOT_EMPTY" in code.name else 404)
    error = read("describe_table", new(status, int(code)))
    assert type(error) is type(lance.from_error_code(int(code), ""))
    assert error.code == code


@pytest.mark.parametrize(
    ("name", "response", "expected"),
    [
        ("describe_table", old(404), lance.TableNotFoundError),
        ("describe_namespace", old(404), lance.NamespaceNotFoundError),
        ("update_table_tag", old(404, "tag missing"), lance.TableTagNotFoundError),
        ("update_table_tag", old(404, "table missing"), lance.TableNotFoundError),
        ("describe_table_version", old(404), lance.TableVersionNotFoundError),
        ("create_table", old(409), lance.TableAlreadyExistsError),
        ("create_namespace", old(409), lance.NamespaceAlreadyExistsError),
        ("create_table_tag", old(409), lance.TableTagAlreadyExistsError),
        ("create_table_version", old(409), lance.ConcurrentModificationError),
        ("describe_table", old(401), lance.UnauthenticatedError),
        ("describe_table", old(403), lance.PermissionDeniedError),
        ("describe_table", old(503), lance.ServiceUnavailableError),
        ("describe_table", old(429), lance.ThrottlingError),
        ("describe_table", old(500), lance.InternalError),
        # the body and the status disagree: the status wins
        ("describe_table", new(401, 4), lance.UnauthenticatedError),
        ("describe_table", new(404, 5), lance.TableNotFoundError),
        ("describe_table", new(503, 13), lance.ServiceUnavailableError),
        # "not supported" in its disguises
        ("create_table", new(500, 18, "Not supported: create_table"), lance.UnsupportedOperationError),
        ("create_table", httpx.Response(501, text="nope"), lance.UnsupportedOperationError),
        ("create_table", httpx.Response(405), lance.UnsupportedOperationError),
        ("create_table", httpx.Response(400, text="Unsupported operation"), lance.UnsupportedOperationError),
        ("create_table", new(406, 0, "no"), lance.UnsupportedOperationError),
        ("describe_job", httpx.Response(404), lance.UnsupportedOperationError),
        ("describe_job", httpx.Response(404, json={"detail": "Not Found"}), lance.UnsupportedOperationError),
        ("describe_job", httpx.Response(404, text="<html><title>404 Not Found</title></html>"), UNSUPPORTED),
        ("describe_job", httpx.Response(404, text="<pre>Cannot POST /v1/jobs/describe</pre>"), UNSUPPORTED),
        ("describe_job", httpx.Response(404, json=SPRING), UNSUPPORTED),
        ("describe_job", httpx.Response(404, json={**SPRING, "message": NO_RESOURCE}), UNSUPPORTED),
        ("create_empty_table", httpx.Response(404, text="no route for /v1/table/a$b/create-empty"), UNSUPPORTED),
        ("describe_job", httpx.Response(404, json={"error": "job j1 not found"}), lance.TransactionNotFoundError),
        ("describe_job", old(404, "no such job"), lance.TransactionNotFoundError),
        ("describe_job", new(404, 10), lance.TransactionNotFoundError),
        ("describe_job", new(404, 10, "Not Found"), lance.TransactionNotFoundError),
        # a bare 404 of a route every server has is about the object
        ("describe_table", httpx.Response(404), lance.TableNotFoundError),
        (
            "describe_table",
            httpx.Response(502, text="<html><title>Bad Gateway</title></html>"),
            lance.LanceNamespaceError,
        ),
        ("describe_table", httpx.Response(307, headers={"location": "https://x/"}), lance.InvalidInputError),
    ],
)
def test_the_right_class(name: str, response: httpx.Response, expected: type) -> None:
    assert isinstance(read(name, response), expected)


def test_the_sentence_says_everything_once() -> None:
    body = {"code": 4, "error": "There is no table t.", "type": "/errors/x", "title": "Not Found", "instance": "X"}
    response = httpx.Response(404, json=body, headers={"x-request-id": "X"})
    said = "describe_table 'a$b' failed with HTTP 404 (TableNotFound): There is no table t. [instance X]"
    assert str(read("describe_table", response)) == said
    two = httpx.Response(409, json={"code": 14, "error": "It is held.", "detail": "By job j."})
    assert "It is held: By job j." in str(read("create_table", two))
    assert "Not Found" in str(read("describe_table", httpx.Response(404, json={"title": "Not Found"})))


def test_the_sentence_names_operation_object_status_words_and_traces() -> None:
    response = httpx.Response(
        409,
        json={"error": "held", "code": 14, "detail": "by job 7", "instance": "job-7"},
        headers={"x-request-id": "r-1"},
    )
    error = read("alter_table_backfill_columns", response)
    for part in (
        "alter_table_backfill_columns",
        "'a$b'",
        "409",
        "held",
        "by job 7",
        "instance job-7",
        "request id r-1",
    ):
        assert part in str(error)
    assert (error.status, error.instance, error.request_id) == (409, "job-7", "r-1")  # type: ignore[attr-defined]


def test_an_html_page_becomes_its_title() -> None:
    page = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><h1>x</h1></body></html>"
    error = read("describe_table", httpx.Response(502, text=page, headers={"content-type": "text/html"}))
    assert "an HTML page: 502 Bad Gateway" in str(error)
    assert "<" not in str(error)


def test_an_unknown_code_parses_and_is_named() -> None:
    error = read("describe_table", new(418, 77, "a new idea"))
    assert type(error) is lance.LanceNamespaceError
    assert "77" in str(error)
    assert "a new idea" in str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
bodies = st.one_of(
    st.binary(max_size=200),
    st.dictionaries(st.sampled_from(["error", "code", "detail", "instance", "type", "title"]), json_values).map(
        lambda body: httpx.Response(200, json=body).content
    ),
)


@given(st.sampled_from(sorted(OPERATIONS)), st.integers(300, 599), bodies)
def test_any_answer_becomes_one_sentence(name: str, status: int, body: bytes) -> None:
    error = read(name, httpx.Response(status, content=body))
    assert isinstance(error, lance.LanceNamespaceError)
    assert str(status) in str(error)
    assert len(str(error)) < 5000


def test_the_codes_are_those_of_the_spec() -> None:
    from lance_namespace.errors import ErrorCode as SpecCode

    assert {code.name: code.value for code in ErrorCode} == {code.name: code.value for code in SpecCode}
