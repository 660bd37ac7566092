"""Columns: plain, computed and virtual ones are declared here, and their backfills accepted.

A rule is checked and typed when it is declared, stored under LanceDB's metadata keys, and never run: a virtual column's
function stays the text it came as. Methods are operations of the wire by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, UnsupportedOperationError

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.job_words import IF_EXISTS, JobType
from airflow_provider_lance.api.models import model
from airflow_provider_lance.engine.columns import RULE_PREFIXES, column_rule, computed_field, keeps_type, virtual_fields
from airflow_provider_lance.engine.declarations import has_rule, rule_differences
from airflow_provider_lance.engine.expressions import (
    expression_type,
    find_field,
    format_path,
    one_expression,
    parse_path,
)
from airflow_provider_lance.engine.request import validate_request
from airflow_provider_lance.namespace.catalog import Catalog, TablePlace
from airflow_provider_lance.namespace.column_names import check_column_name
from airflow_provider_lance.namespace.job_requests import JobRequests, job_options
from airflow_provider_lance.namespace.tree import read_word

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


_LEGACY_FORMATS = frozenset({"0.1", "legacy"})


class Columns:
    """The columns of tables, and what fills them."""

    def __init__(self, catalog: Catalog, jobs: JobRequests) -> None:
        self._catalog = catalog
        self._jobs = jobs

    def alter_table_add_columns(self, request: Any) -> Any:
        """Add columns; with the context entry ``if-exists: replace``, exchange the rules of those that are there."""
        replaces = read_word("if-exists", (request.context or {}).get(IF_EXISTS), ("fail", "replace")) == "replace"
        dataset = self._catalog.open(request.id, branch=request.branch)
        schema = dataset.schema
        expressions: dict[str, str] = {}
        rules_now: dict[str, dict[str, str]] = {}
        declared: list[pa.Field] = []
        automatic: list[str] = []
        for entry in request.new_columns:
            rules = [entry.expression, entry.computed, entry.virtual_column]
            if sum(rule is not None for rule in rules) != 1:
                raise InvalidInputError(
                    f"Column {entry.name!r} needs exactly one of expression, computed and virtual_column."
                )
            if entry.expression is not None:
                expression_type(schema, entry.expression)
                expressions[check_column_name(entry.name)] = one_expression(entry.expression).text
                continue
            if entry.computed is not None:
                fields = [computed_field(schema, check_column_name(entry.name), entry.computed)]
            else:
                fields = _virtual(schema, entry)
                if entry.virtual_column.auto_backfill:
                    automatic.append(fields[0].name)
            there = [field for field in fields if replaces and field.name in schema.names]
            rules_now |= _new_rules(schema, there, entry.to_dict())
            declared.extend(field for field in fields if field not in there)
        names = [*expressions, *(field.name for field in declared)]
        for name in names:
            if name in schema.names or names.count(name) > 1:
                raise InvalidInputError(f"There is a column {name!r} already.")
        if declared and dataset.data_storage_version in _LEGACY_FORMATS:
            raise UnsupportedOperationError(
                f"Table {join_id(request.id)} is stored in Lance's legacy format, which cannot declare columns without "
                'values. Write the table anew with data_storage_version="stable".'
            )
        self._refuse_while_filled(request, rules_now)
        # All of it is checked: what follows are at most three commits, one with data and two of declarations. Whoever
        # sends the same again after a crash in between finds equal rules, which are left alone, and gets the rest.
        if expressions:
            dataset.add_columns(expressions)
        if declared:
            dataset.add_columns(declared)
        if rules_now:
            dataset.update_field_metadata(rules_now, replace=True)
        for name in automatic:
            if self._jobs.available():
                self.backfill(request.id, {"column": name, "branch": request.branch})
        return model("AlterTableAddColumnsResponse")(version=dataset.version)

    def alter_table_alter_columns(self, request: Any) -> Any:
        schema = self._catalog.open(request.id, branch=request.branch).schema
        for entry in request.alterations:
            find_field(schema, entry.path)
            if entry.rename is not None:
                check_column_name(entry.rename)
            if entry.virtual_column is not None:
                raise UnsupportedOperationError(
                    f"The function of virtual column {entry.path!r} is exchanged by declaring the column again: "
                    f"AlterTableAddColumns with the context entry {IF_EXISTS}: replace."
                )
        return self._catalog.call("alter_table_alter_columns", request)

    def alter_table_drop_columns(self, request: Any) -> Any:
        dataset = self._catalog.open(request.id, branch=request.branch)
        for path in request.columns:
            find_field(dataset.schema, path)
        dataset.drop_columns(list(request.columns))
        return model("AlterTableDropColumnsResponse")(version=dataset.version)

    def update_field_metadata(self, request: Any) -> Any:
        dataset = self._catalog.open(request.id, branch=request.branch)
        merged: dict[str, dict[str, str]] = {}
        for entry in request.updates:
            field = find_field(dataset.schema, entry.path)
            path = format_path(parse_path(entry.path))
            if path in merged:
                raise InvalidInputError(f"Field {path} is named twice; one update per field.")
            now = {} if entry.replace else _text_metadata(field)
            merged[path] = {key: value for key, value in {**now, **entry.metadata}.items() if value is not None}
        # Always whole maps: pylance replaces all fields of a call or merges all of them, a request may mix the two.
        dataset.update_field_metadata(merged, replace=True)
        return model("UpdateFieldMetadataResponse")(version=dataset.version, fields=merged)

    def alter_table_backfill_columns(self, request: Any) -> Any:
        job_id = self.backfill(request.id, request.to_dict(), request.context)
        return model("AlterTableBackfillColumnsResponse")(job_id=job_id)

    def backfill(self, table_id: list[str], fields: dict[str, Any], context: dict[str, str] | None = None) -> str:
        """Check a backfill to the letter and submit it; the job's id."""
        place = self._catalog.locate(table_id)
        jobs = self._jobs.service
        branch, column = fields.get("branch") or "main", fields["column"]
        jobs.check(fields.get("cluster"), fields.get("manifest"))
        dataset = self._open(place, fields)
        validate_request(
            fields,
            dataset.schema,
            options=job_options(context),
            storage_version=dataset.data_storage_version,
        )
        targets = column_rule(dataset.schema, column).targets
        return self._jobs.submit(
            JobType.BACKFILL,
            place,
            fields,
            locks=tuple(f"{place.name}|{branch}|{target}" for target in targets),
            context=context,
            environment=fields.get("manifest"),
        )

    def _refuse_while_filled(self, request: Any, columns: Iterable[str]) -> None:
        """A rule stays while a job fills its column: that job would end as done with values of the rule before."""
        names = set(columns)
        for job in self._jobs.live_jobs(request.id) if names else ():
            if (job.get("spec") or {}).get("request", {}).get("column") in names:
                error = ConcurrentModificationError(
                    f"Job {job['job_id']} is filling {job['spec']['request']['column']!r}: wait for its end, or cancel "
                    "it, before its rule is replaced."
                )
                error.instance = job["job_id"]  # type: ignore[attr-defined]
                raise error

    def _open(self, place: TablePlace, fields: dict[str, Any]) -> lance.LanceDataset:
        version = fields.get("read_version")
        if version is not None and version < 1:
            raise InvalidInputError(f"read_version is {version}; it must be 1 or more.")
        return self._catalog.open(list(place.id), version=version, branch=fields.get("branch"), place=place)


