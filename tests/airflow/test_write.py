"""``LanceWriteOperator`` in real DAGs, on every kind of namespace: what is stored, and that a retry stores it once."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.definitions.write_request import WriteMode
from airflow_provider_lance.hooks.lance import LanceNamespaceHook, TableAccess
from airflow_provider_lance.operators.write import LanceWriteOperator, write_rows
from airflow_provider_lance.tasks.row_source import RowSource
from airflow_provider_lance.tasks.table_writer import WriteOrder, write_table
from tests.airflow.conftest import connection, rest_connection
from tests.airflow.real_server import ROOT, serve

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("airflow_home")]

KINDS = ("ours", "pylance", "folder")


@pytest.fixture(scope="module")
def connections(tmp_path_factory: pytest.TempPathFactory, rest_adapter: str) -> Iterator[dict[str, str]]:
    """Connections to our server, which manages versions, to pylance's, and to a folder without a server."""
    folder = {"impl": "dir", "properties": {"root": str(tmp_path_factory.mktemp("folder"))}}
    with serve(tmp_path_factory.mktemp("ours")) as server:
        yield {
            "ours": server.connection,
            "pylance": rest_connection(rest_adapter),
            "folder": json.dumps({"conn_type": "lance", "extra": folder}),
        }


@pytest.fixture(params=KINDS)
def namespace(request: pytest.FixtureRequest, connections: dict[str, str]) -> Iterator[str]:
    with connection("lance_default", connections[request.param]):
        yield request.param


@pytest.fixture
def ours(connections: dict[str, str]) -> Iterator[None]:
    with connection("lance_default", connections["ours"]):
        yield


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def people(*ids: int, text: str = "t") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{text}{number}" for number in ids]})


def stored(table: str) -> list[tuple[Any, ...]]:
    import lance

    access = LanceNamespaceHook().table_access([table])
    rows = lance.dataset(access.location).to_table().to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_the_modes_from_a_missing_table_on(
    run_dag: Callable[..., Any], new_dag: Callable[..., Any], namespace: str, table: str
) -> None:
    asset = create_asset(authority="test", table_id=[table])
    with new_dag() as dag:
        create = LanceWriteOperator(task_id="create", table_id=table, data=lambda: people(1, 2), mode="create")
        append = LanceWriteOperator(task_id="append", table_id=table, data=lambda: people(3), outlets=[asset])
        upsert = LanceWriteOperator(
            task_id="upsert", table_id=table, data=[{"id": 3, "text": "new"}, {"id": 4}], mode="upsert", on="id"
        )
        create >> append >> upsert
    run = run_dag(dag)
    assert run.state == "success"
    assert stored(table) == [(1, "t1"), (2, "t2"), (3, "new"), (4, None)]
    assert run.xcom("create") == {
        "table_id": [table],
        "version": run.xcom("create")["version"],
        "rows_inserted": 2,
        "rows_updated": 0,
        "rows_deleted": 0,
        "created": True,
    }
    assert [run.xcom("upsert")[name] for name in ("rows_inserted", "rows_updated", "created")] == [1, 1, False]
    assert run.asset_extras(asset.uri) == [{"version": run.xcom("append")["version"], "rows": 1}]

    with new_dag() as dag:
        LanceWriteOperator(task_id="overwrite", table_id=table, data=lambda: people(9), mode="overwrite")
    assert run_dag(dag).state == "success"
    assert stored(table) == [(9, "t9")]


def test_a_new_table_has_stable_row_ids(
    run_dag: Callable[..., Any], new_dag: Callable[..., Any], namespace: str, table: str
) -> None:
    import lance

    with new_dag() as dag:
        LanceWriteOperator(task_id="append", table_id=table, data=lambda: people(1))
    assert run_dag(dag).state == "success"
    assert lance.dataset(LanceNamespaceHook().table_access([table]).location).has_stable_row_ids


