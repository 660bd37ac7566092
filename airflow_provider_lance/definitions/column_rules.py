"""The rule of a column: read from the metadata of its field, checked, and written into the field that declares it.

The metadata keys are LanceDB's where LanceDB has them. Lance and pyarrow are imported inside the functions that need
them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.arrow_types import text_metadata
from airflow_provider_lance.definitions.errors import invalid, missing_columns, no_column
from airflow_provider_lance.definitions.expressions import (
    check_expression,
    expression_inputs,
    expression_type,
    find_field,
    format_path,
    one_expression,
    parse_path,
)
from airflow_provider_lance.definitions.functions.envelope import BACKENDS, UdfEnvelope
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy, UdfError
from airflow_provider_lance.definitions.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

COMPUTED = "computed_column"
COMPUTED_KIND = "computed_column.kind"
COMPUTED_EXPRESSION = "computed_column.expression"
COMPUTED_INPUTS = "computed_column.inputs"
COMPUTED_SIGNATURE = "computed_refresh.source_signature"

VIRTUAL = "virtual_column"
VIRTUAL_DEFINITION = "virtual_column.definition"
VIRTUAL_GROUP = "virtual_column.group"
VIRTUAL_STRUCT_FIELD = "virtual_column.struct_field"
#: Every metadata key of a rule begins with one of these; a field's other keys are its user's.
RULE_PREFIXES = (COMPUTED, "computed_refresh", VIRTUAL)


@dataclass(frozen=True)
class ColumnRule:
    """How the values of a column are computed, or those of several columns that one function fills together.

    ``targets`` are the columns that a run fills, and ``struct_fields`` name the field of the function's result for each
    of them. For a function with several outputs, ``places`` has the position of each target among the declared outputs,
    because some of those columns may have been dropped. Exactly one of ``expression`` and ``envelope`` is set.
    """

    targets: tuple[str, ...]
    inputs: tuple[str, ...]
    expression: str | None = None
    envelope: UdfEnvelope | None = None
    struct_fields: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    version: str = ""
    image: str = ""

    @property
    def policy(self) -> ErrorPolicy:
        return self.envelope.policy if self.envelope else ErrorPolicy()

    @property
    def user_code(self) -> str:
        """The identity of the function that fills the column and of its secrets; "" for SQL."""
        if self.envelope is None:
            return ""
        secrets = ",".join(f"{name}={self.envelope.secrets[name]}" for name in sorted(self.envelope.secrets))
        return f"{self.envelope.fingerprint}|{secrets}" if secrets else self.envelope.fingerprint

    @property
    def target_paths(self) -> tuple[str, ...]:
        """The targets as field paths, in which names with special characters are quoted."""
        return tuple(format_path([name]) for name in self.targets)

    @property
    def fingerprint(self) -> str:
        """A text that changes whenever the rule's values may change."""
        content: list[object] = [
            self.expression,
            self.envelope.fingerprint if self.envelope else None,
            self.inputs,
            self.targets,
            self.struct_fields if self.places else (),
            self.version,
        ]
        if self.places != tuple(range(len(self.places))):
            content.append(self.places)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def column_rule(schema: pa.Schema, column: str) -> ColumnRule:
    """The rule of ``column``, or ``InvalidInputError`` with the reason it cannot be filled by this engine."""
    field = find_field(schema, column)
    segments = parse_path(column)
    if len(segments) > 1:
        raise invalid(
            f"{column!r} is inside a struct; Lance cannot replace part of a struct's file. Backfill a top-level column."
        )
    _check_name(field.name)
    metadata = text_metadata(field.metadata)
    if metadata.get(COMPUTED) == "true":
        kind = metadata.get(COMPUTED_KIND, "sql")
        if kind != "sql":
            raise invalid(
                f"Column {column!r} is computed by {kind!r}; this engine fills SQL expressions and its own functions. "
                "The column is left alone."
            )
        expression = metadata.get(COMPUTED_EXPRESSION)
        if not expression:
            raise invalid(f"Column {column!r} says it is computed but carries no {COMPUTED_EXPRESSION}")
        stated = tuple(json.loads(metadata.get(COMPUTED_INPUTS) or "[]"))
        inputs = _computed_inputs(schema, column, expression, stated)
        return ColumnRule((field.name,), inputs, one_expression(expression).text)
    if metadata.get(VIRTUAL) == "true":
        return _virtual_rule(schema, field.name, metadata)
    raise invalid(
        f"Column {column!r} has no rule: it was declared neither as a computed nor as a virtual column, so there is "
        "nothing to backfill it with."
    )


