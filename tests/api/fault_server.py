"""A small real HTTP server that plays faults: each request consumes the next play of its script, or the last again."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass(frozen=True)
class Answer:
    """A whole answer; ``body`` as bytes, text, or data that becomes JSON."""

    status: int = 200
    body: object = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


class Reset:
    """Close the connection hard before any byte of the answer."""


class ResetInBody:
    """Send a success status and half of the answer, then close hard."""


Fault = Answer | type[Reset] | type[ResetInBody]
Play = Fault | Callable[[Seen], Answer]


class FaultServer:
    """Plays a script per path suffix (``"describe"``), or ``"*"`` for everything else."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[Play]] = {}
        self.seen: list[Seen] = []
        self._lock = threading.Lock()
        handler = type("Handler", (FaultHandler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def play(self, plays: Sequence[Play], path: str = "*") -> None:
        self.scripts[path] = list(plays)

    def requests(self, suffix: str = "") -> list[Seen]:
        return [seen for seen in self.seen if seen.path.split("?")[0].endswith(suffix)]

    def next_play(self, seen: Seen) -> Fault:
        with self._lock:
            self.seen.append(seen)
            path = seen.path.split("?")[0]
            key = max((key for key in self.scripts if path.endswith(key)), key=len, default="*")
            plays = self.scripts.get(key) or [Answer(404)]
            play = plays.pop(0) if len(plays) > 1 else plays[0]
        return play if isinstance(play, Answer | type) else play(seen)

    def __enter__(self) -> FaultServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class FaultHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultServer

    def _serve(self) -> None:
        body = self._body()
        seen = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        play = self.owner.next_play(seen)
        if not isinstance(play, Answer):
            self._reset_after(play)
            return
        if play.delay:
            time.sleep(play.delay)
        content = play.body
        if isinstance(content, str):
            content = content.encode()
        elif not isinstance(content, bytes):
            content = json.dumps(content).encode()
        with contextlib.suppress(OSError):
            self.send_response(play.status)
            for name, value in {"content-type": "application/json", **play.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _reset_after(self, fault: type[Reset] | type[ResetInBody]) -> None:
        if fault is ResetInBody:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"job_id": "half')
            self.wfile.flush()
        self.close_connection = True
        # With a linger time of 0 the kernel sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    do_POST = do_GET = _serve

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def log_message(self, *_: object) -> None:
        return


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port nobody listens on (bound, not listening, while in use)."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
