"""Two tasks that write the same column: fail, join an equal request, or wait for the other job and submit then."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout, TaskDeferred

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.materialized_view import LanceRefreshMaterializedViewOperator
from airflow_provider_lance.operators.spark import LanceSparkSubmitOperator
from tests.airflow.conftest import NewDag, RunDag, connection
from tests.airflow.jobs_server import FakeJob, JobsServer
from tests.airflow.real_server import RealServer, serve
from tests.airflow.test_hard_times import backfill, run_context

pytestmark = [pytest.mark.usefixtures("airflow_home"), pytest.mark.timeout(300)]
RESULT = {"rows_assigned": 10, "published_version": 3}
SUBMIT = "/v1/table/t/backfill_column"


@pytest.fixture
def other(lance_connection: JobsServer) -> FakeJob:
    """A job of another task, which fills day 4."""
    job = lance_connection.add("t", "RUNNING")
    job.body = {"column": "c", "where": "day = 4"}
    return job


def resumed(task: LanceBackfillColumnOperator, deferred: TaskDeferred, event: dict[str, Any]) -> dict[str, Any]:
    """What the task does when its trigger has fired."""
    method = getattr(task, deferred.method_name)
    answer: dict[str, Any] = method(run_context(), event, **(deferred.kwargs or {}))
    return answer


def of_task(task_id: str) -> Any:
    """The context of a task of its own, with a key of its own."""
    context = run_context()
    context["ti"].task_id = task_id
    return context


def ended(job: FakeJob, state: str = "DONE") -> dict[str, Any]:
    job.state = state
    return {"job_id": job.job_id, "state": state, "result": None, "failure": None}


class TestJoin:
    def test_an_equal_request_is_joined(self, lance_connection: JobsServer, other: FakeJob) -> None:
        with pytest.raises(TaskDeferred) as deferred:
            backfill(where="day = 4", on_conflict="join", deferrable=True).execute(run_context())
        assert deferred.value.trigger.job_id == other.job_id
        assert deferred.value.trigger.cancel_on_kill is False
        assert len(lance_connection.submitted()) == 1

    def test_a_different_request_fails_and_says_what_differs(
        self, lance_connection: JobsServer, other: FakeJob
    ) -> None:
        with pytest.raises(AirflowException) as failed:
            backfill(where="day = 3", on_conflict="join").execute(run_context())
        assert "where is 'day = 3' here and 'day = 4' there" in str(failed.value)
        assert "on_conflict='wait'" in str(failed.value)
        assert other.state == "RUNNING"

    def test_a_server_that_does_not_compare_requests_is_not_believed(
        self, lance_connection: JobsServer, other: FakeJob
    ) -> None:
        lance_connection.compares_requests = False
        with pytest.raises(AirflowException, match="does not tell whether it does the same"):
            backfill(where="day = 4", on_conflict="join").execute(run_context())

    def test_a_job_that_is_being_cancelled_is_waited_for_and_not_joined(
        self, lance_connection: JobsServer, other: FakeJob
    ) -> None:
        lance_connection.cancel_delay = 3600
        other.cancel_requested, other.body["cancelled_at"] = True, time.monotonic()
        task = backfill(where="day = 4", on_conflict="join", deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(run_context())
        with pytest.raises(TaskDeferred) as own:
            resumed(task, deferred.value, ended(other, "CANCELLED"))
        assert own.value.trigger.job_id == lance_connection.submitted()[1].job_id

    def test_without_it_both_ways_out_are_named(self, lance_connection: JobsServer, other: FakeJob) -> None:
        with pytest.raises(AirflowException, match=r"on_conflict='wait' waits .* on_conflict='join' waits"):
            backfill(where="day = 4").execute(run_context())
        with pytest.raises(AirflowException, match="on_conflict='wait'") as failed:
            backfill(where="day = 3").execute(run_context())
        assert "'join'" not in str(failed.value)


class TestWait:
    @pytest.mark.parametrize("how", ["DONE", "FAILED", "CANCELLED"])
    def test_deferred_it_submits_when_the_other_has_ended(
        self, lance_connection: JobsServer, other: FakeJob, how: str
    ) -> None:
        task, started = backfill(where="day = 3", on_conflict="wait", deferrable=True, timeout=60), time.time()
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(run_context())
        trigger = deferred.value.trigger
        assert (trigger.job_id, trigger.cancel_on_kill) == (other.job_id, False)
        assert started <= trigger.deadline - 60 <= time.time()
        later = backfill(where="day = 3", on_conflict="wait", deferrable=True, timeout=60)
        with pytest.raises(TaskDeferred) as own:
            resumed(later, deferred.value, ended(other, how))
        ours = lance_connection.submitted()[1]
        assert ours.body == {"column": "c", "where": "day = 3"}
        assert (own.value.trigger.job_id, own.value.trigger.cancel_on_kill) == (ours.job_id, True)
        assert own.value.trigger.deadline == trigger.deadline, "one deadline for the wait and the job"

    def test_another_one_that_got_in_between_is_waited_for_too(
        self, lance_connection: JobsServer, other: FakeJob
    ) -> None:
        task = backfill(where="day = 3", on_conflict="wait", deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(run_context())
        event = ended(other)
        second = lance_connection.add("t", "RUNNING")
        second.body = {"column": "c", "where": "day = 5"}
        with pytest.raises(TaskDeferred) as again:
            resumed(task, deferred.value, event)
        assert again.value.trigger.job_id == second.job_id
        with pytest.raises(TaskDeferred) as own:
            resumed(task, again.value, ended(second))
        assert own.value.trigger.job_id == lance_connection.submitted()[2].job_id

    def test_a_server_that_refuses_for_an_ended_job_is_not_asked_forever(
        self, lance_connection: JobsServer, other: FakeJob
    ) -> None:
        task = backfill(where="day = 3", on_conflict="wait", deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(run_context())
        event = {"job_id": other.job_id, "state": "DONE", "result": None, "failure": None}
        with pytest.raises(AirflowException, match="still refuses this request"):
            resumed(task, deferred.value, event)

    def test_a_kill_while_it_waits_cancels_nothing(self, lance_connection: JobsServer, other: FakeJob) -> None:
        task = backfill(where="day = 3", on_conflict="wait", poll_interval=0.1)
        problems: list[BaseException] = []

        def execute() -> None:
            try:
                task.execute(run_context())
            except AirflowException as error:
                problems.append(error)

        thread = threading.Thread(target=execute)
        thread.start()
        lance_connection.wait_for(lambda s: s.paths().count("/v1/jobs/describe") >= 3)
        task.on_kill()
        assert (other.state, other.cancel_requested) == ("RUNNING", False)
        lance_connection.finish(other.job_id)
        thread.join(30)
        assert "ended while it waited" in str(problems[0])
        assert len(lance_connection.submitted()) == 1

    @pytest.mark.parametrize("deferrable", [False, True])
    def test_its_time_is_over_while_the_other_goes_on(
        self, lance_connection: JobsServer, other: FakeJob, deferrable: bool
    ) -> None:
        task = backfill(where="day = 3", on_conflict="wait", timeout=0.3, deferrable=deferrable)
        if not deferrable:
            with pytest.raises(AirflowTaskTimeout, match="nothing was submitted"):
                task.execute(run_context())
        else:
            with pytest.raises(TaskDeferred) as ended:
                task.execute(run_context())
            lance_connection.wait_for(lambda _: time.time() > ended.value.trigger.deadline)
            late = {"job_id": other.job_id, "state": "TIMEOUT", "result": None, "failure": None}
            with pytest.raises(AirflowTaskTimeout, match="nothing was submitted"):
                resumed(task, ended.value, late)
        assert (other.state, other.cancel_requested) == ("RUNNING", False)

    def test_in_a_dag(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        lance_connection: JobsServer,
        other: FakeJob,
    ) -> None:
        def play() -> None:
            lance_connection.wait_for(lambda s: s.paths().count(SUBMIT) == 1, 120)
            lance_connection.finish(other.job_id)
            ours = lance_connection.wait_for(lambda s: s.submitted()[1:], 60)[0]
            lance_connection.finish(ours.job_id, result=RESULT)

        threading.Thread(target=play, daemon=True).start()
        with new_dag() as dag:
            LanceBackfillColumnOperator(
                task_id="fill", table_id="t", column="c", where="day = 3", on_conflict="wait", deferrable=True
            )
        run = run_dag(dag)
        assert run.task_state("fill") == "success"
        assert run.xcom("fill")["job_id"] == lance_connection.submitted()[1].job_id

    def test_the_spark_operator_waits_too(self, lance_connection: JobsServer, other: FakeJob) -> None:
        request = {"id": "t", "column": "c", "where": "day = 3"}
        task = LanceSparkSubmitOperator(
            task_id="x", operation="alter_table_backfill_columns", request=request, on_conflict="wait"
        )
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        def play() -> None:
            lance_connection.wait_for(lambda s: s.paths().count("/v1/jobs/describe") >= 2)
            lance_connection.finish(other.job_id)

        threading.Thread(target=play, daemon=True).start()
        job_id = task.find_or_submit_job(run_context(), LanceNamespaceHook())
        assert [job.state for job in lance_connection.submitted()] == ["DONE", "QUEUED"]
        assert job_id == lance_connection.submitted()[1].job_id


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with (
        serve(tmp_path_factory.mktemp("real")) as server,
        connection("lance_default", server.connection),
        connection("spark_default", json.dumps({"conn_type": "spark", "host": "local[2]"})),
    ):
        yield server


class TestCatchUp:
    """Days of one column, filled by tasks that run at the same time; real server, real Spark."""

    @pytest.fixture
    def days(self, real: RealServer) -> Path:
        """A table with ten rows of day 3 and ten of day 4, and a job that waits to fill day 4."""
        rows = pa.table({"id": list(range(20)), "day": [3] * 10 + [4] * 10})
        real.wire.call("create_table", {"id": ["days"], "mode": "overwrite"}, rows)
        columns = [{"name": "n", "computed": "id * 10"}]
        real.wire.call("alter_table_add_columns", {"id": ["days"], "new_columns": columns})
        return Path(real.wire.call("describe_table", {"id": ["days"]}).value["location"].removeprefix("file://"))

    def task(self, day: int, **arguments: Any) -> LanceBackfillColumnOperator:
        return LanceBackfillColumnOperator(
            task_id=f"day_{day}", table_id="days", column="n", where=f"day = {day}", **arguments
        )

    def test_join_refuses_another_day_and_wait_fills_both(self, real: RealServer, days: Path) -> None:
        import lance

        filling = {"id": ["days"], "column": "n", "where": "day = 4"}
        first = real.wire.call("alter_table_backfill_columns", filling).value["job_id"]
        with pytest.raises(AirflowException, match="where is 'day = 3' here and 'day = 4' there"):
            self.task(3, on_conflict="join").execute(of_task("join"))
        plan = self.task(3, plan_only=True, wait_for_completion=False).execute(of_task("plan"))
        assert plan["job_id"] != first, "a plan is neither refused nor joined"
        answers: dict[int, Any] = {}

        def run(day: int, on_conflict: Any) -> None:
            answers[day] = self.task(day, on_conflict=on_conflict).execute(of_task(on_conflict))

        threads = [threading.Thread(target=run, args=arguments) for arguments in ((3, "wait"), (4, "join"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
        assert answers[4]["job_id"] == first
        assert answers[3]["job_id"] != first
        assert [answers[day]["result"]["rows_assigned"] for day in (3, 4)] == [10, 10]
        assert lance.dataset(str(days)).to_table()["n"].to_pylist() == [number * 10 for number in range(20)]

    def test_the_plan_of_a_refresh_waits_for_nobody(self, real: RealServer, days: Path) -> None:
        del days
        real.wire.call("create_materialized_view", {"id": ["v"], "query": "SELECT id FROM days", "with_no_data": True})
        fields = {"id": ["v"], "cluster": "external"}
        held = real.wire.call("refresh_materialized_view", fields).value["job_id"]
        refresh = LanceRefreshMaterializedViewOperator(
            task_id="plan", table_id="v", request_context={"plan": "true"}, timeout=120
        )
        result = refresh.execute(of_task("refresh"))["result"]
        assert result is not None
        assert result["plan"] == {"source_rows": 20, "follows": {"days": {"technique": "changed rows"}}}
        real.wire.call("cancel_job", {"job_id": held})
