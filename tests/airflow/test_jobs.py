"""Job operators and the job sensor in real DAGs, against a server whose jobs the test controls."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time import context as execution_context

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.hooks.lance import LanceNamespaceHook
from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.job import LanceCancelJobOperator
from airflow_provider_lance.operators.materialized_view import (
    LanceCreateMaterializedViewOperator,
    LanceRefreshMaterializedViewOperator,
)
from airflow_provider_lance.operators.operation import LanceOperator
from airflow_provider_lance.sensors.job import LanceJobSensor
from airflow_provider_lance.tasks.rejoin import mark_concluded, rejoin, save_job
from tests.airflow.conftest import NewDag, RunDag
from tests.airflow.jobs_server import JobsServer

RESULT = {"rows_assigned": 7, "rows_failed": 0, "rows_remaining": 0, "source_version": 3, "published_version": 4}
HAS_STATE_STORE = hasattr(execution_context, "TaskStateStoreAccessor")  # since Airflow 3.3
both_ways = pytest.mark.parametrize("deferrable", [False, True], ids=["on a worker", "deferred"])


def script(server: JobsServer, *acts: Callable[[JobsServer], Any]) -> threading.Thread:
    """Play something on the server beside the DAG; each act starts when the one before returned."""

    def play() -> None:
        for act in acts:
            act(server)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    return thread


def when_submitted(count: int, then: Callable[[JobsServer, str], Any]) -> Callable[[JobsServer], Any]:
    def act(server: JobsServer) -> None:
        jobs = server.wait_for(lambda it: len(it.jobs) >= count and list(it.jobs.values()), 60)
        time.sleep(0.3)
        then(server, jobs[count - 1].job_id)

    return act


@both_ways
def test_a_backfill_returns_what_the_job_did(
    run_dag: RunDag,
    new_dag: NewDag,
    lance_connection: JobsServer,
    deferrable: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = lance_connection
    asset = create_asset(authority="prod", table_id=["sales", "orders"])
    other = create_asset(authority="prod", table_id=["sales", "customers"])
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="fill",
            table_id="sales$orders",
            column="embedding",
            where="id > {{ params.least }}",
            concurrency=4,
            commit_granularity=8,
            cluster="local",
            params={"least": 5},
            deferrable=deferrable,
            outlets=[asset, other],
        )
    script(server, when_submitted(1, lambda s, job: s.finish(job, result={**RESULT, "storage_options": {"key": "x"}})))
    run = run_dag(dag)
    assert run.state == "success"
    assert "sales$orders.embedding: 7 rows computed, version 4 (job " in capsys.readouterr().out
    (job,) = server.submitted()
    assert job.body == {
        "column": "embedding",
        "where": "id > 5",
        "concurrency": 4,
        "commit_granularity": 8,
        "cluster": "local",
    }
    assert job.lease == "21600"
    assert run.xcom("fill") == {
        "job_id": job.job_id,
        "job_type": "backfill_column",
        "table_id": ["sales", "orders"],
        "state": "DONE",
        "version": 4,
        "result": RESULT,
    }
    assert run.xcom("fill", "job_id") == job.job_id
    assert run.xcom("fill", "_link_LanceJobLink") == f"{server.url}/ui/jobs/{job.job_id}"
    assert run.xcom("fill", "asset") == {"table_id": ["sales", "orders"], "uris": ["lance://prod/sales/orders"]}
    assert run.asset_extras("lance://prod/sales/orders") == [{"version": 4, "job_id": job.job_id, "rows": 7}]
    assert run.asset_extras("lance://prod/sales/customers") == [{}]


@both_ways
@pytest.mark.parametrize(
    ("failure", "state", "tries"),
    [
        ({"phase": "compute", "message": "division by zero", "retryable": False}, "FAILED", 1),
        ({"phase": "launch", "message": "no executor", "retryable": True}, "FAILED", 2),
        (None, "CANCELLED", 1),
    ],
)
def test_a_failed_job_fails_its_task_and_says_whether_to_retry(
    run_dag: RunDag,
    new_dag: NewDag,
    lance_connection: JobsServer,
    deferrable: bool,
    failure: dict[str, Any] | None,
    state: str,
    tries: int,
) -> None:
    server = lance_connection
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="fill", table_id="t", column="c", deferrable=deferrable, retries=1, retry_delay=timedelta(0)
        )
    end = lambda s, job: s.finish(job, state=state, failure=failure)  # noqa: E731
    script(server, *(when_submitted(count, end) for count in range(1, tries + 1)))
    run = run_dag(dag)
    assert run.state == "failed"
    assert len(server.submitted()) == tries
    assert run.instance("fill").try_number == tries


@both_ways
def test_the_deadline_cancels_the_job(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    server = lance_connection
    with new_dag() as dag:
        LanceBackfillColumnOperator(task_id="fill", table_id="t", column="c", deferrable=deferrable, timeout=1)
    run = run_dag(dag)
    assert run.state == "failed"
    assert [job.state for job in server.submitted()] == ["CANCELLED"]


@both_ways
def test_execution_timeout_holds_while_deferred_and_the_next_try_starts_anew(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    server = lance_connection
    server.cancel_delay = 0.8  # the second try must not rejoin a job that is about to end
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="fill",
            table_id="t",
            column="c",
            deferrable=deferrable,
            execution_timeout=timedelta(seconds=1.5),
            retries=1,
            retry_delay=timedelta(0),
        )
    script(server, when_submitted(2, lambda s, job: s.finish(job, result=RESULT)))
    run = run_dag(dag)
    assert [job.state for job in server.submitted()] == ["CANCELLED", "DONE"]
    assert run.state == "success"


@both_ways
def test_a_job_that_vanishes_is_lost_and_retried(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    server = lance_connection
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="fill", table_id="t", column="c", deferrable=deferrable, retries=1, retry_delay=timedelta(0)
        )
    script(
        server,
        when_submitted(1, lambda s, job: s.jobs.pop(job)),
        lambda s: s.wait_for(lambda it: it.jobs, 60),
        when_submitted(1, lambda s, job: s.finish(job, result=RESULT)),
    )
    run = run_dag(dag)
    assert run.state == "success"
    assert run.instance("fill").try_number == 2


@both_ways
def test_server_errors_while_waiting_are_tolerated(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    server = lance_connection
    with new_dag() as dag:
        LanceBackfillColumnOperator(task_id="fill", table_id="t", column="c", deferrable=deferrable)
    script(
        server,
        when_submitted(1, lambda s, job: s.broken.extend([500, 503, 500])),
        lambda s: s.wait_for(lambda it: not it.broken, 60),
        when_submitted(1, lambda s, job: s.finish(job, result=RESULT)),
    )
    run = run_dag(dag)
    assert run.state == "success"
    assert len(server.submitted()) == 1


@both_ways
def test_a_submitted_job_is_handed_to_a_sensor(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    server = lance_connection
    with new_dag() as dag:
        fill = LanceBackfillColumnOperator(
            task_id="fill", table_id=["a", "t"], column="c", wait_for_completion=False, deferrable=deferrable
        )
        LanceJobSensor(task_id="by_dict", job_id=fill.output, deferrable=deferrable, poke_interval=0.2)
        LanceJobSensor(
            task_id="by_id",
            job_id="{{ ti.xcom_pull('fill', key='job_id') }}",
            deferrable=deferrable,
            poke_interval=0.2,
        ).set_upstream(fill)
    script(server, when_submitted(1, lambda s, job: s.finish(job, result=RESULT)))
    run = run_dag(dag)
    (job,) = server.submitted()
    assert job.lease == "0"
    assert run.state == "success"
    handed = run.xcom("fill")
    assert (handed["job_id"], handed["result"]) == (job.job_id, None)
    expected = {
        "job_id": job.job_id,
        "job_type": "backfill_column",
        "table_id": ["a", "t"],
        "state": "DONE",
        "version": 4,
        "result": RESULT,
    }
    assert run.xcom("by_dict") == expected
    assert run.xcom("by_id") == expected


def test_a_sensor_reschedules(run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer) -> None:
    server = lance_connection
    job = server.add("t", "RUNNING")

    def finish_between_two_pokes(server: JobsServer) -> None:
        looks = server.paths().count("/v1/jobs/describe")
        server.wait_for(lambda it: it.paths().count("/v1/jobs/describe") > looks)
        server.finish(job.job_id, result=RESULT)

    script(server, finish_between_two_pokes)
    with new_dag() as dag:
        LanceJobSensor(task_id="wait", job_id=job.job_id, mode="reschedule", poke_interval=1, deferrable=False)
    run = run_dag(dag)
    assert run.state == "success"
    assert run.xcom("wait")["version"] == 4


@pytest.mark.parametrize(
    ("waiting", "looks"),
    [
        ({"deferrable": False}, 3),
        ({"deferrable": False, "mode": "reschedule"}, 3),
        ({"deferrable": True}, 5),  # one before deferring, three in the triggerer, one for the job's table afterwards
    ],
    ids=["poke", "reschedule", "deferred"],
)
def test_a_sensor_fails_when_nobody_knows_its_job(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, waiting: dict[str, Any], looks: int
) -> None:
    with new_dag() as dag:
        LanceJobSensor(task_id="wait", job_id="nobody", poke_interval=0.5, timeout=15, **waiting)
    run = run_dag(dag)
    assert run.task_state("wait") == "failed"
    assert lance_connection.looks("nobody") == looks, "not once, and not until the timeout"


@both_ways
@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_sensor_fails_with_its_job_and_times_out(
    run_dag: RunDag,
    new_dag: NewDag,
    lance_connection: JobsServer,
    deferrable: bool,
    soft_fail: bool,
) -> None:
    server = lance_connection
    failed = server.add("t", "FAILED", failure={"phase": "plan", "message": "no such column", "retryable": False})
    endless = server.add("t", "RUNNING")
    with new_dag() as dag:
        LanceJobSensor(task_id="failed", job_id=failed.job_id, deferrable=deferrable, soft_fail=soft_fail)
        LanceJobSensor(
            task_id="endless",
            job_id=endless.job_id,
            deferrable=deferrable,
            timeout=1,
            poke_interval=0.2,
            soft_fail=soft_fail,
        )
    run = run_dag(dag)
    expected = "skipped" if soft_fail else "failed"
    assert run.task_state("failed") == expected
    assert run.task_state("endless") == expected
    assert server.jobs[endless.job_id].state == "RUNNING"  # a sensor only looks on


def test_joining_another_tasks_job(run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer) -> None:
    server = lance_connection
    other = server.add("t", "RUNNING")
    other.body = {"column": "c"}
    # Refused twice and asked for after that: both tasks have met it.
    script(
        server,
        lambda s: s.wait_for(lambda s: s.paths().count("/v1/table/t/backfill_column") == 2, 120),
        lambda s: s.finish(other.job_id, result=RESULT),
    )
    with new_dag() as dag:
        fail = LanceBackfillColumnOperator(task_id="fail", table_id="t", column="c")
        join = LanceBackfillColumnOperator(
            task_id="join", table_id="t", column="c", on_conflict="join", trigger_rule="all_done"
        )
        fail >> join
    run = run_dag(dag)
    assert run.task_state("fail") == "failed"
    assert run.task_state("join") == "success"
    assert run.xcom("join")["job_id"] == other.job_id
    assert len(server.submitted()) == 1


@both_ways
def test_views_are_created_refreshed_and_skipped(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    server = lance_connection
    server.finish_after = 0.3
    server.finish_result = {"mode": "incremental", "rows_written": 0, "source_version": 5, "version": 2}
    with new_dag() as dag:
        empty = LanceCreateMaterializedViewOperator(
            task_id="empty", table_id="v0", query="SELECT id FROM t", with_no_data=True, deferrable=deferrable
        )
        create = LanceCreateMaterializedViewOperator(
            task_id="create", table_id="v", query="SELECT id FROM t", deferrable=deferrable
        )
        again = LanceCreateMaterializedViewOperator(
            task_id="again", table_id="v", query="SELECT id FROM t", if_exists="skip", deferrable=deferrable
        )
        anew = LanceCreateMaterializedViewOperator(
            task_id="anew", table_id="v", query="SELECT id FROM t", if_exists="refresh", deferrable=deferrable
        )
        refresh = LanceRefreshMaterializedViewOperator(task_id="refresh", table_id="v", deferrable=deferrable)
        skip = LanceRefreshMaterializedViewOperator(
            task_id="skip", table_id="v", skip_if_unchanged=True, deferrable=deferrable
        )
        empty >> create >> again >> anew >> refresh >> skip
    run = run_dag(dag)
    assert run.xcom("empty") == {
        "job_id": None,
        "job_type": "refresh_materialized_view",
        "table_id": ["v0"],
        "state": "DONE",
        "version": 1,
        "result": None,
    }
    assert run.xcom("create")["version"] == 2
    assert run.xcom("again")["job_id"] is None
    assert run.xcom("anew")["job_id"] != run.xcom("create")["job_id"]
    assert run.xcom("refresh")["result"]["rows_written"] == 0
    assert run.task_state("skip") == "skipped"


def test_a_job_is_cancelled_by_a_task(run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer) -> None:
    server = lance_connection
    with new_dag() as dag:
        submit = LanceOperator(
            task_id="submit", operation="alter_table_backfill_columns", request={"id": "t", "column": "c"}
        )
        cancel = LanceCancelJobOperator(task_id="cancel", job_id=submit.output)
        missing = LanceCancelJobOperator(task_id="missing", job_id="nobody", if_missing="skip")
        ends = LanceCancelJobOperator(task_id="ends", job_id="nobody", if_missing="skip_task")
        submit >> cancel >> missing >> ends
    run = run_dag(dag)
    assert {name.lower(): value for name, value in server.headers[0].items()}["x-lance-ctx-task-id"] == "submit"
    assert run.xcom("cancel")["state"] == "CANCELLED"
    assert run.task_state("missing") == "success"
    assert run.xcom("missing")["state"] == "LOST"
    assert run.task_state("ends") == "skipped"
    assert [job.state for job in server.submitted()] == ["CANCELLED"]


def test_a_crash_after_the_submit_rejoins_the_job(
    run_dag: RunDag,
    new_dag: NewDag,
    lance_connection: JobsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker dies while it waits: the retry waits for the same job, and submits nothing."""
    server = lance_connection
    waits = []
    wait = LanceBackfillColumnOperator.wait_on_worker

    def crash_once(self: Any, submitted: Any) -> Any:
        waits.append(submitted.job_id)
        if len(waits) == 1:
            raise RuntimeError("the worker died")
        server.finish(submitted.job_id, result=RESULT)
        return wait(self, submitted)

    monkeypatch.setattr(LanceBackfillColumnOperator, "wait_on_worker", crash_once)
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="fill", table_id="t", column="c", retries=1, retry_delay=timedelta(0), deferrable=False
        )
    run = run_dag(dag)
    assert run.state == "success"
    assert waits == ["job-1", "job-1"]
    assert len(server.submitted()) == 1
    # Without a store for tasks' state the retry asks again with its key, and the server answers with the live job.
    assert sum("backfill_column" in path for path in server.paths()) == (1 if HAS_STATE_STORE else 2)


