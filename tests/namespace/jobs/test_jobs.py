"""The promises of the jobs service, each on SQLite and on PostgreSQL: submit once, one writer, claim once, end once."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.api.models import QueryJobEventsRequest
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.jobs.database import Database, now_ms
from airflow_provider_lance.namespace.jobs.executions import Launch
from airflow_provider_lance.namespace.jobs.launcher import Driver
from airflow_provider_lance.namespace.jobs.registry import Timings
from airflow_provider_lance.namespace.jobs.service import JobsService, read_job_request
from airflow_provider_lance.namespace.submission import JobSubmission
from airflow_provider_lance.system.process_groups import ProcessGroup
from tests.namespace.conftest import QUICK, ask, fake_config, submission, wait_until


def launch(service: JobsService, job_id: str) -> Launch:
    row = service.registry.get(job_id)
    assert row is not None
    found = service.executions.begin_launch(job_id, row.attempt)
    assert found is not None
    return found


def claimed(service: JobsService, job_id: str) -> dict[str, Any]:
    """Launch and claim; gives back the start of every report."""
    started = launch(service, job_id)
    claim = ask(service.claim_job, {"job_id": job_id, "attempt": started.attempt, "launch_token": started.token})
    return {"job_id": job_id, "claim_token": claim["claim_token"]}


def state(service: JobsService, job_id: str) -> str:
    return str(ask(service.describe_job, {"job_id": job_id})["job_state"])


def stored_state(service: JobsService, job_id: str) -> str:
    """The state of a job, read without asking for it: that would renew its waiter's lease."""
    row = service.registry.get(job_id)
    assert row is not None
    return str(row.state)


def rounds_until(service: JobsService, condition: Callable[[], bool]) -> None:
    """Let the supervisor do its rounds until something has happened."""

    def happened() -> bool:
        service.supervisor.round()
        return condition()

    wait_until(happened)


def make_service(database: Database, tmp_path: Path, timings: Timings) -> JobsService:
    return JobsService(database, fake_config(), directory=tmp_path / "state", namespace_url="", timings=timings)


def events_of(service: JobsService, **fields: object) -> pa.Table:
    request = read_job_request(QueryJobEventsRequest, fields)
    return pa.ipc.open_stream(service.query_job_events(request)).read_all()


DONE = {"state": "DONE", "result": {"rows_assigned": 5}}


