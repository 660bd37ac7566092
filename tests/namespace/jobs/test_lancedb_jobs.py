"""LanceDB's own client, unmodified, with jobs of ours: refresh a column, list, look at events, cancel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from tests.namespace.conftest import QUICK, wait_until
from tests.namespace.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("lancedb"), timings=QUICK).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def db(server: ServerProcess) -> Any:
    return lancedb.connect("db://dev", api_key="any", host_override=server.url)


@pytest.fixture(scope="module")
def table(db: Any) -> Any:
    table = db.create_table("people", pa.table({"id": [1, 2, 3], "text": ["a", "bb", "ccc"]}))
    table.add_columns(computed={"n": "length(text)", "m": "id + 1"})
    return table


def test_a_column_refresh_is_waited_for(db: Any, table: Any) -> None:
    job = table.refresh_column_async("n")
    result = job.wait()
    # The driver is the fake one: its figures are made up, the way they travel is not.
    assert "1000" in str(result)
    listed = {row.job_id: row for row in db.list_jobs()}
    assert listed[job.id].state == "finished"
    assert listed[job.id].table == "people"


def test_events_and_cancel(db: Any, table: Any, server: ServerProcess) -> None:
    job_id = server.post("/v1/table/people/backfill_column", {"column": "m", "cluster": "external"}).json()["job_id"]
    db.cancel_job(job_id)
    assert wait_until(lambda: server.job(job_id)["job_state"] == "CANCELLED")
    events = db.open_job(job_id).events()
    rows = pa.table(events) if not hasattr(events, "to_pylist") else events
    assert [row["state"] for row in rows.to_pylist()] == ["QUEUED", "CANCELLED"]
