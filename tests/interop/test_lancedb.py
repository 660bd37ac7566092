"""LanceDB's own client, unmodified, against our server: tables, queries, tags, versions, jobs and views."""

from __future__ import annotations

import time
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from tests.interop.conftest import Address

VECTOR = pa.list_(pa.float32(), 2)
DATA = pa.table(
    {
        "id": range(100),
        "text": [f"w{number}" for number in range(100)],
        "v": pa.array([[float(number), 0.0] for number in range(100)], VECTOR),
    }
)


@pytest.fixture(scope="module")
def database(server: Address) -> Any:
    return lancedb.connect("db://dev", api_key=server.key, host_override=server.url)


@pytest.fixture
def table(database: Any) -> Any:
    return database.create_table("people", DATA, mode="overwrite")


def test_a_wrong_key_is_refused(server: Address) -> None:
    stranger = lancedb.connect("db://dev", api_key="wrong", host_override=server.url)
    with pytest.raises(Exception, match="401"):
        stranger.create_table("t", DATA)


def test_create_modes_and_names(database: Any, table: Any) -> None:
    with pytest.raises(Exception, match="exists already"):
        database.create_table("people", DATA)
    assert database.create_table("people", DATA.slice(0, 1), exist_ok=True).count_rows() == 100
    assert database.create_table("people", DATA.slice(0, 1), mode="overwrite").count_rows() == 1
    empty = database.create_table("empty", schema=DATA.schema, mode="overwrite")
    assert empty.count_rows() == 0
    assert empty.schema == DATA.schema
    database.create_namespace(["team"], mode="exist_ok")
    database.create_table("inner", DATA, namespace_path=["team"], mode="overwrite")
    assert {"people", "empty"} <= set(database.list_tables().tables)
    with pytest.warns(DeprecationWarning, match="list_tables"):
        assert {"people", "empty"} <= set(database.table_names())
    database.rename_table("empty", "full")
    database.drop_table("full")
    with pytest.raises(ValueError, match="not found"):
        database.open_table("full")


def test_rows(table: Any) -> None:
    table.add(DATA.slice(0, 10))
    assert table.count_rows() == 110
    assert table.count_rows("id < 5") == 10
    assert table.update(where="id = 99", values={"text": "last"}).rows_updated == 1
    assert table.delete("id < 10").num_deleted_rows == 20
    merged = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(DATA.slice(5, 10))
    assert (merged.num_inserted_rows, merged.num_updated_rows) == (5, 5)
    assert table.count_rows() == 95


def test_queries(table: Any) -> None:
    assert table.search().to_arrow().num_rows == 100
    assert table.search().where("id > 97").select(["id"]).to_arrow().to_pydict() == {"id": [98, 99]}
    assert table.search([3.0, 0.0]).limit(2).to_arrow()["id"].to_pylist()[0] == 3
    computed = table.search([3.0, 0.0]).where("id > 10").select({"next": "id + 1"}).limit(1).to_list()
    assert computed[0]["next"] == 12
    assert table.search([[1.0, 0.0], [5.0, 0.0]]).limit(1).to_arrow().num_rows == 2
    table.create_index("text", config=lancedb.index.FTS())
    assert table.search("w5", query_type="fts").limit(3).to_arrow()["id"].to_pylist() == [5]
    assert "LanceRead" in table.search().limit(1).explain_plan()
    assert "elapsed" in table.search([1.0, 0.0]).limit(1).analyze_plan()
    assert table.head(2).num_rows == 2
    with pytest.raises(Exception, match="400"):
        table.search().where("nope = 1").to_arrow()


def test_tags_and_versions(table: Any) -> None:
    first = table.version
    table.add(DATA.slice(0, 10))
    table.tags.create("gold", first)
    assert table.tags.list()["gold"]["version"] == first
    table.tags.update("gold", first + 1)
    assert table.tags.get_version("gold") == first + 1
    table.tags.delete("gold")
    assert [version["version"] for version in table.list_versions()][-2:] == [first, first + 1]
    table.checkout(first)
    assert table.count_rows() == 100
    assert table.search().to_arrow().num_rows == 100
    table.checkout_latest()
    assert table.count_rows() == 110
    table.restore(first)
    assert table.count_rows() == 100


def test_indices_columns_and_statistics(table: Any) -> None:
    table.create_index("id", config=lancedb.index.BTree())
    assert [index.name for index in table.list_indices()] == ["id_idx"]
    assert table.index_stats("id_idx").num_indexed_rows == 100
    table.drop_index("id_idx")
    table.add_columns({"twice": "id * 2"})
    table.alter_columns({"path": "twice", "rename": "double"})
    assert table.schema.names == ["id", "text", "v", "double"]
    table.drop_columns(["double"])
    assert table.stats()["num_rows"] == 100
    assert table.branches.list() == {}


@pytest.mark.timeout(900)
def test_jobs_and_views_on_spark(database: Any, table: Any) -> None:
    """Computed columns and materialized views as LanceDB's users ask for them, done by real Spark jobs."""
    table.add_columns(computed={"n": "length(text)"})
    result = table.refresh_column_async("n").wait()
    assert (result.rows_assigned, result.rows_failed, result.rows_remaining) == (100, 0, 0)
    assert table.search().where("n != length(text) or n is null").to_arrow().num_rows == 0

    view = database.create_materialized_view(
        "loud", "people", select={"id": "id", "shout": "upper(text)"}, where="id > 90"
    )
    assert database.open_table("loud").count_rows() == 9
    table.add(DATA.slice(95, 1).append_column("n", pa.nulls(1, pa.int32())))
    refreshed = view.refresh()
    assert (refreshed.mode, refreshed.rows_written) == ("incremental", 1)
    assert database.open_table("loud").search().where("id = 95").to_arrow()["shout"].to_pylist() == ["W95", "W95"]
    assert database.list_materialized_views() == ["loud"]
    table.add(DATA.slice(96, 1).append_column("n", pa.nulls(1, pa.int32())))
    pinned = view.refresh(source_version=table.version - 1)
    assert (pinned.source_version, database.open_table("loud").count_rows()) == (table.version - 1, 10)

    jobs = database.list_jobs()
    assert {job.table for job in jobs[:4]} == {"people", "loud"}
    events = database.open_job(jobs[0].job_id).events()
    assert {"state", "message", "rows_processed"} <= set(events.column_names)

    pending = table.refresh_column_async("n")
    assert database.cancel_job(pending.id)
    deadline = time.monotonic() + 30
    while database.open_job(pending.id).status() != "cancelled":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    database.drop_materialized_view("loud")
    assert database.list_materialized_views() == []