class TestSubmit:
    def test_a_job_is_described_with_the_fields_lancedb_reads(self, service: JobsService) -> None:
        job_id = service.submit(submission("embedding", "people"))
        body = ask(service.describe_job, {"job_id": job_id})
        assert body["job_id"] == job_id
        assert body["job_state"] == "QUEUED"
        assert body["job_type"] == "backfill_column"
        assert body["spec"]["column"] == "embedding"
        assert body["table"] == "people"
        assert abs(body["creation_ms"] - time.time() * 1000) < 60_000
        assert "result" not in body
        assert "failure" not in body

    @pytest.mark.parametrize("job_id", ["nope", "", "x" * 1000, "../../etc"])
    def test_an_unknown_job_is_not_found(self, service: JobsService, job_id: str) -> None:
        with pytest.raises(TransactionNotFoundError):
            ask(service.describe_job, {"job_id": job_id})

    def test_an_id_that_no_database_stores_is_refused(self, service: JobsService) -> None:
        with pytest.raises(InvalidInputError, match="NUL"):
            ask(service.describe_job, {"job_id": "a\0b"})

    def test_the_same_key_and_body_find_the_live_job(self, service: JobsService) -> None:
        first = service.submit(submission(context={"idempotency-key": "k"}))
        assert service.submit(submission(context={"idempotency-key": "k"})) == first

    def test_a_job_says_which_task_asked_for_it_and_a_later_try_finds_it(self, service: JobsService) -> None:
        entries = {"dag-id": "etl", "run-id": "manual__1", "task-id": "fill", "map-index": "2", "try": "1"}
        first = service.submit(submission(context={"idempotency-key": "k", **entries}))
        assert service.submit(submission(context={"idempotency-key": "k", **entries, "try": "2"})) == first
        asked = {"dag_id": "etl", "run_id": "manual__1", "task_id": "fill", "map_index": 2, "try_number": 1}
        assert ask(service.describe_job, {"job_id": first})["requester"] == asked
        with pytest.raises(JobConflictError, match="is the same") as caught:
            service.submit(submission(context={"dag-id": "another", "task-id": "fill"}))
        assert caught.value.differing_fields == []

    def test_a_job_of_nobody_has_no_requester(self, service: JobsService) -> None:
        assert "requester" not in ask(service.describe_job, {"job_id": service.submit(submission())})

    def test_a_registry_of_the_first_schema_is_migrated_with_its_jobs(
        self, service: JobsService, database_url: str
    ) -> None:
        old = service.submit(submission("old"))
        with service.database.writing() as connection:
            for column in ("requester", "start_path", "launched_ms", "claimed_ms", "user_code"):
                connection.exec_driver_sql(f"ALTER TABLE lance_jobs DROP COLUMN {column}")
            connection.exec_driver_sql("UPDATE lance_schema_version SET version = 1")
        for _ in range(2):  # the second time there is nothing to do
            Database(database_url).close()
        new = service.submit(submission("new", context={"dag-id": "etl", "task-id": "fill"}))
        assert "requester" not in ask(service.describe_job, {"job_id": old})
        assert ask(service.describe_job, {"job_id": new})["requester"]["dag_id"] == "etl"
        assert launch(service, old).attempt == 1

    def test_a_job_says_how_and_when_its_driver_began(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        assert "start_path" not in ask(service.describe_job, {"job_id": job_id})
        started = launch(service, job_id)
        waiting = ask(service.describe_job, {"job_id": job_id})
        assert waiting["start_path"] == "cold"
        assert waiting["created_at_millis"] <= waiting["launched_ms"]
        assert "claimed_ms" not in waiting
        ask(service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": started.token})
        running = ask(service.describe_job, {"job_id": job_id})
        assert running["launched_ms"] == waiting["launched_ms"] <= running["claimed_ms"]

    def test_the_same_key_with_another_body_is_a_conflict(self, service: JobsService) -> None:
        first = service.submit(submission(context={"idempotency-key": "k"}))
        with pytest.raises(JobConflictError, match="another request") as caught:
            service.submit(submission("other", context={"idempotency-key": "k"}))
        assert caught.value.instance == first

    def test_the_same_key_with_other_options_is_a_conflict(self, service: JobsService) -> None:
        def strict(rows: str) -> JobSubmission:
            plain = submission(context={"idempotency-key": "k"})
            return replace(plain, spec=replace(plain.spec, options={"max_failed_rows": rows}))

        job_id = service.submit(strict("0"))
        assert service.submit(strict("0")) == job_id
        for other in (strict("5"), submission(context={"idempotency-key": "k"})):
            with pytest.raises(ConcurrentModificationError, match=job_id):
                service.submit(other)

    def test_after_the_end_the_same_key_starts_a_new_job(self, service: JobsService) -> None:
        first = service.submit(submission(context={"idempotency-key": "k"}))
        report = claimed(service, first)
        ask(service.report_job, {**report, "seq": 1, "terminal": DONE})
        second = service.submit(submission(context={"idempotency-key": "k"}))
        assert second != first
        rows = ask(service.list_jobs, {"idempotency_key": "k"})["jobs"]
        assert [row["job_id"] for row in rows] == [second, first]

    def test_a_job_being_cancelled_does_not_answer_for_its_key(self, service: JobsService) -> None:
        first = service.submit(submission(context={"idempotency-key": "k"}))
        claimed(service, first)
        ask(service.cancel_job, {"job_id": first})
        assert state(service, first) == "RUNNING"
        with pytest.raises(JobConflictError, match="still writing") as caught:
            service.submit(submission(context={"idempotency-key": "k"}))
        assert caught.value.instance == first
        again = service.submit(submission("m", context={"idempotency-key": "k"}))
        assert again != first

    def test_at_most_one_live_job_writes_a_column(self, service: JobsService) -> None:
        first = service.submit(submission())
        with pytest.raises(JobConflictError) as caught:
            service.submit(submission(where="id > 3"))
        assert caught.value.instance == first
        assert caught.value.differing_fields == ["where"]
        assert "Its request differs in where." in str(caught.value)
        service.submit(submission("m"))
        ask(service.cancel_job, {"job_id": first})
        assert service.submit(submission()) != first

    def test_who_is_refused_learns_whether_the_live_job_does_the_same(self, service: JobsService) -> None:
        def differing(job: JobSubmission) -> list[str] | None:
            with pytest.raises(JobConflictError) as caught:
                service.submit(job)
            return caught.value.differing_fields

        def strict(job: JobSubmission) -> JobSubmission:
            return replace(job, spec=replace(job.spec, options={"max_failed_rows": "0"}))

        service.submit(submission(context={"idempotency-key": "a"}))
        assert differing(submission(context={"idempotency-key": "b", "lease-seconds": "60"})) == []
        assert differing(strict(submission())) == ["max_failed_rows"]
        assert differing(submission(context={"idempotency-key": "a"}, fake={"rows": 3})) == ["fake"]
        assert differing(submission("m", locks=("t|main|n",))) == ["column"]

    def test_a_refused_submit_leaves_nothing_behind(self, service: JobsService) -> None:
        service.submit(submission(locks=("a", "b")))
        with pytest.raises(ConcurrentModificationError):
            service.submit(submission(locks=("b", "c"), context={"idempotency-key": "k"}))
        service.submit(submission(locks=("c",)))
        assert len(ask(service.list_jobs, {})["jobs"]) == 2

    def test_many_submits_of_one_key_at_once_are_one_job(self, service: JobsService) -> None:
        gate = threading.Barrier(16)

        def one(_: int) -> str:
            gate.wait()
            return service.submit(submission(context={"idempotency-key": "k"}))

        with ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(one, range(16)))) == 1
        assert len(ask(service.list_jobs, {})["jobs"]) == 1

    def test_many_submits_of_one_column_at_once_have_one_winner(self, service: JobsService) -> None:
        gate = threading.Barrier(16)

        def one(number: int) -> str:
            gate.wait()
            try:
                return service.submit(submission(context={"idempotency-key": f"k{number}"}))
            except JobConflictError as error:
                return f"lost to {error.instance}"

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(one, range(16)))
        winners = [answer for answer in answers if not answer.startswith("lost")]
        assert len(winners) == 1
        assert answers.count(f"lost to {winners[0]}") == 15

    @pytest.mark.parametrize(
        ("fields", "match"),
        [
            ({"cluster": "nowhere"}, "There is no cluster 'nowhere'; this server knows 'external', 'local'"),
            ({"environment": "nothing"}, "There is no environment 'nothing'"),
            ({"context": {"lease-seconds": "soon"}}, "lease-seconds"),
            ({"context": {"idempotency-key": "k" * 600}}, "idempotency-key"),
        ],
    )
    def test_what_cannot_be_honoured_is_refused_before_a_job_exists(
        self, service: JobsService, fields: dict[str, Any], match: str
    ) -> None:
        with pytest.raises(InvalidInputError, match=match):
            service.submit(submission(**fields))
        assert ask(service.list_jobs, {})["jobs"] == []


