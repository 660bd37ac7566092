"""Columns: declares plain, computed and virtual ones, and accepts their backfills.

A rule is checked and typed when it is declared, and stored under LanceDB's metadata keys. It is never run here: a
virtual column's function is kept as the text that the client sent. Each method is an operation of the wire by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_namespace import (
    AlterTableAddColumnsResponse,
    AlterTableAlterColumnsRequest,
    AlterTableAlterColumnsResponse,
    AlterTableBackfillColumnsRequest,
    AlterTableBackfillColumnsResponse,
    AlterTableDropColumnsRequest,
    AlterTableDropColumnsResponse,
    UpdateFieldMetadataRequest,
    UpdateFieldMetadataResponse,
)
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError
from lance_namespace_urllib3_client.models.add_virtual_column_entry import AddVirtualColumnEntry

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_states import IF_EXISTS, JobType
from airflow_provider_lance.api.models import AddColumnsEntry, AlterTableAddColumnsRequest
from airflow_provider_lance.definitions.arrow_types import decode_schema
from airflow_provider_lance.definitions.backfill_request import BackfillRequest
from airflow_provider_lance.definitions.column_rules import (
    RULE_PREFIXES,
    computed_field,
    keeps_type,
    virtual_fields,
)
from airflow_provider_lance.definitions.differences import has_rule, rule_differences
from airflow_provider_lance.definitions.expressions import (
    expression_type,
    find_field,
    format_path,
    one_expression,
    parse_path,
)
from airflow_provider_lance.definitions.functions.binding import FunctionBinding
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.requests.column_names import check_column_name
from airflow_provider_lance.namespace.requests.values import id_of, read_word
from airflow_provider_lance.namespace.tables.catalog import Catalog
from airflow_provider_lance.namespace.tables.job_requests import JobRequests, job_fields, job_options

if TYPE_CHECKING:
    import pyarrow as pa


_LEGACY_FORMATS = frozenset({"0.1", "legacy"})


@dataclass
class _NewColumns:
    """The columns of one request after they were checked.

    ``expressions`` are evaluated at once. ``declared`` get a rule and no values. ``rules`` is the new metadata, by
    path, of existing columns whose rule is replaced. ``automatic`` are the columns with ``auto_backfill``.
    """

    expressions: dict[str, str] = field(default_factory=dict)
    declared: list[pa.Field[pa.DataType]] = field(default_factory=list)
    rules: dict[str, dict[str, str]] = field(default_factory=dict)
    automatic: list[str] = field(default_factory=list)


class Columns:
    """The columns of tables, and the jobs that fill them."""

    def __init__(self, catalog: Catalog, jobs: JobRequests) -> None:
        self._catalog = catalog
        self._jobs = jobs

    def alter_table_add_columns(self, request: AlterTableAddColumnsRequest) -> AlterTableAddColumnsResponse:
        """Add columns; the context entry ``if-exists: replace`` replaces the rules of those that exist."""
        replaces = read_word("if-exists", (request.context or {}).get(IF_EXISTS), ("fail", "replace")) == "replace"
        table_id = id_of(request)
        dataset = self._catalog.open(table_id, branch=request.branch)
        new = _check_new_columns(dataset.schema, request.new_columns, replaces=replaces)
        if request.function is not None:
            new.declared.extend(self._function_columns(dataset.schema, request))
        if request.arrow_schema is not None:
            new.declared.extend(_empty_columns(dataset.schema, request.arrow_schema))
        if not (new.expressions or new.declared or new.rules or request.new_columns):
            raise InvalidInputError("The request names no column.")
        if new.declared and dataset.data_storage_version in _LEGACY_FORMATS:
            raise UnsupportedOperationError(
                f"Table {join_id(table_id)} is stored in Lance's legacy format, which cannot declare columns without "
                'values. Write the table anew with data_storage_version="stable".'
            )
        self._refuse_while_filled(table_id, new.rules)
        # At most three commits follow, one with data and two of declarations. If the server dies between them, the
        # same request sent again finds equal rules, leaves them alone, and makes the commits that are missing.
        if new.expressions:
            dataset.add_columns(new.expressions)
        if new.declared:
            dataset.add_columns(new.declared)
        if new.rules:
            dataset.update_field_metadata({path: {**rule} for path, rule in new.rules.items()}, replace=True)
        for name in new.automatic:
            if self._jobs.available():
                self.backfill(AlterTableBackfillColumnsRequest(id=table_id, column=name, branch=request.branch))
        return AlterTableAddColumnsResponse(version=dataset.version)

    def _function_columns(self, schema: pa.Schema, request: AlterTableAddColumnsRequest) -> list[pa.Field[pa.DataType]]:
        """The columns that a registered function fills, whose source travels with them."""
        binding = FunctionBinding.read(request.function or {})
        found = self._jobs.service.functions.find(list(binding.function_id), binding.version)
        if found is None:
            raise InvalidInputError(
                f"There is no function {join_id(binding.function_id)} of version {binding.version}. Register it first."
            )
        columns = virtual_fields(schema, binding.virtual_column(found.definition))
        for column in columns:
            if check_column_name(column.name) in schema.names:
                raise InvalidInputError(f"There is a column {column.name!r} already.")
        listed = [entry.name for entry in request.new_columns if entry.all_null]
        if sorted(listed) != sorted(column.name for column in columns):
            raise InvalidInputError(f"The function fills {[c.name for c in columns]}, and the request adds {listed}.")
        return columns

    def alter_table_alter_columns(self, request: AlterTableAlterColumnsRequest) -> AlterTableAlterColumnsResponse:
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        changes: list[dict[str, object]] = []
        for entry in request.alterations:
            column = find_field(dataset.schema, entry.path)
            if entry.rename is not None:
                check_column_name(entry.rename)
            if entry.virtual_column is not None:
                raise UnsupportedOperationError(
                    f"The function of virtual column {entry.path!r} is exchanged by declaring the column again: "
                    f"AlterTableAddColumns with the context entry {IF_EXISTS}: replace."
                )
            change: dict[str, object] = {"path": entry.path}
            if entry.rename is not None:
                change["name"] = entry.rename
            if entry.nullable is not None:
                change["nullable"] = entry.nullable
            if entry.data_type is not None:
                self._refuse_while_filled(id_of(request), {entry.path: entry})
                change["data_type"] = _stated_type(column.name, entry.data_type)
            changes.append(change)
        dataset.alter_columns(*changes)  # type: ignore[arg-type]  # the annotation has every key required
        return AlterTableAlterColumnsResponse(version=dataset.version)

    def alter_table_drop_columns(self, request: AlterTableDropColumnsRequest) -> AlterTableDropColumnsResponse:
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        for path in request.columns:
            find_field(dataset.schema, path)
        dataset.drop_columns(list(request.columns))
        return AlterTableDropColumnsResponse(version=dataset.version)

    def update_field_metadata(self, request: UpdateFieldMetadataRequest) -> UpdateFieldMetadataResponse:
        dataset = self._catalog.open(id_of(request), branch=request.branch)
        merged: dict[str, dict[str, str]] = {}
        for entry in request.updates:
            column = find_field(dataset.schema, entry.path)
            path = format_path(parse_path(entry.path))
            if path in merged:
                raise InvalidInputError(f"Field {path} is named twice; one update per field.")
            now = {} if entry.replace else _text_metadata(column)
            merged[path] = {key: value for key, value in {**now, **entry.metadata}.items() if value is not None}
        # pylance replaces the metadata of all fields of a call or merges all of it, and a request may mix the two.
        dataset.update_field_metadata({path: {**metadata} for path, metadata in merged.items()}, replace=True)
        return UpdateFieldMetadataResponse(version=dataset.version, fields=merged)

    def alter_table_backfill_columns(
        self, request: AlterTableBackfillColumnsRequest
    ) -> AlterTableBackfillColumnsResponse:
        return AlterTableBackfillColumnsResponse(job_id=self.backfill(request))

    def backfill(self, request: AlterTableBackfillColumnsRequest) -> str:
        """Check every field of a backfill and submit it; return the job's id."""
        place = self._catalog.locate(id_of(request))
        self._jobs.service.check(request.cluster, request.manifest)
        fields = job_fields(request)
        backfill = BackfillRequest.parse(fields, job_options(request.context))
        dataset = self._catalog.open(id_of(request), version=backfill.read_version, branch=backfill.branch, place=place)
        rule = backfill.check(dataset.schema, storage_version=dataset.data_storage_version)
        return self._jobs.submit(
            JobType.BACKFILL,
            place,
            fields,
            locks=tuple(f"{place.name}|{backfill.branch or 'main'}|{target}" for target in rule.targets),
            context=request.context,
            environment=backfill.manifest,
            user_code=rule.user_code,
            on_spark=rule.expression is None,
            secrets=None if backfill.plan or rule.envelope is None else rule.envelope.secrets,
        )

    def _refuse_while_filled(self, table_id: list[str], columns: Mapping[str, object]) -> None:
        """Refuse to replace a rule while a job fills its column, which would end with values of the old rule."""
        for job in self._jobs.live_jobs(table_id) if columns else ():
            column = job.spec.get("request", {}).get("column")
            if column in columns:
                raise JobConflictError(
                    f"Job {job.job_id} is filling {column!r}: wait for its end, or cancel it, before its rule is "
                    "replaced.",
                    job.job_id,
                )


