"""Every operation the server supports, made by pylance's Rust client, the spec's generated one and our own."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace

from airflow_provider_lance.api.arrow import read_arrow
from airflow_provider_lance.api.operations import OPERATIONS
from tests.interop.clients import CLIENTS, Client
from tests.interop.conftest import Address
from tests.namespace.people import PEOPLE, present, stream

#: Supported, but not by a call a test could make here: drivers claim and report, and Lance itself creates versions.
_ELSEWHERE = {"claim_job", "report_job"}
#: Made by LanceDB's own client in test_functions.py, with a server that has a key for secrets.
_ELSEWHERE |= {name for name in OPERATIONS if name.endswith(("_function", "_functions", "_secret", "_secrets"))}
#: Ours alone; the tests of loading make it.
_ELSEWHERE |= {"list_table_errors", "write_table"}
#: Refused by this server with a sentence (see docs/namespace.md).
_REFUSED = {"batch_commit_tables", "pause_job"}


class Recorder:
    """Calls through one client and remembers which operations were made."""

    def __init__(self, client: Client, space: str) -> None:
        self.client = client
        self.space = space
        self.made: set[str] = set()

    def __call__(self, name: str, data: bytes | None = None, /, **fields: Any) -> Any:
        """An operation on ``id`` inside the test's own namespace; None where this client lacks it."""
        if name in self.client.lacks:
            return None
        self.made.add(name)
        if "id" in fields:
            fields["id"] = [self.space, *fields["id"]]
        return self.client.call(name, fields, data)


@pytest.fixture(params=sorted(CLIENTS))
def call(request: pytest.FixtureRequest, server: Address) -> Recorder:
    recorder = Recorder(CLIENTS[request.param](server.url, server.key), f"space-{uuid.uuid4().hex[:8]}")
    recorder("create_namespace", id=[], properties={"made": "here"})
    return recorder


def test_every_operation(call: Recorder, server: Address) -> None:
    namespaces(call)
    tables(call)
    rows(call)
    columns(call)
    indices(call)
    tags_and_branches(call)
    versions(call, server)
    jobs(call)
    everything = set(OPERATIONS) - _ELSEWHERE - _REFUSED
    assert call.made == everything - call.client.lacks


def namespaces(call: Recorder) -> None:
    assert call("describe_namespace", id=[])["properties"] == {"made": "here"}
    call("namespace_exists", id=[])
    call("create_namespace", id=["child"])
    assert call("list_namespaces", id=[])["namespaces"] == ["child"]
    call("drop_namespace", id=["child"])
    assert not call("list_namespaces", id=[]).get("namespaces")


def tables(call: Recorder) -> None:
    assert call("create_table", stream(PEOPLE), id=["people"], mode="create")["version"] == 1
    call("table_exists", id=["people"])
    described = call("describe_table", id=["people"], load_detailed_metadata=True)
    assert described["version"] == 1
    assert [field["type"]["type"] for field in described["schema"]["fields"]] == ["int64", "string"]
    assert described["metadata"]["stable_row_ids"] == "true"
    assert call("list_tables", id=[])["tables"] == ["people"]
    assert f"{call.space}$people" in call("list_all_tables")["tables"]
    call("declare_table", id=["later"], properties={"a": "b"})
    call("create_empty_table", id=["sooner"])
    call("rename_table", id=["later"], new_table_name="soon")
    call("drop_table", id=["soon"])
    location = call("deregister_table", id=["people"])["location"]
    call("register_table", id=["people"], location=location.rpartition("/")[2])
    assert "people" in call("list_tables", id=[])["tables"]
    assert call("update_table_schema_metadata", id=["people"], metadata={"team": "blue"})


def rows(call: Recorder) -> None:
    assert call("insert_into_table", stream(PEOPLE), id=["people"], mode="append")["version"] == 3
    assert _count(call("count_table_rows", id=["people"])) == 6
    assert _count(call("count_table_rows", id=["people"], predicate="id = 1")) == 2
    call("delete_from_table", id=["people"], predicate="id = 1")
    call("update_table", id=["people"], predicate="id = 2", updates=[["text", "'two'"]])
    merged = stream(pa.table({"id": [3, 9], "text": ["three", "nine"]}))
    call(
        "merge_insert_into_table",
        merged,
        id=["people"],
        on=["id"],
        when_matched_update_all=True,
        when_not_matched_insert_all=True,
    )
    query = {"k": 100, "vector": {}, "filter": "id >= 3"}
    found = call("query_table", id=["people"], **query)
    table = read_arrow(bytes(found["data"] if isinstance(found, dict) else found))
    assert sorted(map(present, table["text"].to_pylist())) == ["nine", "three", "three"]
    assert "LanceRead" in str(call("explain_table_query_plan", id=["people"], query=query, verbose=True))
    assert "LanceRead" in str(call("analyze_table_query_plan", id=["people"], **query))
    assert call("get_table_stats", id=["people"])["num_rows"] == 5
    call("restore_table", id=["people"], version=1)
    assert _count(call("count_table_rows", id=["people"])) == 3


def columns(call: Recorder) -> None:
    call("alter_table_add_columns", id=["people"], new_columns=[{"name": "twice", "expression": "id * 2"}])
    call("alter_table_alter_columns", id=["people"], alterations=[{"path": "twice", "rename": "double"}])
    call("update_field_metadata", id=["people"], updates=[{"path": "double", "metadata": {"unit": "none"}}])
    call("alter_table_drop_columns", id=["people"], columns=["double"])


