"""The SQL of a request, read as one expression, because Lance silently drops what follows the first one."""

from __future__ import annotations

from airflow_provider_lance.definitions.expressions import check_filter, expression_type, one_expression
from airflow_provider_lance.namespace.requests.values import RequestWithBranch, id_of
from airflow_provider_lance.namespace.tables.catalog import Catalog


def read_condition(catalog: Catalog, request: RequestWithBranch, sql: str, version: int | None = None) -> str:
    """A condition as one expression; where the parser is in doubt, Lance's planner decides."""
    if not sql.strip():
        return sql
    read = one_expression(sql, "predicate")
    if read.doubt is not None:
        dataset = catalog.open(id_of(request), branch=request.branch, version=version)
        check_filter(dataset.schema, sql, "predicate")
    return read.text


def read_value(catalog: Catalog, request: RequestWithBranch, sql: str) -> str:
    """The SQL of a value as one expression."""
    read = one_expression(sql)
    if read.doubt is not None:
        expression_type(catalog.open(id_of(request), branch=request.branch).schema, sql)
    return read.text