def _check_new_columns(schema: pa.Schema, entries: list[AddColumnsEntry], *, replaces: bool) -> _NewColumns:
    """Check the columns of a request against the table; ``replaces`` allows columns that exist."""
    new = _NewColumns()
    for entry in entries:
        if entry.all_null:  # The function of the request declares it.
            continue
        if sum(rule is not None for rule in (entry.expression, entry.computed, entry.virtual_column)) != 1:
            raise InvalidInputError(
                f"Column {entry.name!r} needs exactly one of expression, computed and virtual_column."
            )
        if entry.expression is not None:
            expression_type(schema, entry.expression)
            new.expressions[check_column_name(entry.name)] = one_expression(entry.expression).text
            continue
        if entry.computed is not None:
            columns = [computed_field(schema, check_column_name(entry.name), entry.computed)]
        else:
            assert entry.virtual_column is not None
            columns = _virtual_columns(schema, entry.name, entry.virtual_column)
            if entry.virtual_column.auto_backfill:
                new.automatic.append(columns[0].name)
        existing = [column for column in columns if replaces and column.name in schema.names]
        new.rules |= _new_rules(schema, existing, entry)
        new.declared.extend(column for column in columns if column not in existing)
    names = [*new.expressions, *(column.name for column in new.declared)]
    for name in names:
        if name in schema.names or names.count(name) > 1:
            raise InvalidInputError(f"There is a column {name!r} already.")
    return new