@pytest.mark.skipif(not HAS_STATE_STORE, reason="Airflow 3.2 keeps no state of a task from try to try")
@both_ways
def test_a_success_that_airflow_did_not_write_down_submits_nothing_again(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, deferrable: bool
) -> None:
    """The job is done and the task's code has ended, but Airflow decides on another try all the same."""
    server = lance_connection
    server.finish_after = 0.3
    ends = []

    def lose_the_first(context: Any, result: Any) -> None:
        ends.append(result["job_id"])
        if len(ends) == 1:
            raise RuntimeError("the success never arrived")

    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="fill",
            table_id="t",
            column="c",
            retries=1,
            retry_delay=timedelta(0),
            deferrable=deferrable,
            post_execute=lose_the_first,
        )
    run = run_dag(dag)
    assert run.state == "success"
    assert ends == ["job-1", "job-1"]
    assert len(server.submitted()) == 1


def test_a_cleared_success_submits_again(airflow_home: Path, lance_connection: JobsServer) -> None:
    """Whatever mark the first run left: also where fewer retries leave ``max_tries`` as it was."""
    job = lance_connection.add("t", "DONE", result=RESULT)
    kept: dict[str, Any] = {}
    store = SimpleNamespace(get=kept.get, set=kept.__setitem__)

    def context(max_tries: int, clears: int) -> Any:
        return {
            "ti": SimpleNamespace(max_tries=max_tries),
            "dag_run": SimpleNamespace(clear_number=clears),
            "task_state_store": store,
        }

    hook = LanceNamespaceHook("lance_default")
    log = logging.getLogger(__name__)
    save_job(context(2, 0), job.job_id)
    assert rejoin(context(2, 1), hook, log) is not None, "another task of the run was cleared, this one crashed"
    mark_concluded(context(2, 0))
    assert rejoin(context(2, 0), hook, log) is not None, "its success was lost"
    assert rejoin(context(3, 1), hook, log) is None, "cleared"
    assert rejoin(context(2, 1), hook, log) is None, "cleared, with fewer retries than before"


