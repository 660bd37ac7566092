"""The shared poller and the triggers in one event loop: how often they ask, what they say, what they leave behind."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_lance.api.http.retry import RetryPolicy
from airflow_provider_lance.triggers import poller
from airflow_provider_lance.triggers.job import LanceJobTrigger
from airflow_provider_lance.triggers.table import LanceTableSensorTrigger, LanceTableTrigger
from tests.airflow.conftest import connection, rest_connection
from tests.airflow.jobs_server import JobsServer

pytestmark = [pytest.mark.usefixtures("airflow_home"), pytest.mark.timeout(60)]


async def event_of(trigger: Any) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("no event")


def run(server: JobsServer, work: Callable[[], Any], **extra: Any) -> Any:
    with connection("lance_default", rest_connection(server.url, **extra)):
        return asyncio.run(work())


async def looked(server: JobsServer, job_id: str, times: int = 1) -> None:
    """Until the server was asked for a job so many times more."""
    before = server.looks(job_id)
    await asyncio.to_thread(server.wait_for, lambda it: it.looks(job_id) >= before + times)


async def requested(server: JobsServer, times: int) -> None:
    """Until the server got so many requests more."""
    before = len(server.requests)
    await asyncio.to_thread(server.wait_for, lambda it: len(it.requests) >= before + times)


def pollers() -> int:
    """How many pollers run in this event loop."""
    return sum(task.get_name() == "lance-poller" for task in asyncio.all_tasks())


def test_a_thousand_jobs_cost_at_most_five_requests_per_interval(jobs_server: JobsServer) -> None:
    jobs = [jobs_server.add("t", "RUNNING").job_id for _ in range(1000)]
    interval = 1.0

    async def work() -> tuple[int, list[Any]]:
        waiting = [asyncio.create_task(event_of(LanceJobTrigger(job_id=job, poll_interval=interval))) for job in jobs]
        await requested(jobs_server, 12)
        busiest = 0
        times = [at for at, path, _ in jobs_server.requests if path.startswith("/v1/jobs/")]
        for start in times:
            busiest = max(busiest, sum(start <= at < start + interval for at in times))
        assert pollers() == 1, "they share a poller"
        for job in jobs:
            jobs_server.finish(job, result={"rows_assigned": 1})
        events = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert pollers() == 0, "the last waiter closes it"
        return busiest, events

    busiest, events = run(jobs_server, work)
    assert busiest <= 5
    assert {event["state"] for event in events} == {"DONE"}
    assert sorted(event["job_id"] for event in events) == sorted(jobs)


def test_a_server_that_cannot_filter_is_asked_within_bounds() -> None:
    with JobsServer(filtered=False) as server:
        jobs = [server.add("t", "RUNNING").job_id for _ in range(300)]

        async def work() -> list[Any]:
            waiting = [asyncio.create_task(event_of(LanceJobTrigger(job_id=job, poll_interval=1.0))) for job in jobs]
            await requested(server, 500)
            describes = [at for at, path, _ in server.requests if path == "/v1/jobs/describe"]
            for start in describes[::20]:
                assert sum(start <= at < start + 1.0 for at in describes) <= 250  # [lance] poll_batch, and an edge
            for job in jobs:
                server.finish(job)
            return await asyncio.wait_for(asyncio.gather(*waiting), 20)

        events = run(server, work)
    assert {event["state"] for event in events} == {"DONE"}


def test_each_trigger_logs_its_own_changes_once(jobs_server: JobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = jobs_server.add("a", "QUEUED").job_id, jobs_server.add("b", "RUNNING").job_id
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody")
    lines: list[tuple[str, str]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((whose.get(), record.getMessage()))

    async def wait(name: str, job: str) -> Any:
        whose.set(name)
        trigger = LanceJobTrigger(job_id=job, poll_interval=0.2)
        monkeypatch.setattr(trigger, "_log", logger)
        return await event_of(trigger)

    async def work() -> None:
        one = asyncio.create_task(wait("one", first))
        two = asyncio.create_task(wait("two", second))
        await asyncio.gather(looked(jobs_server, first, 2), looked(jobs_server, second, 2))
        progress = {"phase": "compute", "fragments_done": 12, "fragments_total": 64, "rows_per_second": 3.1e6}
        jobs_server.finish(first, state="RUNNING", progress=progress)
        await looked(jobs_server, first, 2)
        jobs_server.finish(first)
        jobs_server.finish(second)
        await asyncio.gather(one, two)

    logger = logging.getLogger("test_each_trigger")
    logger.setLevel(logging.INFO)
    logger.addHandler(Collect())
    run(jobs_server, work)
    mine = [text for name, text in lines if name == "one" and first in text]
    assert mine == list(dict.fromkeys(mine)), "a line per change, not per look"
    assert any("fragments 12/64, 3.1 M rows/s" in text for text in mine)
    assert not [text for name, text in lines if name == "two" and first in text]
    assert not [text for name, text in lines if name == "nobody"]


def test_transient_errors_are_tolerated_and_too_many_are_lost(
    jobs_server: JobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LANCE__POLL_ERRORS", "2")
    monkeypatch.setattr(poller, "POLL_RETRY", RetryPolicy(attempts=1))
    job = jobs_server.add("t", "RUNNING").job_id

    async def tolerated() -> Any:
        waiting = asyncio.create_task(event_of(LanceJobTrigger(job_id=job, poll_interval=0.1)))
        await looked(jobs_server, job)
        jobs_server.broken = [500, 500]
        await looked(jobs_server, job, 3)
        jobs_server.finish(job)
        return await asyncio.wait_for(waiting, 10)

    assert run(jobs_server, tolerated)["state"] == "DONE"
    jobs_server.finish(job, state="RUNNING")

    async def lost() -> Any:
        waiting = asyncio.create_task(event_of(LanceJobTrigger(job_id=job, poll_interval=0.1)))
        await looked(jobs_server, job)
        jobs_server.broken = [500] * 50
        return await asyncio.wait_for(waiting, 10)

    event = run(jobs_server, lost)
    assert event["state"] == "LOST"
    assert event["failure"]["retryable"] is True
    assert "broken on purpose" in event["failure"]["message"]


@pytest.mark.parametrize("batch", ["200", "4"], ids=["asked together", "one job per look"])
def test_one_unreadable_job_hides_no_other(monkeypatch: pytest.MonkeyPatch, batch: str) -> None:
    monkeypatch.setenv("AIRFLOW__LANCE__POLL_ERRORS", "2")
    monkeypatch.setenv("AIRFLOW__LANCE__POLL_BATCH", batch)
    monkeypatch.setattr(poller, "POLL_RETRY", RetryPolicy(attempts=1))
    with JobsServer(filtered=False) as server:
        corrupt, good = server.add("t", "RUNNING").job_id, server.add("u", "DONE").job_id
        server.corrupt.add(corrupt)

        async def work() -> list[Any]:
            triggers = [LanceJobTrigger(job_id=job, poll_interval=0.1) for job in (corrupt, good)]
            return await asyncio.wait_for(asyncio.gather(*(event_of(trigger) for trigger in triggers)), 20)

        first, second = run(server, work)
    assert (first["state"], second["state"]) == ("LOST", "DONE")
    assert "corrupt row" in first["failure"]["message"]


def test_the_pace_is_that_of_those_who_still_wait(jobs_server: JobsServer) -> None:
    quick, slow = jobs_server.add("t", "RUNNING").job_id, jobs_server.add("u", "RUNNING").job_id

    async def work() -> int:
        waiting = asyncio.create_task(event_of(LanceJobTrigger(job_id=slow, poll_interval=30)))
        jobs_server.finish(quick)
        await event_of(LanceJobTrigger(job_id=quick, poll_interval=0.1))
        await looked(jobs_server, slow, 5)  # a new job is polled often
        before = len(jobs_server.requests)
        await asyncio.sleep(1.5)  # a rate is measured: the quick interval would make dozens of requests
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return len(jobs_server.requests) - before

    assert run(jobs_server, work) <= 2


def test_a_new_job_is_polled_often_whatever_the_interval(jobs_server: JobsServer) -> None:
    older, new = jobs_server.add("t", "RUNNING").job_id, jobs_server.add("u", "RUNNING").job_id

    async def work() -> Any:
        waiting = asyncio.create_task(event_of(LanceJobTrigger(job_id=older, poll_interval=600)))
        await looked(jobs_server, older)
        trigger = asyncio.create_task(event_of(LanceJobTrigger(job_id=new, poll_interval=600)))
        await looked(jobs_server, new, 3)
        jobs_server.finish(new)
        event = await trigger  # within the time limit of a test, which the interval is not
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return event

    assert run(jobs_server, work)["state"] == "DONE"


def test_an_unknown_job_is_lost_and_a_late_one_is_not(jobs_server: JobsServer) -> None:
    event = run(jobs_server, lambda: event_of(LanceJobTrigger(job_id="nobody", poll_interval=0.1)))
    assert (event["state"], event["failure"]["phase"]) == ("LOST", "wait")
    assert jobs_server.looks("nobody") == 3
    late = jobs_server.add("t", "DONE", result={"rows_assigned": 1}).job_id
    jobs_server.hidden[late] = 2
    event = run(jobs_server, lambda: event_of(LanceJobTrigger(job_id=late, poll_interval=0.1)))
    assert (event["state"], event["result"]) == ("DONE", {"rows_assigned": 1})
    assert jobs_server.looks(late) == 3


def test_the_deadline_is_in_the_trigger(jobs_server: JobsServer) -> None:
    job = jobs_server.add("t", "RUNNING").job_id
    began = time.monotonic()
    trigger = LanceJobTrigger(job_id=job, poll_interval=30, deadline=time.time() + 1)
    event = run(jobs_server, lambda: event_of(trigger))
    assert event["state"] == "TIMEOUT"
    assert time.monotonic() - began < 3
    assert jobs_server.jobs[job].state == "RUNNING"  # the task cancels it, not the trigger


def test_a_user_kill_cancels_the_job_and_a_restart_does_not(jobs_server: JobsServer) -> None:
    job = jobs_server.add("t", "RUNNING").job_id

    async def restart() -> None:
        trigger = LanceJobTrigger(job_id=job, poll_interval=0.1)
        task = asyncio.create_task(event_of(trigger))
        await looked(jobs_server, job)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await trigger.cleanup()

    run(jobs_server, restart)
    assert not jobs_server.jobs[job].cancel_requested
    run(jobs_server, lambda: LanceJobTrigger(job_id=job, cancel_on_kill=False).on_kill())
    assert not jobs_server.jobs[job].cancel_requested
    run(jobs_server, lambda: LanceJobTrigger(job_id=job).on_kill())
    assert jobs_server.jobs[job].cancel_requested


def test_rotated_credentials_are_read_again(jobs_server: JobsServer) -> None:
    import os

    job = jobs_server.add("t", "RUNNING").job_id
    jobs_server.token = "old"

    def uri(token: str) -> str:
        return json.dumps(
            {"conn_type": "lance", "host": jobs_server.url, "password": token, "extra": {"auth": "bearer"}}
        )

    async def work() -> Any:
        waiting = asyncio.create_task(event_of(LanceJobTrigger(job_id=job, poll_interval=0.1)))
        await looked(jobs_server, job)
        jobs_server.token = "new"
        await looked(jobs_server, job)  # it is refused
        os.environ["AIRFLOW_CONN_LANCE_DEFAULT"] = uri("new")
        jobs_server.finish(job)
        return await asyncio.wait_for(waiting, 10)

    with connection("lance_default", uri("old")):
        event = asyncio.run(work())
    assert event["state"] == "DONE", event


def test_an_event_is_small_and_holds_no_credentials(jobs_server: JobsServer) -> None:
    job = jobs_server.add(
        "t",
        "FAILED",
        result={"rows_failed": 3, "storage_options": {"secret": "hush"}, "list": ["x" * 100] * 1000},
        failure={"phase": "compute", "message": "y" * 100_000, "retryable": True},
    ).job_id
    event = run(jobs_server, lambda: event_of(LanceJobTrigger(job_id=job, poll_interval=0.1)))
    assert len(json.dumps(event)) <= 32_000
    assert "hush" not in json.dumps(event)
    assert event["result"] == {"rows_failed": 3, "truncated": True}


def test_a_trigger_stores_names_not_secrets() -> None:
    path, kwargs = LanceJobTrigger(job_id="j", lance_conn_id="c", deadline=1.5, poll_interval=2).serialize()
    assert path == "airflow_provider_lance.triggers.job.LanceJobTrigger"
    assert LanceJobTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)
    path, kwargs = LanceTableTrigger(table_id=["a", "b"], tag="x").serialize()
    assert path == "airflow_provider_lance.triggers.table.LanceTableTrigger"  # stored with every asset's watcher
    assert LanceTableTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)
    path, kwargs = LanceTableSensorTrigger(table_id=["a", "b"], goal={"after": 1}, deadline=1.5).serialize()
    assert path == "airflow_provider_lance.triggers.table.LanceTableSensorTrigger"
    assert LanceTableSensorTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)


class Store:
    """Stands in for the triggerer's asset state store, which needs a running triggerer."""

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = dict(values)

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