def _virtual(schema: pa.Schema, entry: Any) -> list[pa.Field]:
    definition = entry.virtual_column.to_dict()
    fields = virtual_fields(schema, definition)
    if entry.name not in [field.name for field in fields]:
        raise InvalidInputError(f"The virtual column {entry.name!r} is not among its outputs.")
    for field in fields:
        check_column_name(field.name)
    return fields


def _new_rules(schema: pa.Schema, fields: list[pa.Field], entry: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The whole metadata, by path, of those existing fields whose rule the entry changes; equal ones are left out."""
    found = {}
    for field in fields:
        now = schema.field(field.name)
        metadata = _text_metadata(now)
        if not has_rule(metadata):
            raise InvalidInputError(
                f"Column {field.name!r} has no rule that could be replaced: a backfill would overwrite what was "
                "written to it. Choose another name, or drop the column first."
            )
        if not rule_differences(metadata, entry):
            continue
        if not keeps_type(now.type, field.type, declared=entry.get("virtual_column") is not None):
            raise InvalidInputError(
                f"Column {field.name!r} is of type {now.type} and its new rule gives {field.type}: its values cannot "
                "be kept until the next backfill. Drop the column and add it again."
            )
        kept = {key: value for key, value in metadata.items() if not key.startswith(RULE_PREFIXES)}
        found[format_path([field.name])] = kept | _text_metadata(field)
    return found


def _text_metadata(field: pa.Field) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
