"""The differences between a declaration and what a table has: of a column's rule, or of a view's definition.

Operators compare before they send a request, and the server compares before it replaces a rule or a definition. Rules
are text in a field's metadata and in a request, so comparing them needs neither Lance nor Spark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.column_rules import (
    COMPUTED,
    COMPUTED_EXPRESSION,
    COMPUTED_KIND,
    VIRTUAL,
    VIRTUAL_DEFINITION,
)
from airflow_provider_lance.definitions.expressions import parse_path
from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.json_types import JsonObject
from airflow_provider_lance.definitions.refresh_policy import AUTO

if TYPE_CHECKING:
    from airflow_provider_lance.definitions.view_definition import ViewDefinition

_NO_RULE = "no rule: it is a plain column"
#: The parts of a virtual column's definition that make up its rule, besides its function.
_PARTS = ("input_columns", "outputs", "udf_name", "udf_version", "udf_backend", "image", "manifest")


@dataclass(frozen=True)
class Difference:
    """One part of a declaration that differs from what the table has, as texts for a person."""

    part: str
    there: str
    here: str

    def __str__(self) -> str:
        return f"{self.part} is {self.there} there and {self.here} here"


def declared_columns(entry: Mapping[str, Any]) -> list[str]:
    """The columns that an entry of AlterTableAddColumns declares: one, or all outputs of a function."""
    virtual = entry.get("virtual_column")
    if virtual is None:
        return [str(entry["name"])]
    return [str(output["column"]) for output in virtual.get("outputs") or []] or [str(entry["name"])]


def rule_differences(metadata: Mapping[str, str], entry: Mapping[str, Any]) -> list[Difference]:
    """The differences between the rule in a field's metadata and a declaration; empty where they are equal.

    SQL is compared as the text that was declared, without space at its ends. A function is compared by its import
    path or its pickle, whose bytes are the same wherever its file lies, and by how it is called.
    """
    stored, wanted = _stored_rule(metadata), _wanted_rule(entry)
    return [
        Difference(part, _shown(stored.get(part)), _shown(wanted.get(part)))
        for part in {**stored, **wanted}
        if stored.get(part) != wanted.get(part)
    ]


def view_differences(existing: ViewDefinition, asked: ViewDefinition, bound: ViewDefinition) -> list[Difference]:
    """The differences between a view's definition and another one; empty where they are equal.

    ``asked`` is the definition as it was requested, and ``bound`` is that definition bound to its source. ``SELECT *``
    equals the columns of the existing view, because columns that a source gets later do not belong to the view. Queries
    of one table are compared piece by piece, others as texts without space at their ends.
    """
    found = [
        Difference(part, _shown(there), _shown(here))
        for part, there, here in (
            ("kind", existing.kind, bound.kind),
            ("output_schema", existing.output(), bound.output()),
            ("auto_refresh", existing.auto_refresh, bound.auto_refresh),
            ("refresh_policy", existing.refresh_policy or AUTO, bound.refresh_policy or AUTO),
        )
        if there != here
    ]
    if not _same_query(existing, asked, bound):
        found.insert(0, Difference("query", _shown(existing.query), _shown(bound.query)))
    there, here = (view.udtf.to_dict() if view.udtf is not None else {} for view in (existing, bound))
    for part in {**there, **here}:
        if part != "udtf" and there.get(part) != here.get(part):  # udtf_sha stands for the long text of udtf
            found.append(Difference(part, _shown(there.get(part)), _shown(here.get(part))))
    return found


def _same_query(existing: ViewDefinition, asked: ViewDefinition, bound: ViewDefinition) -> bool:
    if existing.dialect != bound.dialect:
        return False
    stored, wanted = existing.select, bound.select
    if stored is None or wanted is None:
        return existing.query.strip() == bound.query.strip()
    if asked.select is not None and asked.select.is_star:
        if any(parse_path(item.expression) != [item.name] for item in stored.items):
            return False
        wanted = replace(wanted, items=stored.items)
    return stored == wanted


def has_rule(metadata: Mapping[str, str]) -> bool:
    return metadata.get(COMPUTED) == "true" or metadata.get(VIRTUAL) == "true"


def _stored_rule(metadata: Mapping[str, str]) -> JsonObject:
    if metadata.get(COMPUTED) == "true":
        kind = metadata.get(COMPUTED_KIND, "sql")
        if kind != "sql":
            return {"rule": f"computed by {kind}"}
        return {"rule": "computed", "expression": metadata.get(COMPUTED_EXPRESSION, "").strip()}
    if metadata.get(VIRTUAL) == "true":
        try:
            return _virtual_rule(json.loads(metadata[VIRTUAL_DEFINITION]))
        except (KeyError, ValueError, TypeError):
            return {"rule": "a function whose definition cannot be read"}
    return {"rule": _NO_RULE}


def _wanted_rule(entry: Mapping[str, Any]) -> JsonObject:
    if entry.get("computed") is not None:
        return {"rule": "computed", "expression": str(entry["computed"]).strip()}
    if entry.get("virtual_column") is not None:
        return _virtual_rule(entry["virtual_column"])
    return {"rule": _NO_RULE}  # the values of an ``expression`` are written at once, and its text is not stored


def _virtual_rule(definition: JsonObject) -> JsonObject:
    rule: JsonObject = {"rule": "a function"}
    rule |= {part: definition[part] for part in _PARTS if definition.get(part)}
    rule["outputs"] = [
        {name: output.get(name) for name in ("column", "struct_field", "data_type")}
        for output in definition.get("outputs") or []
    ]
    text = str(definition.get("udf") or "")
    try:
        envelope = UdfEnvelope.decode(definition.get("udf_backend"), text)
    except UdfError:  # the envelope is of another system, so only its text can be compared
        return rule | {"function": hashlib.sha256(text.encode()).hexdigest()[:12]}
    pickled = f"the pickle {(envelope.sha256 or '')[:12]} of Python {envelope.python}"
    return rule | {
        "function": envelope.path or pickled,
        "call": envelope.call,
        "on_error": [rule.to_dict() for rule in envelope.rules] or envelope.policy.on_error,
        "retries": envelope.policy.retries,
        **({"arguments": envelope.arguments} if envelope.arguments else {}),
        **envelope.limits,
    }


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)
