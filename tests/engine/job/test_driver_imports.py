"""A driver imports what its job needs: no Spark for SQL over few rows, no client of the namespace for plain commits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace

from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.spark.submit_command import APPLICATION
from tests.engine.backfills import assert_filled, declare, people
from tests.engine.job_server import JobServer
from tests.engine.view_world import create_view

ROOT = Path(__file__).parents[3]
HEAVY = (
    "lance",
    "pyspark",
    "py4j",
    "pandas",
    "lance_namespace",
    "lance_namespace_urllib3_client",
    "airflow",
    "fastapi",
)
# The application as it is started, and then which of the heavy modules it has loaded.
PROGRAM = f"""
import runpy, sys
try:
    runpy.run_path({APPLICATION!r}, run_name="__main__")
except SystemExit as exit:
    assert not exit.code, exit.code
print(*(name for name in {HEAVY!r} if name in sys.modules))
"""


class NamespaceServer(JobServer):
    """A server that also manages the versions of its tables."""

    namespace: Any = None

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self.created: list[int] = []

    def serve(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = re.fullmatch(r"/v1/table/(\w+)/version/(list|describe|create)", path)
        if found is None:
            return super().serve(path, body)
        operation = "list_table_versions" if found[2] == "list" else f"{found[2]}_table_version"
        if found[2] == "create":
            self.created.append(body["version"])
        answer = getattr(self.namespace, operation)({**body, "id": [found[1]]})
        return 200, dict(answer)


def loaded(
    spec: Mapping[str, object],
    folder: Path,
    *options: str,
    ran_on: str = "driver",
    server: JobServer | None = None,
) -> str:
    """Run a job as a driver of a server, and say what it has loaded."""
    token = folder / "token.json"
    token.write_text('{"launch_token": "launch", "api_key": "secret"}')
    server = server or JobServer(dict(spec))
    arguments = ["--job-id", "job", "--attempt", "1", "--namespace", server.url, *options]
    try:
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANCE_JOB_TOKEN_FILE": str(token)},
        )
    finally:
        server.close()
    assert answer.returncode == 0, answer.stderr
    assert server.terminal is not None
    assert server.terminal["state"] == "DONE"
    assert server.terminal["result"]["ran_on"] == ran_on
    return answer.stdout.strip()


def test_a_backfill_of_few_rows_loads_lance_alone(tmp_path: Path, uri: str) -> None:
    spec = {"job_type": "backfill_column", "table_id": ["t"], "location": uri, "request": {"column": "n"}}
    assert loaded(spec, tmp_path) == "lance"
    assert_filled(uri)
    assert loaded(spec, tmp_path) == "lance", "nothing is to be done"


def test_a_commit_through_the_namespace_loads_none_of_its_models(tmp_path: Path) -> None:
    namespace: Any = DirectoryNamespace(  # type: ignore[no-untyped-call]
        root=str(tmp_path), table_version_tracking_enabled="true", manifest_enabled="true"
    )
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "text": ["x"] * 100})
    dataset = lance.write_dataset(rows, namespace_client=namespace, table_id=["t"], mode="create")
    declare(dataset, "n", "length(text) + id")
    spec = {
        "job_type": "backfill_column",
        "table_id": ["t"],
        "location": dataset.uri,
        "request": {"column": "n"},
        "managed": True,
    }
    server = NamespaceServer(dict(spec))
    server.namespace = namespace
    assert loaded(spec, tmp_path, server=server) == "lance"
    assert server.created == [3]
    assert lance.dataset(namespace_client=namespace, table_id=["t"]).count_rows("n = id + 1") == 100


@pytest.mark.parametrize("name", ["view.lance", "5553a3ef_team$view"])
def test_a_refresh_of_few_rows_loads_lance_alone(tmp_path: Path, name: str) -> None:
    source, view = str(tmp_path / "people.lance"), str(tmp_path / name)
    people(source, enable_stable_row_ids=True)
    create_view(view, ViewDefinition.from_request({"query": "SELECT id FROM people"}), lambda _: lance.dataset(source))
    spec = {"job_type": "refresh_materialized_view", "table_id": ["v"], "location": view, "tables": {"people": source}}
    assert loaded(spec, tmp_path) == "lance"
    assert lance.dataset(view).count_rows() == 100
    assert loaded(spec, tmp_path) == "lance", "nothing is to be done"


def test_a_job_on_spark_loads_no_pandas(tmp_path: Path, uri: str) -> None:
    spec = {"job_type": "backfill_column", "table_id": ["t"], "location": uri, "request": {"column": "n"}}
    options = ["--driver-rows", "0", "--master", "local[1,4]"]
    assert loaded(spec, tmp_path, *options, ran_on="spark") == "lance pyspark py4j"
    assert_filled(uri)
