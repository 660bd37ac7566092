"""Which tables a task reads and changes through a namespace, noted from its calls.

Airflow's lineage collector and the asset events of ``@task.lance`` are made from these notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_lance.api.ids import Identifier, InvalidIdentifierError
from airflow_provider_lance.api.operations import OPERATIONS, Operation, Scope, Subject

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

ParseId = Callable[[Identifier], list[str]]


class TableUse(NamedTuple):
    """One call: the table, whether the call changes it, and the job that it started."""

    table_id: tuple[str, ...]
    changes: bool
    job_id: str | None = None


def table_use(operation: Operation, request: object, answer: object, parse_id: ParseId) -> TableUse | None:
    """What a call did to a table; ``None`` where it neither opened nor changed one."""
    if not _about_a_table(operation):
        return None
    identifier = _field(request, "id")
    try:
        table_id = parse_id(identifier) if isinstance(identifier, str | list | tuple) else []
    except InvalidIdentifierError:
        return None
    if not table_id:
        return None
    job_id = _field(answer, "job_id") if operation.submits_job else None
    return TableUse(tuple(table_id), operation.scope is not Scope.READ, str(job_id) if job_id else None)


def observe(namespace: LanceNamespace, parse_id: ParseId, note: Callable[[TableUse], None]) -> None:
    """Have ``note`` called after each call of a namespace that opened or changed a table."""
    for name, operation in OPERATIONS.items():
        method = getattr(namespace, name, None)
        if callable(method) and _about_a_table(operation):
            # A partial stays unbound where somebody makes it an attribute of a class of their own.
            setattr(namespace, name, partial(_call_observed, method, operation, parse_id, note))


def _call_observed(
    method: Callable[..., object],
    operation: Operation,
    parse_id: ParseId,
    note: Callable[[TableUse], None],
    request: object,
    *data: object,
    **more: object,
) -> object:
    answer = method(request, *data, **more)
    use = table_use(operation, request, answer, parse_id)
    if use is not None:
        note(use)
    return answer


def _about_a_table(operation: Operation) -> bool:
    about = operation.takes_id and operation.subject in {Subject.TABLE, Subject.VIEW}
    return about and (operation.scope is not Scope.READ or operation.opens_table)


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
