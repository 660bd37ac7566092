"""The part of the Kubernetes API that keeps secrets: a real HTTP server with the answers a cluster gives."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.airflow.json_server import JsonServer


class KubernetesApi(JsonServer):
    """``with KubernetesApi() as api:``; ``denied`` makes it answer as to an account without rights."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.denied = False

    def kube_config(self, folder: Path) -> Path:
        """A configuration file that leads here."""
        path = folder / "kube.json"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))
        return path

    def respond(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        namespace, *rest = path.removeprefix("/api/v1/namespaces/").split("/")[:3:1]
        assert rest[0] == "secrets", path
        name = rest[1] if len(rest) > 1 else body["metadata"]["name"]
        self.calls.append((method, f"{namespace}/{name}"))
        if method in ("POST", "PUT"):
            self.bodies.append(body)
        if self.denied:
            return _status(403, "Forbidden", f'secrets is forbidden: User "airflow" cannot create resource "{name}"')
        known = (namespace, name) in self.secrets
        if method == "POST" and known:
            return _status(409, "AlreadyExists", f'secrets "{name}" already exists')
        if method != "POST" and not known:
            return _status(404, "NotFound", f'secrets "{name}" not found')
        if method in ("POST", "PUT"):
            data = {key: base64.b64encode(value.encode()).decode() for key, value in body["stringData"].items()}
            stored = {key: value for key, value in body.items() if key != "stringData"} | {"data": data}
            self.secrets[namespace, name] = stored
            return (201 if method == "POST" else 200), stored
        if method == "DELETE":
            del self.secrets[namespace, name]
            return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return 200, self.secrets[namespace, name]


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
