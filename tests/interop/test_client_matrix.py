"""Every public method of LanceDB's remote client, and what becomes of it on our server.

A new release of the client with another method, or without one, fails here until its row is written.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import lancedb
import lancedb.index
import pyarrow as pa
import pytest
from cryptography.fernet import Fernet
from lancedb.functions import udf
from lancedb.remote.db import RemoteDBConnection
from lancedb.remote.table import RemoteTable
from lancedb.table import Branches, Tags

from tests.interop.conftest import ROOT, Address, running_server

CLASSES: dict[str, type] = {
    "connection": RemoteDBConnection,
    "table": RemoteTable,
    "tags": Tags,
    "branches": Branches,
}
INDEX: Any = lancedb.index
LSM, STORED_VIEWS, BRANCHES = "no LSM writers", "Flight SQL", "neither compared nor picked"
DATA = pa.table(
    {
        "id": range(10),
        "text": [f"w{n}" for n in range(10)],
        "v": pa.array([[float(n), 0.0] for n in range(10)], pa.list_(pa.float32(), 2)),
    }
)


@udf
def double(value: int) -> int:
    return value * 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    key = {"LANCE_SECRETS_KEY": Fernet.generate_key().decode()}
    with running_server(tmp_path_factory.mktemp("server"), key) as address:
        yield address


@pytest.fixture(scope="module")
def database(server: Address) -> Any:
    return lancedb.connect("db://dev", api_key=server.key, host_override=server.url)


@pytest.fixture
def table(database: Any) -> Any:
    return database.create_table(f"t{uuid.uuid4().hex[:8]}", DATA)


def _name() -> str:
    return f"n{uuid.uuid4().hex[:8]}"


def _new(db: Any) -> str:
    name = _name()
    db.create_table(name, DATA)
    return name


def _missing(call: Callable[[], object], sentence: str) -> bool:
    with pytest.raises(Exception, match=sentence):
        call()
    return True


def _secret(db: Any) -> str:
    name = _name()
    db.create_secret(name, "value")
    return name


def _namespace(db: Any) -> str:
    name = _name()
    db.create_namespace([name])
    return name


def _view(db: Any, t: Any) -> str:
    name = _name()
    db.create_materialized_view(name, t.name, select=["id"], where="id > 5")
    return name


def _view_async(db: Any, t: Any) -> bool:
    name = _name()
    db.create_materialized_view_async(name, t.name, select=["id"], where="id > 5").wait()
    return bool(db.open_table(name).count_rows() == 4)


def _dropped_view(db: Any, t: Any, drop: Callable[[str], object]) -> bool:
    name = _view(db, t)
    drop(name)
    return name not in db.list_materialized_views()


def _dropped_table(db: Any, drop: Callable[[str], object]) -> bool:
    name = _new(db)
    drop(name)
    return name not in db.list_tables().tables


def _job(t: Any) -> Any:
    t.add_columns(computed={"n": "length(text)"})
    return t.refresh_column_async("n")


def _finished_job(t: Any) -> str:
    job = _job(t)
    job.wait()
    return str(job.id)


def _dropped_function(db: Any, drop: Callable[[str], object]) -> bool:
    version = db.create_function(double).version
    drop(version)
    return _missing(lambda: db.get_function("double", version=version), "no function double")


def _renamed(db: Any) -> bool:
    old, new = _new(db), _name()
    db.rename_table(old, new)
    return bool(db.open_table(new).count_rows() == 10)


def _altered_secret(db: Any) -> bool:
    name = _secret(db)
    before = db.describe_secret(name).updated_at_millis
    db.alter_secret(name, "other")
    return bool(db.describe_secret(name).updated_at_millis >= before)


def _dropped_secret(db: Any) -> bool:
    name = _secret(db)
    db.drop_secret(name)
    return name not in db.list_secrets()


def _dropped_namespace(db: Any) -> bool:
    name = _namespace(db)
    db.drop_namespace([name])
    return name not in db.list_namespaces().namespaces


def _indexed(t: Any, build: Callable[[], object], name: str) -> bool:
    build()
    return [index.name for index in t.list_indices()] == [name]


def _btree(t: Any) -> str:
    t.create_index("id", config=INDEX.BTree())
    return "id_idx"


def _dropped_index(t: Any) -> bool:
    t.drop_index(_btree(t))
    return bool(t.list_indices() == [])


def _fts(t: Any) -> Any:
    t.create_fts_index("text")
    return t


def _second_version(t: Any) -> Any:
    t.add(DATA)
    return t


def _checked_out(t: Any) -> Any:
    _second_version(t).checkout(1)
    return t


def _latest(t: Any) -> Any:
    _checked_out(t).checkout_latest()
    return t


def _restored(t: Any) -> Any:
    _second_version(t).restore(1)
    return t


def _columns(t: Any, change: Callable[[], object]) -> Any:
    change()
    return t.schema.names


def _tagged(t: Any) -> Any:
    t.tags.create("gold", 1)
    return t.tags


def _moved_tag(t: Any) -> int:
    tags = _tagged(_second_version(t))
    tags.update("gold", 2)
    return int(tags.get_version("gold"))


def _untagged(t: Any) -> bool:
    tags = _tagged(t)
    tags.delete("gold")
    return bool(tags.list() == {})


def _branched(t: Any) -> Any:
    t.branches.create("trial")
    return t.branches


def _unbranched(t: Any) -> bool:
    branches = _branched(t)
    branches.delete("trial")
    return bool(branches.list() == {})


def _merged(t: Any) -> Any:
    return t.merge_insert("id").when_matched_update_all().execute(DATA.slice(0, 3)).num_updated_rows


def _metadata(t: Any) -> Any:
    t.update_field_metadata({"path": "id", "metadata": {"unit": "m"}})
    return t.schema.field("id").metadata


Call = Callable[[Any, Any], Any]

#: The call is sent to the server, and is true where its effect was seen.
WORKS: dict[str, Call] = {
    "connection.alter_secret": lambda db, t: _altered_secret(db),
    "connection.cancel_job": lambda db, t: db.cancel_job(_job(t).id) is True,
    "connection.create_function": lambda db, t: db.create_function(double).name == "double",
    "connection.create_function_async": lambda db, t: db.create_function_async(double).wait().name == "double",
    "connection.create_materialized_view": lambda db, t: db.open_table(_view(db, t)).count_rows() == 4,
    "connection.create_materialized_view_async": _view_async,
    "connection.create_namespace": lambda db, t: _namespace(db) in db.list_namespaces().namespaces,
    "connection.create_secret": lambda db, t: _secret(db) in db.list_secrets(),
    "connection.create_table": lambda db, t: db.create_table(_name(), DATA).count_rows() == 10,
    "connection.describe_namespace": lambda db, t: (
        db.describe_namespace([_namespace(db)]) is not None
        and _missing(lambda: db.describe_namespace(["absent"]), "absent")
    ),
    "connection.describe_secret": lambda db, t: (lambda name: db.describe_secret(name).name == name)(_secret(db)),
    "connection.drop_function": lambda db, t: _dropped_function(db, lambda v: db.drop_function("double", version=v)),
    "connection.drop_function_async": lambda db, t: _dropped_function(
        db, lambda v: db.drop_function_async("double", version=v)[1].wait()
    ),
    "connection.drop_materialized_view": lambda db, t: _dropped_view(db, t, db.drop_materialized_view),
    "connection.drop_materialized_view_async": lambda db, t: _dropped_view(
        db, t, lambda name: db.drop_materialized_view_async(name).wait()
    ),
    "connection.drop_namespace": lambda db, t: _dropped_namespace(db),
    "connection.drop_secret": lambda db, t: _dropped_secret(db),
    "connection.drop_table": lambda db, t: _dropped_table(db, db.drop_table),
    "connection.drop_table_async": lambda db, t: _dropped_table(db, lambda name: db.drop_table_async(name).wait()),
    "connection.get_function": lambda db, t: (
        db.get_function("double", version=db.create_function(double).version).name == "double"
    ),
    "connection.list_functions": lambda db, t: (
        db.create_function(double).name in [function.name for function in db.list_functions()]
    ),
    "connection.list_jobs": lambda db, t: _finished_job(t) in [job.job_id for job in db.list_jobs()],
    "connection.list_materialized_views": lambda db, t: _view(db, t) in db.list_materialized_views(),
    "connection.list_namespaces": lambda db, t: _namespace(db) in db.list_namespaces().namespaces,
    "connection.list_secrets": lambda db, t: _secret(db) in db.list_secrets(),
    "connection.list_tables": lambda db, t: t.name in db.list_tables().tables,
    "connection.open_job": lambda db, t: db.open_job(_finished_job(t)).status() == "finished",
    "connection.open_materialized_view": lambda db, t: db.open_materialized_view(_view(db, t)).table.count_rows() == 4,
    "connection.open_table": lambda db, t: db.open_table(t.name).count_rows() == 10,
    "connection.pause_job": lambda db, t: db.pause_job(_job(t).id) in {"pausing", "already_paused", "committing"},
    "connection.rename_table": lambda db, t: _renamed(db),
    "connection.resume_job": lambda db, t: db.resume_job(_finished_job(t)) == "not_paused",
    "connection.table_names": lambda db, t: t.name in list(db.table_names(limit=1000)),
    "table.add": lambda db, t: _second_version(t).count_rows() == 20,
    "table.add_columns": lambda db, t: _columns(t, lambda: t.add_columns({"w": "id * 2"}))[-1] == "w",
    "table.alter_columns": lambda db, t: (
        _columns(t, lambda: t.alter_columns({"path": "text", "rename": "words"})) == ["id", "words", "v"]
    ),
    "table.blob_columns": lambda db, t: t.blob_columns() == [],
    "table.branches": lambda db, t: list(_branched(t).list()) == ["trial"],
    "table.checkout": lambda db, t: _checked_out(t).count_rows() == 10,
    "table.checkout_latest": lambda db, t: _latest(t).count_rows() == 20,
    "table.count_rows": lambda db, t: t.count_rows("id < 3") == 3,
    "table.create_fts_index": lambda db, t: _indexed(t, lambda: t.create_fts_index("text"), "text_idx"),
    "table.create_index": lambda db, t: _indexed(t, lambda: _btree(t), "id_idx"),
    "table.create_index_async": lambda db, t: _indexed(
        t, lambda: t.create_index_async("id", config=INDEX.BTree()).wait(), "id_idx"
    ),
    "table.create_scalar_index": lambda db, t: _indexed(t, lambda: t.create_scalar_index("id"), "id_idx"),
    "table.delete": lambda db, t: t.delete("id < 4").num_deleted_rows == 4,
    "table.drop_columns": lambda db, t: _columns(t, lambda: t.drop_columns(["text"])) == ["id", "v"],
    "table.drop_index": lambda db, t: _dropped_index(t),
    "table.embedding_functions": lambda db, t: t.embedding_functions == {},
    "table.function_errors": lambda db, t: t.function_errors(limit=5).records == [],
    "table.head": lambda db, t: t.head(2)["id"].to_pylist() == [0, 1],
    "table.index_stats": lambda db, t: t.index_stats(_btree(t)).num_indexed_rows == 10,
    "table.list_indices": lambda db, t: _btree(t) in [index.name for index in t.list_indices()],
    "table.list_versions": lambda db, t: [row["version"] for row in _second_version(t).list_versions()] == [1, 2],
    "table.merge_insert": lambda db, t: _merged(t) == 3,
    "table.prewarm_data": lambda db, t: (
        t.prewarm_data(["id"]) is None and _missing(lambda: t.prewarm_data(["none"]), "no column 'none'")
    ),
    "table.prewarm_index": lambda db, t: (
        t.prewarm_index(_btree(t)) is None and _missing(lambda: t.prewarm_index("none"), "not found")
    ),
    "table.refresh_column_async": lambda db, t: _job(t).wait().rows_assigned == 10,
    "table.restore": lambda db, t: _restored(t).count_rows() == 10,
    "table.schema": lambda db, t: t.schema == DATA.schema,
    "table.search": lambda db, t: t.search([3.0, 0.0]).limit(1).to_arrow()["id"].to_pylist() == [3],
    "table.stats": lambda db, t: t.stats()["num_rows"] == 10,
    "table.tags": lambda db, t: list(_tagged(t).list()) == ["gold"],
    "table.take_offsets": lambda db, t: t.take_offsets([1, 3]).to_arrow()["id"].to_pylist() == [1, 3],
    "table.take_row_ids": lambda db, t: t.take_row_ids([1, 3]).to_arrow()["id"].to_pylist() == [1, 3],
    "table.tokenize": lambda db, t: [token.text for token in _fts(t).tokenize("W5 w6", column="text")] == ["w5", "w6"],
    "table.update": lambda db, t: t.update(where="id = 9", values={"text": "last"}).rows_updated == 1,
    "table.update_field_metadata": lambda db, t: _metadata(t) == {b"unit": b"m"},
    "table.uri": lambda db, t: t.uri.endswith(f"{t.name}.lance"),
    "table.version": lambda db, t: _second_version(t).version == 2,
    "table.wait_for_index": lambda db, t: (
        t.wait_for_index([_btree(t)], timedelta(seconds=20)) is None
        and _missing(lambda: t.wait_for_index(["none"], timedelta(seconds=1)), "none")
    ),
    "tags.create": lambda db, t: list(_tagged(t).list()) == ["gold"],
    "tags.delete": lambda db, t: _untagged(t),
    "tags.get_version": lambda db, t: _tagged(t).get_version("gold") == 1,
    "tags.list": lambda db, t: _tagged(t).list()["gold"]["version"] == 1,
    "tags.update": lambda db, t: _moved_tag(t) == 2,
    "branches.checkout": lambda db, t: _branched(t).checkout("trial").current_branch() == "trial",
    "branches.create": lambda db, t: t.branches.create("trial").count_rows() == 10,
    "branches.delete": lambda db, t: _unbranched(t),
    "branches.list": lambda db, t: list(_branched(t).list()) == ["trial"],
}

#: The server, or the lack of its Flight SQL port, refuses the call with these words.
REFUSED: dict[str, tuple[Call, str]] = {
    "connection.clone_table": (lambda db, t: db.clone_table(_name(), t.uri), "clones no tables"),
    "connection.create_view": (lambda db, t: db.create_view("v", "SELECT 1"), STORED_VIEWS),
    "connection.describe_view": (lambda db, t: db.describe_view("v"), STORED_VIEWS),
    "connection.drop_view": (lambda db, t: db.drop_view("v"), STORED_VIEWS),
    "connection.drop_view_async": (lambda db, t: db.drop_view_async("v"), STORED_VIEWS),
    "connection.execute_query": (lambda db, t: db.execute_query("SELECT 1"), "SQL error"),
    "connection.execute_query_async": (lambda db, t: db.execute_query_async("SELECT 1"), "SQL error"),
    "connection.list_views": (lambda db, t: db.list_views(), STORED_VIEWS),
    "table.checkpoint_lsm": (lambda db, t: t.checkpoint_lsm(), LSM),
    "table.compact_lsm": (lambda db, t: t.compact_lsm(), LSM),
    "table.fetch_blob_files": (lambda db, t: t.fetch_blob_files("text", [0]), "0.5.0 or newer"),
    "table.fetch_blobs": (lambda db, t: t.fetch_blobs("text", [0]), "not supported on this LanceDB Cloud server"),
    "table.flush_lsm": (lambda db, t: t.flush_lsm(), LSM),
    "table.get_lsm_stats": (lambda db, t: t.get_lsm_stats(), LSM),
    "table.get_lsm_write_spec": (lambda db, t: t.get_lsm_write_spec(), LSM),
    "table.set_lsm_write_spec": (lambda db, t: t.set_lsm_write_spec(lancedb.LsmWriteSpec.unsharded()), LSM),
    "table.unset_lsm_write_spec": (lambda db, t: t.unset_lsm_write_spec(), LSM),
    "branches.cherry_pick": (lambda db, t: _branched(t).cherry_pick("trial"), BRANCHES),
    "branches.diff": (lambda db, t: _branched(t).diff("trial"), BRANCHES),
}

#: The client sends nothing. It raises the error, or the call is true.
CLIENT_ONLY: dict[str, tuple[Call, type[Exception] | None]] = {
    "connection.close": (lambda db, t: asyncio.iscoroutine(_closed(db.close())), None),
    "connection.describe_query": (lambda db, t: db.describe_query(uuid.uuid4()), ValueError),
    "connection.drop_all_tables": (lambda db, t: db.drop_all_tables(), NotImplementedError),
    "connection.drop_database": (lambda db, t: db.drop_database(), NotImplementedError),
    "connection.namespace_client": (lambda db, t: "RestNamespace" in repr(db.namespace_client()), None),
    "connection.namespace_exists": (lambda db, t: db.namespace_exists(["n"]), NotImplementedError),
    "connection.serialize": (lambda db, t: json.loads(db.serialize())["db_url"] == "db://dev", None),
    "connection.table_exists": (lambda db, t: db.table_exists(["t"]), NotImplementedError),
    "connection.uri": (lambda db, t: db.uri, AttributeError),
    "table.cleanup_old_versions": (lambda db, t: t.cleanup_old_versions() is None, None),
    "table.close_lsm_writers": (lambda db, t: t.close_lsm_writers() is None, None),
    "table.compact_files": (lambda db, t: t.compact_files() is None, None),
    "table.current_branch": (lambda db, t: t.current_branch() is None, None),
    "table.fetch_blob_ranges": (lambda db, t: t.fetch_blob_ranges("text", []), NotImplementedError),
    "table.migrate_v2_manifest_paths": (lambda db, t: t.migrate_v2_manifest_paths(), NotImplementedError),
    "table.name": (lambda db, t: t.name.startswith("t"), None),
    "table.optimize": (lambda db, t: t.optimize() is None, None),
    "table.refresh_column": (lambda db, t: t.refresh_column("id"), NotImplementedError),
    "table.set_unenforced_primary_key": (lambda db, t: t.set_unenforced_primary_key("id"), NotImplementedError),
    "table.to_arrow": (lambda db, t: t.to_arrow(), NotImplementedError),
    "table.to_lance": (lambda db, t: t.to_lance(), NotImplementedError),
    "table.to_pandas": (lambda db, t: t.to_pandas(), NotImplementedError),
    "table.to_polars": (lambda db, t: t.to_polars(), NotImplementedError),
    "table.uses_v2_manifest_paths": (lambda db, t: t.uses_v2_manifest_paths(), NotImplementedError),
}


def _closed(coroutine: Any) -> Any:
    coroutine.close()
    return coroutine


def _requests(server: Address) -> list[str]:
    answer = httpx.get(f"{server.url}/metrics", headers={"x-api-key": server.key})
    lines = [line for line in answer.text.splitlines() if line.startswith("lance_requests_total")]
    return [line for line in lines if 'operation="metrics"' not in line]


def test_each_public_method_has_one_row() -> None:
    public = [f"{kind}.{name}" for kind, cls in CLASSES.items() for name in dir(cls) if not name.startswith("_")]
    assert sorted([*WORKS, *REFUSED, *CLIENT_ONLY]) == sorted(public)


def test_the_page_of_catalogs_says_how_many_work() -> None:
    page = " ".join((ROOT / "docs" / "catalogs.md").read_text().split())
    every = len(WORKS) + len(REFUSED) + len(CLIENT_ONLY)
    assert f"The client has {every} public methods and attributes. {len(WORKS)} of them work here" in page
    assert f"{len(CLIENT_ONLY)} never reach a server. The other {len(REFUSED)} stay out" in page


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_works(name: str, database: Any, table: Any) -> None:
    assert WORKS[name](database, table) is True


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str, database: Any, table: Any) -> None:
    call, sentence = REFUSED[name]
    with pytest.raises(Exception, match=sentence):
        call(database, table)


@pytest.mark.parametrize("name", CLIENT_ONLY)
@pytest.mark.filterwarnings("ignore")
def test_sends_nothing(name: str, server: Address, database: Any, table: Any) -> None:
    call, error = CLIENT_ONLY[name]
    before = _requests(server)
    if error is None:
        assert call(database, table) is True
    else:
        with pytest.raises(error):
            call(database, table)
    assert _requests(server) == before
