"""The server over the wire: routes, identifiers, errors, limits, keys. A real process, real clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    ServiceUnavailableError,
    TableNotFoundError,
)

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.operations import OPERATIONS, Operation
from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.namespace.config import Limits
from airflow_provider_lance.namespace.jobs.database import Database, sqlite_url
from airflow_provider_lance.namespace.jobs.service import JobsService
from airflow_provider_lance.namespace.server.app import create_app
from airflow_provider_lance.namespace.server.keys import Keys
from tests.namespace.conftest import QUICK, wait_until
from tests.namespace.server_process import ServerProcess

PEOPLE = pa.table({"id": [1, 2, 3], "text": ["a", "bb", "ccc"]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server"), timings=QUICK).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[LanceClient]:
    with LanceClient(server.url) as client:
        client.create_table({"id": ["people"]}, PEOPLE)
        client.alter_table_add_columns({"id": ["people"], "new_columns": [{"name": "n", "computed": "length(text)"}]})
        yield client


def test_a_table_makes_the_round_trip(client: LanceClient) -> None:
    assert client.count_table_rows({"id": ["people"]}).count == 3
    assert client.describe_table({"id": ["people"]}).version == 2, "created, then a column was added"
    assert "people" in client.list_tables({"id": []}).tables
    table = client.query_arrow(
        {"id": ["people"], "vector": {}, "k": 10, "filter": "id > 1", "columns": {"column_names": ["id"]}}
    )
    assert table["id"].to_pylist() == [2, 3]
    assert client.table_exists({"id": ["people"]}) is not None


def test_a_backfill_is_a_job_that_ends(client: LanceClient, server: ServerProcess) -> None:
    context = {"idempotency-key": "backfill-1"}
    answer = client.alter_table_backfill_columns({"id": ["people"], "column": "n", "context": context})
    assert (answer.context or {})["header.x-lance-ctx-idempotency-key"] == "backfill-1"
    job = server.wait_for_end(answer.job_id)
    assert job["job_state"] == "DONE"
    assert job["result"]["rows_assigned"] == 1000
    events = client.query_job_events({"job_id": answer.job_id})
    assert events["message"].to_pylist()[-1] == "DONE on attempt 1"


def test_a_second_writer_gets_409_and_the_first_ones_id(client: LanceClient, server: ServerProcess) -> None:
    fields = {"id": ["people"], "column": "n", "cluster": "external"}
    first = client.alter_table_backfill_columns(fields)
    with pytest.raises(ConcurrentModificationError) as caught:
        client.alter_table_backfill_columns({**fields, "where": "id > 1"})
    assert vars(caught.value)["instance"] == first.job_id
    answer = server.post("/v1/table/people/backfill_column", {"column": "n", "where": "id > 2"})
    assert answer.status_code == 409
    assert answer.json()["code"] == 14
    assert answer.json()["instance"] == first.job_id
    client.cancel_job({"job_id": first.job_id})
    assert server.job(first.job_id)["job_state"] == "CANCELLED"


def test_an_unknown_cluster_is_refused_and_no_job_exists(client: LanceClient, server: ServerProcess) -> None:
    before = len(client.list_jobs({}).jobs)
    with pytest.raises(InvalidInputError, match="There is no cluster 'mars'"):
        client.alter_table_backfill_columns({"id": ["people"], "column": "n", "cluster": "mars"})
    assert len(client.list_jobs({}).jobs) == before


class TestRoutes:
    def test_every_operation_of_the_table_has_a_route(self, server: ServerProcess) -> None:
        for operation in OPERATIONS.values():
            path = operation.path.replace("{id}", "nothing").replace("{index_name}", "index")
            for slash in ("", "/"):
                answer = httpx.request(operation.method, f"{server.url}{path}{slash}", content=b"{}", timeout=30)
                body = answer.json() if answer.content and "json" in answer.headers["content-type"] else {}
                assert "no such route" not in str(body), operation.name
                assert answer.status_code != 405, operation.name
                assert answer.status_code < 500, (operation.name, answer.text)

    def test_another_method_or_route_is_a_lance_error(self, server: ServerProcess) -> None:
        for method, path, status in (
            ("GET", "/v1/table/x/describe", 405),
            ("POST", "/v2/table", 404),
            ("GET", "/x", 404),
        ):
            answer = httpx.request(method, f"{server.url}{path}")
            assert answer.status_code == status
            assert set(answer.json()) == {"error", "code", "detail", "instance"}
            assert answer.json()["code"] == 0

    def test_a_request_id_comes_back(self, server: ServerProcess) -> None:
        answer = httpx.post(f"{server.url}/v1/table/nope/describe", headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.json()["instance"] == "mine-1"

    def test_health_readiness_metrics_and_openapi(self, server: ServerProcess) -> None:
        assert httpx.get(f"{server.url}/healthz").text == "ok\n"
        assert httpx.get(f"{server.url}/readyz").text == "ready\n"
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'lance_requests_total{operation="healthz",status="200"}' in metrics
        assert 'lance_jobs{state="QUEUED"}' in metrics
        assert 'lance_request_seconds_bucket{operation="healthz",le="+Inf"}' in metrics
        document = httpx.get(f"{server.url}/openapi.json").json()
        assert {row.path for row in OPERATIONS.values()} <= set(document["paths"])

    def test_pages_need_nothing_from_elsewhere(self, server: ServerProcess) -> None:
        for path in ("/ui", "/ui/", "/ui/jobs/some-job", "/ui/static/pages.js", "/ui/static/pages.css"):
            answer = httpx.get(f"{server.url}{path}")
            assert answer.status_code == 200, path
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "http://" not in answer.text
            assert "https://" not in answer.text
        assert httpx.get(server.url).headers["location"] == "/ui"


class TestRequests:
    def test_empty_chunked_and_annotated_bodies(self, server: ServerProcess, client: LanceClient) -> None:
        url = f"{server.url}/v1/table/people/describe"
        for content in (b"", b"  ", b"{}", b'{"id": ["people"]}', b'{"id": "people"}', iter([b'{"ver', b'sion": 1}'])):
            answer = httpx.post(url, content=content)
            assert answer.status_code == 200, answer.text

    def test_a_body_with_another_id_is_refused(self, server: ServerProcess, client: LanceClient) -> None:
        answer = httpx.post(f"{server.url}/v1/table/people/describe", json={"id": ["others"]})
        assert answer.status_code == 400
        assert answer.json()["code"] == 13

    def test_another_delimiter(self, server: ServerProcess, client: LanceClient) -> None:
        client.create_namespace({"id": ["ns"]})
        client.create_table({"id": ["ns", "t"]}, PEOPLE)
        answer = httpx.post(f"{server.url}/v1/table/ns.t/count_rows?delimiter=.", json={})
        assert answer.json() == 3
        with LanceClient(Settings(server.url, delimiter="::")) as other:
            assert other.count_table_rows({"id": ["ns", "t"]}).count == 3

    @pytest.mark.parametrize(
        "content",
        [
            b"[1]",
            b"nonsense",
            b'{"version": NaN}',
            b'"text"',
            b"\xff\xfe",
            b'{"a": "\\u0000"}',
            b'{"a": "\\ud800"}',
            b'{"a": "\xed\xa0\x80"}',
            b'{"a": 1e999}',
            b"[" * 100_000,
        ],
    )
    def test_bodies_that_are_no_request(self, server: ServerProcess, content: bytes) -> None:
        answer = httpx.post(f"{server.url}/v1/table/people/describe", content=content)
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == 13

    @pytest.mark.parametrize("key", ["schlüssel", "a\r\nx: y", "a\tb", " a", "k" * 513])
    def test_a_key_that_could_be_no_header_is_refused_before_there_is_a_job(
        self, server: ServerProcess, client: LanceClient, key: str
    ) -> None:
        body = {"column": "n", "cluster": "external", "context": {"idempotency-key": key}}
        answer = server.post("/v1/table/people/backfill_column", body)
        assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.text
        assert "idempotency-key" in answer.json()["error"]
        assert server.post("/v1/jobs/list", {"idempotency_key": key}).json()["jobs"] == []

    def test_a_field_that_a_backfill_does_not_have_is_refused(self, server: ServerProcess, client: LanceClient) -> None:
        for field, words in {"wher": "did you mean `where`?", "bogus": "it takes"}.items():
            answer = server.post("/v1/table/people/backfill_column", {"column": "n", field: "id = 1"})
            assert (answer.status_code, answer.json()["code"]) == (400, 13)
            assert field in answer.json()["error"]
            assert words in answer.json()["error"]

    def test_query_fields_are_read_by_their_type(self, server: ServerProcess, client: LanceClient) -> None:
        answer = httpx.get(f"{server.url}/v1/namespace/$/table/list?limit=1&include_declared=false")
        assert len(answer.json()["tables"]) == 1
        assert httpx.get(f"{server.url}/v1/namespace/$/table/list?limit=soon").status_code == 400
        assert httpx.get(f"{server.url}/v1/namespace/$/table/list?include_declared=maybe").status_code == 400
        job_id = client.alter_table_backfill_columns({"id": ["people"], "column": "n", "where": "id > 1"}).job_id
        server.wait_for_end(job_id)
        for text in ("²", "٣", "-1", "1.5"):
            assert httpx.get(f"{server.url}/v1/jobs/{job_id}/log", params={"bytes": text}).status_code == 400, text

    @pytest.mark.parametrize(
        "identifier",
        ["..", ".", "../people", "a/b", "a\\b", "a\0b", "x" * 10_000, "people$..", "$$", "a$$b", "%", "\u202e",
         "a\nb", "CON", "people.lance", "~", "*", "{id}", "people$", "\udcff"],
    )  # fmt: skip
    def test_nasty_identifiers_touch_nothing(self, server: ServerProcess, identifier: str) -> None:
        before = _tree(server.directory)
        encoded = quote(identifier, safe="", errors="surrogateescape").replace(".", "%2e")
        for name in ("describe_table", "drop_table", "declare_table", "count_table_rows", "create_table"):
            operation = OPERATIONS[name]
            path = operation.path.replace("{id}", encoded)
            answer = httpx.request(operation.method, f"{server.url}{path}", content=b"{}")
            ok = name == "declare_table" and answer.status_code == 200 and identifier in {"CON", "people.lance"}
            assert ok or 400 <= answer.status_code < 500, (name, answer.status_code, answer.text)
            assert ok or set(answer.json()) == {"error", "code", "detail", "instance"}
        added = {path for path in _tree(server.directory) - before if "lake" not in path and "server.log" not in path}
        assert not {path for path in added if "state" not in path}

    def test_a_page_of_another_site_cannot_use_a_browser_against_us(self, server: ServerProcess) -> None:
        headers = {"origin": "https://evil.example", "content-type": "text/plain"}
        answer = httpx.post(f"{server.url}/v1/jobs/list", content=b"{}", headers=headers)
        assert answer.status_code == 403
        rebound = httpx.post(f"{server.url}/v1/jobs/list", content=b"{}", headers={"host": "evil.example"})
        assert rebound.status_code == 403
        for host in ("127.0.0.1.evil.example", "127.evil.example", "testserver", "localhost.evil.example", "10.0.0.1"):
            rebound = httpx.post(f"{server.url}/v1/jobs/list", content=b"{}", headers={"host": host})
            assert (rebound.status_code, rebound.json()["code"]) == (403, 15), host
        for host in ("localhost", "127.0.0.1:2333", "127.8.8.8", "[::1]:2333"):
            assert httpx.post(f"{server.url}/v1/jobs/list", content=b"{}", headers={"host": host}).status_code == 200
        own = {"origin": server.url, "content-type": "application/json"}
        assert httpx.post(f"{server.url}/v1/jobs/list", content=b"{}", headers=own).status_code == 200

    def test_a_missing_table_is_404_with_its_code(self, client: LanceClient) -> None:
        with pytest.raises(TableNotFoundError):
            client.describe_table({"id": ["nope"]})


class TestKeys:
    @pytest.fixture(scope="class")
    @classmethod
    def locked(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
        folder = tmp_path_factory.mktemp("locked")
        keys = {scope: f"a-key-for-{scope}-of-enough-length" for scope in ("read", "write", "jobs", "all")}
        (folder / "keys").write_text("# keys\n" + "".join(f"{scope}:{key}\n" for scope, key in keys.items()))
        process = ServerProcess(folder / "server", timings=QUICK, keys=folder / "keys").start()
        with LanceClient(Settings.from_connection(host=process.url, password=keys["all"])) as client:
            client.create_table({"id": ["people"]}, PEOPLE)
            client.alter_table_add_columns(
                {"id": ["people"], "new_columns": [{"name": "n", "computed": "length(text)"}]}
            )
        yield process, keys
        process.stop()

    def test_without_a_key_only_health_is_told(self, locked: tuple[ServerProcess, dict[str, str]]) -> None:
        server, _ = locked
        for path in ("/v1/table/people/describe", "/v1/jobs/list", "/v1/table/people/drop"):
            for headers in (
                {},
                {"x-api-key": "wrong"},
                {"authorization": "Bearer wrong"},
                {"authorization": "Basic x"},
            ):
                answer = server.post(path, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (401, 16), path
        for path in ("/metrics", "/ui/data/jobs", "/v1/jobs/x/log"):
            assert httpx.get(f"{server.url}{path}").status_code == 401
        for path in ("/healthz", "/readyz", "/ui"):
            assert httpx.get(f"{server.url}{path}").status_code == 200

    def test_scopes(self, locked: tuple[ServerProcess, dict[str, str]]) -> None:
        server, keys = locked

        def status(path: str, scope: str, body: object = None) -> int:
            return server.post(path, body, headers={"authorization": f"Bearer {keys[scope]}"}).status_code

        assert status("/v1/table/people/describe", "read") == 200
        assert status("/v1/table/people/describe", "write") == 403
        assert status("/v1/table/people/tags/create", "read", {"tag": "a", "version": 1}) == 403
        assert status("/v1/table/people/tags/create", "write", {"tag": "a", "version": 1}) == 200
        assert status("/v1/table/people/backfill_column", "write", {"column": "n", "cluster": "external"}) == 403
        assert status("/v1/table/people/backfill_column", "jobs", {"column": "n", "cluster": "external"}) == 202

    def test_cancelling_needs_the_same_scope_by_either_way(self, locked: tuple[ServerProcess, dict[str, str]]) -> None:
        server, keys = locked
        fields = {"column": "n", "cluster": "external", "where": "id > 2"}
        headers = {scope: {"x-api-key": key} for scope, key in keys.items()}
        for row in server.post("/v1/jobs/list", {"state": "QUEUED"}, headers=headers["all"]).json()["jobs"]:
            server.post("/v1/jobs/cancel", {"job_id": row["job_id"]}, headers=headers["all"])
        submitted = server.post("/v1/table/people/backfill_column", fields, headers=headers["jobs"])
        job_id = submitted.json()["job_id"]
        cancel = {"actions": [{"setStatusAction": {"status": "Canceled"}}]}
        alter = f"/v1/transaction/{job_id}/alter"
        for scope in ("read", "write"):
            assert server.post("/v1/jobs/cancel", {"job_id": job_id}, headers=headers[scope]).status_code == 403
            assert server.post(alter, cancel, headers=headers[scope]).status_code == 403
        assert server.post(alter, cancel, headers=headers["jobs"]).status_code == 200
        job = server.post("/v1/jobs/describe", {"job_id": job_id}, headers=headers["read"]).json()
        assert job["job_state"] == "CANCELLED"

    def test_an_empty_key_does_not_hide_a_good_token(self, locked: tuple[ServerProcess, dict[str, str]]) -> None:
        server, keys = locked
        headers = {"x-api-key": "", "authorization": f"Bearer {keys['read']}"}
        assert server.post("/v1/table/people/describe", headers=headers).status_code == 200

    def test_a_driver_needs_no_key_and_may_commit_while_it_holds_its_claim(
        self, locked: tuple[ServerProcess, dict[str, str]]
    ) -> None:
        server, keys = locked
        headers = {"x-api-key": keys["all"]}
        for row in server.post("/v1/jobs/list", {"state": "QUEUED"}, headers=headers).json()["jobs"]:
            server.post("/v1/jobs/cancel", {"job_id": row["job_id"]}, headers=headers)
        job_id = server.post("/v1/table/people/backfill_column", {"column": "n"}, headers=headers).json()["job_id"]

        def ended() -> str | None:
            state = str(server.post("/v1/jobs/describe", {"job_id": job_id}, headers=headers).json()["job_state"])
            return state if state not in {"QUEUED", "RUNNING"} else None

        assert wait_until(ended) == "DONE", "the fake driver has no key"
        fields = {"column": "n", "cluster": "external", "where": "id > 1"}
        job_id = server.post("/v1/table/people/backfill_column", fields, headers=headers).json()["job_id"]
        claim = {"job_id": job_id, "attempt": 1, "launch_token": "chosen by me, at random"}
        assert server.post("/v1/jobs/claim", claim).status_code == 401
        token = server.post("/v1/jobs/claim", claim, headers=headers).json()["claim_token"]
        assert server.post("/v1/jobs/claim", claim).json()["claim_token"] == token  # from now on the token is enough
        bearer = {"authorization": f"Bearer {token}"}
        assert server.post("/v1/table/people/describe", headers=bearer).status_code == 200
        assert server.post("/v1/table/people/version/list", headers=bearer).status_code == 200
        assert server.post("/v1/table/people/version/describe", {"version": 1}, headers=bearer).status_code == 200
        staged = {"version": 99, "manifest_path": "nowhere"}
        assert server.post("/v1/table/people/version/create", staged, headers=bearer).status_code == 400
        for path, body in {
            "/v1/jobs/cancel": {"job_id": job_id},
            "/v1/jobs/describe": {"job_id": job_id},
            "/v1/table/people/count_rows": {},
            "/v1/table/people/drop": {},
            "/v1/table/people/tags/create": {"tag": "mine", "version": 1},
            "/v1/table/people/version/delete": {"ranges": []},
            "/v1/table/pets/describe": {},
            "/v1/table/pets/version/create": staged,
            "/v1/table/pets.people/describe?delimiter=.": {},
            "/v1/table/people/backfill_column": {"column": "n"},
        }.items():
            answer = server.post(path, body, headers=bearer)
            assert (answer.status_code, answer.json()["code"]) == (403, 15), path
        for path in ("/v1/table", "/metrics", "/ui/data/jobs"):
            assert httpx.get(f"{server.url}{path}", headers=bearer).status_code == 403, path
        end = {"job_id": job_id, "claim_token": token, "seq": 1, "terminal": {"state": "DONE", "result": {}}}
        assert server.post("/v1/jobs/report", end).json()["state"] == "DONE"
        assert server.post("/v1/table/people/describe", headers=bearer).status_code == 401


class Slow:
    """A namespace that takes its time, on a storage that does not answer where a table's name says so."""

    def run(self, operation: Operation, request: object = None, request_data: object = None) -> object:
        assert isinstance(request, dict)
        if operation.jobs_api:
            return {"jobs": []}
        if operation.name == "insert_into_table" or request["id"] == ["away"]:
            raise ServiceUnavailableError("The storage timed out.")
        time.sleep(float(request["id"][0]))
        return {"version": 1}


