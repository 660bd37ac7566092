"""Retry-After in all its spellings, and which failures may be sent again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.api.http.retry import RetryPolicy, may_retry_answer, may_retry_error, retry_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(text: str) -> float | None:
    return retry_after(httpx.Headers({"retry-after": text}), now=NOW.timestamp)


@given(st.integers(0, 10**6))
def test_seconds(seconds: int) -> None:
    assert read(str(seconds)) == seconds


@given(st.integers(-(10**6), 10**6))
def test_dates_are_seconds_from_now_and_never_negative(seconds: int) -> None:
    assert read(format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)) == max(0, seconds)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_junk_never_raises(text: str) -> None:
    value = read(text)
    assert value is None or value >= 0


@pytest.mark.parametrize("text", ["", "soon", "-5", "nan", "inf", "Fri, 99 Foo 2026 00:00:00 GMT"])
def test_junk_is_ignored(text: str) -> None:
    assert read(text) is None


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_jittered_and_bounded(attempt: int, chance: float) -> None:
    policy = RetryPolicy(first_delay=0.2, longest_delay=20, random=lambda: chance)
    ceiling = min(20, 0.2 * 2 ** (attempt - 1))
    assert ceiling / 2 <= policy.delay(attempt, None) <= ceiling
    assert policy.delay(attempt, 7.5) == 7.5


NONE = httpx.Headers()
LATER = httpx.Headers({"retry-after": "1"})


@pytest.mark.parametrize(
    ("status", "headers", "code", "replayable", "again"),
    [
        (429, NONE, None, False, True),
        (429, NONE, 21, False, True),
        (503, LATER, None, False, True),
        (503, NONE, 17, False, True),
        (
            503,
            NONE,
            None,
            False,
            False,
        ),  # a proxy may answer so for a request that arrived
        (503, NONE, None, True, True),
        (502, NONE, None, True, True),
        (504, NONE, None, True, True),
        (502, NONE, None, False, False),
        (500, NONE, None, True, True),
        (500, NONE, 18, True, False),  # the server itself says that it failed
        (500, NONE, None, False, False),
        (400, NONE, 13, True, False),
        (404, NONE, None, True, False),
        (409, NONE, 14, True, False),
    ],
)
def test_which_answers_are_tried_again(
    status: int, headers: httpx.Headers, code: int | None, replayable: bool, again: bool
) -> None:
    assert may_retry_answer(status, headers, code, replayable=replayable) is again


@pytest.mark.parametrize(
    ("error", "replayable", "again"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), False, True),
        (httpx.ConnectTimeout("slow"), False, True),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), True, False),
        (httpx.ConnectError("[Errno -2] Name or service not known"), True, False),
        (httpx.ReadTimeout("slow"), True, True),
        (httpx.ReadTimeout("slow"), False, False),
        (httpx.RemoteProtocolError("peer closed"), True, True),
        (httpx.ReadError("reset"), False, False),
    ],
)
def test_which_broken_connections_are_tried_again(error: httpx.RequestError, replayable: bool, again: bool) -> None:
    assert may_retry_error(error, replayable=replayable) is again
