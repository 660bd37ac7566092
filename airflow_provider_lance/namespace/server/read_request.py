"""The fields of a request from its path, query, headers and body as one dict of plain data.

Only this module knows how HTTP carries them: percent-encoding, delimiters, text instead of numbers, empty bodies. The
namespace checks which fields an operation takes and what they mean.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import NoReturn
from urllib.parse import unquote

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.api.arrow import ARROW_STREAM
from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, InvalidIdentifierError, parse_id
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import Body, Operation
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.api.settings import CONTEXT_PREFIX

_DEEPEST = 60
_LONGEST_ID = 4096
_MOST_LISTS = 100_000
_MOST_VALUES = 1_000_000


def read_fields(
    operation: Operation,
    path_params: Mapping[str, str],
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
) -> JsonObject:
    """The request's fields as plain data, without its ``identity``, which was checked and is not needed again."""
    fields: JsonObject = {}
    if operation.body is Body.METADATA:
        fields["metadata"] = _json_object(body)
    elif operation.schema_field is not None and headers.get("content-type", "").startswith(ARROW_STREAM):
        fields[operation.schema_field] = base64.b64encode(body).decode()
    elif operation.body is not Body.ARROW:
        fields |= _json_object(body)
    fields.pop("identity", None)
    types = _query_types(operation)
    for name in operation.query:
        if name in query:
            fields[name] = _from_query(name, types.get(name, "string"), query[name], _every(query, name))
    if operation.takes_id:
        fields["id"] = _identifier(fields.get("id"), path_params["id"], query.get("delimiter", DEFAULT_DELIMITER))
    if "index_name" in path_params:
        fields["index_name"] = _unquoted(path_params["index_name"])
    context = {
        name.removeprefix(CONTEXT_PREFIX): value
        for name, value in headers.items()
        if name.startswith(CONTEXT_PREFIX) and name != CONTEXT_PREFIX
    }
    given = fields.get("context")
    if given is not None and not isinstance(given, dict):
        raise InvalidInputError("`context` must be an object of strings.")
    if context or given:
        fields["context"] = {**(given or {}), **context}
    return fields


def _json_object(body: bytes) -> JsonObject:
    """A JSON object; an empty body is an empty object.

    NaN, infinity, NUL, lone surrogates and deep nesting are refused, because no database and no answer can hold them.
    """
    if not body.strip():
        return {}
    # Parsing millions of empty lists takes seconds. The counts are upper bounds, since text may have these signs too.
    lists = body.count(b"[") + body.count(b"{")
    if lists > _MOST_LISTS or body.count(b",") > _MOST_VALUES:
        raise InvalidInputError(
            f"The body is more than this server reads: {_MOST_LISTS} lists and objects, {_MOST_VALUES} values at most."
        )
    try:
        # Bytes are decoded first, because json reads half a surrogate pair from bytes.
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise InvalidInputError("The body is nested too deeply.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInputError("The body must be a JSON object.")
    if b"\\u" in body or b"\x00" in body or lists > _DEEPEST:
        _check_text(value, 0)
    fields: JsonObject = value
    return fields


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _check_text(value: object, depth: int) -> None:
    if depth > _DEEPEST:
        raise InvalidInputError("The body is nested too deeply.")
    if isinstance(value, str):
        _check_string(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_string(key)
            _check_text(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_text(item, depth + 1)


def _check_string(text: str) -> None:
    if "\0" in text:
        raise InvalidInputError("A text in the request holds a NUL character.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError("A text in the request is not valid Unicode.") from None


def _identifier(given: object, segment: str, delimiter: str) -> list[str]:
    """The path's identifier. A body that names another object is refused as a mistake of the client."""
    text = _unquoted(segment)
    if len(text) > _LONGEST_ID:
        raise InvalidInputError(f"The identifier is longer than {_LONGEST_ID} characters.")
    try:
        parts = parse_id(text, delimiter)
        same = given is None or (isinstance(given, str | list) and parse_id(given, delimiter) == parts)
    except InvalidIdentifierError as error:
        raise InvalidInputError(str(error)) from None
    if not same:
        raise InvalidInputError(f"The body's `id` {given!r:.200} is not the path's {parts!r:.200}.")
    return parts


def _unquoted(segment: str) -> str:
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInputError("The path is not valid UTF-8.") from None
    _check_string(text)
    return text


def _every(query: Mapping[str, str], name: str) -> list[str]:
    """All values of a repeated query parameter."""
    repeated = getattr(query, "getlist", None)
    return list(repeated(name)) if repeated is not None else [query[name]]


def _from_query(name: str, kind: str, text: str, every: list[str]) -> object:
    for value in every:
        _check_string(value)
    if kind == "array" and not text.lstrip().startswith("["):
        return every  # a list is a parameter that is repeated for each item
    try:
        if kind == "boolean":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if kind == "integer":
            return int(text)
        if kind == "number":
            return _finite(text)
        if kind in {"object", "array"}:
            decoded: object = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
            return decoded
    except (ValueError, KeyError, RecursionError):
        raise InvalidInputError(f"The query's `{name}` must be a JSON {kind}, not {text[:100]!r}.") from None
    return text


@cache
def _query_types(operation: Operation) -> dict[str, str]:
    """The JSON type of each query field in the model, because all of them arrive as text."""
    if not operation.query:
        return {}
    properties = model(operation.request).model_json_schema().get("properties", {})
    found = {}
    for name in operation.query:
        entry = properties.get(name, {})
        options = [entry, *entry.get("anyOf", ())]
        kinds = [option["type"] for option in options if option.get("type") not in (None, "null")]
        found[name] = str(kinds[0]) if kinds else "string"
    return found
