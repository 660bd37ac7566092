"""A server that misbehaves: each fault has its outcome, counted in requests, through both clients."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pyarrow as pa
import pytest
from lance_namespace import errors as lance

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.http.retry import RetryPolicy
from airflow_provider_lance.api.jobs import Job
from tests.api.conftest import Both, Connect
from tests.api.fault_server import Answer, Fault, FaultServer, Reset, ResetInBody, Seen, free_port

BACKFILL = {"id": "t", "column": "n"}
TABLE = {"location": "memory://t", "version": 3}
NEW = {"error": "slow down", "code": 17, "detail": "starting", "instance": "i-1"}
OLD = {"error": "slow down", "code": 503, "type": "/errors/service-unavailable", "detail": "", "instance": "i-1"}


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        (Answer(503, NEW, {"retry-after": "0"}), 2),
        (Answer(503, OLD, {"retry-after": "0"}), 2),
        (Answer(429, NEW), 2),
        (Answer(502, "<html><title>Bad Gateway</title></html>", {"content-type": "text/html"}), 2),
        (Answer(504), 2),
        (Answer(500, "oops"), 2),
        (Reset, 2),
        (ResetInBody, 2),
    ],
    ids=["503-new", "503-old", "429", "502-html", "504", "500-text", "reset", "reset-in-body"],
)
def test_a_read_is_repeated_until_it_succeeds(
    server: FaultServer, connect: Connect, fault: Fault, requests: int
) -> None:
    server.play([fault, Answer(200, TABLE)])
    assert connect().describe_table({"id": "t"}).version == 3
    assert len(server.seen) == requests


def test_retry_after_as_a_date_is_waited_for(server: FaultServer, connect: Connect) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    server.play([Answer(503, NEW, {"retry-after": when}), Answer(200, TABLE)])
    began = time.monotonic()
    connect().describe_table({"id": "t"})
    assert time.monotonic() - began >= 0.9  # dates have whole seconds: at least one of the two is left
    assert len(server.seen) == 2


def test_retry_after_in_seconds_is_waited_for(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(503, NEW, {"retry-after": "1"}), Answer(200, TABLE)])
    began = time.monotonic()
    connect().describe_table({"id": "t"})
    assert time.monotonic() - began >= 1


def test_a_retry_after_beyond_the_time_limit_is_not_waited_for(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(503, NEW, {"retry-after": "3600"})])
    began = time.monotonic()
    with pytest.raises(lance.ServiceUnavailableError, match="slow down"):
        connect().describe_table({"id": "t"})
    assert time.monotonic() - began < 5
    assert len(server.seen) == 1


def test_it_gives_up_and_says_how_often_it_tried(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(503, NEW)])
    with pytest.raises(lance.ServiceUnavailableError, match=r"Gave up after 4 tries in [\d.]+ s"):
        connect().describe_table({"id": "t"})
    assert len(server.seen) == 4


def test_the_total_time_is_bounded(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(503, NEW)])
    policy = RetryPolicy(attempts=1000, first_delay=0.1, longest_delay=0.1, total_seconds=0.5)
    began = time.monotonic()
    with pytest.raises(lance.ServiceUnavailableError):
        connect(retry=policy).describe_table({"id": "t"})
    assert time.monotonic() - began < 5
    assert len(server.seen) < 12


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(400, {"error": "bad", "code": 13}), lance.InvalidInputError),
        (Answer(401, {"error": "who?", "code": 16}), lance.UnauthenticatedError),
        (Answer(403, {"error": "no", "code": 15}), lance.PermissionDeniedError),
        (Answer(404, {"error": "gone", "code": 4}), lance.TableNotFoundError),
        (Answer(409, {"error": "held", "code": 14}), lance.ConcurrentModificationError),
        (Answer(500, {"error": "Not supported: x", "code": 18}), lance.UnsupportedOperationError),
        (Answer(500, {"error": "broken", "code": 18}), lance.InternalError),
        (Answer(501, ""), lance.UnsupportedOperationError),
    ],
)
def test_a_considered_answer_is_never_repeated(
    server: FaultServer, connect: Connect, answer: Answer, expected: type[Exception]
) -> None:
    server.play([answer])
    with pytest.raises(expected):
        connect().describe_table({"id": "t"})
    assert len(server.seen) == 1


@pytest.mark.parametrize("fault", [Reset, ResetInBody, Answer(502), Answer(504), Answer(500, "oops"), Answer(503)])
def test_a_write_that_may_have_arrived_is_not_repeated(server: FaultServer, connect: Connect, fault: Fault) -> None:
    server.play([fault, Answer(200, {"version": 2})])
    with pytest.raises(lance.LanceNamespaceError) as caught:
        connect().delete_from_table({"id": "t", "predicate": "true"})
    assert vars(caught.value)["unknown_outcome"]
    assert len(server.seen) == 1


@pytest.mark.parametrize("fault", [Answer(429), Answer(503, NEW), Answer(503, "", {"retry-after": "0"})])
def test_a_write_the_server_refused_is_repeated(server: FaultServer, connect: Connect, fault: Fault) -> None:
    server.play([fault, Answer(200, {"version": 2})])
    assert connect().delete_from_table({"id": "t", "predicate": "true"}).version == 2
    assert len(server.seen) == 2


def test_a_replayable_write_is_repeated(server: FaultServer, connect: Connect) -> None:
    server.play([Reset, Answer(200, {"transaction_id": "x"})])
    assert connect().update_table_tag({"id": "t", "tag": "prod", "version": 2}).transaction_id == "x"
    assert len(server.seen) == 2


def test_a_slow_answer_times_out_with_a_sentence(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(200, TABLE, delay=1.0)])
    with pytest.raises(lance.ServiceUnavailableError, match="did not answer in time"):
        connect(timeout=0.1, retry=RetryPolicy(attempts=1)).describe_table({"id": "t"})
    assert len(server.seen) == 1


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[1]", b"17", b"<html>hello</html>", b'{"versions": 7}'])
def test_junk_with_a_success_status_is_an_error(server: FaultServer, connect: Connect, body: bytes) -> None:
    server.play([Answer(200, body)])
    with pytest.raises(lance.InternalError, match="cannot be read"):
        connect().list_table_versions({"id": "t"})
    assert len(server.seen) == 1


def test_unknown_fields_parse(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(200, {**TABLE, "invented_later": {"x": [1]}})])
    assert connect().describe_table({"id": "t"}).version == 3


def test_nobody_listens(both: Both) -> None:
    with free_port() as port, pytest.raises(lance.ServiceUnavailableError, match="server runs there") as caught:
        both(f"http://127.0.0.1:{port}").describe_table({"id": "t"})
    assert "Gave up after 4 tries" in str(caught.value)
    assert not vars(caught.value)["unknown_outcome"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(socket.EAI_NONAME, "Name or service not known"), (socket.EAI_AGAIN, "Temporary failure in name resolution")],
)
def test_an_unknown_host(both: Both, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(number, words)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(lance.ServiceUnavailableError, match="host name is unknown"):
        both("http://no-such-host.invalid", retry=RetryPolicy(attempts=1)).describe_table({"id": "t"})


def test_create_empty_falls_back_to_declare_only_where_the_route_is_missing(
    server: FaultServer, connect: Connect
) -> None:
    server.play([Answer(404)], "create-empty")
    server.play([Answer(200, {"location": "memory://e"})], "declare")
    request = {"id": ["n", "e"], "location": "memory://e", "properties": {"owner": "me"}}
    assert connect().create_empty_table(request).location == "memory://e"
    assert [seen.path for seen in server.seen] == ["/v1/table/n%24e/create-empty", "/v1/table/n%24e/declare"]
    assert [seen.json for seen in server.seen] == [{"location": "memory://e", "properties": {"owner": "me"}}] * 2

    server.play([Answer(404, {"error": "namespace n not found", "code": 1})], "create-empty")
    with pytest.raises(lance.NamespaceNotFoundError):
        connect().create_empty_table(request)
    assert len(server.requests("declare")) == 1


def test_pages_are_followed_to_the_end_and_a_repeated_token_ends_them(server: FaultServer, connect: Connect) -> None:
    pages = [
        Answer(200, {"tables": ["a", "b"], "page_token": "p2"}),
        Answer(200, {"tables": ["c"], "page_token": "p3"}),
        Answer(200, {"tables": ["d"], "page_token": "p3"}),
    ]
    server.play(pages)
    assert list(connect().iterate("list_tables", {"id": [], "limit": 2})) == ["a", "b", "c", "d"]
    assert [seen.path for seen in server.seen] == [
        "/v1/namespace/%24/table/list?limit=2",
        "/v1/namespace/%24/table/list?page_token=p2&limit=2",
        "/v1/namespace/%24/table/list?page_token=p3&limit=2",
    ]


def test_arrow_is_streamed_and_a_one_shot_source_is_sent_once(server: FaultServer, connect: Connect) -> None:
    table = pa.table({"a": range(10)})
    server.play([Answer(503, NEW), Answer(200, {"version": 2})])
    assert connect().insert_into_table({"id": "t", "mode": "append"}, table).version == 2
    for seen in server.seen:
        assert seen.headers["transfer-encoding"] == "chunked"
        assert seen.headers["content-type"] == "application/vnd.apache.arrow.stream"
        assert pa.ipc.open_stream(seen.body).read_all() == table
    server.seen.clear()
    server.play([Answer(503, NEW), Answer(200, {"version": 2})])
    with pytest.raises(lance.ServiceUnavailableError):
        connect().insert_into_table({"id": "t"}, iter(table.to_batches()))
    assert len(server.seen) == 1


def test_identity_context_delimiter_and_database_travel_where_they_belong(
    server: FaultServer, connect: Connect
) -> None:
    server.play([Answer(200, TABLE)])
    client = connect(delimiter="::", database="dev", context={"team": "search"})
    client.describe_table(
        {
            "id": "a::b c/ü",
            "version": 3,
            "with_table_uri": True,
            "identity": {"api_key": "k", "auth_token": "t"},
            "context": {"trace": "7", "header.X-Own": "x"},
        }
    )
    (seen,) = server.seen
    assert seen.path == "/v1/table/a%3A%3Ab%20c%2F%C3%BC/describe?delimiter=%3A%3A&with_table_uri=true"
    assert seen.json == {"version": 3, "with_table_uri": True}
    expected = {
        "x-api-key": "k",
        "authorization": "Bearer t",
        "x-lance-ctx-trace": "7",
        "x-lance-ctx-team": "search",
        "x-own": "x",
        "x-lancedb-database": "dev",
    }
    assert {name: seen.headers.get(name) for name in expected} == expected


class TestSubmit:
    """A job is started once, whatever happens to the answer."""

    def test_the_usual_way(self, server: FaultServer, connect: Connect) -> None:
        server.play([Answer(202, {"job_id": "j1"})])
        assert connect().alter_table_backfill_columns(BACKFILL).job_id == "j1"
        assert len(server.seen) == 1
        assert server.seen[0].headers["x-lance-ctx-idempotency-key"]

    @pytest.mark.parametrize("fault", [Reset, ResetInBody, Answer(502), Answer(500, "oops")])
    def test_a_lost_answer_is_settled_by_the_key(self, server: FaultServer, connect: Connect, fault: Fault) -> None:
        def find(seen: Seen) -> Answer:
            sent = server.requests("backfill_column")[0].headers["x-lance-ctx-idempotency-key"]
            assert seen.json == {"idempotency_key": sent}
            return Answer(200, {"jobs": [{"job_id": "j1", "state": "RUNNING"}], "filtered": True})

        server.play([fault], "backfill_column")
        server.play([find], "jobs/list")
        assert connect().alter_table_backfill_columns(BACKFILL).job_id == "j1"
        assert len(server.requests("backfill_column")) == 1

    def test_a_server_that_knows_keys_and_has_no_such_job_gets_it_again(
        self, server: FaultServer, connect: Connect
    ) -> None:
        server.play([Reset, Answer(202, {"job_id": "j2"})], "backfill_column")
        server.play([Answer(200, {"jobs": [], "filtered": True})], "jobs/list")
        assert connect().alter_table_backfill_columns(BACKFILL).job_id == "j2"
        sent = server.requests("backfill_column")
        assert len(sent) == 2
        assert len({seen.headers["x-lance-ctx-idempotency-key"] for seen in sent}) == 1

    def test_other_servers_are_asked_for_recent_jobs_of_that_table(self, server: FaultServer, connect: Connect) -> None:
        def rows(_: Seen) -> Answer:
            now = int(time.time() * 1000)
            jobs = [
                {"job_id": "old", "table": "t", "job_type": "x", "state": "RUNNING", "created_at_millis": now - 60_000},
                {"job_id": "other", "table": "u", "job_type": "x", "state": "RUNNING", "created_at_millis": now},
                {"job_id": "another", "table": "t", "job_type": "x", "state": "RUNNING", "created_at_millis": now},
                {"job_id": "ours", "table": "t", "job_type": "x", "state": "RUNNING", "created_at_millis": now},
            ]
            return Answer(200, {"jobs": jobs})

        def describe(seen: Seen) -> Answer:
            column = {"another": "m", "ours": "n"}[seen.json["job_id"]]
            return Answer(200, {"job_id": seen.json["job_id"], "job_state": "IN_PROGRESS", "spec": {"column": column}})

        server.play([ResetInBody], "backfill_column")
        server.play([rows], "jobs/list")
        server.play([describe], "jobs/describe")
        assert connect().alter_table_backfill_columns(BACKFILL).job_id == "ours"
        assert len(server.requests("backfill_column")) == 1

    def test_what_cannot_be_settled_is_an_error_and_no_second_submit(
        self, server: FaultServer, connect: Connect
    ) -> None:
        server.play([Reset, Answer(202, {"job_id": "j2"})], "backfill_column")
        server.play([Answer(404)], "jobs/list")
        with pytest.raises(lance.ServiceUnavailableError, match="look at its jobs before submitting again"):
            connect().alter_table_backfill_columns(BACKFILL)
        assert len(server.requests("backfill_column")) == 1

    def test_a_key_of_the_caller_is_sent_as_it_is_with_every_try(self, server: FaultServer, connect: Connect) -> None:
        server.play([Answer(429), Answer(202, {"job_id": "j1"})], "backfill_column")
        connect().alter_table_backfill_columns({**BACKFILL, "context": {"idempotency-key": "k1"}})
        assert [seen.headers["x-lance-ctx-idempotency-key"] for seen in server.seen] == ["k1", "k1"]

    def test_refusals_are_not_settled(self, server: FaultServer, connect: Connect) -> None:
        server.play([Answer(409, {"error": "held", "code": 14, "instance": "j9"})], "backfill_column")
        with pytest.raises(lance.ConcurrentModificationError) as caught:
            connect().alter_table_backfill_columns(BACKFILL)
        assert vars(caught.value)["instance"] == "j9"
        assert len(server.seen) == 1

    def test_a_gateways_timeout_is_settled_even_with_a_code(self, server: FaultServer, connect: Connect) -> None:
        server.play([Answer(504, {"error": "It may still be carried out.", "code": 17})], "backfill_column")
        server.play([Answer(200, {"jobs": [{"job_id": "j1"}], "filtered": True})], "jobs/list")
        assert connect().alter_table_backfill_columns(BACKFILL).job_id == "j1"


@pytest.mark.parametrize("name", [".", ".."])
def test_dots_never_become_another_path(server: FaultServer, connect: Connect, name: str) -> None:
    with pytest.raises(lance.InvalidInputError, match="no URL can carry"):
        connect().drop_table_index({"id": "t", "index_name": name})
    with pytest.raises(lance.InvalidInputError, match="no URL can carry"):
        connect(delimiter=".").list_tables({"id": []})
    assert not server.seen


def test_a_body_that_cannot_be_unpacked_is_a_broken_answer(server: FaultServer, connect: Connect) -> None:
    server.play([Answer(200, b"no gzip at all", {"content-encoding": "gzip"})])
    with pytest.raises(lance.LanceNamespaceError, match="describe_table 't' got no answer"):
        connect().describe_table({"id": "t"})


def state_of(job: Job | WireError) -> str:
    assert isinstance(job, Job), job
    return job.state.value


class TestJobs:
    """Any server's jobs, in any vocabulary."""

    def test_many_jobs_cost_one_request_where_the_server_filters(self, server: FaultServer, connect: Connect) -> None:
        def rows(seen: Seen) -> Answer:
            jobs = [{"job_id": job_id, "job_state": "DONE"} for job_id in seen.json["job_ids"] if job_id != "j3"]
            return Answer(200, {"jobs": jobs, "filtered": True})

        server.play([rows])
        found = connect().jobs([f"j{number}" for number in range(2500)])
        assert len(found) == 2499
        assert "j3" not in found
        assert len(server.seen) == 3

    def test_elsewhere_each_is_described_and_unknown_ones_are_absent(
        self, server: FaultServer, connect: Connect
    ) -> None:
        def describe(seen: Seen) -> Answer:
            job_id = seen.json["job_id"]
            if job_id == "j3":
                return Answer(404, {"error": "no such job", "code": 10})
            return Answer(200, {"job_id": job_id, "job_state": "in_progress"})

        server.play([Answer(200, {"jobs": []})], "jobs/list")
        server.play([describe], "jobs/describe")
        found = connect().jobs([f"j{number}" for number in range(20)])
        assert set(found) == {f"j{number}" for number in range(20)} - {"j3"}
        assert {state_of(job) for job in found.values()} == {"RUNNING"}

    def test_one_that_cannot_be_read_leaves_the_others_readable(self, server: FaultServer, connect: Connect) -> None:
        def describe(seen: Seen) -> Answer:
            if seen.json["job_id"] == "j1":
                return Answer(500, {"error": "corrupt row", "code": 18})
            return Answer(200, {"job_id": seen.json["job_id"], "job_state": "DONE"})

        server.play([Answer(200, {"jobs": []})], "jobs/list")
        server.play([describe], "jobs/describe")
        client = connect()
        for _ in range(2):
            found = client.jobs(["j0", "j1", "j2"])
            assert [state_of(found[job_id]) for job_id in ("j0", "j2")] == ["DONE", "DONE"]
            assert "corrupt row" in str(found["j1"])
        assert len(server.requests("jobs/list")) == 1, "a server that does not filter is not asked for its list again"

    @pytest.mark.parametrize("answer", [Answer(403, {"error": "may not list", "code": 15}), Answer(500, {"code": 18})])
    def test_a_list_that_is_refused_is_no_hindrance(
        self, server: FaultServer, connect: Connect, answer: Answer
    ) -> None:
        server.play([answer], "jobs/list")
        server.play([Answer(200, {"job_state": "DONE"})], "jobs/describe")
        assert state_of(connect().jobs(["j1"])["j1"]) == "DONE"

    def test_without_a_jobs_api_the_transaction_is_asked(self, server: FaultServer, connect: Connect) -> None:
        server.play([Answer(404)], "jobs/describe")
        server.play([Answer(200, {"status": "Succeeded"})], "/v1/transaction/j1/describe")
        job = connect().job("j1")
        assert (job.job_id, job.state.value) == ("j1", "DONE")
