"""schemathesis over our own OpenAPI document: no 5xx, no undocumented status, answers as the document says."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.operations import OPERATIONS

from .conftest import QUICK
from .server_process import ServerProcess

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "6"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("openapi"), timings=QUICK).start()
    with LanceClient(process.url) as client:
        client.create_table({"id": ["t"]}, pa.table({"id": [1, 2], "text": ["a", "b"]}))
    yield process
    process.stop()


@pytest.fixture(scope="module")
def schema(server: ServerProcess) -> schemathesis.BaseSchema:
    loaded = schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json").json())
    loaded.config.update(base_url=server.url)
    return loaded


def exercise(schema: schemathesis.BaseSchema, name: str, examples: int, table: str | None) -> None:
    row = OPERATIONS[name]
    operation = schema[row.path][row.method]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: schemathesis.Case) -> None:
        if table is not None and row.takes_id:
            case.path_parameters["id"] = table
        case.call_and_validate(checks=CHECKS, timeout=60)

    one()


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_generated_requests_are_answered_as_documented(schema: schemathesis.BaseSchema, name: str) -> None:
    exercise(schema, name, EXAMPLES, None)


ABOUT_A_TABLE = [
    name
    for name, row in sorted(OPERATIONS.items())
    if row.path.startswith("/v1/table/{id}") and name not in {"drop_table", "deregister_table", "rename_table"}
]


@pytest.mark.parametrize("name", ABOUT_A_TABLE)
def test_generated_requests_about_a_real_table(schema: schemathesis.BaseSchema, name: str) -> None:
    exercise(schema, name, EXAMPLES, "t")
