"""pylance's own REST server as a peer: every operation it supports makes the round trip, through both clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import lance
import pyarrow as pa
import pytest
from lance.namespace import RestAdapter
from lance_namespace.errors import (
    ConcurrentModificationError,
    TableNotFoundError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.api.client import LanceClient
from airflow_provider_lance.api.models import model
from airflow_provider_lance.api.operations import OPERATIONS
from tests.api.conftest import Both


def rows(start: int, stop: int) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array([float(i) for i in range(4 * (stop - start))], pa.float32()), 4
    )
    return pa.table({"id": range(start, stop), "text": [f"word {i}" for i in range(start, stop)], "vector": vectors})


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestAdapter]:
    root = tmp_path_factory.mktemp("peer")
    properties = {"root": str(root), "manifest_enabled": "true", "table_version_tracking_enabled": "true"}
    with RestAdapter("dir", properties, port=0) as running:
        yield running


class Peer:
    """Calls an operation by its name and remembers the name."""

    def __init__(self, client: LanceClient) -> None:
        self.client = client
        self.called: set[str] = set()

    def __call__(self, name: str, *arguments: object) -> Any:
        self.called.add(name)
        return getattr(self.client, name)(*arguments)


@pytest.fixture
def peer(adapter: RestAdapter, both: Both) -> Peer:
    return Peer(both(f"http://127.0.0.1:{adapter.port}"))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all requests that leave either client."""
    paths: list[str] = []
    blocking, waiting = httpx.Client.send, httpx.AsyncClient.send

    def send(self: Any, request: httpx.Request, **kwargs: Any) -> Any:
        paths.append(request.url.path)
        return blocking(self, request, **kwargs)

    async def send_async(self: Any, request: httpx.Request, **kwargs: Any) -> Any:
        paths.append(request.url.path)
        return await waiting(self, request, **kwargs)

    monkeypatch.setattr(httpx.Client, "send", send)
    monkeypatch.setattr(httpx.AsyncClient, "send", send_async)
    return paths


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "update_field_metadata": {"id": "t", "updates": [{"path": "id", "metadata": {"x": "y"}}]},
    "rename_table": {"id": "t", "new_table_name": "u"},
    "batch_create_table_versions": {"entries": [{"id": ["t"], "version": 9, "manifest_path": "x"}]},
    "batch_commit_tables": {"operations": []},
    "alter_table_backfill_columns": {"id": "t", "column": "c"},
    "create_materialized_view": {"id": "v", "kind": "query", "source_query": "x", "output_schema": "x"},
    "refresh_materialized_view": {"id": "v"},
    "describe_materialized_view": {"id": "v"},
    "drop_materialized_view": {"id": "v"},
    "list_materialized_views": {"id": []},
    "prewarm_table_index": {"id": "t", "index_name": "i"},
    "prewarm_table_data": {"id": "t"},
    "create_function": {"id": "f", "artifact": {}, "signature": {}, "runtime": {}},
    "describe_function": {"id": "f"},
    "drop_function": {"id": "f", "version": "1"},
    "list_functions": {"id": []},
    "create_secret": {"id": "s", "value": "v"},
    "alter_secret": {"id": "s", "value": "v"},
    "describe_secret": {"id": "s"},
    "drop_secret": {"id": "s"},
    "list_secrets": {"id": []},
    "list_table_errors": {"id": "t"},
    "write_table": {"id": "t", "path": "rows.parquet"},
    "list_jobs": {},
    "describe_job": {"job_id": "j"},
    "cancel_job": {"job_id": "j"},
    "query_job_events": {"job_id": "j"},
    "pause_job": {"job_id": "j"},
    "resume_job": {"job_id": "j"},
    "claim_job": {"job_id": "j", "attempt": 1},
    "report_job": {"job_id": "j", "claim_token": "c", "seq": 1},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_it_lacks_is_unsupported_after_one_request(peer: Peer, sent: list[str], name: str) -> None:
    with pytest.raises(UnsupportedOperationError):
        peer(name, UNSUPPORTED[name])
    assert len(sent) == 1


