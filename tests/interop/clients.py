"""Three clients of the wire behind one shape: an operation's name, its fields and its data in, plain data out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import lance.namespace
import lance_namespace_urllib3_client as generated
from lance_namespace_urllib3_client import api as generated_api
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from pydantic import SecretStr

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS, Body
from airflow_provider_lance.api.settings import Settings


class Client(Protocol):
    #: Operations this client has no working method for.
    lacks: frozenset[str]

    def call(self, name: str, fields: dict[str, Any], data: bytes | None = None) -> Any: ...


_JOBS = frozenset(name for name, row in OPERATIONS.items() if row.jobs_api)
_LANCEDB = frozenset(
    {
        "describe_materialized_view",
        "drop_materialized_view",
        "list_materialized_views",
        "prewarm_table_data",
        "prewarm_table_index",
        "list_table_errors",
        "list_functions",
        "list_secrets",
    }
)


class RustClient:
    """pylance's own REST namespace, written in Rust."""

    lacks = (
        _JOBS
        | _LANCEDB
        | {
            "batch_commit_tables",
            "batch_create_table_versions",
            "create_empty_table",
            "update_field_metadata",
            "alter_transaction",  # it has the method, but its binding drops the action on the way (pylance 14.0.2)
        }
    )

    def __init__(self, url: str, key: str) -> None:
        self._namespace = lance.namespace.RestNamespace(  # type: ignore[no-untyped-call]
            uri=url, **{"headers.x-api-key": key}
        )

    def call(self, name: str, fields: dict[str, Any], data: bytes | None = None) -> Any:
        request = model(OPERATIONS[name].request or "").from_dict(fields)
        if name in {"create_table_version", "describe_table_version", "batch_delete_table_versions"}:
            return getattr(self._namespace, name)(request.to_dict())
        arguments = (request,) if data is None else (request, data)
        return _plain(getattr(self._namespace, name)(*arguments))


class GeneratedClient:
    """The spec's generated Python client over urllib3."""

    lacks = _JOBS | _LANCEDB | {"create_empty_table"}

    def __init__(self, url: str, key: str) -> None:
        client = ApiClient(Configuration(host=url))
        client.set_default_header("x-api-key", key)  # type: ignore[no-untyped-call]
        classes = [kind for name, kind in vars(generated_api).items() if name.endswith("Api")]
        self._apis = [kind(client) for kind in classes]

    def call(self, name: str, fields: dict[str, Any], data: bytes | None = None) -> Any:
        operation = OPERATIONS[name]
        method = next(getattr(api, name) for api in self._apis if hasattr(api, name))
        taken = [parameter for parameter in inspect.signature(method).parameters if not parameter.startswith("_")]
        arguments: dict[str, Any] = {key: fields[key] for key in taken if key in fields}
        if "id" in taken:
            arguments["id"] = join_id(fields.get("id") or [])
        for parameter in taken:
            if parameter == "body":
                arguments["body"] = data
            elif parameter == "request_body":
                arguments["request_body"] = fields["metadata"]
            elif parameter.endswith("_request"):
                arguments[parameter] = getattr(generated.models, operation.request or "").from_dict(fields)
        if operation.body is Body.ARROW and name == "merge_insert_into_table":
            arguments["on"] = fields["on"]
        return _plain(method(**arguments))


class OurClient:
    """The provider's own client."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, url: str, key: str) -> None:
        self._client = LanceClient(Settings(url, auth="api_key", secret=SecretStr(key)))

    def call(self, name: str, fields: dict[str, Any], data: bytes | None = None) -> Any:
        arguments = (fields,) if data is None else (fields, data)
        return _plain(getattr(self._client, name)(*arguments))


CLIENTS: dict[str, Callable[[str, str], Client]] = {"rust": RustClient, "generated": GeneratedClient, "ours": OurClient}


def _plain(answer: Any) -> Any:
    return answer.to_dict() if hasattr(answer, "to_dict") else answer