@pytest.mark.parametrize("form", ["folder", "pattern", "csv", "jsonl", "arrow", "lance", "object"])
def test_files_of_every_kind(
    run_dag: Callable[..., Any], new_dag: Callable[..., Any], ours: None, table: str, tmp_path: Path, form: str
) -> None:
    import lance
    from airflow.sdk import ObjectStoragePath

    rows = people(1, 2, 3)
    path: Any = tmp_path / "in"
    path.mkdir()
    pq.write_table(rows.slice(0, 2), path / "part-1.parquet")
    pq.write_table(rows.slice(2), path / "part-2.parquet")
    if form == "pattern":
        pq.write_table(people(77), path / "other.parquet")
        path = f"{path}/part-*.parquet"
    elif form == "csv":
        path = tmp_path / "rows.csv"
        pyarrow.csv.write_csv(rows, path)
    elif form == "jsonl":
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    elif form == "arrow":
        path = tmp_path / "rows.arrow"
        with pa.ipc.new_file(str(path), rows.schema) as file:
            file.write_table(rows)
    elif form == "lance":
        path = tmp_path / "rows.lance"
        lance.write_dataset(rows, str(path))
    path = ObjectStoragePath(f"file://{path}") if form == "object" else str(path)
    with new_dag(params={"path": str(path)}) as dag:
        templated = path if form == "object" else "{{ params.path }}"
        LanceWriteOperator(task_id="load", table_id=table, path=templated, mode="create")
    assert run_dag(dag).state == "success"
    assert stored(table) == [(1, "t1"), (2, "t2"), (3, "t3")]


def test_rows_of_another_task_and_of_pandas(
    run_dag: Callable[..., Any], new_dag: Callable[..., Any], ours: None, table: str
) -> None:
    import pandas as pd
    from airflow.sdk import task

    with new_dag() as dag:

        @task
        def fetch() -> list[dict[str, Any]]:
            return [{"id": 1, "text": "{{ not a template }}"}, {"id": 2, "text": None}]

        load = LanceWriteOperator(task_id="load", table_id=table, data=fetch())
        frame = LanceWriteOperator(
            task_id="frame", table_id=table, data=lambda: pd.DataFrame({"id": [3], "text": ["p"]}, index=[17])
        )
        load >> frame
    assert run_dag(dag).state == "success"
    assert stored(table) == [(1, "{{ not a template }}"), (2, None), (3, "p")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"data": [{"id": 1, "txt": "x"}]}, "The table has no column 'txt'; it has id, text."),
        ({"data": [{"id": "one"}]}, "The column 'id' is int64 in the table, and the rows have string"),
        ({"data": [{"id": 5}, {"id": 5}], "mode": "upsert", "on": "id"}, "1 keys occur more than once in the rows"),
        ({"data": [{"id": 5}], "mode": "upsert", "on": "idd"}, "The table has no column 'idd'; it has id, text."),
        ({"path": "/nowhere/*.parquet"}, "There is no file at /nowhere/*.parquet."),
        ({"data": lambda: 17}, "this is a int."),
        ({"data": [{"id": 1}], "mode": "create"}, "is there already, at version"),
    ],
)
def test_what_cannot_be_written_fails_with_a_sentence_and_changes_nothing(
    run_dag: Callable[..., Any],
    new_dag: Callable[..., Any],
    ours: None,
    table: str,
    capsys: pytest.CaptureFixture[str],
    arguments: dict[str, Any],
    told: str,
) -> None:
    with new_dag() as dag:
        first = LanceWriteOperator(task_id="first", table_id=table, data=lambda: people(1, 2))
        bad = LanceWriteOperator(task_id="bad", table_id=table, retries=2, **arguments)
        first >> bad
    run = run_dag(dag)
    assert run.task_state("bad") == "failed"
    assert run.instance("bad").try_number == 1, "another try could only fail again"
    assert told in capsys.readouterr().out
    assert stored(table) == [(1, "t1"), (2, "t2")]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"data": [], "path": "x"},
        {"data": [], "mode": "add"},
        {"data": [], "mode": "upsert"},
        {"data": [], "on": "id"},
        {"data": [], "replace_schema": True},
        {"data": [], "way": "by air"},
        {"data": [], "cluster": "local"},
        {"path": "/in", "cluster": "local", "way": "storage"},
        {"path": "/in", "concurrency": 2},
        {"path": "/in", "wait_for_completion": False},
    ],
)
def test_wrong_arguments_are_refused_while_the_dag_is_parsed(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"Give exactly one|mode is|needs `on`|`on` is for|is for mode|way is|`cluster`"
    ):
        LanceWriteOperator(task_id="bad", table_id="t", **arguments)