def indices(call: Recorder) -> None:
    call("create_table_scalar_index", id=["people"], column="id", index_type="BTREE")
    call("create_table_index", id=["people"], column="text", index_type="FTS")
    listed = call("list_table_indices", id=["people"])["indexes"]
    assert sorted(index["index_name"] for index in listed) == ["id_idx", "text_idx"]
    assert call("describe_table_index_stats", id=["people"], index_name="id_idx")["num_indexed_rows"] == 3
    call("prewarm_table_index", id=["people"], index_name="id_idx")
    call("prewarm_table_data", id=["people"], columns=["text"])
    call("drop_table_index", id=["people"], index_name="id_idx")


def tags_and_branches(call: Recorder) -> None:
    call("create_table_tag", id=["people"], tag="gold", version=1)
    call("update_table_tag", id=["people"], tag="gold", version=2)
    assert call("get_table_tag_version", id=["people"], tag="gold")["version"] == 2
    assert set(call("list_table_tags", id=["people"])["tags"]) == {"gold"}
    call("delete_table_tag", id=["people"], tag="gold")
    call("create_table_branch", id=["people"], name="trial")
    assert set(call("list_table_branches", id=["people"])["branches"]) == {"trial"}
    call("delete_table_branch", id=["people"], name="trial")


class Committer(LanceNamespace):
    """Hands the commits that Lance makes in this process to the client under test."""

    def __init__(self, call: Recorder, keep: bool = False) -> None:
        self._call = call
        self._keep = keep
        self.kept: dict[str, Any] = {}

    def namespace_id(self) -> str:
        return "committer"

    def describe_table(self, request: Any) -> Any:
        from lance_namespace import DescribeTableResponse

        return DescribeTableResponse.from_dict(self._call("describe_table", id=request.id[1:]))

    def list_table_versions(self, request: Any) -> Any:
        fields = dict(request)
        return self._call("list_table_versions", **{**fields, "id": fields["id"][1:]})

    def create_table_version(self, request: Any) -> Any:
        fields = dict(request)
        if self._keep:
            self.kept = fields
            raise RuntimeError("kept")
        return self._call("create_table_version", **{**fields, "id": fields["id"][1:]})


def versions(call: Recorder, server: Address) -> None:
    before = call("describe_table", id=["people"])["version"]
    table_id = [call.space, "people"]
    lance.write_dataset(PEOPLE, namespace_client=Committer(call), table_id=table_id, mode="append")
    listed = call("list_table_versions", id=["people"], descending=True, limit=2)["versions"]
    assert [version["version"] for version in listed] == [before + 1, before]
    assert call("describe_table_version", id=["people"], version=before + 1)["version"]["version"] == before + 1
    committer = Committer(call, keep=True)
    with pytest.raises(OSError, match="Commit result"):
        lance.write_dataset(PEOPLE, namespace_client=committer, table_id=table_id, mode="append")
    if "batch_create_table_versions" not in call.client.lacks:
        made = call("batch_create_table_versions", entries=[committer.kept])["versions"]
        assert [version["version"] for version in made] == [before + 2]
    call("batch_delete_table_versions", id=["people"], ranges=[{"start_version": 1, "end_version": 2}])


def jobs(call: Recorder) -> None:
    """The whole life of jobs nobody executes: the cluster ``external`` waits for a claim."""
    call("alter_table_add_columns", id=["people"], new_columns=[{"name": "n", "computed": "length(text)"}])
    job_id = call("alter_table_backfill_columns", id=["people"], column="n", cluster="external")["job_id"]
    assert call.client.call("describe_transaction", {"id": [job_id]})["status"].lower() == "queued"
    call.made.add("describe_transaction")
    view = {"id": ["loud"], "kind": "query", "source_query": "SELECT id, upper(text) AS shout FROM people"}
    types: dict[str, pa.DataType] = {"id": pa.int64(), "shout": pa.string()}
    schema = pa.schema(types)
    view["output_schema"] = base64.b64encode(schema.serialize().to_pybytes()).decode()
    assert call("create_materialized_view", **view)["version"] == 1
    refresh = call("refresh_materialized_view", id=["loud"], cluster="external")["job_id"]
    if "alter_transaction" not in call.client.lacks:
        action = [{"setStatusAction": {"status": "Canceled"}}]
        answer = call.client.call("alter_transaction", {"id": [job_id], "actions": action})
        call.made.add("alter_transaction")
        assert answer["status"].lower() == "canceled"
    if "list_jobs" in call.client.lacks:
        return
    assert {row["job_id"] for row in call("list_jobs", table=f"{call.space}$loud")["jobs"]} == {refresh}
    assert call("describe_job", job_id=refresh)["job_state"] == "QUEUED"
    call("resume_job", job_id=refresh)
    assert call("cancel_job", job_id=refresh)["job_id"] == refresh
    assert call("query_job_events", job_id=refresh).num_rows >= 2
    assert call("describe_materialized_view", id=["loud"])["source_table"] == "people"
    assert call("list_materialized_views", id=[])["views"] == ["loud"]
    call("drop_materialized_view", id=["loud"])


def _count(answer: Any) -> int:
    return int(answer["count"] if isinstance(answer, dict) else answer)
