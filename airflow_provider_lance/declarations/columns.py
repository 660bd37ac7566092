"""The columns of a table beside their declaration: what is missing, what differs, and how a rule is replaced.

``LanceAddColumnsOperator``, ``LanceCreateTableOperator`` and ``LanceApplyOperator`` compare by these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import IF_EXISTS
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.declarations.namespace_state import Namespace, column_rules
from airflow_provider_lance.definitions.differences import Difference, declared_columns, rule_differences

if TYPE_CHECKING:
    import pyarrow as pa

CANNOT_REPLACE = (
    "A server that cannot replace rules knows no if_exists='replace': there, drop the column and declare it again."
)

_LANCE_WORDS = {
    "utf8": "string",
    "large_utf8": "large_string",
    "float16": "halffloat",
    "float32": "float",
    "float64": "double",
    "date32": "date32:day",
    "date64": "date64:ms",
}


@dataclass(frozen=True)
class ColumnComparison:
    """The entries of ``AlterTableAddColumns``: those that the table lacks, those that differ, and the equal ones."""

    new: list[JsonObject] = field(default_factory=list)
    different: list[tuple[JsonObject, str]] = field(default_factory=list)
    equal: list[JsonObject] = field(default_factory=list)


def compare_columns(rules: Mapping[str, Mapping[str, str]], entries: Sequence[JsonObject]) -> ColumnComparison:
    """Compare declared columns with the rules of a table; a difference is told in words."""
    found = ColumnComparison()
    for entry in entries:
        if not any(name in rules for name in declared_columns(entry)):
            found.new.append(entry)
        elif differences := column_differences(rules, entry):
            found.different.append((entry, differences))
        else:
            found.equal.append(entry)
    return found


def column_differences(rules: Mapping[str, Mapping[str, str]], entry: JsonObject) -> str:
    """How the declaration differs from the table's rules, in words; empty where they are equal."""
    names = declared_columns(entry)
    found = [f"its output {name!r} is missing" for name in names if name not in rules]
    for name in names:
        if name in rules:
            found += [str(difference) for difference in rule_differences(rules[name], entry)]
    return "; ".join(dict.fromkeys(found))


def replace_rules(namespace: Namespace, fields: JsonObject, replaced: Sequence[JsonObject]) -> JsonObject:
    """Send ``AlterTableAddColumns`` so that it replaces rules, and check that the server did.

    Another server may refuse the request's context, or ignore it; both are an error that says what to do.
    """
    try:
        answer = namespace.call("alter_table_add_columns", {**fields, "context": {IF_EXISTS: "replace"}})
    except WireError as error:
        if error.code != ErrorCode.CONCURRENT_MODIFICATION:
            error.advise(CANNOT_REPLACE)
        raise
    where = {"id": fields["id"], "branch": fields.get("branch"), **WITH_VERSION}
    rules = column_rules(namespace.call("describe_table", where))
    if any(column_differences(rules, entry) for entry in replaced):
        kept = f"The server accepted the request and kept the old rules. {CANNOT_REPLACE}"
        raise WireError(kept, code=ErrorCode.UNSUPPORTED, operation="alter_table_add_columns")
    return answer


@dataclass(frozen=True)
class SchemaComparison:
    """Declared columns that a table lacks, those of another type, and those whose type there is not known here."""

    missing: list[str] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def compare_schema(fields: Sequence[JsonObject], schema: Mapping[str, str]) -> SchemaComparison:
    """Compare declared types with the described fields of a table. The table may have more columns."""
    from airflow_provider_lance.definitions.arrow_types import arrow_schema

    there = {str(described.get("name")): described_type(described) for described in fields}
    found = SchemaComparison()
    for declared in arrow_schema(schema):
        kind = there.get(declared.name)
        if declared.name not in there:
            found.missing.append(declared.name)
        elif kind is None:
            found.unknown.append(declared.name)
        elif kind != declared.type:
            found.different.append(Difference(declared.name, str(kind), str(declared.type)))
    return found


def described_type(described: Mapping[str, object]) -> pa.DataType | None:
    """The type of a described field; ``None`` for a word that says too little, such as pylance's ``timestamp``."""
    try:
        from lance.schema import json_to_schema

        found: pa.DataType = json_to_schema({"fields": [{**_in_lance_words(described), "metadata": {}}]}).field(0).type
    except (ImportError, TypeError, ValueError, OSError):
        return None
    return found


def _in_lance_words(described: Mapping[str, Any]) -> JsonObject:
    """A described field whose type has the words that Lance reads. pylance's own server has others for some types."""
    kind = dict(described.get("type") or {})
    kind["type"] = _LANCE_WORDS.get(str(kind.get("type")), kind.get("type"))
    if kind["type"] == "decimal128":
        precision, scale = divmod(int(kind.pop("length")), 1000)
        kind["type"] = f"decimal:128:{precision}:{scale}"
    if kind.get("fields"):
        kind["fields"] = [_in_lance_words(field) for field in kind["fields"]]
    return {**described, "type": kind}