class TestClaimAndReport:
    def test_the_wait_for_a_driver_is_measured_once_per_job(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        request = {"job_id": job_id, "attempt": 1, "launch_token": launch(service, job_id).token}
        assert "lance_job_start_seconds_count" not in "".join(service.start_seconds.lines())
        for _ in range(2):
            ask(service.claim_job, request)
        assert 'lance_job_start_seconds_count{path="cold"} 1' in service.start_seconds.lines()
        elsewhere = service.submit(submission("elsewhere", cluster="external"))
        ask(service.claim_job, {"job_id": elsewhere, "attempt": 1, "launch_token": "the token of a driver"})
        assert sum("_count{" in line for line in service.start_seconds.lines()) == 1, "we start no driver there"

    def test_the_same_claim_again_gets_the_same_answer(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        started = launch(service, job_id)
        request = {"job_id": job_id, "attempt": 1, "launch_token": started.token}
        first, second = ask(service.claim_job, request), ask(service.claim_job, request)
        assert first == second
        assert first["spec"]["request"]["column"] == "n"
        assert (first["lease_seconds"], first["heartbeat_seconds"]) == (QUICK.lease, QUICK.heartbeat)
        assert state(service, job_id) == "RUNNING"

    def test_only_the_launch_token_of_the_current_attempt_claims(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        started = launch(service, job_id)
        with pytest.raises(PermissionDeniedError):
            ask(service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": "guess"})
        with pytest.raises(PermissionDeniedError):
            ask(service.claim_job, {"job_id": job_id, "attempt": 1})
        with pytest.raises(ConcurrentModificationError, match="not current"):
            ask(service.claim_job, {"job_id": job_id, "attempt": 2, "launch_token": started.token})
        assert state(service, job_id) == "QUEUED"

    def test_a_job_is_claimed_by_exactly_one_of_many(self, service: JobsService) -> None:
        job_id = service.submit(submission(cluster="external"))

        def one(number: int) -> bool:
            try:
                ask(
                    service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": f"the token of driver {number}"}
                )
            except ConcurrentModificationError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(one, range(8))) == [False] * 7 + [True]

    def test_storage_options_are_vended_at_claim_and_before_they_expire(self, service: JobsService) -> None:
        given: list[str] = []

        def vend(spec: Any) -> dict[str, str]:
            given.append(spec.location)
            return {"key": f"secret-{len(given)}", "expires_at_millis": str(int(time.time() * 1000) + 1000)}

        service.vend = vend
        job_id = service.submit(submission())
        started = launch(service, job_id)
        claim = ask(service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": started.token})
        assert claim["storage_options"]["key"] == "secret-1"
        assert claim["expires_at"] == pytest.approx(time.time() + 1, abs=1)
        answer = ask(service.report_job, {"job_id": job_id, "claim_token": claim["claim_token"], "seq": 1})
        assert answer["storage_options"]["key"] == "secret-2"
        assert "secret" not in str(ask(service.describe_job, {"job_id": job_id}))
        row = service.registry.get(job_id)
        assert row is not None
        assert "secret" not in str(row._mapping)
        assert started.token not in str(row._mapping)
        assert claim["claim_token"] not in str(row._mapping)

    def test_progress_and_events_reach_whoever_asks(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        line = {"message": "fragment 3 conflicts", "at_ms": 1_700_000_000_000, "fragment": 3}
        progress = {"phase": "compute", "rows_done": 5, "rows_total": 10, "rows_per_second": 2.5, "surprise": 1}
        answer = ask(service.report_job, {**report, "seq": 1, "progress": progress, "events": [line]})
        assert answer["cancel"] is False
        assert answer["lease_until"] > time.time()
        body = ask(service.describe_job, {"job_id": job_id})
        assert (body["progress"]["rows_done"], body["progress"]["phase"]) == (5, "compute")
        events = events_of(service, job_id=job_id).to_pylist()
        assert [event["message"] for event in events] == [
            "Submitted to cluster 'local': queued",
            "Launching a driver",
            "A driver claimed attempt 1",
            "fragment 3 conflicts",
        ]
        assert events[-1]["fields"] == '{"fragment": 3}'
        assert events[-1]["rows_processed"] == 5
        assert events[-1]["emitted_by"] == "driver"

    def test_a_replayed_report_changes_nothing(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        line = {"message": "once", "at_ms": 1}
        for rows in (10, 99):
            ask(service.report_job, {**report, "seq": 1, "progress": {"rows_done": rows}, "events": [line]})
        assert ask(service.describe_job, {"job_id": job_id})["progress"]["rows_done"] == 10
        events = events_of(service, job_id=job_id)["message"].to_pylist()
        assert events.count("once") == 1

    def test_a_driver_started_again_with_its_claim_is_heard(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        started = launch(service, job_id)
        request = {"job_id": job_id, "attempt": 1, "launch_token": started.token}
        report = {"job_id": job_id, "claim_token": ask(service.claim_job, request)["claim_token"]}
        for seq in range(1, 6):
            ask(service.report_job, {**report, "seq": seq, "progress": {"rows_done": 100 + seq}})
        ask(service.claim_job, request)
        ask(service.report_job, {**report, "seq": 1, "progress": {"rows_done": 7}})
        assert ask(service.describe_job, {"job_id": job_id})["progress"]["rows_done"] == 7
        assert ask(service.report_job, {**report, "seq": 2, "terminal": DONE})["state"] == "DONE"

    def test_an_end_is_an_end_whatever_its_number(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        ask(service.report_job, {**report, "seq": 5})
        assert ask(service.report_job, {**report, "seq": 1, "terminal": DONE})["state"] == "DONE"
        assert state(service, job_id) == "DONE"

    def test_a_terminal_replay_returns_the_stored_result(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        first = ask(service.report_job, {**report, "seq": 2, "terminal": DONE})
        assert (first["state"], first["result"]) == ("DONE", {"rows_assigned": 5})
        other = {"state": "FAILED", "failure": {"phase": "x", "message": "y"}}
        for seq, terminal in ((2, DONE), (3, DONE), (3, other)):
            assert ask(service.report_job, {**report, "seq": seq, "terminal": terminal}) == first
        assert state(service, job_id) == "DONE"
        with pytest.raises(ConcurrentModificationError, match="has ended"):
            ask(service.report_job, {**report, "seq": 4})

    def test_a_failure_is_told_in_its_own_words(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        failure = {"phase": "compute", "message": "division by zero", "retryable": False}
        ask(
            service.report_job,
            {**claimed(service, job_id), "seq": 1, "terminal": {"state": "FAILED", "failure": failure}},
        )
        assert ask(service.describe_job, {"job_id": job_id})["failure"] == failure

    @pytest.mark.parametrize(
        "terminal", [{}, {"state": "RUNNING"}, {"state": "FAILED"}, {"state": "DONE", "result": 5}, {"state": None}]
    )
    def test_a_terminal_report_that_says_nothing_is_refused(
        self, service: JobsService, terminal: dict[str, Any]
    ) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        with pytest.raises(InvalidInputError):
            ask(service.report_job, {**report, "seq": 1, "terminal": terminal})
        assert state(service, job_id) == "RUNNING"

    def test_a_lost_claim_is_refused_and_its_successor_goes_on(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        old = claimed(service, job_id)
        row = service.registry.get(job_id)
        assert row is not None
        service.executions.driver_died(row, "It went away.")
        with pytest.raises(ConcurrentModificationError, match="was lost"):
            ask(service.report_job, {**old, "seq": 1, "terminal": DONE})
        time.sleep(0.1)
        new = claimed(service, job_id)
        with pytest.raises(ConcurrentModificationError, match="was lost"):
            ask(service.report_job, {**old, "seq": 2, "terminal": DONE})
        ask(service.report_job, {**new, "seq": 1, "terminal": DONE})
        assert ask(service.describe_job, {"job_id": job_id})["attempt"] == 2
        assert state(service, job_id) == "DONE"

    def test_a_report_that_arrives_while_the_driver_is_given_up_wins(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        stale = service.registry.get(job_id)
        assert stale is not None
        ask(service.report_job, {**report, "seq": 1})
        service.executions.driver_died(stale, "too late to say so")
        ask(service.report_job, {**report, "seq": 2, "terminal": DONE})
        assert state(service, job_id) == "DONE"

    def test_the_third_dead_attempt_is_the_last(self, service: JobsService) -> None:
        job_id = service.submit(submission(context={"idempotency-key": "k"}))
        for attempt in (1, 2, 3):
            claimed(service, job_id)
            row = service.registry.get(job_id)
            assert row is not None
            assert row.attempt == attempt
            service.executions.driver_died(row, "It went away.")
        body = ask(service.describe_job, {"job_id": job_id})
        assert body["job_state"] == "FAILED"
        assert body["failure"]["retryable"] is True
        assert "attempt 3 of 3" in body["failure"]["message"]
        assert service.submit(submission(context={"idempotency-key": "k"})) != job_id


class TestExternal:
    def test_it_waits_for_a_claim_and_may_be_claimed_again_after_a_death(self, service: JobsService) -> None:
        job_id = service.submit(submission(cluster="external"))
        body = ask(service.describe_job, {"job_id": job_id})
        assert (body["attempt"], body["job_state"]) == (1, "QUEUED")
        service.supervisor.round()
        ask(service.claim_job, {"job_id": job_id, "attempt": 1})
        for token in (None, "", "somebody else's token"):
            with pytest.raises(ConcurrentModificationError):
                ask(service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": token})
        with pytest.raises(InvalidInputError, match="random"):
            ask(service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": "short"})
        row = service.registry.get(job_id)
        assert row is not None
        service.executions.driver_died(row, "It went away.")
        claim = ask(service.claim_job, {"job_id": job_id, "attempt": 2, "launch_token": "chosen at random, by me"})
        assert (
            ask(service.claim_job, {"job_id": job_id, "attempt": 2, "launch_token": "chosen at random, by me"}) == claim
        )


class TestCancel:
    def test_a_queued_job_ends_at_once(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        assert ask(service.cancel_job, {"job_id": job_id}) == {"job_id": job_id}
        body = ask(service.describe_job, {"job_id": job_id})
        assert body["job_state"] == "CANCELLED"
        assert ask(service.cancel_job, {"job_id": job_id}) == {"job_id": job_id}

    def test_a_launched_job_ends_at_once_and_its_driver_cannot_claim(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        started = launch(service, job_id)
        ask(service.cancel_job, {"job_id": job_id})
        assert state(service, job_id) == "CANCELLED"
        with pytest.raises(ConcurrentModificationError, match="has ended"):
            ask(service.claim_job, {"job_id": job_id, "attempt": 1, "launch_token": started.token})

    def test_a_running_job_is_told_with_its_next_report(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        ask(service.cancel_job, {"job_id": job_id})
        assert ask(service.report_job, {**report, "seq": 1})["cancel"] is True
        terminal = {"state": "CANCELLED", "result": {"rows_assigned": 3}}
        ask(service.report_job, {**report, "seq": 2, "terminal": terminal})
        body = ask(service.describe_job, {"job_id": job_id})
        assert (body["job_state"], body["result"]) == ("CANCELLED", {"rows_assigned": 3})

    def test_a_cancelled_job_whose_driver_dies_is_cancelled_not_tried_again(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        claimed(service, job_id)
        ask(service.cancel_job, {"job_id": job_id})
        row = service.registry.get(job_id)
        assert row is not None
        service.executions.driver_died(row, "killed")
        assert state(service, job_id) == "CANCELLED"

    def test_a_job_that_finished_first_is_done(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        ask(service.cancel_job, {"job_id": job_id})
        ask(service.report_job, {**report, "seq": 1, "terminal": DONE})
        assert state(service, job_id) == "DONE"


class TestDriversThatWereFaster:
    """A driver's last report is stored after the supervisor read its row and before it finds the driver dead."""

    @pytest.fixture
    def launches(self, service: JobsService, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Launch, Driver]]]:
        """Every launch of the supervisor, and a process in place of its driver."""
        started: list[tuple[Launch, Driver]] = []

        def start(launch: Launch) -> Driver:
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            started.append((launch, Driver(ProcessGroup.of(child.pid), child)))
            return started[-1][1]

        monkeypatch.setattr(service.launcher, "start", start)
        yield started
        for _, driver in started:
            assert driver.child is not None
            driver.child.kill()
            driver.child.wait()

    @pytest.fixture
    def report(self, service: JobsService, launches: list[tuple[Launch, Driver]]) -> dict[str, Any]:
        """The next report of a job whose driver was launched and has claimed it."""
        job_id = service.submit(submission())
        service.supervisor.round()
        (launch, _) = launches[0]
        claim = {"job_id": job_id, "attempt": 1, "launch_token": launch.token}
        return {"job_id": job_id, "claim_token": ask(service.claim_job, claim)["claim_token"], "seq": 1}

    def test_a_cancelled_one_ends_with_its_kill(
        self,
        service: JobsService,
        launches: list[tuple[Launch, Driver]],
        report: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ask(service.cancel_job, {"job_id": report["job_id"]})
        rows = wait_until(service.executions.cancelling)
        monkeypatch.setattr(service.executions, "cancelling", lambda: rows)
        ask(service.report_job, report)
        service.supervisor.round()
        assert len(rows) == 1
        assert not launches[0][1].group.alive
        assert state(service, report["job_id"]) == "CANCELLED"

    def test_one_that_died_is_replaced_at_once(
        self,
        service: JobsService,
        launches: list[tuple[Launch, Driver]],
        report: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        rows = service.executions.running_here()
        assert len(rows) == 1
        ask(service.report_job, report)
        assert launches[0][1].group.kill()
        with monkeypatch.context() as patch:
            patch.setattr(service.executions, "running_here", lambda: rows)
            service.supervisor.round()
        row = service.registry.get(report["job_id"])
        assert row is not None
        assert row.claim_hash is None, "the dead driver's claim was withdrawn"
        rounds_until(service, lambda: len(launches) == 2)
        assert launches[1][0].attempt == 2


class TestDriversThatCannotStart:
    def test_a_full_disk_fails_the_attempt_and_not_the_round(
        self, service: JobsService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(launch: Launch) -> Driver:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(service.launcher, "start", start)
        ids = [service.submit(submission(column)) for column in ("a", "b")]
        rounds_until(service, lambda: all(stored_state(service, job_id) == "FAILED" for job_id in ids))
        for job_id in ids:
            body = ask(service.describe_job, {"job_id": job_id})
            assert (body["job_state"], body["attempt"]) == ("FAILED", QUICK.attempts)
            assert "No space left" in body["failure"]["message"]
            assert body["failure"]["retryable"]


class TestWaitersLease:
    @pytest.fixture
    def service(self, database: Database, tmp_path: Path) -> JobsService:
        """A service that believes the registry's leases from the start."""
        return make_service(database, tmp_path, replace(QUICK, start_grace=0.0))

    def test_after_an_outage_whoever_waits_has_the_time_to_ask_again(
        self, service: JobsService, database: Database, tmp_path: Path
    ) -> None:
        job_id = service.submit(submission(cluster="external", context={"lease-seconds": "1"}))
        wait_until(lambda: service.registry.nobody_waits(0, now_ms()))
        started = time.monotonic()
        restarted = make_service(database, tmp_path, replace(QUICK, start_grace=1.0))
        restarted.supervisor.round()
        assert stored_state(restarted, job_id) == "QUEUED"
        rounds_until(restarted, lambda: stored_state(restarted, job_id) == "CANCELLED")
        assert time.monotonic() - started >= 0.99

    def test_a_job_nobody_asks_for_is_cancelled(self, service: JobsService) -> None:
        job_id = service.submit(submission(cluster="external", context={"lease-seconds": "1"}))
        service.supervisor.round()
        assert stored_state(service, job_id) == "QUEUED"
        rounds_until(service, lambda: stored_state(service, job_id) == "CANCELLED")
        assert "nobody waits" in ask(service.describe_job, {"job_id": job_id})["failure"]["message"]

    @pytest.mark.parametrize("question", ["describe", "list by id", "list by key"])
    def test_asking_for_it_by_name_renews_the_lease(self, service: JobsService, question: str) -> None:
        context = {"lease-seconds": "1", "idempotency-key": "k"}
        job_id = service.submit(submission(cluster="external", context=context))
        row = service.registry.get(job_id)
        assert row is not None
        while now_ms() < row.waiter_until_ms + 500:  # The first lease has long ended.
            if question == "describe":
                ask(service.describe_job, {"job_id": job_id})
            else:
                by_id = question == "list by id"
                ask(service.list_jobs, {"job_ids": [job_id]} if by_id else {"idempotency_key": "k"})
            service.supervisor.round()
            time.sleep(0.2)
        assert stored_state(service, job_id) == "QUEUED"

    def test_a_list_that_does_not_name_it_does_not(self, service: JobsService) -> None:
        job_id = service.submit(submission(cluster="external", context={"lease-seconds": "1"}))

        def listed() -> bool:
            (job,) = ask(service.list_jobs, {"table": "t"})["jobs"]
            return bool(job["state"] == "CANCELLED")

        rounds_until(service, listed)
        assert stored_state(service, job_id) == "CANCELLED"

    def test_a_claimed_job_is_told_to_stop(self, service: JobsService) -> None:
        job_id = service.submit(submission(context={"lease-seconds": "1"}))
        report = claimed(service, job_id)
        wait_until(lambda: service.registry.nobody_waits(0, now_ms()))
        assert ask(service.report_job, {**report, "seq": 1})["cancel"] is False
        service.supervisor.round()
        assert ask(service.report_job, {**report, "seq": 2})["cancel"] is True
        ask(service.report_job, {**report, "seq": 3, "terminal": {"state": "CANCELLED"}})
        assert "nobody waits" in ask(service.describe_job, {"job_id": job_id})["failure"]["message"]


class TestList:
    def test_pages_cover_everything_once_newest_first(self, service: JobsService) -> None:
        ids = [service.submit(submission(f"c{number}")) for number in range(7)]
        found, token = [], None
        while True:
            page = ask(service.list_jobs, {"limit": 3, "page_token": token} if token else {"limit": 3})
            assert "filtered" not in page
            found += [row["job_id"] for row in page["jobs"]]
            token = page.get("page_token")
            if not token:
                break
        assert found == ids[::-1]

    def test_plain_rows_are_lancedbs(self, service: JobsService) -> None:
        job_id = service.submit(submission("c", "people"))
        (row,) = ask(service.list_jobs, {})["jobs"]
        assert set(row) >= {"job_id", "table", "job_type", "state", "created_at_millis"}
        assert (row["job_id"], row["table"], row["state"]) == (job_id, "people", "QUEUED")

    def test_filters_are_marked_and_give_whole_descriptions(self, service: JobsService) -> None:
        one = service.submit(submission("a", "t1"))
        before = now_ms()
        wait_until(lambda: now_ms() > before)
        two = service.submit(submission("a", "t2"))
        ask(service.cancel_job, {"job_id": two})
        created = ask(service.describe_job, {"job_id": two})["creation_ms"]
        cases: list[tuple[dict[str, Any], set[str]]] = [
            ({"job_ids": [one, "unknown", two]}, {one, two}),
            ({"job_ids": []}, set()),
            ({"state": "QUEUED"}, {one}),
            ({"state": ["pending", "canceled"]}, {one, two}),
            ({"table": "t2"}, {two}),
            ({"since": created}, {two}),
            ({"since": created + 100_000}, set()),
            ({"since": 2**70}, set()),
            ({"idempotency_key": "none"}, set()),
        ]
        for wanted, expected in cases:
            answer = ask(service.list_jobs, wanted)
            assert answer["filtered"] is True, wanted
            assert {row["job_id"] for row in answer["jobs"]} == expected, wanted
            assert all("progress" in row and "spec" in row for row in answer["jobs"])

    def test_nonsense_is_refused(self, service: JobsService) -> None:
        for wanted in (
            {"state": "sleepy"},
            {"page_token": "zzz"},
            {"limit": 0},
            {"job_ids": ["x"] * 1001},
            {"table": "\0"},
        ):
            with pytest.raises(InvalidInputError):
                ask(service.list_jobs, wanted)


class TestEvents:
    def test_limit_and_filter(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        service.submit(submission("other"))
        report = claimed(service, job_id)
        ask(service.report_job, {**report, "seq": 1, "terminal": DONE})

        def messages(**wanted: object) -> list[str]:
            return [str(message) for message in events_of(service, job_id=job_id, **wanted)["message"].to_pylist()]

        assert len(messages()) == 4
        assert messages(limit=1) == ["Submitted to cluster 'local': queued"]
        assert messages(limit=0) == []
        assert messages(filter="state = 'DONE'") == ["DONE on attempt 1"]
        assert len(messages(filter="state != 'DONE'", limit=2)) == 2
        with pytest.raises(InvalidInputError, match="filter"):
            messages(filter="nonsense ===")
        assert events_of(service).num_rows == 5


class TestPause:
    def test_a_queued_job_is_not_launched_until_it_is_resumed(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        assert ask(service.pause_job, {"job_id": job_id})["paused"] is True
        assert ask(service.pause_job, {"job_id": job_id})["paused"] is False
        assert ask(service.describe_job, {"job_id": job_id})["paused"] is True
        assert service.executions.waiting(["local"], 10) == []
        assert service.executions.begin_launch(job_id, 0) is None
        assert ask(service.resume_job, {"job_id": job_id})["resumed"] is True
        assert [row.job_id for row in service.executions.waiting(["local"], 10)] == [job_id]
        assert ask(service.resume_job, {"job_id": job_id})["resumed"] is False

    def test_a_running_job_stops_and_waits_with_its_lock(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        report = claimed(service, job_id)
        assert ask(service.pause_job, {"job_id": job_id})["paused"] is True
        assert ask(service.report_job, {**report, "seq": 1})["cancel"] is True
        assert ask(service.resume_job, {"job_id": job_id})["still_pausing"] is True
        ask(service.report_job, {**report, "seq": 2, "terminal": {"state": "CANCELLED"}})
        assert ask(service.describe_job, {"job_id": job_id})["job_state"] == "RUNNING"
        with pytest.raises(JobConflictError, match="still writing"):
            service.submit(submission())
        assert ask(service.resume_job, {"job_id": job_id})["resumed"] is True
        again = claimed(service, job_id)
        ask(service.report_job, {**again, "seq": 1, "terminal": DONE})
        assert state(service, job_id) == "DONE"

    def test_a_paused_job_whose_driver_dies_waits(self, service: JobsService) -> None:
        job_id = service.submit(submission())
        claimed(service, job_id)
        ask(service.pause_job, {"job_id": job_id})
        row = service.registry.get(job_id)
        assert row is not None
        assert service.executions.driver_died(row, "It was killed.", final=True)
        assert service.executions.waiting(["local"], 10) == []
        assert ask(service.resume_job, {"job_id": job_id})["resumed"] is True

    def test_a_job_that_ends_or_is_cancelled_while_it_pauses(self, service: JobsService) -> None:
        done, cancelled = service.submit(submission("a")), service.submit(submission("b"))
        for job_id, ending in ((done, DONE), (cancelled, {"state": "CANCELLED"})):
            report = claimed(service, job_id)
            ask(service.pause_job, {"job_id": job_id})
            if job_id == cancelled:
                ask(service.cancel_job, {"job_id": job_id})
            ask(service.report_job, {**report, "seq": 1, "terminal": ending})
        assert (state(service, done), state(service, cancelled)) == ("DONE", "CANCELLED")
        assert ask(service.pause_job, {"job_id": done})["paused"] is False

    def test_a_job_whose_driver_runs_elsewhere_is_refused_with_a_way_out(self, service: JobsService) -> None:
        job_id = service.submit(submission(cluster="external"))
        with pytest.raises(UnsupportedOperationError, match="Cancel"):
            ask(service.pause_job, {"job_id": job_id})


def test_every_state_is_counted(service: JobsService) -> None:
    service.submit(submission())
    assert service.registry.counts() == {state.value: int(state is JobState.QUEUED) for state in JobState}


def test_old_ended_jobs_are_forgotten_with_their_events(service: JobsService) -> None:
    gone, kept = service.submit(submission("a")), service.submit(submission("b"))
    ask(service.cancel_job, {"job_id": gone})
    assert service.registry.delete_ended(int(time.time() * 1000) + 1000) == [gone]
    assert [row["job_id"] for row in ask(service.list_jobs, {})["jobs"]] == [kept]
    assert {row["job_id"] for row in service.registry.history(None, 100)} == {kept}
