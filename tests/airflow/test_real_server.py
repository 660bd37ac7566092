"""The example DAGs against our own server with real Spark, and a search for secrets in everything they left behind."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.utils.file import get_unique_dag_module_name

from tests.airflow.conftest import RunDag, connection
from tests.airflow.real_server import KEY, RealServer, serve
from tests.airflow.standalone import eventually

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """The server, and the Lance and Spark connections that go with it."""
    with serve(tmp_path_factory.mktemp("real")) as server:
        spark = json.dumps({"conn_type": "spark", "host": "local[2]"})
        with connection("lance_default", server.connection), connection("spark_default", spark):
            seed(server)
            yield server


def seed(server: RealServer) -> None:
    """What `make ui` has in place: a table with a column to fill, a view over it, and a tag for readers."""
    call = server.wire.call
    call("create_table", {"id": ["articles"]}, example_module("lance_quickstart").articles(0, 2000))
    call(
        "alter_table_add_columns",
        {"id": ["articles"], "new_columns": [{"name": "text_length", "computed": "length(text)"}]},
    )
    query = "SELECT id, text_length FROM articles WHERE length(text) > 50"
    call("create_materialized_view", {"id": ["long_articles"], "query": query, "with_no_data": True})
    call("create_table_tag", {"id": ["articles"], "tag": "production", "version": 1})


def example(name: str) -> Any:
    """The DAG of an example file."""
    return example_module(name).dag


def example_module(name: str) -> Any:
    """An example file, imported as Airflow does it: as a module whose name nobody else can import."""
    path = ROOT / "dags" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(get_unique_dag_module_name(str(path)), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


EXAMPLES = sorted(path.stem for path in (ROOT / "dags").glob("*.py"))


def test_the_quickstart_drops_no_table_of_another_example() -> None:
    quickstart = example_module("lance_quickstart")
    dropped = {tuple(quickstart.ARTICLES), tuple(quickstart.LONG_ARTICLES)}
    for name in EXAMPLES:
        if name == "lance_quickstart":
            continue
        dag = example(name)
        named = [getattr(each, "table_id", None) for each in dag.tasks]
        named += [dag.params.get("table")] if "table" in dag.params else []
        assert not dropped & {table_id for each in named if (table_id := as_table_id(each)) is not None}


def as_table_id(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else None


def test_examples_name_a_watched_asset_only_with_its_watcher() -> None:
    """Airflow removes an asset's watcher whenever it parses a file that names the asset without it."""
    watchers: dict[str, set[tuple[str, ...]]] = {}
    for name in EXAMPLES:
        dag = example(name)
        scheduled = dag.schedule if isinstance(dag.schedule, list) else []
        for asset in [*scheduled, *(each for task in dag.tasks for each in [*task.inlets, *task.outlets])]:
            watchers.setdefault(asset.uri, set()).add(tuple(watcher.name for watcher in asset.watchers))
    assert [names for names in watchers.values() if any(names)]
    assert all(len(names) == 1 for names in watchers.values()), watchers


