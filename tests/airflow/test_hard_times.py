"""What goes wrong around a job: kills in the wrong moment, tries after failures, busy servers, rotated credentials."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.job import LanceCancelJobOperator
from airflow_provider_lance.operators.job_base import LanceJobOperator, Submitted
from airflow_provider_lance.operators.materialized_view import LanceCreateMaterializedViewOperator
from airflow_provider_lance.sensors.job import LanceJobSensor
from airflow_provider_lance.sensors.table import LanceTableVersionSensor
from airflow_provider_lance.tasks.job_outcome import JobEvent
from airflow_provider_lance.tasks.rejoin import STATE_KEY
from airflow_provider_lance.triggers.table import TableEvent
from tests.airflow.conftest import connection, rest_connection
from tests.airflow.jobs_server import JobsServer

pytestmark = pytest.mark.usefixtures("airflow_home")


class Store(dict[str, Any]):
    """A task's state from try to try, as Airflow 3.3 keeps it."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def run_context() -> Any:
    """What the tries of one task of one DAG run are given."""
    ti = SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="x",
        map_index=-1,
        max_tries=2,
        try_number=1,
        pushed={},
        xcom_push=lambda **_: None,
    )
    return {"ti": ti, "task_state_store": Store(), "dag_run": SimpleNamespace(clear_number=0)}


def backfill(**arguments: Any) -> LanceBackfillColumnOperator:
    return LanceBackfillColumnOperator(task_id="x", table_id="t", column="c", **arguments)


def create_view(**arguments: Any) -> LanceCreateMaterializedViewOperator:
    return LanceCreateMaterializedViewOperator(task_id="x", table_id="v", query="SELECT id FROM t", **arguments)


