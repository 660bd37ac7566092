"""A table reads its own files only: a version or a registration that refers to others is refused, over the wire."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import lance
import pyarrow as pa
import pytest

from tests.namespace.conftest import QUICK
from tests.namespace.people import PEOPLE, stream
from tests.namespace.server_process import ServerProcess

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
SECRET = pa.table({"id": [1], "text": ["secret"]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("foreign"), timings=QUICK).start()
    answer = httpx.post(f"{server.url}/v1/table/people/create", content=stream(PEOPLE), headers=ARROW, timeout=30)
    assert answer.status_code == 200, answer.text
    yield server
    server.stop()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A shallow clone, of version 2, of a table that is outside of the root; with an index and a deletion file."""
    secret = lance.write_dataset(pa.concat_tables([SECRET, SECRET]), tmp_path / "secret.lance")
    secret.create_scalar_index("id", "BTREE")
    lance.dataset(tmp_path / "secret.lance").shallow_clone(str(tmp_path / "clone.lance"), secret.version)
    return tmp_path / "clone.lance"


def stage(server: ServerProcess, clone: Path, name: str) -> dict[str, object]:
    """Put the clone's manifest where a commit to ``people`` would put its own."""
    [manifest] = clone.glob("_versions/*.manifest")
    staged = server.directory / "lake" / "people.lance" / "_versions" / name
    shutil.copy(manifest, staged)
    return {"version": 2, "manifest_path": str(staged).lstrip("/"), "manifest_size": staged.stat().st_size}


def test_a_version_that_reads_another_table_is_refused(server: ServerProcess, clone: Path) -> None:
    assert lance.dataset(clone).to_table()["text"].to_pylist() == ["secret", "secret"]
    body = stage(server, clone, "staged-1")
    answer = server.post("/v1/table/people/version/create", body)
    assert answer.status_code == 400, answer.text
    assert "outside" in answer.json()["error"]
    batch = {"entries": [{"id": ["people"], **body}]}
    assert server.post("/v1/table/version/batch-create", batch).status_code == 400
    assert server.post("/v1/table/people/describe").json()["version"] == 1


def test_a_clone_is_not_registered(server: ServerProcess, clone: Path) -> None:
    shutil.copytree(clone, server.directory / "lake" / "copied")
    answer = server.post("/v1/table/copied/register", {"location": "copied"})
    assert answer.status_code == 400, answer.text
    assert "outside" in answer.json()["error"]
    assert server.post("/v1/table/copied/describe").status_code == 404


def test_a_branch_refers_to_its_own_table(server: ServerProcess) -> None:
    """Lance stores a branch's files of main by main's place; a commit to a branch stays possible."""
    answer = server.post("/v1/table/people/branches/create", {"name": "b"})
    assert answer.status_code == 200, answer.text
    answer = httpx.post(
        f"{server.url}/v1/table/people/insert?branch=b", content=stream(PEOPLE), headers=ARROW, timeout=30
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["num_inserted_rows"] == 3
