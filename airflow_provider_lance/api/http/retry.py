"""When a request is sent again, and after which pause.

A request that the server refused may always be sent again. A request that may have been carried out is sent again only
if its operation is replayable.
"""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC

import httpx


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter on its upper half, bounded in tries and in total time."""

    attempts: int = 6
    first_delay: float = 0.2
    longest_delay: float = 20.0
    total_seconds: float = 120.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    random: Callable[[], float] = field(default=random.random, repr=False)

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after the failed try number ``attempt`` (from 1), unless the server asks for others."""
        if retry_after is not None:
            return retry_after
        ceiling = min(self.longest_delay, self.first_delay * 2.0 ** (attempt - 1))
        return ceiling * (0.5 + 0.5 * self.random())


NO_RETRY = RetryPolicy(attempts=1)


def retry_after(headers: httpx.Headers, now: Callable[[], float] = time.time) -> float | None:
    """The seconds of a ``Retry-After`` header, a number or an HTTP date: 0 for the past, ``None`` if unreadable."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(text)
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        try:
            seconds = date.timestamp() - now()
        except (OverflowError, ValueError):
            return None
        return max(0.0, seconds)
    return seconds if 0 <= seconds < float("inf") else None


# These fail before a byte of the request was sent, so the server cannot have acted on it.
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def may_retry_error(error: httpx.RequestError, *, replayable: bool) -> bool:
    """Whether to send again after no answer came."""
    if isinstance(error, httpx.ConnectError) and _is_permanent(error):
        return False
    if isinstance(error, NEVER_SENT):
        return True
    return replayable and isinstance(error, httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError)


def may_retry_answer(status: int, headers: httpx.Headers, code: int | None, *, replayable: bool) -> bool:
    """Whether to send again after an error answer. ``code`` is the Lance error code in its body, if any."""
    if status == 429:
        return True
    if status == 503 and (code is not None or "retry-after" in headers):
        return True  # the service itself refused, while a bare 503 may be a proxy's answer to a broken connection
    if status < 500:
        return False
    return replayable and (status in {502, 503, 504} or code is None)


def _is_permanent(error: httpx.ConnectError) -> bool:
    """Whether another try will fail in the same way, as after a TLS failure or for an unknown name."""
    text = str(error).lower()
    return any(sign in text for sign in ("certificate", "ssl", "tls", "name or service not known", "nodename nor"))
