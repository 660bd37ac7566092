"""A small HTTP server with the two endpoints a driver talks to, and levers for what can go wrong."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JobServer:
    """One job. ``cancel`` is part of the next answer, ``lost`` refuses reports, ``drop`` requests get no answer."""

    def __init__(self, spec: dict[str, Any], **answer: Any) -> None:
        self.spec = spec
        self.answer = answer
        self.reports: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.cancel = self.lost = False
        self.drop = 0
        self.renewed_options: dict[str, str] | None = None
        job = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                job.headers.append({key.lower(): value for key, value in self.headers.items()})
                if job.drop:
                    job.drop -= 1
                    self.connection.close()
                    return
                status, document = job.serve(self.path.rstrip("/"), body)
                payload = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/v1/jobs/claim":
            self.claims.append(body)
            if body["launch_token"] != "launch" or body["attempt"] != 1:
                return 409, {"error": "attempt 1 is current", "code": 14}
            return 200, {
                "claim_token": "claim",
                "lease_seconds": 60,
                "heartbeat_seconds": 0.2,
                "spec": self.spec,
                "storage_options": {},
                "expires_at": int(time.time() + 60),
                **self.answer,
            }
        if path == "/v1/jobs/report":
            if self.lost or body["claim_token"] != "claim":
                return 409, {"error": "the claim was lost", "code": 14}
            self.reports.append(body)
            answer: dict[str, Any] = {"lease_until": int(time.time() + 60), "cancel": self.cancel}
            if self.renewed_options:
                answer["storage_options"] = self.renewed_options
            return 200, answer
        return 404, {"error": path, "code": 10}

    @property
    def terminal(self) -> dict[str, Any] | None:
        return next((report["terminal"] for report in self.reports if report.get("terminal")), None)

    @property
    def events(self) -> list[str]:
        return [event["message"] for report in self.reports for event in report["events"]]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