def _empty_columns(schema: pa.Schema, text: str) -> list[pa.Field[pa.DataType]]:
    """The columns of an Arrow schema, which get no values and no rule."""
    try:
        columns = list(decode_schema(text))
    except ValueError:
        raise InvalidInputError("The body must be an Arrow IPC stream with the schema of the new columns.") from None
    for column in columns:
        if check_column_name(column.name) in schema.names:
            raise InvalidInputError(f"There is a column {column.name!r} already.")
        if not column.nullable:
            raise InvalidInputError(f"Column {column.name!r} must be nullable: it starts out all null.")
    return columns


def _stated_type(column: str, data_type: Mapping[str, object]) -> pa.DataType:
    """A type in the JSON of Arrow schemas, such as ``{"type": "int32"}``."""
    from lance.schema import json_to_schema

    try:
        stated: pa.Schema = json_to_schema({"fields": [{"name": column, "type": data_type, "nullable": True}]})
        kind: pa.DataType = stated.field(0).type
        return kind
    except (ValueError, TypeError, OSError) as error:
        raise InvalidInputError(f"Column {column!r} has no readable data_type: {error}") from None


def _virtual_columns(schema: pa.Schema, name: str, entry: AddVirtualColumnEntry) -> list[pa.Field[pa.DataType]]:
    """The columns that a function fills."""
    columns = virtual_fields(schema, entry.to_dict())
    if name not in [column.name for column in columns]:
        raise InvalidInputError(f"The virtual column {name!r} is not among its outputs.")
    for column in columns:
        check_column_name(column.name)
    return columns


def _new_rules(
    schema: pa.Schema, columns: list[pa.Field[pa.DataType]], entry: AddColumnsEntry
) -> dict[str, dict[str, str]]:
    """The whole metadata, by path, of the existing columns whose rule the entry changes; equal rules are left out."""
    found = {}
    declaration = entry.to_dict()
    for column in columns:
        now = schema.field(column.name)
        metadata = _text_metadata(now)
        if not has_rule(metadata):
            raise InvalidInputError(
                f"Column {column.name!r} has no rule that could be replaced: a backfill would overwrite what was "
                "written to it. Choose another name, or drop the column first."
            )
        if not rule_differences(metadata, declaration):
            continue
        if not keeps_type(now.type, column.type, declared=entry.virtual_column is not None):
            raise InvalidInputError(
                f"Column {column.name!r} is of type {now.type} and its new rule gives {column.type}: its values cannot "
                "be kept until the next backfill. Drop the column and add it again."
            )
        kept = {key: value for key, value in metadata.items() if not key.startswith(RULE_PREFIXES)}
        found[format_path([column.name])] = kept | _text_metadata(column)
    return found


def _text_metadata(column: pa.Field[pa.DataType]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