@pytest.mark.usefixtures("airflow_home")
class TestExamples:
    """The examples work on tables that are in place; the quickstart makes its own."""

    def test_quickstart(self, run_dag: RunDag, real: RealServer) -> None:
        run = run_dag(example("lance_quickstart"), run_conf={"rows": 2000})
        assert run.state == "success"
        assert run.xcom("backfill_column")["result"]["rows_assigned"] == 2000
        assert run.xcom("refresh_view")["result"]["rows_written"] > 0
        assert run.xcom("move_tag")["version"] == run.xcom("create_version")["version"]

    def test_a_view_is_refreshed_whatever_ran_before(self, run_dag: RunDag, real: RealServer) -> None:
        """The watcher starts this example whenever ``articles`` moves; the quickstart ran just before."""
        first = run_dag(example("lance_refresh_on_change"))
        assert first.task_state("refresh") == "success"
        again = run_dag(example("lance_refresh_on_change"))
        assert again.task_state("refresh") == "skipped"

    def test_a_function_of_a_dag_file_fills_a_column(self, run_dag: RunDag, real: RealServer) -> None:
        run = run_dag(example("lance_embed"))
        assert run.state == "success"
        assert run.xcom("backfill")["result"]["rows_assigned"] == 1000
        near = run.xcom("nearest")
        assert near[0] == "the river crosses the river, note 0"
        assert all("the river crosses the river" in text for text in near)
        again = run_dag(example("lance_embed"))
        assert again.state == "success"
        assert again.xcom("declare")["added"] == []

    def test_a_declaration_is_applied_and_filled(self, run_dag: RunDag, real: RealServer) -> None:
        run = run_dag(example("lance_declared"))
        assert run.state == "success"
        assert (run.xcom("apply")["create"], run.xcom("apply")["applied"]) == (6, True)
        assert run.xcom("fill.backfill.tickets.score")["result"]["rows_assigned"] == 200
        assert run.xcom("fill.refresh.urgent_tickets")["result"]["rows_written"] == 80
        assert run.xcom("fill.refresh.long_urgent_tickets")["result"]["rows_written"] == 52
        promoted = run.xcom("fill.promote.tickets")["version"]
        assert promoted == run.xcom("fill.check.tickets")["version"]
        again = run_dag(example("lance_declared"))
        assert again.state == "success"
        assert again.xcom("apply")["changes"] == []
        assert again.xcom("apply")["versions"] == {}

    def test_backfill_suggests_names(self, run_dag: RunDag, real: RealServer) -> None:
        run = run_dag(example("lance_backfill"), run_conf={"table": "artcles"})
        assert run.task_state("check") == "failed"
        run = run_dag(example("lance_backfill"), run_conf={"column": "text"})
        assert run.task_state("check") == "failed"

    def test_spark_submit_executes_the_job(self, run_dag: RunDag, real: RealServer) -> None:
        dag = example("lance_spark_submit")
        # ``dag.test`` runs one task after the other; the sensor must not come before what it waits for.
        dag.get_task("execute") >> dag.get_task("watch")
        run = run_dag(dag)
        assert run.task_state("submit") == "success"
        assert run.task_state("execute") == "success"
        assert run.task_state("watch") == "success"
        done = run.xcom("execute")
        assert done == run.xcom("watch")
        assert (done["state"], done["table_id"]) == ("DONE", ["articles"])
        assert done["job_id"] == run.xcom("submit")["job_id"]

    def test_promote_moves_the_tag_or_rolls_back(self, run_dag: RunDag, real: RealServer) -> None:
        before = real.wire.call("get_table_tag_version", {"id": ["articles"], "tag": "production"}).value["version"]
        run = run_dag(example("lance_promote"), run_conf={"min_rows": 10_000_000})
        assert run.task_state("check") == "failed"
        assert run.task_state("roll_back") == "success"
        assert run.task_state("promote") == "upstream_failed"
        after = real.wire.call("get_table_tag_version", {"id": ["articles"], "tag": "production"}).value["version"]
        assert after == before

    def test_views_are_refreshed_in_order_and_skipped(self, run_dag: RunDag, real: RealServer) -> None:
        query = "SELECT a.id FROM articles a JOIN long_articles b ON a.id = b.id"
        real.wire.call("create_materialized_view", {"id": ["joined"], "query": query, "with_no_data": True})
        run = run_dag(example("lance_refresh_views"))
        # The views of other examples are on the same server.
        known = [["long_articles"], ["quickstart_long_articles"], ["joined"]]
        levels = [[view for view in level if view in known] for level in run.xcom("discover")]
        assert levels[:2] == [known[:2], known[2:]]
        assert run.state == "success"
        assert run.instance("refresh_level_1", 0).state == "success"
        again = run_dag(example("lance_refresh_views"))
        assert again.instance("refresh_level_1", 0).state == "skipped"
        # A new version of a table whose rows are the same changes nothing.
        real.wire.call("update_table_schema_metadata", {"id": ["long_articles"], "metadata": {"seen": "yes"}})
        same = run_dag(example("lance_refresh_views"))
        assert same.instance("refresh_level_1", 0).state == "skipped"
        # Only the second of its tables changes: the view is stale all the same.
        real.wire.call("delete_from_table", {"id": ["long_articles"], "predicate": "id % 2 = 0"})
        moved = run_dag(example("lance_refresh_views"))
        assert moved.instance("refresh_level_1", 0).state == "success"

    def test_no_job_is_left_and_no_secret_is_found(self, airflow_home: Path, real: RealServer) -> None:
        assert {job["state"] for job in real.jobs()} <= {"DONE"}
        # The server keeps a driver's launch token in a file of its own until the driver is gone.
        running = real.folder / "state" / "running"
        eventually(lambda: not [path for path in running.rglob("*") if path.is_file()], 120, "the drivers to be gone")
        places = [path for base in (airflow_home, real.folder / "state") for path in base.rglob("*") if path.is_file()]
        places = [path for path in places if path.name != "keys"] + [real.folder / "server.log"]
        assert any(path.suffix == ".db" for path in places), "the metadata database is among them"
        for path in places:
            content = path.read_bytes()
            assert KEY.encode() not in content, path
            assert b"launch_token" not in content or path.suffix in {".py", ".pyc"}, path
        assert len(real.arguments.seen) > 5
        assert not [line for line in real.arguments.seen if KEY in line and "pytest" not in line]
        # This server's: tests that run at the same time have drivers of their own.
        drivers = [line for line in real.arguments.seen if "engine/app.py" in line and real.url in line]
        assert drivers, "a driver was seen"
        assert not [line for line in drivers if re.search(r"token=|api.key=|password", line, re.IGNORECASE)]