def test_every_other_operation_makes_the_round_trip(peer: Peer, both: Both) -> None:
    n, t = f"ns_{both.kind}", [f"ns_{both.kind}", "table-1"]
    peer("create_namespace", {"id": n, "properties": {"owner": "me"}})
    assert n in peer("list_namespaces", {"id": []}).namespaces
    assert peer("describe_namespace", {"id": n}).properties == {"owner": "me"}
    peer("namespace_exists", {"id": n})

    assert peer("create_table", {"id": t}, rows(0, 300)).version == 1
    assert peer("insert_into_table", {"id": t}, iter(rows(300, 400).to_batches())).num_inserted_rows == 100
    assert peer("list_tables", {"id": n}).tables == [t[1]]
    assert peer("list_all_tables", {}).tables == []  # this server does not descend
    peer("table_exists", {"id": t})
    described = peer("describe_table", {"id": t, "load_detailed_metadata": True})
    assert described.version == 2
    merged = peer("merge_insert_into_table", {"id": t, "on": "id", "when_not_matched_insert_all": True}, rows(399, 402))
    assert merged.num_inserted_rows == 2
    assert peer("update_table", {"id": t, "predicate": "id = 1", "updates": [["text", "'y'"]]}).updated_rows == 1
    assert peer("delete_from_table", {"id": t, "predicate": "id = 2"}).version == 5
    assert peer("count_table_rows", {"id": t}).count == 401
    query = {"id": t, "k": 3, "vector": {}, "filter": "id >= 10", "columns": {"column_names": ["id"]}}
    assert peer.client.query_arrow(query).to_pydict() == {"id": [10, 11, 12]}
    assert peer("query_table", query).data.startswith(b"ARROW1")
    assert "LanceRead" in peer("explain_table_query_plan", {"id": t, "query": {"k": 3, "vector": {}}})
    assert "LanceRead" in peer("analyze_table_query_plan", {"id": t, "k": 3, "vector": {}})
    assert peer("get_table_stats", {"id": t}).num_indices == 0
    assert peer("update_table_schema_metadata", {"id": t, "metadata": {"a": "b"}}).metadata == {"a": "b"}

    peer("alter_table_add_columns", {"id": t, "new_columns": [{"name": "twice", "expression": "id * 2"}]})
    peer("alter_table_alter_columns", {"id": t, "alterations": [{"path": "twice", "rename": "double"}]})
    assert peer("alter_table_drop_columns", {"id": t, "columns": ["double"]}).version == 9
    vector = {"id": t, "column": "vector", "index_type": "IVF_FLAT", "distance_type": "l2", "num_partitions": 1}
    assert peer("create_table_index", vector).transaction_id
    assert peer("create_table_scalar_index", {"id": t, "column": "id", "index_type": "BTREE"}).transaction_id
    assert {index.index_name for index in peer("list_table_indices", {"id": t}).indexes} == {"id_idx", "vector_idx"}
    assert peer("describe_table_index_stats", {"id": t, "index_name": "id_idx"}).num_indexed_rows == 401
    peer("drop_table_index", {"id": t, "index_name": "id_idx"})

    peer("create_table_tag", {"id": t, "tag": "prod", "version": 1})
    assert list(peer("list_table_tags", {"id": t}).tags) == ["prod"]
    peer("update_table_tag", {"id": t, "tag": "prod", "version": 2})
    assert peer("get_table_tag_version", {"id": t, "tag": "prod"}).version == 2
    peer("delete_table_tag", {"id": t, "tag": "prod"})
    peer("create_table_branch", {"id": t, "name": "try"})
    assert list(peer("list_table_branches", {"id": t}).branches) == ["try"]
    peer("delete_table_branch", {"id": t, "name": "try"})

    versions = list(peer.client.iterate("list_table_versions", {"id": t}))
    assert [version["version"] for version in versions] == list(range(1, 13))
    assert peer("list_table_versions", {"id": t, "descending": True, "limit": 1}).versions[0].version == 12
    assert peer("describe_table_version", {"id": t, "version": 1}).version.manifest_size > 0
    with pytest.raises(ConcurrentModificationError, match="expected 13"):
        peer("create_table_version", {"id": t, "version": 99, "manifest_path": "x"})
    peer("restore_table", {"id": t, "version": 1})
    assert peer("count_table_rows", {"id": t}).count == 300
    request = {"id": t, "ranges": [{"start_version": 1, "end_version": 2}]}
    assert peer("batch_delete_table_versions", request).deleted_count == 1
    with pytest.raises(TransactionNotFoundError):
        peer("describe_transaction", {"id": [*t, "nope"]})
    cancel = {"actions": [{"setStatusAction": {"status": "Canceled"}}]}
    with pytest.raises(TransactionNotFoundError):
        peer("alter_transaction", {"id": [*t, "nope"], **cancel})

    assert peer("declare_table", {"id": [n, "declared"]}).managed_versioning
    assert peer("create_empty_table", {"id": [n, "empty"]}).location
    for name in ("declared", "empty"):
        peer("drop_table", {"id": [n, name]})
    location = peer("deregister_table", {"id": t}).location
    with pytest.raises(TableNotFoundError):
        peer("describe_table", {"id": t})
    peer("register_table", {"id": t, "location": location.rsplit("/", 1)[1]})
    peer("drop_table", {"id": t})
    peer("drop_namespace", {"id": n})
    assert peer.called | set(UNSUPPORTED) == set(OPERATIONS)


def test_models_and_dicts_are_equally_good(peer: Peer, both: Both) -> None:
    identifier = [f"m_{both.kind}"]
    peer("create_table", model("CreateTableRequest")(id=identifier, mode="overwrite"), rows(0, 5))
    assert peer("count_table_rows", model("CountTableRowsRequest")(id=identifier)).count == 5


def test_pylance_commits_through_our_client(adapter: RestAdapter) -> None:
    """``LanceClient`` as pylance's ``namespace_client``: the commit arrives as CreateTableVersion."""
    with LanceClient(f"http://127.0.0.1:{adapter.port}") as client:
        client.declare_table({"id": ["managed"]})
        for part in (rows(0, 10), rows(10, 15)):
            lance.write_dataset(part, namespace_client=client, table_id=["managed"], mode="append")
        assert client.count_table_rows({"id": ["managed"]}).count == 15
        assert [v["version"] for v in client.iterate("list_table_versions", {"id": ["managed"]})] == [1, 2]
        assert lance.dataset(namespace_client=client, table_id=["managed"]).count_rows() == 15
