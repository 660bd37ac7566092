"""End to end without a stand-in: the server launches spark-submit, the engine claims, fills the column and reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_lance.api.client import LanceClient

from .conftest import wait_until
from .server_process import ROOT


@pytest.mark.timeout(300)
def test_a_column_is_filled_by_a_spark_job(tmp_path: Path) -> None:
    serve = ["serve", "--port", "0", "--root", str(tmp_path / "lake"), "--state-dir", str(tmp_path / "state")]
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_lance.namespace.cli", *serve],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[1]
    try:
        with LanceClient(url) as client:
            client.create_table({"id": ["people"]}, pa.table({"id": range(1000), "text": ["abc"] * 1000}))
            added = [{"name": "n", "computed": "length(text)"}]
            client.alter_table_add_columns({"id": ["people"], "new_columns": added})
            job_id = client.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
            job = wait_until(lambda: (found := client.job(job_id)).state.terminal and found, 240)
            log = (tmp_path / "state" / "logs" / job_id / "attempt-1.log").read_text()
            assert job.state.value == "DONE", (job, log[-3000:])
            assert job.result is not None
            assert job.result["rows_assigned"] == 1000
            query = {"id": ["people"], "vector": {}, "k": 2000, "columns": {"column_names": ["n"]}}
            assert set(client.query_arrow(query)["n"].to_pylist()) == {3}
            assert job.progress is not None
            assert job.progress.rows_done == 1000
            messages = client.query_job_events({"job_id": job_id})["message"].to_pylist()
            assert messages[-1] == "DONE on attempt 1"
    finally:
        process.terminate()
        process.wait(timeout=30)
