"""Queries: scans, vector searches and full-text searches, on any branch. Each method is an operation of the wire."""

from __future__ import annotations

from lance_namespace import QueryTableResponse

from airflow_provider_lance.api.models import (
    AnalyzeTableQueryPlanRequest,
    ExplainTableQueryPlanRequest,
    QueryTableRequest,
)
from airflow_provider_lance.namespace.requests.sql_texts import read_condition, read_value
from airflow_provider_lance.namespace.requests.values import RequestWithBranch, id_of
from airflow_provider_lance.namespace.search.scans import Scan, make_scan
from airflow_provider_lance.namespace.tables.catalog import Catalog


class Queries:
    """The queries of tables."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def query_table(self, request: QueryTableRequest) -> QueryTableResponse:
        return QueryTableResponse(data=self._scan(request, request).ipc_file())

    def explain_table_query_plan(self, request: ExplainTableQueryPlanRequest) -> str:
        return self._scan(request, request.query).scanner.explain_plan(verbose=bool(request.verbose))

    def analyze_table_query_plan(self, request: AnalyzeTableQueryPlanRequest) -> str:
        return self._scan(request, request).scanner.analyze_plan()

    def _scan(self, request: RequestWithBranch, query: QueryTableRequest | AnalyzeTableQueryPlanRequest) -> Scan:
        branch = request.branch or query.branch
        at = QueryTableRequest(id=id_of(request), branch=branch, k=1, vector=query.vector)
        if query.filter:
            query.filter = read_condition(self._catalog, at, query.filter, query.version)
        if query.columns and query.columns.column_aliases:
            aliases = query.columns.column_aliases
            query.columns.column_aliases = {name: read_value(self._catalog, at, text) for name, text in aliases.items()}
        return make_scan(self._catalog.open(id_of(request), version=query.version, branch=branch), query)
