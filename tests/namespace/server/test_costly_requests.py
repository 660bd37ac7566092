"""Requests that end the process they run in: the requester has an error, the server and the table stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from airflow_provider_lance.namespace.workers.costly_requests import is_cheap_sql
from tests.namespace.conftest import QUICK
from tests.namespace.people import stream
from tests.namespace.server_process import ServerProcess

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
GROWING = "length(repeat(txt, 100000000)) > 1"
MEMORY, CANNOT = "query_memory_bytes", "cannot be planned"
DEEP = " + ".join(["id"] * 200_000)
ROWS = pa.table(
    {
        "id": list(range(300)),
        "txt": ["abc"] * 300,
        "v": pa.FixedSizeListArray.from_arrays(pa.array([float(i % 7) for i in range(2400)], pa.float32()), 8),
    }
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("costly"), timings=QUICK).start()
    answer = httpx.post(f"{server.url}/v1/table/t/create", content=stream(ROWS), headers=ARROW, timeout=30)
    assert answer.status_code == 200, answer.text
    index = {"column": "v", "index_type": "IVF_FLAT", "distance_type": "l2", "num_partitions": 1}
    answer = server.post("/v1/table/t/create_index", index)
    assert answer.status_code == 200, answer.text
    yield server
    server.stop()


def state(server: ServerProcess) -> tuple[Any, Any]:
    described = server.post("/v1/table/t/describe").json()
    return described["version"], server.post("/v1/table/t/count_rows").json()


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("query", {"vector": [], "k": 10, "filter": GROWING}, MEMORY),
        ("query", {"vector": [0.5] * 8, "vector_column": "v", "k": 2**31 - 1}, MEMORY),
        (
            "explain_plan",
            {"query": {"vector": [], "k": 1, "columns": {"x": "repeat('xxxxxxxxxx', 200000000)"}}},
            MEMORY,
        ),
        ("count_rows", {"predicate": f"{DEEP} > 1"}, MEMORY),
        ("update", {"predicate": GROWING, "updates": [["txt", "'x'"]]}, MEMORY),
        ("delete", {"predicate": GROWING}, MEMORY),
        ("add_columns", {"new_columns": [{"name": "n", "expression": "length(repeat(txt, 100000000))"}]}, MEMORY),
        (
            "add_columns",
            {"new_columns": [{"name": "n", "computed": "length(repeat('xxxxxxxxxx', 200000000))"}]},
            CANNOT,
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else value,
)
def test_the_server_outlives_it(server: ServerProcess, path: str, body: dict[str, Any], words: str) -> None:
    before = state(server)
    answer = httpx.post(f"{server.url}/v1/table/t/{path}", json=body, timeout=120)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == 13, answer.text
    assert words in answer.json()["error"], answer.text
    assert state(server) == before
    assert server.process is not None
    assert server.process.poll() is None


def test_a_merge_too(server: ServerProcess) -> None:
    before = state(server)
    answer = httpx.post(
        f"{server.url}/v1/table/t/merge_insert",
        params={
            "on": "id",
            "when_not_matched_insert_all": "true",
            "when_not_matched_by_source_delete": "true",
            "when_not_matched_by_source_delete_filt": GROWING,
        },
        content=stream(ROWS.slice(0, 100)),
        headers=ARROW,
        timeout=120,
    )
    assert answer.status_code == 400, answer.text
    assert "Nothing was written." in answer.json()["error"]
    assert state(server) == before


def test_what_a_worker_answers_is_what_the_server_answers(server: ServerProcess) -> None:
    def count(predicate: str) -> Any:
        return server.post("/v1/table/t/count_rows", {"predicate": predicate}).json()

    assert count("length(repeat(txt, 2)) = 6") == count("length(txt) = 3") == 300
    wrong = server.post("/v1/table/t/count_rows", {"predicate": "repeat(nothing, 2) = 'x'"})
    assert wrong.status_code == 400
    assert "nothing" in wrong.json()["error"]
    missing = server.post("/v1/table/none/count_rows", {"predicate": "repeat(txt, 2) = 'x'"})
    assert missing.status_code == 404
    assert missing.json()["code"] == 4
    done = server.post("/v1/table/t/update", {"predicate": "repeat(txt, 2) = 'x'", "updates": [["txt", "'y'"]]})
    assert done.json()["updated_rows"] == 0, done.text


def test_workers_end_with_the_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server", timings=QUICK).start()
    httpx.post(f"{server.url}/v1/table/t/create", content=stream(ROWS), headers=ARROW, timeout=30)
    assert server.post("/v1/table/t/count_rows", {"predicate": "repeat(txt, 2) = 'x'"}).json() == 0
    assert server.process is not None
    workers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == server.process.pid]
    assert workers
    server.stop()
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return -1


@pytest.mark.parametrize(
    "text",
    [
        "id > 5 AND name = 'x'",
        "id IN (1, 2, 3)",
        "NOT (a = 1 OR (b < 2 AND c IS NOT NULL))",
        "lower(name) LIKE 'a%' AND length(trim(name)) BETWEEN 1 AND 10",
        "cast(x AS decimal(10, 2)) >= (1 + 2) * 3",
    ],
)
def test_ordinary_sql_stays_in_the_server(text: str) -> None:
    assert is_cheap_sql(text)


@pytest.mark.parametrize(
    "text",
    [
        "repeat(txt, 2) = 'x'",
        "REPEAT (txt, 2) = 'x'",
        "repeat\n(txt, 2) = 'x'",
        "repeat/**/(txt, 2) = 'x'",
        "repeat--\n(txt, 2) = 'x'",
        '"repeat"(txt, 2) = 1',
        "`repeat`(txt, 2) = 1",
        "'it\\' = repeat(txt, 2) or '",
        "a || b = 'x'",
        "array_repeat(1, 1000000000) IS NULL",
        "id" + "+id" * 2000,
        "lower(repeat(txt, 2)) = 'x'",
        "f.lower(txt) = 'x'",
    ],
)
def test_all_other_sql_does_not(text: str) -> None:
    assert not is_cheap_sql(text)
