"""The operation table against the package the spec's owners generate: no route missing, none invented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import lance_namespace
import lance_namespace_urllib3_client.api as generated
import pytest
from pydantic import BaseModel

from airflow_provider_lance.api.client import AsyncLanceClient, LanceClient, Method
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS, Answer, Operation
from airflow_provider_lance.namespace import SparkNamespace

# On the wire of real servers, but not in the spec's document.
BEYOND_THE_SPEC = {
    "create_empty_table",
    "describe_materialized_view",
    "drop_materialized_view",
    "list_materialized_views",
    "prewarm_table_index",
    "prewarm_table_data",
    "write_table",
    "list_functions",
    "list_secrets",
    "list_table_errors",
    *(name for name, row in OPERATIONS.items() if row.jobs_api),
}


def spec_routes() -> dict[str, tuple[str, str]]:
    """Operation name → (method, path), read out of the generated client's own code."""
    routes = {}
    for module in pkgutil.iter_modules(generated.__path__):
        source = inspect.getsource(importlib.import_module(f"{generated.__name__}.{module.name}"))
        for name, body in re.findall(r"def _(\w+)_serialize\((.*?)_request_auth=_request_auth", source, re.DOTALL):
            method = re.search(r"method='(\w+)'", body)
            path = re.search(r"resource_path='([^']+)'", body)
            assert method, name
            assert path, name
            routes[name] = (method[1], path[1])
    return routes


def test_every_operation_of_the_spec_has_its_row() -> None:
    routes = spec_routes()
    assert len(routes) >= 54
    ours = {name: (row.method, row.path) for name, row in OPERATIONS.items() if name not in BEYOND_THE_SPEC}
    assert ours == routes


def test_every_method_of_a_lance_namespace_is_overridden() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(lance_namespace.LanceNamespace, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods <= set(OPERATIONS) | {"namespace_id"}
    for name in methods:
        assert getattr(LanceClient, name) is not getattr(lance_namespace.LanceNamespace, name)


@pytest.mark.parametrize("kind", [LanceClient, AsyncLanceClient, SparkNamespace])
def test_every_operation_is_a_method(kind: type) -> None:
    found = {name: method.operation for name, method in inspect.getmembers(kind) if isinstance(method, Method)}
    assert found == OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda row: row.name)
def test_models_and_query_fields_exist(operation: Operation) -> None:
    assert operation.request
    request = model(operation.request)
    assert issubclass(request, BaseModel)
    names = {field.alias or name for name, field in request.model_fields.items()}
    assert set(operation.query) <= names
    if operation.response:
        response = model(operation.response)
        assert issubclass(response, BaseModel)
        if operation.items:
            assert operation.items in response.model_fields
    else:
        assert operation.answer is Answer.ARROW_STREAM
