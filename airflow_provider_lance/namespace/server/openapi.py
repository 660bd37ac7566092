"""The OpenAPI document of this server, made from the operation table and the models that it names.

FastAPI cannot make it, because one handler serves every operation, and only the table says what each takes and returns.
"""

from __future__ import annotations

import copy
import json

from pydantic.json_schema import models_json_schema

from airflow_provider_lance import __version__
from airflow_provider_lance.api.arrow import ARROW_FILE, ARROW_STREAM
from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import DIFFERING_FIELDS
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Body, Operation
from airflow_provider_lance.api.plain_data import REQUEST_ENVELOPE, JsonObject

_SCHEMAS = "#/components/schemas/"
_NOT_IN_BODY = (*REQUEST_ENVELOPE, "index_name")
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
        "code": {"type": "integer", "minimum": 0, "maximum": max(ErrorCode), "description": "Lance error code"},
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
        {name for row in OPERATIONS.values() for name in (row.request, row.response, row.lancedb_request) if name}
    )
    _, definitions = models_json_schema(
        [(model(name), "validation") for name in names], ref_template=_SCHEMAS + "{model}"
    )
    schemas: JsonObject = definitions["$defs"]
    schemas["ErrorResponse"] = _ERROR_SCHEMA
    for name in {row.request for row in OPERATIONS.values()}:
        schemas[f"{name}Body"] = _body_schema(schemas[name])
    paths: JsonObject = {}
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
        # Without keys the server answers clients on loopback.
        "security": [{"apiKey": []}, {"bearer": []}, {}],
    }
    return json.dumps(document).encode()


def _operation(row: Operation, schemas: JsonObject) -> JsonObject:
    entry: JsonObject = {
        "operationId": row.id,
        "summary": row.summary,
        "description": f"Needs the scope `{row.scope.value}`.",
        "tags": [row.subject.value],
        "parameters": _parameters(row, schemas),
        "responses": _responses(row),
    }
    body = _request_body(row)
    if body:
        entry["requestBody"] = body
    return entry


def _parameters(row: Operation, schemas: JsonObject) -> list[JsonObject]:
    text = {"type": "string", "minLength": 1}
    found: list[JsonObject] = []
    if row.takes_id:
        about = "The object's path, its parts joined by the delimiter; the delimiter alone is the root namespace"
        found.append({"name": "id", "in": "path", "required": True, "description": about, "schema": text})
        found.append({"name": "delimiter", "in": "query", "schema": {**text, "default": DEFAULT_DELIMITER}})
    if "{index_name}" in row.path:
        found.append({"name": "index_name", "in": "path", "required": True, "schema": text})
    properties = schemas[row.request].get("properties", {})
    for name in row.query:
        entry = copy.deepcopy(properties.get(name, {"type": "string"}))
        description = entry.pop("description", "")
        options = [option for option in entry.get("anyOf", [entry]) if option.get("type") != "null"]
        schema = {key: value for key, value in options[0].items() if key != "default"}
        parameter: JsonObject = {"name": name, "in": "query", "description": description}
        if schema.get("type") in {"object", "array"}:
            parameter["content"] = {"application/json": {"schema": schema}}
        else:
            parameter["schema"] = schema
        found.append(parameter)
    return found


def _request_body(row: Operation) -> JsonObject | None:
    if row.body is Body.NONE:
        return None
    if row.body is Body.ARROW:
        return {"required": True, "content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}
    if row.body is Body.METADATA:
        schema: JsonObject = {"type": "object", "additionalProperties": {"type": "string"}}
    else:
        schema = {"$ref": f"{_SCHEMAS}{row.request}Body"}
        if row.lancedb_request:
            schema = {"anyOf": [schema, {"$ref": f"{_SCHEMAS}{row.lancedb_request}"}]}
    return {"content": {"application/json": {"schema": schema}}}


def _responses(row: Operation) -> JsonObject:
    error = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorResponse"}}}
    found: JsonObject = {}
    for status in row.statuses[: 2 if row.lancedb_request else 1]:
        found[str(status)] = {"description": "Done", **_answer(row)}
    return found | {str(status): {"description": words, "content": error} for status, words in _ERRORS.items()}


def _answer(row: Operation) -> JsonObject:
    if row.answer is Answer.NOTHING:
        return {}
    if row.answer in {Answer.ARROW_FILE, Answer.ARROW_STREAM}:
        kind = ARROW_FILE if row.answer is Answer.ARROW_FILE else ARROW_STREAM
        return {"content": {kind: {"schema": {"type": "string", "format": "binary"}}}}
    bare: dict[Answer, JsonObject] = {
        Answer.COUNT: {"type": "integer", "minimum": 0},
        Answer.TEXT: {"type": "string"},
        Answer.METADATA: {"type": "object", "additionalProperties": {"type": "string"}},
    }
    schema = bare.get(row.answer, {"$ref": f"{_SCHEMAS}{row.response}"})
    return {"content": {"application/json": {"schema": schema}}}


def _body_schema(schema: JsonObject) -> JsonObject:
    """A request model as a body, without the fields that the path and the headers carry."""
    body = copy.deepcopy(schema)
    for name in _NOT_IN_BODY:
        body.get("properties", {}).pop(name, None)
    if "required" in body:
        body["required"] = [name for name in body["required"] if name not in _NOT_IN_BODY]
    return body