def _computed_inputs(schema: pa.Schema, column: str, expression: str, stated: Sequence[str]) -> tuple[str, ...]:
    """The inputs that a declaration states, which must all exist, and those that it does not state."""
    _check_inputs(schema, column, stated)
    known = [parse_path(path) for path in stated]
    missed = [
        path
        for path in expression_inputs(schema, expression)
        if not any(parse_path(path)[: len(above)] == above for above in known)
    ]
    return (*stated, *missed)


def _check_inputs(schema: pa.Schema, column: str, inputs: Sequence[str]) -> None:
    for path in inputs:
        try:
            find_field(schema, path)
        except missing_columns() as error:
            raise no_column(
                f"Column {column!r} is made from {path!r}, which was renamed or dropped: {error} Declare it again from "
                "what there is."
            ) from None


def _check_name(name: str) -> None:
    if "`" in name:
        raise invalid(f"{name!r} has a backtick in its name; Lance cannot read such a column by itself. Rename it.")


def _virtual_rule(schema: pa.Schema, column: str, metadata: Mapping[str, str]) -> ColumnRule:
    try:
        definition = json.loads(metadata[VIRTUAL_DEFINITION])
    except (KeyError, ValueError) as error:
        raise invalid(f"Column {column!r} has no readable {VIRTUAL_DEFINITION}: {error!r}") from None
    try:
        envelope = UdfEnvelope.decode(definition.get("udf_backend"), definition.get("udf", ""))
    except UdfError as error:
        raise invalid(f"Column {column!r}: {error}") from error
    _check_inputs(schema, column, definition["input_columns"])
    group = metadata.get(VIRTUAL_GROUP)
    # Found by their metadata, because columns can be renamed and dropped after the declaration.
    outputs = [
        (other.name, text_metadata(other.metadata)[VIRTUAL_STRUCT_FIELD])
        for other in schema
        if text_metadata(other.metadata).get(VIRTUAL_GROUP) == group
    ]
    declared = [(output["column"], output["struct_field"]) for output in definition["outputs"]]
    return ColumnRule(
        targets=tuple(name for name, _ in outputs),
        inputs=tuple(definition["input_columns"]),
        envelope=envelope,
        struct_fields=tuple(part for _, part in outputs),
        places=tuple(_place(declared, *output) for output in outputs) if len(declared) > 1 else (),
        version=str(definition.get("udf_version", "")),
        image=str(definition.get("image") or ""),
    )


def _place(declared: list[tuple[str, str]], column: str, part: str) -> int:
    """The position of a column among the declared outputs; the column may have been renamed since."""
    if (column, part) in declared:
        return declared.index((column, part))
    parts = [name for _, name in declared]
    if part not in parts:
        raise invalid(f"Column {column!r} is filled with {part!r}, which its function does not return: {parts}")
    return parts.index(part)


def computed_field(schema: pa.Schema, name: str, expression: str) -> pa.Field[pa.DataType]:
    """The all-null field that declares ``name`` as a computed column, exactly as LanceDB writes it."""
    import pyarrow as pa

    _check_name(name)
    check_expression(schema, expression)
    inputs = expression_inputs(schema, expression)
    if any(parse_path(path)[0] == name for path in inputs):
        raise invalid(f"Column {name!r} cannot be computed from itself")
    return pa.field(
        name,
        expression_type(schema, expression),
        metadata={
            COMPUTED: "true",
            COMPUTED_KIND: "sql",
            COMPUTED_EXPRESSION: expression,
            COMPUTED_INPUTS: json.dumps(list(inputs), separators=(",", ":")),
            COMPUTED_SIGNATURE: "{}",
        },
    )