def test_rows_pass_the_server_where_the_storage_is_out_of_reach(
    run_dag: Callable[..., Any],
    new_dag: Callable[..., Any],
    ours: None,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server is on another machine, where the same path holds nothing."""
    from airflow_provider_lance.hooks import lance as hook_module

    real = hook_module.LanceNamespaceHook.table_access

    def elsewhere(self: LanceNamespaceHook, table_id: list[str]) -> hook_module.TableAccess:
        access = real(self, table_id)
        return hook_module.TableAccess(
            f"/another/machine{access.location}", access.version, access.columns, access.managed
        )

    monkeypatch.setattr(hook_module.LanceNamespaceHook, "table_access", elsewhere)
    with new_dag() as dag:
        create = LanceWriteOperator(task_id="create", table_id=table, data=lambda: people(1, 2))
        append = LanceWriteOperator(task_id="append", table_id=table, data=lambda: people(3))
        upsert = LanceWriteOperator(task_id="upsert", table_id=table, data=lambda: people(3, 4), mode="upsert", on="id")
        create >> append >> upsert
    run = run_dag(dag)
    monkeypatch.undo()
    assert run.state == "success"
    assert stored(table) == [(1, "t1"), (2, "t2"), (3, "t3"), (4, "t4")]
    assert "through the server" in capsys.readouterr().out
    assert [run.xcom("upsert")[name] for name in ("rows_inserted", "rows_updated")] == [1, 1]


@pytest.mark.parametrize("mode", ["append", "create"])
def test_a_table_that_the_server_created_is_filled_once(
    ours: None, table: str, monkeypatch: pytest.MonkeyPatch, mode: WriteMode
) -> None:
    """The first try dies after the server has stored its rows; the second sends them again with the same key."""
    real = LanceNamespaceHook.table_access

    def elsewhere(self: LanceNamespaceHook, table_id: list[str]) -> TableAccess:
        access = real(self, table_id)
        return dataclasses.replace(access, location=f"/another/machine{access.location}")

    hook = LanceNamespaceHook()
    order = WriteOrder([table], RowSource(people(1, 2)), mode=mode)
    monkeypatch.setattr(LanceNamespaceHook, "table_access", elsewhere)
    first = write_table(hook, order, key="the-run", after=None, log=hook.log)
    second = write_table(hook, order, key="the-run", after=0, log=hook.log)
    monkeypatch.undo()
    assert (first.created, first.way, first.result.inserted) == (True, "server", 2)
    assert (second.result.version, second.result.inserted) == (first.result.version, 2)
    assert stored(table) == [(1, "t1"), (2, "t2")]


def test_a_task_of_your_own_writes_with_the_same_promise(
    run_dag: Callable[..., Any], new_dag: Callable[..., Any], namespace: str, table: str
) -> None:
    from airflow.sdk import task

    with new_dag() as dag:

        @task(retries=1, retry_delay=timedelta(0))
        def load(table: str, *, ti: Any) -> dict[str, Any]:
            result = write_rows(LanceNamespaceHook(), table, [{"id": 1}, {"id": 2}])
            if ti.try_number == 1:
                raise RuntimeError("after the commit")
            return result

        load(table)  # type: ignore[call-arg]  # Airflow passes ti
    run = run_dag(dag)
    assert run.state == "success"
    assert stored(table) == [(1,), (2,)]


def parquet(folder: Path, rows: pa.Table) -> str:
    folder.mkdir()
    pq.write_table(rows, folder / "part-0.parquet")
    return str(folder)


def test_a_job_of_the_server_loads_files(
    run_dag: Callable[..., Any],
    new_dag: Callable[..., Any],
    ours: None,
    table: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asset = create_asset(authority="test", table_id=[table])
    first, second = parquet(tmp_path / "a", people(1, 2)), parquet(tmp_path / "b", people(2, 3, text="new"))
    with new_dag(params={"cluster": "local"}) as dag:
        create = LanceWriteOperator(
            task_id="create", table_id=table, path=first, mode="create", cluster="{{ params.cluster }}", outlets=[asset]
        )
        upsert = LanceWriteOperator(
            task_id="upsert", table_id=table, path=second, mode="upsert", on="id", cluster="local", deferrable=True
        )
        create >> upsert
    run = run_dag(dag)
    assert run.state == "success"
    assert stored(table) == [(1, "t1"), (2, "new2"), (3, "new3")]
    done = run.xcom("create")
    assert (done["table_id"], done["version"], done["rows_inserted"], done["created"]) == ([table], 1, 2, True)
    assert (done["job_type"], done["state"], done["job_id"]) == ("write", "DONE", run.xcom("create", "job_id"))
    assert run.asset_extras(asset.uri) == [{"version": 1, "job_id": done["job_id"], "rows": 2}]
    assert [run.xcom("upsert")[name] for name in ("rows_inserted", "rows_updated", "created")] == [1, 1, False]
    assert f"{table}: 2 rows written, version 1, in " in capsys.readouterr().out


def test_a_job_that_fails_says_why_in_the_tasks_log(
    run_dag: Callable[..., Any], new_dag: Callable[..., Any], ours: None, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_dag() as dag:
        LanceWriteOperator(task_id="load", table_id=table, path="/nowhere/*.csv", cluster="local", retries=2)
    run = run_dag(dag)
    assert run.task_state("load") == "failed"
    assert run.instance("load").try_number == 1, "another try could only fail again"
    assert f"{table}: There is no file at /nowhere/*.csv. (job " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["pylance", "folder"])
def test_a_namespace_without_such_a_job_is_answered_with_the_way_out(
    run_dag: Callable[..., Any],
    new_dag: Callable[..., Any],
    connections: dict[str, str],
    table: str,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    with new_dag() as dag:
        LanceWriteOperator(task_id="load", table_id=table, path="/in", cluster="local", retries=2)
    with connection("lance_default", connections[kind]):
        run = run_dag(dag)
    assert run.task_state("load") == "failed"
    assert run.instance("load").try_number == 1
    log = capsys.readouterr().out
    assert "This namespace does not load files itself" in log
    assert "Without `cluster` the worker writes the rows" in log


KILLED = """
    from airflow_provider_lance.storage import commits, writes
    import os, signal

    real = commits.Committer.commit
    def commit(self, *args, **kwargs):
        if MOMENT == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        version = real(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    commits.Committer.commit = commit

    import pyarrow as pa
    from pathlib import Path
    rows = pa.table({"id": pa.array(range(100, 120), pa.int64()), "text": ["new"] * 20})
    committer = commits.Committer(commits.TableRef(LOCATION))
    writes.append_rows(committer, writes.Rows(rows.to_reader), KEY)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_writer_killed_around_its_commit_is_repeated_once(
    run_dag: Callable[..., Any],
    new_dag: Callable[..., Any],
    ours: None,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """A first try dies by SIGKILL, its files written, before or after the commit; the next try goes on from there."""
    with new_dag() as dag:
        LanceWriteOperator(task_id="first", table_id=table, data=lambda: people(1, 2))
    assert run_dag(dag).state == "success"
    access = LanceNamespaceHook().table_access([table])
    key = uuid.uuid4().hex
    script = f"MOMENT, LOCATION, KEY = {moment!r}, {access.location!r}, {key!r}\n" + textwrap.dedent(KILLED)
    died = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(stored(table)) == (2 if moment == "before" else 22)

    from airflow_provider_lance.operators import write

    monkeypatch.setattr(write, "idempotency_key", lambda *_: key)
    monkeypatch.setattr(write, "_begin", lambda *_: access.version)
    with new_dag() as dag:
        LanceWriteOperator(
            task_id="again", table_id=table, data=lambda: people(*range(100, 120), text="new").to_batches()[0]
        )
    run = run_dag(dag)
    assert run.state == "success"
    assert len(stored(table)) == 22
    assert run.xcom("again")["rows_inserted"] == 20
