"""What a task says: the reason of a failure first, what a namespace lacks and the way out, and what was done."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_provider_lance.functions import UdfColumn
from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.columns import LanceAddColumnsOperator
from airflow_provider_lance.operators.job import LanceCancelJobOperator
from airflow_provider_lance.operators.materialized_view import (
    LanceCreateMaterializedViewOperator,
    LanceRefreshMaterializedViewOperator,
)
from airflow_provider_lance.operators.operation import LanceOperator
from airflow_provider_lance.operators.table import (
    LanceCreateEmptyTableOperator,
    LanceCreateTableOperator,
    LanceDropTableOperator,
)
from airflow_provider_lance.operators.tag import (
    LanceCreateTagOperator,
    LanceDeleteTagOperator,
    LanceUpdateTagOperator,
)
from airflow_provider_lance.sensors.job import LanceJobSensor
from airflow_provider_lance.sensors.table import LanceTableVersionSensor
from airflow_provider_lance.tasks.job_spec import read_spec
from tests.airflow.conftest import connection, rest_connection
from tests.airflow.jobs_server import JobsServer

pytestmark = pytest.mark.usefixtures("airflow_home")

_WINDOW = 120  # characters of a log line that a window of 1280 pixels shows


def execute(task: Any, caplog: pytest.LogCaptureFixture) -> Any:
    """Run a task with its log in ``caplog``, where Airflow's own handlers would hide it."""
    caplog.clear()
    log = logging.getLogger("reasons")
    log.setLevel(logging.INFO)
    store: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="x",
        map_index=-1,
        max_tries=0,
        try_number=1,
        xcom_push=lambda **_: None,
        start_date=None,
    )
    kept = SimpleNamespace(get=store.get, set=store.__setitem__)
    with mock.patch.object(type(task), "log", log):
        return task.execute({"ti": ti, "task_state_store": kept, "dag_run": SimpleNamespace(clear_number=0)})


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


@pytest.fixture(params=["REST", "dir"])
def pylance(request: pytest.FixtureRequest, rest_adapter: str, tmp_path: Path) -> Iterator[str]:
    """``lance_default`` is pylance's own namespace, behind its server or in this process."""
    spelling = rest_connection(rest_adapter)
    if request.param == "dir":
        spelling = json.dumps({"conn_type": "lance", "extra": {"impl": "dir", "properties": {"root": str(tmp_path)}}})
    with connection("lance_default", spelling):
        yield f"t{uuid.uuid4().hex[:8]}"


def test_identifiers_are_joined_with_the_connections_delimiter(
    jobs_server: JobsServer, caplog: pytest.LogCaptureFixture
) -> None:
    jobs_server.versions["a.t"] = 3
    jobs_server.finish_after, jobs_server.finish_state = 0.0, "FAILED"
    with connection("lance_default", rest_connection(jobs_server.url, delimiter=".")):
        with pytest.raises(AirflowFailException, match=r"The table a\.t has no tag 'x'"):
            execute(LanceUpdateTagOperator(task_id="x", table_id="a.t", tag="x", version=1), caplog)
        with pytest.raises(AirflowFailException, match=r"^a\.t\.c: "):
            execute(LanceBackfillColumnOperator(task_id="x", table_id=["a", "t"], column="c"), caplog)
        sensor = LanceTableVersionSensor(task_id="x", table_id="a.t", min_version=4, timeout=0)
        with pytest.raises(AirflowSensorTimeout):
            execute(sensor, caplog)
    assert "Waiting for table a.t: a version above 3; it is 3." in caplog.text


