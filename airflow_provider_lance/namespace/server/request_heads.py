"""Bounds on the size and the time of a request's head, which uvicorn reads before the application sees the request.

With httptools uvicorn takes heads of any size, and it keeps a connection whose head never ends.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.namespace.config import Limits
from airflow_provider_lance.namespace.server.error_bodies import Problem


def limited_http(limits: Limits) -> type[asyncio.Protocol]:
    """The HTTP protocol that uvicorn has chosen, with these limits."""

    class LimitedHttp(_LimitedHttp):
        max_head_bytes = limits.max_head_bytes
        head_seconds = limits.head_seconds

    return LimitedHttp


class _LimitedHttp(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    max_head_bytes: int
    head_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_body = False
        self._message_ended = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._message_ended = False
        super().data_received(data)
        if self._reads_head():
            self._head_bytes += len(data)
            self._expect_head()
            if self._head_bytes > self.max_head_bytes:
                self._refuse(431, f"The head of the request has more than {self.max_head_bytes} bytes.")
        else:
            self._head_arrived()

    # httptools calls these two methods as it reads a request. h11 keeps the same facts in its own state.

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._message_ended = True
        super().on_message_complete()

    def _reads_head(self) -> bool:
        """Whether the last bytes belong to a head that is not complete."""
        if self.transport.is_closing():
            return False
        state = getattr(self, "conn", None)
        if state is not None:
            import h11

            return state.their_state is h11.IDLE and bool(state.trailing_data[0])
        return not self._in_body and not self._message_ended

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_arrived(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(408, f"The head of the request did not come within {self.head_seconds:g} s.")

    def _refuse(self, status: int, sentence: str) -> None:
        self._head_arrived()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            phrase = HTTPStatus(status).phrase
            body = Problem(status, int(ErrorCode.INVALID_INPUT), sentence, phrase, "", {}).body()
            head = (
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