class TestLimits:
    @pytest.fixture
    def ask(self, tmp_path: Path) -> Iterator[Callable[..., Any]]:
        database = Database(sqlite_url(tmp_path / "jobs.sqlite"))
        jobs = JobsService(database, directory=tmp_path / "state", namespace_url="http://127.0.0.1:1")
        limits = Limits(
            max_json_bytes=1000,
            max_arrow_bytes=5000,
            threads=4,
            max_waiting_requests=5,
            request_seconds=0.5,
            body_seconds=0.2,
        )
        app = create_app(Slow(), jobs, Keys(database), limits=limits)

        def ask(*requests: tuple[str, Any]) -> list[httpx.Response]:
            async def all_at_once() -> list[httpx.Response]:
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                    calls = [
                        http.get(path) if content is None else http.post(path, content=content)
                        for path, content in requests
                    ]
                    return await asyncio.gather(*calls)

            return asyncio.run(all_at_once())

        yield ask
        database.close()

    def test_large_bodies_are_refused_announced_or_not(self, ask: Callable[..., Any]) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(2):
                yield b" " * 600

        announced = ("/v1/jobs/list", b" " * 2000)
        arrow = ("/v1/table/t/create", b" " * 6000)
        for answer in ask(announced, ("/v1/jobs/list", chunks()), arrow):
            assert (answer.status_code, answer.json()["code"]) == (413, 13)

    def test_a_slow_request_is_answered_in_time(self, ask: Callable[..., Any]) -> None:
        slow, quick = ask(("/v1/table/0.8/describe", b"{}"), ("/v1/table/0/describe", b"{}"))
        assert (slow.status_code, slow.json()["code"]) == (504, 17)
        assert "may still be carried out" in slow.json()["error"]
        assert quick.json() == {"version": 1}

    def test_what_is_too_much_at_once_is_told_to_come_back(self, ask: Callable[..., Any]) -> None:
        answers = ask(*[("/v1/table/0.1/describe", b"{}")] * 8)
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [503] * 3
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["code"] == 17

    def test_storage_that_gives_up_within_a_write_leaves_it_open_whether_it_was_done(
        self, ask: Callable[..., Any]
    ) -> None:
        write, read = ask(("/v1/table/t/insert", b"rows"), ("/v1/table/away/describe", b"{}"))
        assert (write.status_code, write.json()["code"]) == (504, 17)
        assert "look before you send it again" in write.json()["error"]
        assert "retry-after" not in write.headers
        assert (read.status_code, read.headers["retry-after"]) == (503, "1"), "a read is sent again without harm"

    def test_whoever_sends_slowly_keeps_nobody_out(self, ask: Callable[..., Any]) -> None:
        async def half() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(0.4)

        slow = [(f"/v1/jobs/{verb}", half()) for verb in ("report", "claim") for _ in range(4)]
        *late, described, health = ask(*slow, ("/v1/table/0/describe", b"{}"), ("/healthz", None))
        assert (described.status_code, health.status_code) == (200, 200)
        assert [answer.status_code for answer in late] == [408] * 8

    def test_a_known_sender_may_take_long_but_not_pause(self, ask: Callable[..., Any]) -> None:
        async def drops(pause: float) -> AsyncIterator[bytes]:
            for _ in range(4):
                yield b" "
                await asyncio.sleep(pause)

        steady, paused, stranger = ask(
            ("/v1/jobs/list", drops(0.1)), ("/v1/jobs/list", drops(0.4)), ("/v1/jobs/claim", drops(0.1))
        )
        assert (steady.status_code, paused.status_code, stranger.status_code) == (200, 408, 408)

    def test_health_is_told_however_busy_the_server_is(self, ask: Callable[..., Any]) -> None:
        *_, health = ask(*[("/v1/table/0.1/describe", b"{}")] * 8, ("/healthz", None))
        assert health.status_code == 200


def test_a_base_path_is_in_front_of_everything(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path / "based", timings=QUICK, base_path="/lance/v0").start()
    try:
        assert process.url.endswith("/lance/v0")
        assert process.post("/v1/jobs/list").status_code == 200
        assert '"/lance/v0/ui/static/pages.js"' in httpx.get(f"{process.url}/ui").text
        bare = process.url.removesuffix("/lance/v0")
        assert httpx.post(f"{bare}/v1/jobs/list").status_code == 404
        assert httpx.get(f"{bare}/healthz").status_code == 200
    finally:
        process.stop()
    assert "Application shutdown complete" in process.log()


def _tree(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*")}