class TestFailures:
    @pytest.mark.parametrize("prefix", ["", "mist2.r: "], ids=["another server's words", "our engine's words"])
    def test_the_reason_of_a_failed_job_is_the_first_error_line(
        self, lance_connection: JobsServer, caplog: pytest.LogCaptureFixture, prefix: str
    ) -> None:
        message = f'{prefix}the function failed on row 0: ZeroDivisionError: division by zero\n  File "f.py", line 3'
        lance_connection.finish_after, lance_connection.finish_state = 0.0, "FAILED"
        lance_connection.finish_failure = {"phase": "compute", "message": message, "retryable": False}
        lance_connection.finish_result = {"rows_failed": 1200}
        with pytest.raises(AirflowFailException) as failed:
            execute(LanceBackfillColumnOperator(task_id="x", table_id="mist2", column="r"), caplog)
        (job,) = lance_connection.submitted()
        reason = "mist2.r: the function failed on row 0: ZeroDivisionError: division by zero"
        assert errors(caplog) == [
            f"{reason} (job {job.job_id})",
            '  File "f.py", line 3',
            f"Job {job.job_id} failed in compute. 1,200 rows failed.",
            f"{lance_connection.url}/ui/jobs/{job.job_id}",
        ]
        assert str(failed.value).startswith(f"{reason} (job ")
        assert len(reason) <= _WINDOW
        assert "FAILED" not in caplog.text, "the state without the reason says nothing"

    def test_the_reason_of_a_refused_request_is_the_first_error_line(
        self, lance_connection: JobsServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(AirflowException) as failed:
            execute(LanceUpdateTagOperator(task_id="x", table_id="a$b", tag="p", version=1), caplog)
        assert errors(caplog) == ["no table a$b", "get_table_tag_version 'a$b': HTTP 404, TableNotFound"]
        assert str(failed.value) == "\n".join(errors(caplog))

    def test_a_server_that_is_away_is_said_first(self, caplog: pytest.LogCaptureFixture) -> None:
        fast = rest_connection("http://127.0.0.1:9", connect_timeout=1)
        with connection("lance_default", fast), pytest.raises(AirflowException, match=r"^No answer: .*refused"):
            execute(LanceDropTableOperator(task_id="x", table_id="t"), caplog)
        assert errors(caplog)[0].startswith("No answer: ")

    @pytest.mark.parametrize("password", [None, "wrong"])
    def test_no_key_and_a_wrong_key_read_differently(
        self, jobs_server: JobsServer, caplog: pytest.LogCaptureFixture, password: str | None
    ) -> None:
        jobs_server.token = "right"
        spelling = json.dumps({"conn_type": "lance", "host": jobs_server.url, "password": password})
        with connection("warehouse", spelling), pytest.raises(AirflowException):
            execute(LanceDropTableOperator(task_id="x", table_id="t", lance_conn_id="warehouse"), caplog)
        place = "the password of connection 'warehouse'"
        said = f"The API key was refused: check {place}." if password else f"No credentials were sent: set {place}."
        assert errors(caplog)[0] == f"{said} The server says: who are you"

    def test_a_job_in_the_way_is_named_once(
        self, lance_connection: JobsServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = lance_connection.add("t", "RUNNING")
        job.body["column"] = "c"
        with pytest.raises(AirflowException, match="on_conflict='wait'") as failed:
            execute(LanceBackfillColumnOperator(task_id="x", table_id="t", column="c"), caplog)
        assert str(failed.value).count(job.job_id) == 1

    def test_a_server_without_pages_gets_no_link(self, caplog: pytest.LogCaptureFixture) -> None:
        with JobsServer(has_pages=False) as server, connection("lance_default", rest_connection(server.url)):
            server.finish_after = 0.0
            execute(LanceBackfillColumnOperator(task_id="x", table_id="t", column="c"), caplog)
        assert "http" not in caplog.text


class TestOtherNamespaces:
    @pytest.mark.parametrize(
        "make",
        [
            lambda t: LanceBackfillColumnOperator(task_id="x", table_id=t, column="n"),
            lambda t: LanceCreateMaterializedViewOperator(task_id="x", table_id="v", query=f"SELECT id FROM {t}"),
            lambda t: LanceRefreshMaterializedViewOperator(task_id="x", table_id="v"),
            lambda t: LanceRefreshMaterializedViewOperator(task_id="x", table_id="v", skip_if_unchanged=True),
            lambda t: LanceJobSensor(task_id="x", job_id="j", timeout=5, poke_interval=0.2),
            lambda t: LanceJobSensor(task_id="x", job_id="j", timeout=5, poke_interval=0.2, deferrable=True),
            lambda t: LanceCancelJobOperator(task_id="x", job_id="j"),
        ],
        ids=["backfill", "create view", "refresh", "refresh if changed", "sensor", "deferred sensor", "cancel"],
    )
    def test_a_namespace_without_jobs_says_so_and_the_way_out(
        self, pylance: str, caplog: pytest.LogCaptureFixture, make: Any
    ) -> None:
        execute(LanceCreateTableOperator(task_id="x", table_id=pylance, schema={"id": "int64"}), caplog)
        with pytest.raises(AirflowFailException, match=r"^This namespace executes no jobs; .*`airflow-lance serve`"):
            execute(make(pylance), caplog)
        assert errors(caplog)[0].startswith("This namespace executes no jobs")
        assert "LanceSparkSubmitOperator runs a job from its `spec`" in errors(caplog)[1]

    @pytest.mark.parametrize(
        "rule",
        [
            {"computed": {"n": "length(text)"}},
            {"virtual": {"n": UdfColumn("os.path:basename", inputs=["text"], type="string")}},
        ],
        ids=["computed", "virtual"],
    )
    def test_a_namespace_without_rules_says_so_and_the_way_out(
        self, pylance: str, caplog: pytest.LogCaptureFixture, rule: dict[str, Any]
    ) -> None:
        execute(LanceCreateTableOperator(task_id="x", table_id=pylance, schema={"text": "string"}), caplog)
        with pytest.raises(AirflowFailException, match=r"^This namespace has no computed or virtual columns"):
            execute(LanceAddColumnsOperator(task_id="x", table_id=pylance, **rule), caplog)

    def test_an_empty_table_is_declared_everywhere(self, pylance: str, caplog: pytest.LogCaptureFixture) -> None:
        declare = LanceCreateEmptyTableOperator(task_id="x", table_id=pylance)
        assert execute(declare, caplog)["created"] is True
        assert f"Declared table {pylance} at " in caplog.text
        again = LanceCreateEmptyTableOperator(task_id="x", table_id=pylance, if_exists="skip")
        assert execute(again, caplog)["created"] is False


def test_operators_log_what_they_did_and_no_failures(
    tables: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    table = f"t{uuid.uuid4().hex[:8]}"
    file = tmp_path / "three.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [1, 2, 3]}), file)
    steps: list[tuple[Any, str]] = [
        (
            LanceCreateTableOperator(task_id="x", table_id=table, path=str(file), if_exists="skip"),
            "with 3 rows, version 1",
        ),
        (LanceCreateTableOperator(task_id="x", table_id=table, path=str(file), if_exists="skip"), "is there already"),
        (
            LanceCreateTableOperator(
                task_id="x", table_id=table, data=lambda: pa.table({"id": [1]}), if_exists="overwrite"
            ),
            f"Wrote table {table} with 1 rows, version 2",
        ),
        (
            LanceAddColumnsOperator(task_id="x", table_id=table, expressions={"n": "id * 2"}),
            f"Added n to table {table}",
        ),
        (LanceCreateTagOperator(task_id="x", table_id=table, tag="p", version=1), "created at version 1"),
        (LanceUpdateTagOperator(task_id="x", table_id=table, tag="p", version=3), "version 1 → 3"),
        (LanceDeleteTagOperator(task_id="x", table_id=table, tag="p"), "deleted, it was version 3"),
        (LanceDeleteTagOperator(task_id="x", table_id=table, tag="p", if_missing="skip"), "not there"),
        (
            LanceOperator(
                task_id="x",
                operation="insert_into_table",
                request={"id": table},
                data=lambda: pa.table({"id": [4], "n": [8]}),
            ),
            "",
        ),
        (LanceDropTableOperator(task_id="x", table_id=table), f"Dropped table {table}."),
        (LanceDropTableOperator(task_id="x", table_id=table, if_missing="skip"), f"There is no table {table} to drop"),
    ]
    for task, line in steps:
        execute(task, caplog)
        assert line in caplog.text
        assert "HTTP" not in caplog.text, "an existence check is not a failure"


@pytest.mark.parametrize("render", [json.dumps, str], ids=["JSON", "as Python writes it"])
def test_a_rendered_spec_is_read(render: Any) -> None:
    spec = {
        "job_type": "backfill_column",
        "location": "/data/t.lance",
        "request": {"column": "c", "where": None, "concurrency": 2},
    }
    assert read_spec(render(spec)) == read_spec(spec)
    with pytest.raises(AirflowFailException, match=r"^The spec cannot be run\."):
        read_spec("{nothing}")
