"""The OpenAPI document of this server, made from the operation table and the models it names.

FastAPI cannot make it: one handler serves every operation, and what it takes and answers is in the table.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from pydantic.json_schema import models_json_schema

from airflow_provider_lance import __version__
from airflow_provider_lance.api.arrow import ARROW_FILE, ARROW_STREAM
from airflow_provider_lance.api.errors import DIFFERING_FIELDS
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, Operation

_SCHEMAS = "#/components/schemas/"
_NOT_IN_BODY = ("id", "identity", "context", "index_name")
_ERRORS = {
    400: "Malformed request or invalid parameters",
    401: "No valid API key",
    403: "The API key lacks the scope",
    404: "No such object",
    406: "This server does not support the operation",
    409: "Conflict with the state of the object",
    413: "The body is too large",
    500: "An error of the server",
    503: "The server is not available at the moment",
    504: "The request took too long and may still be carried out",
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "code", "detail", "instance"],
    "properties": {
        "error": {"type": "string", "description": "One sentence for a person"},
        "code": {"type": "integer", "minimum": 0, "maximum": 23, "description": "Lance error code"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "description": "The request's id, or the id of the job in the way"},
        DIFFERING_FIELDS: {
            "type": "array",
            "items": {"type": "string"},
            "description": "Where a live job is in the way of a submit: the fields in which its request differs",
        },
    },
}


def openapi_document(base_path: str) -> bytes:
    names = sorted(
        {name for row in OPERATIONS.values() for name in (row.request, row.response) if name is not None}
        | {"CreateMaterializedViewQueryRequest"}
    )
    _, definitions = models_json_schema(
        [(model(name), "validation") for name in names], ref_template=_SCHEMAS + "{model}"
    )
    schemas: dict[str, Any] = definitions["$defs"]
    schemas["ErrorResponse"] = _ERROR_SCHEMA
    for name in {row.request for row in OPERATIONS.values() if row.request}:
        schemas[f"{name}Body"] = _body_schema(schemas[name])
    paths: dict[str, Any] = {}
    for row in OPERATIONS.values():
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, schemas)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Lance namespace",
            "version": __version__,
            "description": "Lance's namespace with backfill and materialized-view jobs that run on Spark.",
        },
        "servers": [{"url": base_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        # Without keys the server answers loopback clients as they are.
        "security": [{"apiKey": []}, {"bearer": []}, {}],
    }
    return json.dumps(document).encode()


def _operation(row: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": row.id,
        "summary": row.summary,
        "description": f"Needs the scope `{row.scope.value}`.",
        "tags": [row.path.split("/")[2]],
        "parameters": _parameters(row, schemas),
        "responses": _responses(row),
    }
    body = _request_body(row)
    if body:
        entry["requestBody"] = body
    return entry


def _parameters(row: Operation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    found: list[dict[str, Any]] = []
    if row.takes_id:
        about = "The object's path, its parts joined by the delimiter; the delimiter alone is the root namespace"
        found.append({"name": "id", "in": "path", "required": True, "description": about, "schema": text})
        found.append({"name": "delimiter", "in": "query", "schema": {**text, "default": "$"}})
    if "{index_name}" in row.path:
        found.append({"name": "index_name", "in": "path", "required": True, "schema": text})
    properties = schemas[row.request].get("properties", {}) if row.request else {}
    for name in row.query:
        entry = copy.deepcopy(properties.get(name, {"type": "string"}))
        description = entry.pop("description", "")
        options = [option for option in entry.get("anyOf", [entry]) if option.get("type") != "null"]
        schema = {key: value for key, value in options[0].items() if key != "default"}
        parameter: dict[str, Any] = {"name": name, "in": "query", "description": description}
        if schema.get("type") in {"object", "array"}:
            parameter["content"] = {"application/json": {"schema": schema}}
        else:
            parameter["schema"] = schema
        found.append(parameter)
    return found


def _request_body(row: Operation) -> dict[str, Any] | None:
    if row.body is Body.NONE:
        return None
    if row.body is Body.ARROW:
        return {"required": True, "content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}
    if row.body is Body.METADATA:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
    else:
        schema = {"$ref": f"{_SCHEMAS}{row.request}Body"}
        if row.name == "create_materialized_view":
            schema = {"anyOf": [schema, {"$ref": f"{_SCHEMAS}CreateMaterializedViewQueryRequest"}]}
    return {"content": {"application/json": {"schema": schema}}}


def _responses(row: Operation) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorResponse"}}}
    found: dict[str, Any] = {}
    statuses = row.statuses[:2] if row.name == "create_materialized_view" else row.statuses[:1]
    for status in statuses:
        found[str(status)] = {"description": "Done", **_answer(row)}
    return found | {str(status): {"description": words, "content": error} for status, words in _ERRORS.items()}


def _answer(row: Operation) -> dict[str, Any]:
    if row.answer is Answer.NOTHING:
        return {}
    if row.answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
        kind = ARROW_FILE if row.answer is Answer.ARROW_FILE else ARROW_STREAM
        return {"content": {kind: {"schema": {"type": "string", "format": "binary"}}}}
    bare: dict[Answer, dict[str, Any]] = {
        Answer.COUNT: {"type": "integer", "minimum": 0},
        Answer.TEXT: {"type": "string"},
        Answer.METADATA: {"type": "object", "additionalProperties": {"type": "string"}},
    }
    schema = bare.get(row.answer, {"$ref": f"{_SCHEMAS}{row.response}"})
    return {"content": {"application/json": {"schema": schema}}}


def _body_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A request model as a body: what path, query and headers carry is not in it."""
    body = copy.deepcopy(schema)
    for name in _NOT_IN_BODY:
        body.get("properties", {}).pop(name, None)
    if "required" in body:
        body["required"] = [name for name in body["required"] if name not in _NOT_IN_BODY]
    return body