def watch(server: JobsServer, store: Store | None, changes: list[Callable[[], Any]], **kwargs: Any) -> list[Any]:
    """Run a watcher while things change; the payloads it fired."""

    async def work() -> list[Any]:
        trigger = LanceTableTrigger(table_id="t", poll_interval=0.1, **kwargs)
        trigger.asset_state_store = store  # type: ignore[assignment]
        fired: list[Any] = []

        async def collect() -> None:
            async for event in trigger.run():
                fired.append(event.payload)

        task = asyncio.create_task(collect())
        # A request may have begun before the change; the second sees it, and the third comes after its event.
        for change in changes:
            await requested(server, 3)
            change()
            await asyncio.to_thread(server.wait_for, lambda it: not it.broken)
        await requested(server, 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return fired

    fired: list[Any] = run(server, work)
    return fired


def test_a_watcher_fires_for_each_new_version_and_remembers(jobs_server: JobsServer) -> None:
    jobs_server.versions["t"] = 3
    store = Store()
    fired = watch(
        jobs_server, store, [lambda: jobs_server.versions.update(t=4), lambda: jobs_server.versions.update(t=6)]
    )
    assert [(payload["previous_version"], payload["version"]) for payload in fired] == [(3, 4), (4, 6)]
    assert fired[0]["table_id"] == ["t"]
    assert store.values == {"version:main": 6}
    jobs_server.versions["t"] = 8  # while no triggerer runs
    fired = watch(jobs_server, store, [])
    assert [(payload["previous_version"], payload["version"]) for payload in fired] == [(6, 8)]
    assert watch(jobs_server, store, []) == []


def test_a_watcher_follows_a_tag_forwards_and_backwards(jobs_server: JobsServer) -> None:
    jobs_server.versions["t"] = 3
    store = Store()
    moves = [
        lambda: jobs_server.tags.update({("t", "production"): 2}),
        lambda: jobs_server.tags.update({("t", "production"): 3}),
        lambda: jobs_server.broken.extend([500, 500]),
        lambda: jobs_server.tags.update({("t", "production"): 1}),
    ]
    fired = watch(jobs_server, store, moves, tag="production")
    assert [(payload["previous_version"], payload["version"]) for payload in fired] == [(None, 2), (2, 3), (3, 1)]
    assert store.values == {"tag:production": 1}


def test_a_watcher_fires_for_a_table_that_appears_also_after_it_was_dropped(jobs_server: JobsServer) -> None:
    moves: list[Callable[[], Any]] = [
        lambda: jobs_server.versions.update(t=1),
        lambda: jobs_server.versions.pop("t"),
        lambda: jobs_server.versions.update(t=1),
    ]
    fired = watch(jobs_server, Store(), moves)
    assert [(payload["previous_version"], payload["version"]) for payload in fired] == [(None, 1), (None, 1)]


def test_a_watcher_without_a_store_still_watches(jobs_server: JobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "POLL_RETRY", RetryPolicy(attempts=1))
    jobs_server.versions["t"] = 1

    def change_unseen() -> None:
        jobs_server.broken.append(500)
        jobs_server.versions["t"] = 2

    fired = watch(jobs_server, None, [change_unseen])
    assert [(payload["previous_version"], payload["version"]) for payload in fired] == [(1, 2)]


def test_a_sensor_gives_up_after_failures_in_a_row_only(
    jobs_server: JobsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LANCE__POLL_ERRORS", "2")
    monkeypatch.setattr(poller, "POLL_RETRY", RetryPolicy(attempts=1))
    jobs_server.versions["t"] = 1
    trigger = LanceTableSensorTrigger(table_id=["t"], goal={"after": 1}, poll_interval=0.05)

    async def work(rounds: int, in_a_row: int) -> Any:
        waiting = asyncio.create_task(event_of(trigger))
        for _ in range(rounds):
            seen = len(jobs_server.requests)
            jobs_server.broken = [500] * in_a_row
            enough = seen + in_a_row + 1
            await asyncio.to_thread(
                jobs_server.wait_for,
                lambda server, enough=enough: len(server.requests) >= enough or waiting.done(),
            )
        jobs_server.versions["t"] = 2
        return await asyncio.wait_for(waiting, 10)

    assert run(jobs_server, lambda: work(5, 1))["version"] == 2
    jobs_server.versions["t"] = 1
    assert "broken on purpose" in run(jobs_server, lambda: work(1, 3))["error"]


@pytest.mark.parametrize("status", [401, 503], ids=["refused", "retried inside of the look"])
def test_a_sensors_deadline_holds_while_looks_fail_and_the_error_is_told(jobs_server: JobsServer, status: int) -> None:
    jobs_server.broken = [status] * 1000
    trigger = LanceTableSensorTrigger(
        table_id=["t"], goal={"exists": True}, poll_interval=30, deadline=time.time() + 1.5
    )
    began = time.monotonic()
    event = run(jobs_server, lambda: event_of(trigger))
    assert time.monotonic() - began < 4
    assert (event["table_id"], event["timeout"]) == (["t"], True)
    assert ("broken on purpose (401)" if status == 401 else "was not answered") in event["error"]


def test_a_jobs_deadline_holds_while_looks_fail_and_the_error_is_told(jobs_server: JobsServer) -> None:
    jobs_server.token = "another"
    trigger = LanceJobTrigger(job_id="j", poll_interval=30, deadline=time.time() + 1.5)
    began = time.monotonic()
    event = run(jobs_server, lambda: event_of(trigger))
    assert time.monotonic() - began < 4
    assert event["state"] == "TIMEOUT"
    assert "who are you" in event["failure"]["message"]


def test_only_a_watchers_trigger_stays_out_of_triggerer_queues() -> None:
    """Airflow stores a queue with a deferred task only where its trigger supports one."""
    from airflow.triggers.base import BaseEventTrigger

    assert issubclass(LanceTableTrigger, BaseEventTrigger), "an AssetWatcher accepts nothing else"
    for task_trigger in (LanceJobTrigger, LanceTableSensorTrigger):
        assert not issubclass(task_trigger, BaseEventTrigger)
        assert task_trigger.supports_triggerer_queue


@pytest.mark.parametrize("watcher", [False, True], ids=["sensor", "watcher"])
def test_failed_looks_are_warnings_and_the_servers_return_is_said_once(
    jobs_server: JobsServer, monkeypatch: pytest.MonkeyPatch, watcher: bool
) -> None:
    monkeypatch.setattr(poller, "POLL_RETRY", RetryPolicy(attempts=1))
    jobs_server.versions["t"] = 1
    jobs_server.broken = [500, 500]
    lines: list[tuple[str, str]] = []

    class Log:
        def warning(self, text: str, *values: Any) -> None:
            lines.append(("WARNING", text % values))

        def info(self, text: str, *values: Any) -> None:
            lines.append(("INFO", text % values))
            if "answers again" in lines[-1][1]:
                jobs_server.versions["t"] = 2

    trigger: Any = LanceTableTrigger(table_id="t", poll_interval=0.05)
    if not watcher:
        trigger = LanceTableSensorTrigger(table_id=["t"], goal={"after": 1}, poll_interval=0.05)
    trigger._log = Log()
    trigger.asset_state_store = Store(**{"version:main": 1})
    assert run(jobs_server, lambda: event_of(trigger))["version"] == 2
    assert [level for level, _ in lines] == ["WARNING", "WARNING", "INFO"]
    assert "broken on purpose" in lines[0][1]
    assert lines[-1][1] == "The server answers again, after 2 failed looks."