def test_plan_only_and_limits_travel_as_context(run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer) -> None:
    server = lance_connection
    server.finish_after = 0.1
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="plan",
            table_id="t",
            column="c",
            plan_only=True,
            max_failed_rows=3,
            only="{{ 'failed' }}",
            sample="{{ 2 * 10 }}",
            request_context={"team": "search"},
        )
    assert run_dag(dag).state == "success"
    (headers,) = [
        headers
        for headers, (_, path, _) in zip(server.headers, server.requests, strict=True)
        if path.endswith("backfill_column")
    ]
    sent = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-lance-ctx-")}
    assert sent["x-lance-ctx-plan"] == "true"
    assert sent["x-lance-ctx-max_failed_rows"] == "3"
    assert sent["x-lance-ctx-only"] == "failed"
    assert sent["x-lance-ctx-sample"] == "20"
    assert sent["x-lance-ctx-team"] == "search"
    assert len(sent["x-lance-ctx-idempotency-key"]) == 64


def test_the_server_is_told_which_task_asks_and_a_retry_keeps_its_key(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer
) -> None:
    server = lance_connection
    with new_dag() as dag:
        LanceBackfillColumnOperator.partial(task_id="fill", column="c", retries=1, retry_delay=timedelta(0)).expand(
            table_id=["t"]
        )
    retryable = {"phase": "launch", "message": "no executor", "retryable": True}
    script(
        server,
        when_submitted(1, lambda s, job: s.finish(job, state="FAILED", failure=retryable)),
        when_submitted(2, lambda s, job: s.finish(job, result=RESULT)),
    )
    run = run_dag(dag)
    assert run.state == "success"
    sent = [
        {name.lower(): value for name, value in headers.items()}
        for headers, (_, path, _) in zip(server.headers, server.requests, strict=True)
        if path.endswith("backfill_column")
    ]
    assert [entries["x-lance-ctx-try"] for entries in sent] == ["1", "2"]
    assert len({entries["x-lance-ctx-idempotency-key"] for entries in sent}) == 1
    for entries in sent:
        assert entries["x-lance-ctx-dag-id"] == dag.dag_id
        assert entries["x-lance-ctx-run-id"] == run.dag_run.run_id
        assert entries["x-lance-ctx-task-id"] == "fill"
        assert entries["x-lance-ctx-map-index"] == "0"