class TestDeferral:
    def test_a_job_that_ends_soon_needs_none(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LANCE__DEFER_AFTER", "60")

        lance_connection.finish_after = 0.5
        assert backfill(deferrable=True).execute(run_context())["state"] == "DONE"
        (job,) = lance_connection.jobs.values()
        assert lance_connection.looks(job.job_id) >= 2, "it was not finished at once"

    def test_a_job_that_takes_longer_is_left_to_the_triggerer(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LANCE__DEFER_AFTER", "0.5")
        with pytest.raises(TaskDeferred) as deferred:
            backfill(deferrable=True).execute(run_context())
        (job,) = lance_connection.jobs.values()
        assert lance_connection.looks(job.job_id) >= 2
        assert deferred.value.trigger.job_id == job.job_id

    def test_a_failure_and_the_deadline_are_seen_meanwhile(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LANCE__DEFER_AFTER", "60")
        with pytest.raises(AirflowTaskTimeout):
            backfill(deferrable=True, timeout=0.2).execute(run_context())
        lance_connection.finish_after, lance_connection.finish_state = 0.0, "FAILED"
        lance_connection.finish_failure = {"phase": "run", "message": "no luck", "retryable": False}
        with pytest.raises(AirflowFailException, match="no luck"):
            backfill(deferrable=True).execute(run_context())


class TestKills:
    def test_while_the_submit_is_on_its_way(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = backfill(deferrable=True)
        submit = task.submit

        def killed_meanwhile(context: Any, table_id: list[str]) -> dict[str, Any]:
            answer = submit(context, table_id)
            task.on_kill()
            return answer

        monkeypatch.setattr(task, "submit", killed_meanwhile)
        with pytest.raises(AirflowException, match="ended while it submitted"):
            task.execute(run_context())
        assert [job.state for job in lance_connection.submitted()] == ["CANCELLED"]

    def test_while_the_mark_is_written(self, lance_connection: JobsServer) -> None:
        task, context = backfill(deferrable=True), run_context()
        context["task_state_store"].set = lambda *_: task.on_kill()
        with pytest.raises(AirflowException, match="ended while it submitted"):
            task.execute(context)
        assert not lance_connection.live()

    @pytest.mark.parametrize("owned", [True, False])
    def test_airflows_timeout_ends_our_own_job_only(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch, owned: bool
    ) -> None:
        other = lance_connection.add("t", "RUNNING")
        other.body = {"column": "c" if not owned else "d"}
        task = backfill(deferrable=False, on_conflict="join")

        def interrupted(_: Submitted) -> Any:
            raise AirflowTaskTimeout("too long")

        monkeypatch.setattr(task, "wait_on_worker", interrupted)
        with pytest.raises(AirflowTaskTimeout):
            task.execute(run_context())
        assert other.state == "RUNNING"
        assert [job.state for job in lance_connection.submitted()] == ["RUNNING", *(["CANCELLED"] if owned else [])]

    def test_a_timeout_that_is_none_is_refused_before_anything_is_submitted(self, lance_connection: JobsServer) -> None:
        with pytest.raises(ValueError, match="timeout is a timedelta or a number of seconds, not '60'"):
            backfill(timeout="60")
        backfill(timeout=timedelta(seconds=60))


class TestDeadlines:
    def test_a_job_that_ended_while_nobody_looked_was_in_time(self, lance_connection: JobsServer) -> None:
        job = lance_connection.add("t", "DONE", result={"rows_assigned": 3, "published_version": 2})
        late: JobEvent = {"job_id": job.job_id, "state": "TIMEOUT", "result": None, "failure": None}
        ours = Submitted(job.job_id, ["t"], "backfill_column", deadline=1.0)
        assert backfill().execute_complete(run_context(), late, ours._asdict())["version"] == 2
        sensor = LanceJobSensor(task_id="wait", job_id=job.job_id)
        found: Any = sensor.execute_complete(run_context(), late)
        assert found["version"] == 2
        lance_connection.finish(job.job_id, "RUNNING")
        with pytest.raises(AirflowSensorTimeout):
            sensor.execute_complete(run_context(), late)
        with pytest.raises(AirflowTaskTimeout):
            backfill().execute_complete(run_context(), late, ours._asdict())
        assert not lance_connection.live(), "cancelled, because it is late"


class TestFirstRefresh:
    """A view whose first refresh fails is there, and empty."""

    @pytest.mark.parametrize("if_exists", ["fail", "skip", "refresh"])
    def test_the_next_try_fills_it(self, lance_connection: JobsServer, if_exists: Any) -> None:
        context = run_context()
        with pytest.raises(TaskDeferred):
            create_view(if_exists=if_exists, deferrable=True).execute(context)
        lance_connection.finish("job-1", "FAILED")
        with pytest.raises(TaskDeferred) as deferred:
            create_view(if_exists=if_exists, deferrable=True).execute(context)
        assert deferred.value.trigger.job_id == "job-2"
        assert lance_connection.jobs["job-2"].job_type == "refresh_materialized_view"

    def test_also_after_a_timeout_of_its_own(self, lance_connection: JobsServer) -> None:
        context = run_context()
        with pytest.raises(AirflowTaskTimeout):
            create_view(deferrable=False, timeout=0.3).execute(context)
        assert context["task_state_store"][STATE_KEY] == {"max_tries": 2}, "no job that could be rejoined"
        with pytest.raises(TaskDeferred) as deferred:
            create_view(deferrable=True).execute(context)
        assert deferred.value.trigger.job_id == "job-2"

    def test_another_run_obeys_if_exists(self, lance_connection: JobsServer) -> None:
        lance_connection.versions["v"] = 4
        with pytest.raises(AirflowException, match="exists"):
            create_view(deferrable=True).execute(run_context())
        assert create_view(if_exists="skip").execute(run_context())["version"] == 4
        assert not lance_connection.submitted()


class TestServers:
    def test_a_wait_goes_slower_while_looks_fail_and_as_slow_as_it_is_told(self) -> None:
        from airflow_provider_lance.api.errors import WireError
        from airflow_provider_lance.tasks.job_follower import JobFollower

        follower = JobFollower("j", log=logging.getLogger("follower"))
        assert follower.pause(2.0) == 2.0
        pauses = []
        for _ in range(8):
            follower.observe(WireError("busy", code=17, status=503))
            pauses.append(follower.pause(2.0))
        assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        follower.observe(WireError("busy", code=17, status=503, retry_after=180.0))
        assert follower.pause(2.0) == 180.0
        follower.observe(WireError("busy", code=17, status=503, retry_after=86_400.0))
        assert follower.pause(2.0) == 900.0

    def test_a_worker_reads_rotated_credentials_too(
        self, jobs_server: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def secret(token: str) -> str:
            return json.dumps(
                {"conn_type": "lance", "host": jobs_server.url, "password": token, "extra": {"auth": "bearer"}}
            )

        jobs_server.token, jobs_server.finish_after = "old", 1.5
        wait = LanceJobOperator.wait_on_worker

        def rotated(self: Any, submitted: Submitted) -> Any:
            jobs_server.token = "new"
            monkeypatch.setenv("AIRFLOW_CONN_LANCE_DEFAULT", secret("new"))
            return wait(self, submitted)

        monkeypatch.setattr(LanceJobOperator, "wait_on_worker", rotated)
        with connection("lance_default", secret("old")):
            assert backfill(deferrable=False).execute(run_context())["state"] == "DONE"

    def test_a_table_sensor_tolerates_failing_looks_in_a_row(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LANCE__POLL_ERRORS", "2")
        lance_connection.versions["t"] = 1
        sensor = LanceTableVersionSensor(task_id="wait", table_id="t", min_version=1)
        for statuses in ([500], [500, 500], [500, 500]):
            for status in statuses:
                lance_connection.broken = [status]
                assert sensor.poke(run_context()) is False
            assert sensor.poke(run_context())
        for _ in range(2):
            lance_connection.broken = [500]
            assert sensor.poke(run_context()) is False
        lance_connection.broken = [500]
        with pytest.raises(AirflowException, match="broken on purpose"):
            sensor.poke(run_context())
        lance_connection.broken = [500]
        deferrable = LanceTableVersionSensor(task_id="wait", table_id="t", min_version=2, deferrable=True)
        with pytest.raises(TaskDeferred):
            deferrable.execute(run_context())

    def test_a_cancel_is_followed_through_a_failing_look(self, lance_connection: JobsServer) -> None:
        job = lance_connection.add("t", "RUNNING")
        lance_connection.cancel_delay = 0.8
        task = LanceCancelJobOperator(task_id="end", job_id=job.job_id, wait_seconds=20)
        cancel = task.hook.cancel_job

        def cancel_and_break(job_id: str) -> bool:
            known = cancel(job_id)
            lance_connection.broken = [500]
            return known

        task.hook.cancel_job = cancel_and_break  # type: ignore[method-assign]
        assert task.execute(run_context())["state"] == "CANCELLED"


class TestSensors:
    @pytest.mark.parametrize("given", [None, 60, 7, timedelta(seconds=60)])
    def test_a_deferred_sensor_looks_as_often_as_it_was_told(self, lance_connection: JobsServer, given: Any) -> None:
        interval = {} if given is None else {"poke_interval": given}
        wanted = None if given is None else 7 if given == 7 else 60
        job = lance_connection.add("t", "RUNNING")
        for sensor in (
            LanceTableVersionSensor(task_id="table", table_id="t", deferrable=True, **interval),
            LanceJobSensor(task_id="job", job_id=job.job_id, deferrable=True, **interval),
        ):
            with pytest.raises(TaskDeferred) as deferred:
                sensor.execute(run_context())
            assert deferred.value.trigger.poll_interval == wanted, sensor.task_id

    def test_an_interval_of_default_args_counts_as_given(self) -> None:
        with DAG("defaults", schedule=None, default_args={"poke_interval": 60}):
            sensor = LanceTableVersionSensor(task_id="table", table_id="t", deferrable=True)
        assert (sensor.poke_interval, sensor.poll_interval) == (60, 60)

    @pytest.mark.parametrize("deferrable", [False, True])
    def test_a_timeout_says_why_the_last_look_failed(self, lance_connection: JobsServer, deferrable: bool) -> None:
        lance_connection.broken = [401] * 1000
        sensor = LanceTableVersionSensor(
            task_id="table", table_id="t", deferrable=deferrable, timeout=0.5, poke_interval=0.1
        )
        if not deferrable:
            with pytest.raises(AirflowSensorTimeout, match=r"timed out: the last look failed: .*on purpose \(401\)"):
                sensor.execute(run_context())
            return
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(run_context())

        async def event() -> Any:
            return [event.payload async for event in deferred.value.trigger.run()]

        with pytest.raises(AirflowSensorTimeout, match=r"timed out: the last look failed: .*on purpose \(401\)"):
            sensor.execute_complete(run_context(), *asyncio.run(event()))

    def test_a_deferred_sensor_goes_to_its_tasks_triggerer_queue(
        self, lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow.sdk.execution_time.task_runner import _defer_task

        monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
        job = lance_connection.add("t", "RUNNING")
        for sensor in (
            LanceTableVersionSensor(task_id="x", table_id="t", deferrable=True, queue="mine"),
            LanceJobSensor(task_id="x", job_id=job.job_id, deferrable=True, queue="mine"),
        ):
            with pytest.raises(TaskDeferred) as deferred:
                sensor.execute(run_context())
            instance = SimpleNamespace(dag_id="d", run_id="r", task_id="x", task=sensor, rendered_map_index=None)
            message, _ = _defer_task(deferred.value, instance, structlog.get_logger())  # type: ignore[arg-type]
            assert message.queue == "mine", sensor  # type: ignore[union-attr]

    def test_what_happened_while_nobody_looked_was_in_time(self, lance_connection: JobsServer) -> None:
        lance_connection.versions["t"] = 3
        sensor = LanceTableVersionSensor(task_id="table", table_id="t", min_version=3, deferrable=True)
        late = TableEvent(table_id=["t"], branch=None, tag=None, version=None, timeout=True, error=None)
        assert sensor.execute_complete(run_context(), late) == {"table_id": ["t"], "version": 3}

    @pytest.mark.parametrize("as_text", [False, True])
    def test_what_needed_no_job_is_the_answer(self, lance_connection: JobsServer, as_text: bool) -> None:
        handed = create_view(with_no_data=True, wait_for_completion=False).execute(run_context())
        assert handed["job_id"] is None
        began = time.monotonic()
        sensor = LanceJobSensor(task_id="wait", job_id=str(handed) if as_text else handed)
        assert sensor.execute(run_context()) == handed
        assert time.monotonic() - began < 5
        with pytest.raises(AirflowFailException, match="no job to look at"):
            LanceJobSensor(task_id="wait", job_id="None").execute(run_context())


def test_a_refused_submit_looks_for_no_link(lance_connection: JobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.common.compat.sdk import XCom

    from airflow_provider_lance.links.job import LanceJobLink

    monkeypatch.setattr(XCom, "get_value", lambda **_: "http://pushed")
    task = backfill(deferrable=True)
    key: Any = SimpleNamespace()
    lance_connection.broken = [500] * 3
    with pytest.raises(AirflowException):
        task.execute(run_context())
    assert LanceJobLink().get_link(task, ti_key=key) == ""
    lance_connection.broken = []
    with pytest.raises(TaskDeferred):
        task.execute(run_context())
    assert LanceJobLink().get_link(task, ti_key=key) == "http://pushed"


def test_a_link_is_quoted_and_properties_are_not_shown(lance_connection: JobsServer, airflow_home: Path) -> None:
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

    with connection("quoted", rest_connection(lance_connection.url, job_url="http://ui/{job_id}")):
        assert LanceNamespaceHook("quoted").resolved.link("a/b?c d") == "http://ui/a%2Fb%3Fc%20d"
    uri = json.dumps(
        {"conn_type": "lance", "extra": {"impl": "dir", "properties": {"storage.secret_access_key": "hush"}}}
    )
    with connection("lance_dir", uri):
        assert "hush" not in repr(LanceNamespaceHook("lance_dir").resolved)
