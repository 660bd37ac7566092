"""Events that are not ours: SQLite gives a new trigger the id of a deleted one, whose event reaches the new task."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator
from airflow_provider_lance.operators.job_base import Submitted
from airflow_provider_lance.sensors.job import LanceJobSensor
from airflow_provider_lance.sensors.table import LanceTableVersionSensor, LanceTagSensor
from airflow_provider_lance.tasks.job_outcome import JobEvent
from airflow_provider_lance.triggers.table import TableEvent
from tests.airflow.jobs_server import JobsServer

CONTEXT: Any = {"ti": SimpleNamespace(xcom_push=lambda **_: None, map_index=-1)}
OF_ANOTHER: JobEvent = {"job_id": "of-a-cleared-try", "state": "CANCELLED", "result": None, "failure": None}


def deferral(resume: Any, *arguments: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        resume(CONTEXT, *arguments)
    return deferred.value


def test_a_task_goes_on_waiting_for_its_own_job(airflow_home: Path, lance_connection: JobsServer) -> None:
    ours = Submitted(lance_connection.add("t").job_id, ["t"], "backfill_column", deadline=4e9)
    task = LanceBackfillColumnOperator(task_id="fill", table_id="t", column="c", deferrable=True)
    again = deferral(task.execute_complete, OF_ANOTHER, ours._asdict())
    assert (again.trigger.job_id, again.trigger.deadline) == (ours.job_id, ours.deadline)
    assert again.kwargs == {"submitted": ours._asdict()}
    assert again.trigger.cancel_on_kill


def test_a_job_sensor_goes_on_waiting_for_its_own_job(airflow_home: Path, lance_connection: JobsServer) -> None:
    ours = lance_connection.add("t")
    sensor = LanceJobSensor(task_id="wait", job_id=ours.job_id, deferrable=True)
    assert deferral(sensor.execute_complete, OF_ANOTHER).trigger.job_id == ours.job_id


def test_a_table_sensor_goes_on_waiting_for_its_own_goal(airflow_home: Path, lance_connection: JobsServer) -> None:
    lance_connection.versions["t"] = 3
    sensor = LanceTableVersionSensor(task_id="wait", table_id="t", min_version=5, deferrable=True)
    too_early = TableEvent(table_id=["t"], branch=None, tag=None, version=4, timeout=False, error=None)
    elsewhere: TableEvent = {**too_early, "table_id": ["u"], "version": 7}
    for event in (too_early, elsewhere):
        assert deferral(sensor.execute_complete, event).trigger.goal["after"] == 4
    assert sensor.execute_complete(CONTEXT, {**too_early, "version": 5}) == {"table_id": ["t"], "version": 5}


def test_a_tag_is_no_version(airflow_home: Path, lance_connection: JobsServer) -> None:
    lance_connection.versions["t"] = 3
    sensor = LanceTagSensor(task_id="wait", table_id="t", tag="prod", deferrable=True)
    event = TableEvent(table_id=["t"], branch=None, tag="prod", version=2, timeout=False, error=None)
    assert deferral(sensor.execute_complete, {**event, "tag": "test"}).trigger.tag == "prod"
    assert sensor.execute_complete(CONTEXT, event) == {"table_id": ["t"], "tag": "prod", "version": 2}