def test_rendered_templates_are_sent_as_what_they_mean(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer
) -> None:
    server = lance_connection
    server.finish_after = 0.1
    server.versions = {"v": 1}
    with new_dag(params={"some": 4, "seconds": "2.5", "none": None, "yes": True}) as dag:
        fill = LanceBackfillColumnOperator(
            task_id="fill",
            table_id="t",
            column="c",
            concurrency="{{ params.some }}",
            read_version="{{ params.none }}",
            task_size="{{ ti.xcom_pull('nobody') or '' }}",
            batch_checkpoint_flush_interval_seconds="{{ params.seconds }}",
            plan_only="{{ params.yes }}",
            max_failed_rows="{{ params.some }}",
        )
        refresh = LanceRefreshMaterializedViewOperator(
            task_id="refresh",
            table_id="v",
            src_version=" {{ params.some }}",
            full="{{ params.yes }}",
            concurrency="{{ params.some }}",
            output_limit="{{ params.none }}",
        )
        fill >> refresh
    run = run_dag(dag)
    assert run.state == "success"
    filled, refreshed = server.submitted()
    assert filled.body == {"column": "c", "concurrency": 4, "batch_checkpoint_flush_interval_seconds": 2.5}
    assert refreshed.body == {"src_version": 4, "full": True, "concurrency": 4}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"concurrency": "four"}, "`concurrency` must be a whole number, not 'four'."),
        ({"concurrency": "4.5"}, "`concurrency` must be a whole number, not '4.5'."),
        ({"concurrency": True}, "`concurrency` must be a whole number, not True."),
        ({"max_failed_rows": "few"}, "`max_failed_rows` must be a whole number, not 'few'."),
        ({"only": "new"}, "only is 'new'; it must be 'failed'."),
        ({"plan_only": "perhaps"}, "`plan_only` must be true or false, not 'perhaps'."),
        (
            {"batch_checkpoint_flush_interval_seconds": "inf"},
            "`batch_checkpoint_flush_interval_seconds` must be a number, not 'inf'.",
        ),
    ],
)
def test_what_an_argument_cannot_mean_is_said_with_its_name(arguments: dict[str, Any], sentence: str) -> None:
    operator = LanceBackfillColumnOperator(task_id="fill", table_id="t", column="c", **arguments)
    with pytest.raises(AirflowFailException, match=re.escape(sentence)):
        (operator.request(), operator.options())


