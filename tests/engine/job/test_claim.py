"""A driver claims its job, keeps its lease, reports, and never commits without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.api.http.retry import NO_RETRY
from airflow_provider_lance.api.http.wire import Wire
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.jobs import JobSpec, Progress
from airflow_provider_lance.api.settings import Settings
from airflow_provider_lance.engine.job import claim as protocol
from airflow_provider_lance.engine.job.claim import (
    ClaimLostError,
    HeartbeatReporter,
    claim_job,
    read_launch_token,
)
from airflow_provider_lance.engine.job.context import JobCancelledError, JobError
from airflow_provider_lance.engine.main import main
from airflow_provider_lance.engine.run_job import EXIT_CANCELLED, EXIT_FAILED, EXIT_LOST
from tests.engine.backfills import assert_filled, column, declare_function, people
from tests.engine.job_server import JobServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server(uri: str) -> Iterator[JobServer]:
    spec = {"job_type": "backfill_column", "table_id": ["t"], "location": uri, "request": {"column": "n"}}
    server = JobServer(spec)
    yield server
    server.close()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text('{"launch_token": "launch", "api_key": "secret"}')
    token.chmod(0o600)
    monkeypatch.setenv("LANCE_JOB_TOKEN_FILE", str(token))


def arguments(server: JobServer, attempt: int = 1) -> list[str]:
    return ["--job-id", "job", "--attempt", str(attempt), "--namespace", server.url]


def claimed(server: JobServer) -> HeartbeatReporter:
    wire = Wire(Settings(server.url, retry=NO_RETRY))
    return HeartbeatReporter(wire, claim_job(wire, "job", 1, "launch"))


def refusal(reporter: HeartbeatReporter) -> type[JobCancelledError] | None:
    """Why a reporter tells its job to stop; None while it may go on."""
    try:
        reporter.check()
    except JobCancelledError as error:
        return type(error)
    return None


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_job_from_claim_to_done(spark: SparkSession, launched: None, server: JobServer, uri: str) -> None:
    assert main(arguments(server)) == 0
    assert_filled(uri)
    assert server.claims == [{"job_id": "job", "attempt": 1, "launch_token": "launch"}]
    assert server.headers[0]["x-api-key"] == "secret"
    assert server.terminal is not None
    assert server.terminal["state"] == "DONE"
    assert server.terminal is not None
    assert server.terminal["result"]["rows_assigned"] == 100
    assert server.reports[-1]["progress"]["fragments_done"] == 10
    assert any("Committed 10 fragments" in message for message in server.events)
    numbers = [report["seq"] for report in server.reports]
    assert numbers == sorted(set(numbers))


def test_a_refused_claim_leaves_at_once(launched: None, server: JobServer, uri: str) -> None:
    assert main(arguments(server, attempt=2)) == EXIT_LOST
    assert not server.reports
    assert lance.dataset(uri).version == 2


def test_a_bad_request_is_a_failure_that_is_not_retried(launched: None, server: JobServer) -> None:
    server.spec["request"] = {"column": "nope"}
    assert main(arguments(server)) == EXIT_FAILED
    assert server.terminal is not None
    failure = server.terminal["failure"]
    assert (failure["phase"], failure["retryable"]) == ("validate", False)
    assert "no column 'nope'" in failure["message"]


def test_an_unknown_job_type_is_told(launched: None, server: JobServer) -> None:
    server.spec["job_type"] = "paint_the_house"
    assert main(arguments(server)) == EXIT_FAILED
    assert server.terminal is not None
    assert "paint_the_house" in server.terminal["failure"]["message"]


def test_a_plan_is_a_job_with_a_plan_as_its_result(launched: None, server: JobServer, uri: str) -> None:
    assert main([*arguments(server), "--plan"]) == 0
    assert server.terminal is not None
    assert server.terminal["result"]["plan"]["rows"] == 100
    assert lance.dataset(uri).version == 2


def test_cancel_stops_within_seconds_and_leaves_the_table_readable(
    spark: SparkSession, launched: None, server: JobServer, tmp_path: Path
) -> None:
    uri = str(tmp_path / "slow.lance")

    def slow(number: int) -> int:
        import time

        time.sleep(0.05)
        return number

    declare_function(people(uri, rows=2000, per_fragment=10), slow, ["id"], {"n": pa.int64()})
    server.spec |= {"location": uri, "request": {"column": "n", "commit_granularity": 1}}
    answer: dict[str, int] = {}
    thread = threading.Thread(target=lambda: answer.update(exit=main(arguments(server))))
    thread.start()
    until(lambda: any("Committed" in message for message in server.events), seconds=60)
    server.cancel = True
    started = time.monotonic()
    until(lambda: server.terminal is not None)
    assert time.monotonic() - started < 5
    thread.join(timeout=20)
    assert answer["exit"] == EXIT_CANCELLED
    assert server.terminal is not None
    assert server.terminal["state"] == "CANCELLED"
    filled = sum(value is not None for value in column(uri, "n").values())
    assert server.terminal is not None
    assert server.terminal["result"]["rows_assigned"] == filled > 0


def test_a_lost_claim_commits_nothing(
    spark: SparkSession, launched: None, server: JobServer, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: HeartbeatReporter) -> None:
        server.lost = True
        until(lambda: refusal(self) is ClaimLostError)
        self.check()

    monkeypatch.setattr(HeartbeatReporter, "check_commit", lose)
    assert main(arguments(server)) == EXIT_LOST
    assert server.terminal is None
    assert lance.dataset(uri).version == 2


def test_heartbeats_renew_credentials_and_carry_progress(server: JobServer) -> None:
    with claimed(server) as reporter:
        server.renewed_options = {"aws_session_token": "fresh"}
        reporter.progress(Progress("compute", rows_done=7))
        until(lambda: reporter.storage_options.get("aws_session_token") == "fresh")
        until(lambda: server.reports and server.reports[-1]["progress"]["rows_done"] == 7)


def test_events_are_sent_once_even_when_a_report_is_lost(server: JobServer) -> None:
    with claimed(server) as reporter:
        server.drop = 2
        reporter.event("one")
        until(lambda: server.drop == 0)
        reporter.event("two")
        until(lambda: server.events == ["one", "two"])
        assert reporter.finish(JobState.DONE, {})


def test_no_commit_without_a_recent_renewal(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(server) as reporter:
        reporter.check_commit()
        monkeypatch.setattr(protocol, "RENEWED_SECONDS", 0.0)
        monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.5)
        server.drop = 1_000_000
        with pytest.raises(JobError, match="nothing more is committed") as caught:
            reporter.check_commit()
        assert caught.value.retryable


def test_a_short_outage_only_delays_a_commit(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RENEWED_SECONDS", 0.4)
    with claimed(server) as reporter:
        server.drop = 5
        until(lambda: server.drop <= 2)  # three heartbeats, which are 0.2 s apart
        reporter.check_commit()
        assert server.drop == 0


def test_the_last_word_is_repeated_until_heard(server: JobServer) -> None:
    with claimed(server) as reporter:
        server.drop = 3
        assert reporter.finish(JobState.DONE, {"rows_assigned": 1})
    assert server.terminal is not None
    assert server.terminal["result"] == {"rows_assigned": 1}


def test_cancel_and_loss_are_told_apart(server: JobServer) -> None:
    with claimed(server) as reporter:
        server.cancel = True
        until(lambda: refusal(reporter) is JobCancelledError)
        server.lost = True
        until(lambda: refusal(reporter) is ClaimLostError)


def test_credentials_come_from_a_file_or_the_environment_and_hide_in_reprs(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("bare-token\n")
    assert read_launch_token({"LANCE_JOB_TOKEN_FILE": str(token)}) == {"launch_token": "bare-token"}
    assert read_launch_token({"LANCE_JOB_TOKEN": "t", "LANCE_API_KEY": "k"}) == {"launch_token": "t", "api_key": "k"}
    claim = protocol.Claim(
        "job", "token-value", JobSpec("backfill_column", ["t"], "/t"), storage_options={"secret": "hidden"}
    )
    assert "token-value" not in repr(claim)
    assert "hidden" not in repr(claim)
