"""The five API pages this project started from: their example requests and answers, field for field."""

from __future__ import annotations

import pytest

from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.api.plain_data import REQUEST_ENVELOPE, JsonObject
from tests.api.conftest import Connect
from tests.api.fault_server import Answer, FaultServer

IDENTITY = {"api_key": "<string>", "auth_token": "<string>"}
PAGES: list[tuple[str, str, int, JsonObject, JsonObject]] = [
    (
        "create_table_version",
        "/v1/table/{id}/version/create",
        200,
        {
            "version": 1,
            "manifest_path": "<string>",
            "identity": IDENTITY,
            "context": {},
            "id": ["<string>"],
            "manifest_size": 1,
            "e_tag": "<string>",
            "metadata": {},
            "naming_scheme": "V2",
        },
        {
            "transaction_id": "<string>",
            "version": {
                "version": 1,
                "manifest_path": "<string>",
                "manifest_size": 1,
                "e_tag": "<string>",
                "timestamp_millis": 123,
                "metadata": {},
            },
        },
    ),
    (
        "create_empty_table",
        "/v1/table/{id}/create-empty",
        200,
        {"id": ["<string>"], "location": "<string>", "properties": {"a": "b"}},
        {
            "transaction_id": "<string>",
            "location": "<string>",
            "properties": {"a": "b"},
            "storage_options": {"region": "x"},
        },
    ),
    (
        "create_materialized_view",
        "/v1/materialized_view/{id}/create",
        201,
        {
            "kind": "udtf",
            "source_query": "<string>",
            "output_schema": "<string>",
            "identity": IDENTITY,
            "id": ["<string>"],
            "udtf_spec": {
                "kind": "udtf",
                "udtf": "<string>",
                "udtf_sha": "<string>",
                "udtf_name": "<string>",
                "udtf_version": "<string>",
                "input_columns": ["<string>"],
                "partition_by": "<string>",
                "partition_by_indexed_column": "<string>",
                "num_cpus": 123,
                "num_gpus": 123,
                "memory": 123,
                "error_handling": {},
                "batch": True,
                "manifest": "<string>",
                "manifest_checksum": "<string>",
            },
            "with_no_data": True,
            "auto_refresh": False,
        },
        {"version": 1, "job_id": "<string>"},
    ),
    (
        "alter_table_backfill_columns",
        "/v1/table/{id}/backfill_column",
        202,
        {
            "column": "<string>",
            "identity": IDENTITY,
            "id": ["<string>"],
            "branch": "<string>",
            "where": "<string>",
            "concurrency": 123,
            "intra_applier_concurrency": 123,
            "min_checkpoint_size": 123,
            "max_checkpoint_size": 123,
            "batch_checkpoint_flush_interval_seconds": 123,
            "read_version": 123,
            "task_size": 123,
            "num_frags": 123,
            "checkpoint_size": 123,
            "commit_granularity": 123,
            "cluster": "<string>",
            "manifest": "<string>",
        },
        {"job_id": "<string>"},
    ),
    (
        "update_table_tag",
        "/v1/table/{id}/tags/update",
        200,
        {"identity": IDENTITY, "id": ["<string>"], "tag": "<string>", "version": 1},
        {"transaction_id": "<string>"},
    ),
]


@pytest.mark.parametrize(("name", "path", "status", "request_body", "answer"), PAGES, ids=[page[0] for page in PAGES])
class TestPage:
    def test_the_row_is_the_pages(
        self, name: str, path: str, status: int, request_body: JsonObject, answer: JsonObject
    ) -> None:
        operation = OPERATIONS[name]
        assert (operation.method, operation.path) == ("POST", path)
        assert operation.statuses[0] == status

    def test_models_keep_every_field(
        self, name: str, path: str, status: int, request_body: JsonObject, answer: JsonObject
    ) -> None:
        operation = OPERATIONS[name]
        assert model(operation.request).from_dict(request_body).to_dict() == request_body
        assert model(operation.response).from_dict(answer).to_dict() == answer

    def test_it_travels_field_for_field(
        self,
        name: str,
        path: str,
        status: int,
        request_body: JsonObject,
        answer: JsonObject,
        server: FaultServer,
        connect: Connect,
    ) -> None:
        server.play([Answer(status, answer)])
        client = connect()
        for request in (request_body, model(OPERATIONS[name].request).from_dict(request_body)):
            response = getattr(client, name)(request)
            assert {key: value for key, value in response.to_dict().items() if key != "context"} == answer
        for seen in server.seen:
            assert seen.path == path.replace("{id}", "%3Cstring%3E")
            assert seen.json == {key: value for key, value in request_body.items() if key not in REQUEST_ENVELOPE}
            if "identity" in request_body:
                assert seen.headers["x-api-key"] == "<string>"
                assert seen.headers["authorization"] == "Bearer <string>"
