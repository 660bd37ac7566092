"""Carries out a plan, request by request, in an order in which each finds what it needs.

Every request is one that the same declaration would send again after a failure, or that finds its work done: a plan
that was interrupted is made anew and carried on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.declarations.columns import replace_rules
from airflow_provider_lance.declarations.graph import column_levels
from airflow_provider_lance.declarations.namespace_state import Namespace
from airflow_provider_lance.declarations.plan import Change, Plan
from airflow_provider_lance.declarations.table import DeclarationError, LanceIndex, LanceTable
from airflow_provider_lance.declarations.views import create_view, replace_view
from airflow_provider_lance.definitions.differences import declared_columns


class RefusedPlanError(DeclarationError):
    """A plan with changes that cannot be made; nothing was changed."""


@dataclass
class Applied:
    """What was done so far. ``versions`` has the version of each changed table and view that its server told."""

    done: list[Change] = field(default_factory=list)
    versions: dict[tuple[str, ...], int] = field(default_factory=dict)

    def note(self, changes: Sequence[Change], answer: JsonObject | None = None) -> None:
        self.done += changes
        version = (answer or {}).get("version")
        if isinstance(version, int):
            self.versions[changes[0].id] = version


def check_plan(plan: Plan) -> None:
    """Refuse a plan with changes that cannot be made."""
    refused = plan.of("refuse")
    if refused:
        listed = "\n".join(change.line for change in refused)
        raise RefusedPlanError(f"The declaration cannot be applied, and nothing was changed.\n{listed}")


def apply_plan(
    plan: Plan, namespace: Namespace, *, allow_drop: bool = False, applied: Applied | None = None
) -> Applied:
    """Carry out a plan. After an error, ``applied`` has what was done before."""
    check_plan(plan)
    applied = Applied() if applied is None else applied
    for change in plan.of("create"):
        if change.kind == "namespace":
            applied.note([change], namespace.call("create_namespace", {"id": list(change.id)}))
        elif change.kind == "table" and change.table is not None:
            applied.note([change], _create_table(namespace, change.table))
    for table in _tables(plan):
        _apply_columns(namespace, table, [change for change in plan.changes if change.table is table], applied)
    for change in plan.of("create", "change"):
        if change.kind == "index" and change.index is not None:
            if change.action == "change":
                _drop_index(namespace, change)
            applied.note([change], _create_index(namespace, change.id, change.index))
        elif change.kind == "view" and change.view is not None and change.request is not None:
            if change.action == "create":
                answer = create_view(namespace, change.view, change.request)
            else:
                answer = replace_view(namespace, change.view, change.request, allow_drop=allow_drop)
            applied.note([change], answer)
    for change in plan.of("drop"):
        if change.kind == "index":
            applied.note([change], _drop_index(namespace, change))
        else:
            applied.note([change], _drop_columns(namespace, change.id, [str(change.name)]))
    return applied


def _tables(plan: Plan) -> list[LanceTable]:
    return list({id(change.table): change.table for change in plan.changes if change.table is not None}.values())


def _create_table(namespace: Namespace, table: LanceTable) -> JsonObject:
    from airflow_provider_lance.definitions.arrow_types import arrow_schema, empty_batch

    fields = {"id": list(table.id), "mode": "create"}
    return namespace.call("create_table", fields, empty_batch(arrow_schema(table.schema or {})))


def _apply_columns(namespace: Namespace, table: LanceTable, changes: Sequence[Change], applied: Applied) -> None:
    """Add and change columns: the loaded ones first, and then each rule after those that it reads."""
    columns = [change for change in changes if change.kind == "column" and change.action in ("create", "change")]
    plain = [change for change in columns if change.request is None]
    if plain:
        new = [{"name": change.name, "expression": _null_expression(change)} for change in plain]
        applied.note(plain, namespace.call("alter_table_add_columns", {"id": list(table.id), "new_columns": new}))
    by_name = {str(change.name): change for change in columns if change.request is not None}
    for level in column_levels(table, by_name):
        _apply_level(namespace, table, [by_name[name] for name in level], applied)


def _apply_level(namespace: Namespace, table: LanceTable, changes: Sequence[Change], applied: Applied) -> None:
    recreated = [change for change in changes if change.recreate]
    for change in recreated:
        assert change.request is not None
        _drop_columns(namespace, table.id, declared_columns(change.request))
    new = [change for change in changes if change.action == "create" or change.recreate]
    replaced = [change for change in changes if change.action == "change" and not change.recreate]
    if new:
        fields: JsonObject = {"id": list(table.id), "new_columns": [change.request for change in new]}
        applied.note(new, namespace.call("alter_table_add_columns", fields))
    if replaced:
        entries = [change.request for change in replaced if change.request is not None]
        applied.note(replaced, replace_rules(namespace, {"id": list(table.id), "new_columns": entries}, entries))


def _null_expression(change: Change) -> str:
    """An expression without a value, of the declared type."""
    from airflow_provider_lance.definitions.arrow_types import arrow_schema, null_expression

    return null_expression(arrow_schema({str(change.name): change.text}).field(0).type)


def _create_index(namespace: Namespace, table_id: Sequence[str], index: LanceIndex) -> JsonObject:
    fields = {"id": list(table_id), "column": index.column, "index_type": index.type, "name": index.index_name}
    return namespace.call(index.operation, {**fields, **index.options})


def _drop_index(namespace: Namespace, change: Change) -> JsonObject:
    return namespace.call("drop_table_index", {"id": list(change.id), "index_name": change.name})


def _drop_columns(namespace: Namespace, table_id: Sequence[str], columns: list[str]) -> JsonObject:
    return namespace.call("alter_table_drop_columns", {"id": list(table_id), "columns": columns})