def virtual_fields(schema: pa.Schema, entry: Mapping[str, Any]) -> list[pa.Field[pa.DataType]]:
    """The all-null fields that declare an ``AddVirtualColumnEntry``. Its function is stored as it is and not run."""
    import pyarrow as pa
    from lance.schema import json_to_schema

    definition = {key: value for key, value in entry.items() if value is not None}
    outputs = definition.get("outputs") or []
    if not outputs:
        raise invalid("A virtual column needs at least one output")
    for path in definition.get("input_columns") or []:
        find_field(schema, path)
    if definition.get("udf_backend") in BACKENDS:
        try:
            UdfEnvelope.decode(definition["udf_backend"], definition.get("udf", ""))
        except UdfError as error:
            raise invalid(f"The virtual column's function: {error}") from error
    text = json.dumps(definition, sort_keys=True)
    group = hashlib.sha256(text.encode()).hexdigest()[:32]
    fields = []
    for output in outputs:
        _check_name(output["column"])
        if output.get("nullable") is False:
            raise invalid(f"Output {output['column']!r} must be nullable: the column starts out all null")
        stated = {"name": output["column"], "type": output["data_type"], "nullable": True}
        try:
            kind = json_to_schema({"fields": [stated]}).field(0).type
        except (ValueError, TypeError, OSError) as error:
            raise invalid(f"Output {output['column']!r} has no readable data_type: {error}") from None
        metadata = {**(definition.get("field_metadata") or {}), **(output.get("metadata") or {})}
        metadata |= {
            VIRTUAL: "true",
            VIRTUAL_DEFINITION: text,
            VIRTUAL_GROUP: group,
            VIRTUAL_STRUCT_FIELD: output["struct_field"],
        }
        fields.append(pa.field(output["column"], kind, metadata=metadata))
    return fields


def keeps_type(stored: pa.DataType, new: pa.DataType, *, declared: bool) -> bool:
    """Whether values of a new rule can be stored in the column as it is.

    A type that the user declared must equal the column's. The type of an SQL expression is Lance's choice, so integers
    of another width fit there (a value out of bounds fails its job), and numbers fit into a wider float.
    """
    import pyarrow as pa

    if stored == new or declared:
        return bool(stored == new)
    if pa.types.is_integer(stored):
        return bool(pa.types.is_integer(new))
    return bool(pa.types.is_float64(stored) and (pa.types.is_integer(new) or pa.types.is_floating(new)))


def virtual_column_entry(
    envelope: UdfEnvelope,
    *,
    inputs: Sequence[str],
    outputs: Mapping[str, pa.DataType],
    name: str = "udf",
    version: str = "1",
    image: str = "",
) -> JsonObject:
    """The ``virtual_column`` of an ``add_columns`` request: a column, or several, that a function fills.

    >>> virtual_column_entry(wrap("models.text:count_words"), inputs=["text"], outputs={"words": pa.int32()})

    :param envelope: The wrapped function, from :func:`wrap`.
    :param inputs: The columns that the function gets, as field paths such as ``"text"`` or ``"meta.title"``.
    :param outputs: The columns that the function fills, with their Arrow types. A function with several outputs returns
        a dict with these names, or a tuple in this order.
    :param name: The name of the function, for people who read the table's schema.
    :param version: The version of the function. Another version makes the values that were computed before outdated.
    :param image: The container image that the function needs, for systems that run functions in one.
    """
    import pyarrow as pa
    from lance.schema import schema_to_json

    for output, kind in outputs.items():
        if _has_map(kind):
            raise invalid(
                f"Output {output!r} is of type {kind}: Lance's API has no words for maps. Declare a list of structs "
                "with key and value instead, pa.list_(pa.struct([('key', …), ('value', …)]))."
            )
    types = schema_to_json(pa.schema(list(outputs.items())))["fields"]
    return {
        "input_columns": list(inputs),
        "outputs": [
            {"column": stated["name"], "struct_field": stated["name"], "data_type": stated["type"], "nullable": True}
            for stated in types
        ],
        "image": image,
        "udf": envelope.encode(),
        "udf_backend": envelope.backend,
        "udf_name": name,
        "udf_version": version,
    }


def _has_map(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_map(kind)) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))
