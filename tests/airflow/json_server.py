"""A real HTTP server on a free port of the loopback whose answers a test decides; it speaks JSON and nothing else."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class JsonServer:
    """``with`` it. A subclass says in ``respond`` what the answer is; no body at all for ``None``."""

    _http: ThreadingHTTPServer | None = None

    def respond(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                path, headers = self.path.split("?")[0], dict(self.headers.items())
                status, body = server.respond(self.command, path, json.loads(raw) if raw else {}, headers)
                content = json.dumps(body).encode() if body is not None else b""
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._http = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        assert self._http is not None
        return f"http://127.0.0.1:{self._http.server_port}"