def test_a_template_without_a_meaning_fails_without_another_try(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer
) -> None:
    with new_dag(params={"word": "four"}) as dag:
        LanceRefreshMaterializedViewOperator(
            task_id="refresh", table_id="v", concurrency="{{ params.word }}", retries=2, retry_delay=timedelta(0)
        )
    run = run_dag(dag)
    assert run.task_state("refresh") == "failed"
    assert run.instance("refresh").try_number == 1
    assert not lance_connection.submitted()


@pytest.mark.parametrize(("fragments", "state"), [(3, "success"), (0, "skipped")])
def test_a_plan_with_work_in_it_is_not_skipped(
    run_dag: RunDag, new_dag: NewDag, lance_connection: JobsServer, fragments: int, state: str
) -> None:
    server = lance_connection
    server.finish_after = 0.1
    server.finish_result = {"plan": {"fragments": fragments, "rows": 0}, "rows_assigned": 0, "rows_failed": 0}
    with new_dag() as dag:
        LanceBackfillColumnOperator(
            task_id="plan", table_id="t", column="c", plan_only=True, skip_if_unchanged=True, deferrable=False
        )
    assert run_dag(dag).task_state("plan") == state


@pytest.mark.parametrize(
    ("result", "state"),
    [
        ({"mode": "no_op", "rows_written": 0}, "skipped"),
        ({"mode": "no_op"}, "skipped"),
        ({"mode": "incremental", "rows_written": 0, "plan": {"source_rows": 5}}, "success"),
    ],
)
def test_what_a_refresh_found_to_do_decides_about_skipping(
    run_dag: RunDag,
    new_dag: NewDag,
    lance_connection: JobsServer,
    result: dict[str, Any],
    state: str,
) -> None:
    server = lance_connection
    server.finish_after, server.finish_result, server.versions = 0.1, result, {"v": 1}
    with new_dag() as dag:
        LanceRefreshMaterializedViewOperator(
            task_id="refresh", table_id="v", skip_if_unchanged=True, deferrable=False, request_context={"plan": "true"}
        )
    assert run_dag(dag).task_state("refresh") == state
