"""The hook: connections in every spelling, what *Test* says, and namespaces that are no server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.settings import InvalidSettingsError
from airflow_provider_lance.hooks.lance import LanceNamespaceHook
from tests.airflow.conftest import connection, rest_connection
from tests.airflow.jobs_server import JobsServer

pytestmark = pytest.mark.usefixtures("airflow_home")


def hook_of(uri_or_json: str) -> LanceNamespaceHook:
    with connection("hook_test", uri_or_json):
        hook = LanceNamespaceHook("hook_test")
        _ = hook.resolved
        return hook


@pytest.mark.parametrize(
    "spelling",
    [
        "lance://:s3cr3t@ns.example.com:8080/https?delimiter=.&database=db&timeout=7&context=" + quote('{"team": "a"}'),
        json.dumps(
            {
                "conn_type": "lance",
                "host": "ns.example.com",
                "port": 8080,
                "schema": "https",
                "password": "s3cr3t",
                "extra": {"delimiter": ".", "database": "db", "timeout": 7, "context": {"team": "a"}},
            }
        ),
        json.dumps(
            {
                "conn_type": "lance",
                "host": "https://ns.example.com:8080",
                "password": "s3cr3t",
                "extra": {"delimiter": ".", "database": "db", "timeout": "7", "context": {"team": "a"}, "scope": None},
            }
        ),
    ],
    ids=["URI", "JSON", "JSON with a whole URL"],
)
def test_every_spelling_of_a_connection_means_the_same(spelling: str) -> None:
    hook = hook_of(spelling)
    settings = hook.resolved.settings
    assert settings is not None
    assert settings.base_url == "https://ns.example.com:8080"
    assert (settings.auth, settings.database, settings.timeout) == ("api_key", "db", 7.0)
    assert dict(settings.context) == {"team": "a"}
    assert hook.parse_id("a.b") == ["a", "b"]
    assert hook.resolved.link("j1", "/ui/jobs/j1") == "https://ns.example.com:8080/ui/jobs/j1"
    assert hook.resolved.link("j1") is None
    assert "s3cr3t" not in repr(hook.resolved)


def test_the_job_page_can_be_elsewhere_or_nowhere() -> None:
    assert hook_of(rest_connection("http://h", job_url="https://ui/{job_id}/x")).resolved.link("7") == "https://ui/7/x"
    assert hook_of(rest_connection("http://h", job_url="")).resolved.link("7") is None


def test_the_test_button_says_what_it_reached(jobs_server: JobsServer) -> None:
    jobs_server.versions = {"a": 1, "b": 1}
    hook = hook_of(json.dumps({"conn_type": "lance", "host": jobs_server.url, "password": "s3cret"}))
    assert hook.test_connection() == (True, f"Reached {jobs_server.url} with API key: 2 tables in the root namespace.")


def test_a_form_that_sends_port_0_beside_a_url_is_read(jobs_server: JobsServer) -> None:
    hook = hook_of(json.dumps({"conn_type": "lance", "host": jobs_server.url, "port": 0, "schema": "", "login": ""}))
    ok, message = hook.test_connection()
    assert ok, message


def test_a_page_is_linked_where_it_is_configured_or_where_the_server_says_so(jobs_server: JobsServer) -> None:
    ours, foreign = jobs_server.add("t", page="/ui/jobs/x y").job_id, jobs_server.add("t").job_id
    hook = hook_of(rest_connection(jobs_server.url + "/"))
    assert hook.job_link(ours) == f"{jobs_server.url}/ui/jobs/x y"
    assert hook.job_link(foreign) is None
    assert hook.job_link("nobody") is None
    asked = len(jobs_server.requests)
    hook = hook_of(rest_connection(jobs_server.url, job_url="https://ui/{job_id}"))
    assert hook.job_link(ours) == f"https://ui/{ours}"
    assert len(jobs_server.requests) == asked, "what is configured needs no question"


def test_the_test_button_says_what_is_wrong(jobs_server: JobsServer) -> None:
    jobs_server.token = "right"
    bad = json.dumps(
        {"conn_type": "lance", "host": jobs_server.url, "password": "wrong-one", "extra": {"auth": "bearer"}}
    )
    ok, message = hook_of(bad).test_connection()
    assert not ok
    assert "The bearer token was refused: check the password of connection 'hook_test'." in message
    assert "wrong-one" not in message
    ok, message = hook_of(rest_connection(jobs_server.url)).test_connection()
    assert not ok
    assert "No credentials were sent: set the password of connection 'hook_test'." in message
    with connection("hook_test", json.dumps({"conn_type": "lance", "host": "http://h", "extra": {"auth": "magic"}})):
        ok, message = LanceNamespaceHook("hook_test").test_connection()
    assert not ok
    assert "oauth2" in message


def test_an_in_process_namespace_needs_no_server(tmp_path: Path) -> None:
    import pyarrow as pa

    hook = hook_of(json.dumps({"conn_type": "lance", "extra": {"impl": "dir", "properties": {"root": str(tmp_path)}}}))
    assert not hook.speaks_rest
    answer = hook.call("create_table", {"id": "t", "mode": "create"}, pa.table({"a": [1, 2]}))
    assert answer["version"] == 1
    assert "storage_options" not in answer
    assert hook.call("count_table_rows", {"id": ["t"]}) in ({"count": 2}, {"value": 2})
    assert hook.current_version(["t"]) == 1
    with pytest.raises(WireError) as missing:
        hook.current_version(["nope"])
    assert missing.value.code == 4
    with pytest.raises(WireError, match="describe_job") as unsupported:
        hook.job("j")
    assert unsupported.value.code == 0
    assert hook.test_connection() == (
        True,
        "Reached the in-process implementation 'dir': 1 table in the root namespace.",
    )


def test_the_async_client_is_the_same_namespace(jobs_server: JobsServer) -> None:
    jobs_server.versions = {"t": 5}

    async def version() -> int | None:
        client = await LanceNamespaceHook("hook_test").get_async_conn()
        async with client:
            return (await client.describe_table({"id": ["t"]})).version

    with connection("hook_test", rest_connection(jobs_server.url)):
        assert asyncio.run(version()) == 5


def test_junk_properties_are_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidSettingsError, match="properties"):
        hook_of(json.dumps({"conn_type": "lance", "extra": {"impl": "dir", "properties": "{not json"}}))
