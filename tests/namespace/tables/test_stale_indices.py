"""An index that still finds replaced values must not decide which rows a request changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import lance
import pyarrow as pa
import pytest

from tests.namespace.conftest import QUICK
from tests.namespace.people import present, stream
from tests.namespace.server_process import ServerProcess
from tests.stale_index import INDEX_TYPES, KEPT, NEW, OLD, RENEWED, ROWS, IndexType, condition, stale_table

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("stale"), timings=QUICK).start()
    yield server
    server.stop()


@pytest.fixture(params=INDEX_TYPES)
def index_type(request: pytest.FixtureRequest) -> IndexType:
    index_type: IndexType = request.param
    return index_type


def make(server: ServerProcess, name: str, index_type: IndexType) -> Path:
    path = server.directory / "lake" / f"{name}_{index_type.lower()}.lance"
    stale_table(path, index_type)
    return path


def words(path: Path) -> dict[int, str | None]:
    rows = lance.dataset(path).to_table(columns=["id", "word"], use_scalar_index=False)
    return dict(zip(map(present, rows["id"].to_pylist()), rows["word"].to_pylist(), strict=True))


def test_delete(server: ServerProcess, index_type: IndexType) -> None:
    path = make(server, "delete", index_type)
    answer = server.post(f"/v1/table/{path.stem}/delete", {"predicate": condition(index_type, OLD)})
    assert answer.status_code == 200, answer.text
    assert set(words(path)) == set(RENEWED)


def test_update(server: ServerProcess, index_type: IndexType) -> None:
    path = make(server, "update", index_type)
    body = {"predicate": condition(index_type, OLD), "updates": [["word", "'changed'"]]}
    answer = server.post(f"/v1/table/{path.stem}/update", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["updated_rows"] == len(KEPT)
    after = words(path)
    assert {after[row] for row in RENEWED} == {NEW}
    assert {after[row] for row in KEPT} == {"changed"}


def test_merge_insert(server: ServerProcess, index_type: IndexType) -> None:
    """Rows are matched by a column whose index finds old values; unmatched ones that hold them are deleted."""
    path = make(server, "merge", index_type)
    source = pa.table({"id": [ROWS], "word": [NEW], "filled": pa.array(["x"])})
    answer = httpx.post(
        f"{server.url}/v1/table/{path.stem}/merge_insert",
        params={
            "on": "id",
            "when_not_matched_insert_all": "true",
            "when_not_matched_by_source_delete": "true",
            "when_not_matched_by_source_delete_filt": condition(index_type, OLD),
        },
        content=stream(source),
        headers=ARROW,
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    assert set(words(path)) == {*RENEWED, ROWS}


def test_merge_insert_on_the_indexed_column(server: ServerProcess) -> None:
    path = make(server, "keyed", "BTREE")
    lance.dataset(path).delete("id % 100 != 0")  # one row of each fragment: 0 has the new word
    source = pa.table({"id": [1000], "word": [NEW], "filled": pa.array(["x"])})
    answer = httpx.post(
        f"{server.url}/v1/table/{path.stem}/merge_insert",
        params={"on": "word", "when_matched_update_all": "true", "when_not_matched_insert_all": "true"},
        content=stream(source),
        headers=ARROW,
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["num_updated_rows"] == 1
    assert words(path) == {1000: NEW, 100: OLD, 200: OLD}


@pytest.mark.parametrize("predicate", ["word = 'x') OR (true", "word =", "nothing = 1"])
def test_what_is_no_predicate_by_itself_is_refused(server: ServerProcess, predicate: str) -> None:
    path = server.directory / "lake" / "refused.lance"
    if not path.exists():
        stale_table(path, "BTREE")
    answer = server.post("/v1/table/refused/delete", {"predicate": predicate})
    assert answer.status_code == 400, answer.text
    assert lance.dataset(path).count_rows() == ROWS
