"""Tables and namespaces in process: what pylance does well passes through, what it does not is mended."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.namespace import SparkNamespace
from tests.namespace.people import PEOPLE, make_namespace, present, queried, stream, with_people
from tests.namespace.recording_jobs import RecordingJobs


@pytest.fixture
def namespace(tmp_path: Path) -> SparkNamespace:
    return with_people(tmp_path)


def invalid(content: str) -> bytes:
    """A stream that Arrow reads without complaint, except for the last kind, and Lance would store."""
    if content == "cut short":
        return stream(PEOPLE)[:-40]
    text: pa.Array[Any] = pa.StringArray.from_buffers(
        1, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")
    )
    if content == "an index beyond its dictionary":
        text = pa.DictionaryArray.from_arrays(pa.array([7], pa.int32()), pa.array(["a"]), safe=False)
    return stream(pa.table({"id": [1], "text": text}))


def test_connect_by_name_with_string_properties(tmp_path: Path) -> None:
    namespace = lance_namespace.connect(
        "airflow_provider_lance.namespace.SparkNamespace", {"root": str(tmp_path), "storage.timeout": "30s"}
    )
    namespace.create_table(lance_namespace.CreateTableRequest(id=["t"]), stream(PEOPLE))
    assert namespace.count_table_rows(lance_namespace.CountTableRowsRequest(id=["t"])).count == 3
    assert isinstance(namespace, SparkNamespace)
    with pytest.raises(UnsupportedOperationError, match="without a jobs service"):
        namespace.list_jobs({})


def test_importing_the_package_imports_no_lance() -> None:
    code = (
        "import sys, airflow_provider_lance.namespace, airflow_provider_lance.namespace.submission; "
        "assert not {'lance', 'pyarrow', 'lance_namespace'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestCreate:
    def test_gives_stable_row_ids_and_says_so(self, namespace: SparkNamespace) -> None:
        described = namespace.describe_table({"id": ["people"]})
        assert described.version == 1
        assert present(described.metadata)["stable_row_ids"] == "true"
        assert lance.dataset(described.location).has_stable_row_ids

    def test_describe_says_when_a_table_has_none(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        lance.write_dataset(PEOPLE, tmp_path / "foreign.lance")
        assert present(namespace.describe_table({"id": ["foreign"]}).metadata)["stable_row_ids"] == "false"

    def test_modes(self, namespace: SparkNamespace) -> None:
        other = stream(pa.table({"x": [1]}))
        with pytest.raises(TableAlreadyExistsError):
            namespace.create_table({"id": ["people"]}, other)
        kept = namespace.create_table({"id": ["people"], "mode": "ExistOk"}, other)
        assert kept.version == 1
        assert namespace.count_table_rows({"id": ["people"]}).count == 3
        assert namespace.create_table({"id": ["people"], "mode": "overwrite"}, other).version == 2
        assert namespace.count_table_rows({"id": ["people"]}).count == 1
        assert present(namespace.describe_table({"id": ["people"]}).metadata)["stable_row_ids"] == "true"
        with pytest.raises(InvalidInputError, match="mode"):
            namespace.create_table({"id": ["people"], "mode": "replace"}, other)

    def test_without_rows_keeps_the_schema(self, namespace: SparkNamespace) -> None:
        namespace.create_table({"id": ["empty"]}, stream(PEOPLE.slice(0, 0)))
        described = namespace.describe_table({"id": ["empty"]})
        assert [field.name for field in present(described.var_schema).fields] == ["id", "text"]
        assert namespace.count_table_rows({"id": ["empty"]}).count == 0

    def test_junk_is_refused_and_leaves_nothing(self, namespace: SparkNamespace) -> None:
        with pytest.raises(InvalidInputError, match="Arrow"):
            namespace.create_table({"id": ["junk"]}, b"junk")
        truncated = stream(PEOPLE)[:-40]
        with pytest.raises(InvalidInputError):
            namespace.create_table({"id": ["junk"]}, truncated)
        with pytest.raises(TableNotFoundError):
            namespace.describe_table({"id": ["junk"]})

    @pytest.mark.parametrize("content", ["text that is none", "an index beyond its dictionary", "cut short"])
    def test_invalid_content_is_refused_wherever_rows_come_in(self, namespace: SparkNamespace, content: str) -> None:
        namespace.create_table_branch({"id": ["people"], "name": "trial"})
        namespace.declare_table({"id": ["later"]})
        data = invalid(content)
        merge = {"on": ["id"], "when_not_matched_insert_all": True}
        for name, request in (
            ("create_table", {"id": ["new"]}),
            ("create_table", {"id": ["people"], "mode": "overwrite"}),
            ("insert_into_table", {"id": ["people"]}),
            ("insert_into_table", {"id": ["people"], "branch": "trial"}),
            ("insert_into_table", {"id": ["later"]}),
            ("merge_insert_into_table", {"id": ["people"], **merge}),
            ("merge_insert_into_table", {"id": ["people"], "branch": "trial", **merge}),
        ):
            with pytest.raises(InvalidInputError, match="valid Arrow IPC stream"):
                getattr(namespace, name)(request, data)
        assert namespace.list_tables({}).tables == ["later", "people"]
        assert namespace.describe_table({"id": ["people"]}).version == 1

    @pytest.mark.parametrize("name", ["_rowid", "_rowaddr", "_row_created_at_version", "a`b"])
    def test_names_that_make_a_table_unreadable_are_refused(self, namespace: SparkNamespace, name: str) -> None:
        data = stream(pa.table({name: [1], "b": [2]}))
        namespace.declare_table({"id": ["later"]})
        for operation, request in (
            ("create_table", {"id": ["new"]}),
            ("create_table", {"id": ["people"], "mode": "overwrite"}),
            ("insert_into_table", {"id": ["later"]}),
            ("insert_into_table", {"id": ["people"], "mode": "overwrite"}),
        ):
            with pytest.raises(InvalidInputError, match=name):
                getattr(namespace, operation)(request, data)
        assert namespace.list_tables({}).tables == ["later", "people"]
        assert namespace.count_table_rows({"id": ["people"], "predicate": "id > 1"}).count == 2

    def test_needs_its_namespace(self, namespace: SparkNamespace) -> None:
        with pytest.raises(NamespaceNotFoundError):
            namespace.create_table({"id": ["nowhere", "t"]}, stream(PEOPLE))

    def test_keeps_properties(self, namespace: SparkNamespace) -> None:
        namespace.create_table({"id": ["owned"], "properties": {"owner": "ann"}}, stream(PEOPLE))
        assert namespace.describe_table({"id": ["owned"]}).properties == {"owner": "ann"}

    def test_another_servers_properties_are_seen_at_once(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        namespace.create_table({"id": ["owned"], "properties": {"owner": "ann"}}, stream(PEOPLE))
        assert namespace.describe_table({"id": ["owned"]}).properties == {"owner": "ann"}
        other = make_namespace(tmp_path)
        other.drop_table({"id": ["owned"]})
        other.create_table({"id": ["owned"], "properties": {"owner": "bob"}}, stream(PEOPLE))
        assert namespace.describe_table({"id": ["owned"]}).properties == {"owner": "bob"}

    def test_refuses_storage_options_that_redirect_the_server(self, namespace: SparkNamespace) -> None:
        for key in ("aws_endpoint", "aws_secret_access_key", "proxy_url"):
            with pytest.raises(InvalidInputError, match=key):
                namespace.create_table({"id": ["t"], "storage_options": {key: "x"}}, stream(PEOPLE))


class TestDeclare:
    @pytest.mark.parametrize("operation", ["declare_table", "create_empty_table"])
    def test_then_create_then_again(self, namespace: SparkNamespace, operation: str) -> None:
        declare = getattr(namespace, operation)
        answer = declare({"id": ["later"], "properties": {"k": "v"}})
        assert answer.properties == {"k": "v"}
        described = namespace.describe_table({"id": ["later"]})
        assert described.is_only_declared
        assert described.managed_versioning
        assert described.properties == {"k": "v"}
        with pytest.raises(TableAlreadyExistsError):
            declare({"id": ["later"]})
        assert "later" not in namespace.list_tables({"include_declared": False}).tables
        with pytest.raises(TableNotFoundError):
            namespace.count_table_rows({"id": ["later"]})
        namespace.insert_into_table({"id": ["later"]}, stream(PEOPLE))
        described = namespace.describe_table({"id": ["later"]})
        assert (described.version, present(described.metadata)["stable_row_ids"]) == (1, "true")

    def test_at_a_location_of_its_own(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        namespace.declare_table({"id": ["placed"], "location": str(tmp_path / "elsewhere")})
        namespace.create_table({"id": ["placed"]}, stream(PEOPLE))
        assert namespace.describe_table({"id": ["placed"]}).location == str(tmp_path / "elsewhere")
        assert namespace.count_table_rows({"id": ["placed"]}).count == 3
        assert "placed" in namespace.list_tables({}).tables
        namespace.drop_table({"id": ["placed"]})
        assert not (tmp_path / "elsewhere").exists()
        namespace.declare_table({"id": ["placed"], "location": "elsewhere"})
        namespace.drop_table({"id": ["placed"]})
        assert namespace.list_tables({}).tables == ["people"]

    @pytest.mark.parametrize(
        "location",
        ["../x", "/etc/x", "s3://b/x", "a/../../x", "", " ", "__manifest", "a/b", "..", "people.lance", "other.lance"],
    )
    def test_nowhere_else(self, namespace: SparkNamespace, location: str) -> None:
        with pytest.raises(InvalidInputError, match=r"location|place of another"):
            namespace.declare_table({"id": ["out"], "location": location})

    def test_lance_writes_a_declared_table_through_the_namespace(self, namespace: SparkNamespace) -> None:
        namespace.declare_table({"id": ["streamed"]})
        lance.write_dataset(PEOPLE, namespace_client=namespace, table_id=["streamed"], mode="append")
        dataset = lance.write_dataset(PEOPLE, namespace_client=namespace, table_id=["streamed"], mode="append")
        assert dataset.version == 2
        assert namespace.count_table_rows({"id": ["streamed"]}).count == 6


class TestDescribe:
    def test_types_are_json_arrow_in_lances_words(self, namespace: SparkNamespace) -> None:
        fields = present(namespace.describe_table({"id": ["people"]}).var_schema).fields
        assert [(field.name, field.type.type) for field in fields] == [("id", "int64"), ("text", "string")]

    def test_at_a_version_a_tag_and_a_branch(self, namespace: SparkNamespace) -> None:
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        namespace.create_table_tag({"id": ["people"], "tag": "first", "version": 1})
        namespace.create_table_branch({"id": ["people"], "name": "trial"})
        assert namespace.describe_table({"id": ["people"]}).version == 2
        assert namespace.describe_table({"id": ["people"], "version": 1}).version == 1
        assert namespace.describe_table({"id": ["people"], "tag": "first"}).version == 1
        assert namespace.describe_table({"id": ["people"], "branch": "trial"}).version == 2
        with pytest.raises(TableVersionNotFoundError):
            namespace.describe_table({"id": ["people"], "version": 99})
        with pytest.raises(TableVersionNotFoundError):
            namespace.describe_table({"id": ["people"], "version": 99, "load_detailed_metadata": False})
        with pytest.raises(TableTagNotFoundError):
            namespace.describe_table({"id": ["people"], "tag": "second"})
        with pytest.raises(TableBranchNotFoundError):
            namespace.describe_table({"id": ["people"], "branch": "none"})
        with pytest.raises(InvalidInputError):
            namespace.describe_table({"id": ["people"], "tag": "first", "version": 1})

    def test_exists_at_a_version(self, namespace: SparkNamespace) -> None:
        namespace.table_exists({"id": ["people"], "version": 1})
        with pytest.raises(TableVersionNotFoundError):
            namespace.table_exists({"id": ["people"], "version": 2})
        with pytest.raises(TableNotFoundError):
            namespace.table_exists({"id": ["nobody"]})


class TestRegister:
    def test_a_table_below_the_root_under_another_name(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        lance.write_dataset(PEOPLE, tmp_path / "archive-old")
        namespace.register_table({"id": ["history"], "location": "archive-old"})
        assert namespace.count_table_rows({"id": ["history"]}).count == 3
        assert namespace.describe_table({"id": ["history"]}).location == str(tmp_path / "archive-old")
        with pytest.raises(TableAlreadyExistsError):
            namespace.register_table({"id": ["history"], "location": "archive-old"})

    def test_one_directory_has_one_name(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="is the table people"):
            namespace.register_table({"id": ["alias"], "location": "people.lance"})
        lance.write_dataset(PEOPLE, tmp_path / "foreign.lance")
        namespace.register_table({"id": ["named"], "location": "foreign.lance"})
        assert namespace.list_tables({}).tables == ["named", "people"]
        namespace.insert_into_table({"id": ["named"]}, stream(PEOPLE))
        assert namespace.count_table_rows({"id": ["named"]}).count == 6
        namespace.drop_table({"id": ["named"]})
        assert not (tmp_path / "foreign.lance").exists()

    def test_only_what_is_there(self, namespace: SparkNamespace) -> None:
        with pytest.raises(InvalidInputError, match="no readable Lance table"):
            namespace.register_table({"id": ["ghost"], "location": "ghost.lance"})
        with pytest.raises(InvalidInputError):
            namespace.register_table({"id": ["ghost"], "location": "../ghost.lance"})

    def test_deregister_hides_and_register_brings_back(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        namespace.deregister_table({"id": ["people"]})
        assert namespace.list_tables({}).tables == []
        with pytest.raises(TableNotFoundError):
            namespace.describe_table({"id": ["people"]})
        assert (tmp_path / "people.lance").exists()
        with pytest.raises(TableAlreadyExistsError, match="deregistered"):
            namespace.create_table({"id": ["people"]}, stream(PEOPLE))
        namespace.register_table({"id": ["people"], "location": "people.lance"})
        assert namespace.count_table_rows({"id": ["people"]}).count == 3
        assert namespace.list_tables({}).tables == ["people"]

    def test_a_declared_table_is_forgotten_whole(self, namespace: SparkNamespace) -> None:
        namespace.declare_table({"id": ["later"]})
        namespace.deregister_table({"id": ["later"]})
        namespace.create_table({"id": ["later"]}, stream(PEOPLE))


class TestRename:
    def test_moves_the_directory(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        namespace.create_table({"id": ["owned"], "properties": {"owner": "ann"}}, stream(PEOPLE))
        namespace.create_table_tag({"id": ["owned"], "tag": "v", "version": 1})
        namespace.rename_table({"id": ["owned"], "new_table_name": "kept"})
        assert namespace.list_tables({}).tables == ["kept", "people"]
        assert namespace.describe_table({"id": ["kept"]}).properties == {"owner": "ann"}
        assert namespace.get_table_tag_version({"id": ["kept"], "tag": "v"}).version == 1
        assert not (tmp_path / "owned.lance").exists()
        with pytest.raises(TableNotFoundError):
            namespace.describe_table({"id": ["owned"]})

    def test_into_another_namespace_and_back(self, namespace: SparkNamespace) -> None:
        namespace.create_namespace({"id": ["team"]})
        namespace.rename_table({"id": ["people"], "new_table_name": "staff", "new_namespace_id": ["team"]})
        assert namespace.count_table_rows({"id": ["team", "staff"]}).count == 3
        assert namespace.list_tables({}).tables == []
        namespace.rename_table({"id": ["team", "staff"], "new_table_name": "people", "new_namespace_id": []})
        assert namespace.count_table_rows({"id": ["people"]}).count == 3
        assert namespace.list_tables({"id": ["team"]}).tables == []

    def test_onto_a_taken_name_or_a_bad_one(self, namespace: SparkNamespace) -> None:
        namespace.create_table({"id": ["other"]}, stream(PEOPLE))
        with pytest.raises(TableAlreadyExistsError):
            namespace.rename_table({"id": ["people"], "new_table_name": "other"})
        with pytest.raises(InvalidInputError):
            namespace.rename_table({"id": ["people"], "new_table_name": "../other"})
        with pytest.raises(NamespaceNotFoundError):
            namespace.rename_table({"id": ["people"], "new_table_name": "x", "new_namespace_id": ["nowhere"]})
        assert namespace.list_tables({}).tables == ["other", "people"]

    def test_not_with_branches(self, namespace: SparkNamespace) -> None:
        namespace.create_table_branch({"id": ["people"], "name": "trial"})
        with pytest.raises(UnsupportedOperationError, match="branches"):
            namespace.rename_table({"id": ["people"], "new_table_name": "x"})

    def test_nothing_moves_while_a_job_writes(self, tmp_path: Path) -> None:
        jobs = RecordingJobs()
        namespace = with_people(tmp_path, jobs)
        namespace.alter_table_add_columns(
            {"id": ["people"], "new_columns": [{"name": "n", "computed": "length(text)"}]}
        )
        job_id = namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
        for move in (
            lambda: namespace.rename_table({"id": ["people"], "new_table_name": "x"}),
            lambda: namespace.deregister_table({"id": ["people"]}),
            lambda: namespace.drop_table({"id": ["people"]}),
        ):
            with pytest.raises(ConcurrentModificationError, match=job_id):
                move()
        jobs.end(job_id)
        namespace.rename_table({"id": ["people"], "new_table_name": "x"})


class TestNamespaces:
    def test_create_modes(self, namespace: SparkNamespace) -> None:
        namespace.create_namespace({"id": ["team"], "properties": {"a": "1"}})
        with pytest.raises(NamespaceAlreadyExistsError):
            namespace.create_namespace({"id": ["team"]})
        kept = namespace.create_namespace({"id": ["team"], "mode": "exist_ok", "properties": {"a": "2"}})
        assert kept.properties == {"a": "1"}
        namespace.create_table({"id": ["team", "t"]}, stream(PEOPLE))
        namespace.create_namespace({"id": ["team"], "mode": "Overwrite", "properties": {"a": "3"}})
        assert namespace.describe_namespace({"id": ["team"]}).properties == {"a": "3"}
        assert namespace.list_tables({"id": ["team"]}).tables == []

    @pytest.mark.parametrize("mode", ["create", "exist_ok", "overwrite"])
    def test_a_tables_name_is_taken(self, namespace: SparkNamespace, mode: str) -> None:
        with pytest.raises(NamespaceAlreadyExistsError):
            namespace.create_namespace({"id": ["people"], "mode": mode})
        assert namespace.count_table_rows({"id": ["people"]}).count == 3

    def test_drop_modes(self, namespace: SparkNamespace) -> None:
        namespace.drop_namespace({"id": ["none"], "mode": "Skip"})
        with pytest.raises(NamespaceNotFoundError):
            namespace.drop_namespace({"id": ["none"]})
        namespace.create_namespace({"id": ["team"]})
        namespace.create_namespace({"id": ["team", "sub"]})
        namespace.create_table({"id": ["team", "sub", "t"]}, stream(PEOPLE))
        with pytest.raises(NamespaceNotEmptyError):
            namespace.drop_namespace({"id": ["team"]})
        namespace.drop_namespace({"id": ["team"], "behavior": "cascade"})
        assert namespace.list_namespaces({}).namespaces == []
        with pytest.raises(InvalidInputError):
            namespace.drop_namespace({"id": []})

    @pytest.mark.parametrize("how", ["cascade", "overwrite"])
    def test_all_of_it_goes_or_nothing(self, tmp_path: Path, how: str) -> None:
        jobs = RecordingJobs()
        namespace = make_namespace(tmp_path, jobs)
        for namespace_id in (["team"], ["team", "sub"]):
            namespace.create_namespace({"id": namespace_id})
            namespace.create_table({"id": [*namespace_id, "t"]}, stream(PEOPLE))
        namespace.declare_table({"id": ["team", "placed"], "location": "elsewhere"})
        deep = {"id": ["team", "sub", "t"]}
        namespace.alter_table_add_columns({**deep, "new_columns": [{"name": "n", "computed": "length(text)"}]})
        job_id = namespace.alter_table_backfill_columns({**deep, "column": "n"}).job_id

        def drop() -> None:
            if how == "cascade":
                namespace.drop_namespace({"id": ["team"], "behavior": "cascade"})
            else:
                namespace.create_namespace({"id": ["team"], "mode": "overwrite"})

        with pytest.raises(ConcurrentModificationError, match=job_id):
            drop()
        assert namespace.list_all_tables({}).tables == ["team$placed", "team$sub$t", "team$t"]
        jobs.end(job_id)
        drop()
        assert namespace.list_all_tables({}).tables == []

    def test_listings_come_in_pages_and_in_order(self, namespace: SparkNamespace) -> None:
        namespace.create_namespace({"id": ["team"]})
        for name in ("e", "c", "a", "d", "b"):
            namespace.create_table({"id": ["team", name]}, stream(PEOPLE))
        found, token = [], None
        while True:
            page = namespace.list_tables({"id": ["team"], "limit": 2, "page_token": token})
            assert len(page.tables) <= 2
            found += page.tables
            token = page.page_token
            if token is None:
                break
        assert found == ["a", "b", "c", "d", "e"]
        everything = namespace.list_all_tables({}).tables
        assert everything == ["people", *(f"team${name}" for name in "abcde")]
        with pytest.raises(NamespaceNotFoundError):
            namespace.list_tables({"id": ["nowhere"]})
        with pytest.raises(InvalidInputError):
            namespace.list_tables({"limit": 0})


class TestErrorsSayWhatWentWrong:
    def test_restore(self, namespace: SparkNamespace) -> None:
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        with pytest.raises(TableVersionNotFoundError):
            namespace.restore_table({"id": ["people"], "version": 99})
        namespace.restore_table({"id": ["people"], "version": 1})
        assert namespace.count_table_rows({"id": ["people"]}).count == 3

    def test_unknown_column(self, namespace: SparkNamespace) -> None:
        with pytest.raises(TableColumnNotFoundError):
            namespace.alter_table_drop_columns({"id": ["people"], "columns": ["nope"]})
        with pytest.raises(TableColumnNotFoundError):
            namespace.alter_table_alter_columns({"id": ["people"], "alterations": [{"path": "nope", "rename": "x"}]})

    def test_bad_sql(self, namespace: SparkNamespace) -> None:
        for call in (
            lambda: namespace.count_table_rows({"id": ["people"], "predicate": "id >"}),
            lambda: namespace.query_table({"id": ["people"], "k": 1, "filter": "nope = 1"}),
            lambda: namespace.delete_from_table({"id": ["people"], "predicate": "id ="}),
            lambda: namespace.update_table({"id": ["people"], "updates": [["nope", "1"]]}),
        ):
            with pytest.raises(InvalidInputError) as caught:
                call()
            assert ".rs" not in str(caught.value)

    def test_other_schema(self, namespace: SparkNamespace) -> None:
        with pytest.raises(TableSchemaValidationError):
            namespace.insert_into_table({"id": ["people"]}, stream(pa.table({"other": [1]})))

    def test_what_cannot_be_done_says_so_at_once(self, namespace: SparkNamespace) -> None:
        operations = [{"DeregisterTable": {"id": ["people"]}}]
        with pytest.raises(UnsupportedOperationError, match="one by one"):
            namespace.batch_commit_tables({"operations": operations})

    def test_malformed_requests(self, namespace: SparkNamespace) -> None:
        with pytest.raises(InvalidInputError, match="version"):
            namespace.describe_table({"id": ["people"], "version": "one"})
        with pytest.raises(InvalidInputError):
            namespace.describe_table("people")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="Arrow"):
            namespace.create_table({"id": ["t"]})


def test_lancedbs_dialect_of_queries(namespace: SparkNamespace) -> None:
    everything = {"id": ["people"], "k": 2**63 - 1, "prefilter": True, "vector": [], "version": None}
    assert queried(namespace.query_table(everything).data).num_rows == 3
    chosen = namespace.query_table({"id": ["people"], "k": 5, "vector": [], "columns": ["id"], "filter": "id > 1"})
    assert queried(chosen.data).to_pydict() == {"id": [2, 3]}
    computed = namespace.query_table({"id": ["people"], "k": 5, "vector": [], "columns": {"double": "id * 2"}})
    assert queried(computed.data).to_pydict() == {"double": [2, 4, 6]}
    plan = namespace.explain_table_query_plan({"id": ["people"], "query": {"k": 1, "vector": []}, "verbose": False})
    assert "LanceRead" in plan


def test_vector_search_in_both_dialects(tmp_path: Path) -> None:
    namespace = make_namespace(tmp_path)
    vectors = pa.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]], pa.list_(pa.float32(), 2))
    namespace.create_table({"id": ["points"]}, stream(pa.table({"id": [0, 1, 2], "v": vectors})))
    for vector in ([4.0, 4.0], {"single_vector": [4.0, 4.0]}):
        found = namespace.query_table({"id": ["points"], "k": 1, "vector": vector, "columns": ["id"]})
        assert queried(found.data)["id"].to_pylist() == [2]


def test_branches_tags_indices_and_statistics_pass_through(namespace: SparkNamespace) -> None:
    namespace.create_table_branch({"id": ["people"], "name": "trial"})
    namespace.insert_into_table({"id": ["people"], "branch": "trial"}, stream(PEOPLE))
    assert namespace.count_table_rows({"id": ["people"], "branch": "trial"}).count == 6
    assert namespace.count_table_rows({"id": ["people"]}).count == 3
    assert set(namespace.list_table_branches({"id": ["people"]}).branches) == {"trial"}
    namespace.create_table_scalar_index({"id": ["people"], "column": "id", "index_type": "BTREE"})
    assert [index.index_name for index in namespace.list_table_indices({"id": ["people"]}).indexes] == ["id_idx"]
    assert namespace.describe_table_index_stats({"id": ["people"], "index_name": "id_idx"}).num_indexed_rows == 3
    assert namespace.get_table_stats({"id": ["people"]}).num_rows == 3
    namespace.create_table_tag({"id": ["people"], "tag": "v", "version": 1})
    namespace.update_table_tag({"id": ["people"], "tag": "v", "version": 2})
    assert namespace.list_table_tags({"id": ["people"]}).tags["v"].version == 2
    namespace.drop_table_index({"id": ["people"], "index_name": "id_idx"})
    namespace.delete_table_branch({"id": ["people"], "name": "trial"})


def test_a_branch_honours_what_it_is_asked_for(namespace: SparkNamespace) -> None:
    branch: dict[str, object] = {"id": ["people"], "branch": "trial"}
    namespace.create_table_branch({"id": ["people"], "name": "trial"})
    namespace.insert_into_table(branch, stream(PEOPLE))
    namespace.create_table_tag({**branch, "tag": "tried", "version": 2})
    assert namespace.list_table_tags({"id": ["people"]}).tags["tried"].branch == "trial"
    namespace.update_table_tag({**branch, "tag": "tried", "version": 1})
    assert namespace.update_table({**branch, "predicate": "id = 1", "updates": [["text", "'x'"]]}).updated_rows == 2
    assert namespace.delete_from_table({**branch, "predicate": "id = 2"}).num_deleted_rows == 2
    merged = namespace.merge_insert_into_table(
        {**branch, "on": ["id"], "when_not_matched_insert_all": True}, stream(PEOPLE)
    )
    assert merged.num_inserted_rows == 1
    namespace.alter_table_drop_columns({**branch, "columns": ["text"]})
    assert namespace.count_table_rows({**branch, "predicate": "id = 2"}).count == 1
    main = namespace.describe_table({"id": ["people"]})
    assert (main.version, len(present(main.var_schema).fields)) == (1, 2), "main is as it was"
    found = queried(namespace.query_table({**branch, "k": 9, "vector": {}, "filter": "id < 3"}).data)
    assert sorted(map(present, found["id"].to_pylist())) == [1, 1, 2]
    namespace.create_table_scalar_index({**branch, "column": "id", "index_type": "BTREE"})
    assert [index.index_name for index in namespace.list_table_indices(branch).indexes] == ["id_idx"]
    assert namespace.list_table_indices({"id": ["people"]}).indexes == []
    namespace.drop_table_index({**branch, "index_name": "id_idx"})
    namespace.alter_table_alter_columns({**branch, "alterations": [{"path": "id", "rename": "number"}]})
    main_only: dict[str, dict[str, object]] = {
        "update_table_schema_metadata": {"metadata": {"a": "b"}},
    }
    for name, fields in main_only.items():
        with pytest.raises(UnsupportedOperationError, match="main branch only"):
            getattr(namespace, name)({**branch, **fields})
    with pytest.raises(TableBranchNotFoundError):
        namespace.create_table_branch({"id": ["people"], "name": "second", "from_branch": "none"})
    with pytest.raises(TableVersionNotFoundError):
        namespace.create_table_branch({"id": ["people"], "name": "second", "from_version": 99})


def test_schema_and_field_metadata(namespace: SparkNamespace) -> None:
    namespace.update_table_schema_metadata({"id": ["people"], "metadata": {"team": "blue"}})
    first = namespace.update_field_metadata(
        {"id": ["people"], "updates": [{"path": "text", "metadata": {"unit": "words", "lang": "en"}}]}
    )
    assert first.fields == {"text": {"unit": "words", "lang": "en"}}
    second = namespace.update_field_metadata(
        {
            "id": ["people"],
            "updates": [
                {"path": "text", "metadata": {"lang": None, "x": "1"}},
                {"path": "id", "metadata": {"key": "yes"}, "replace": True},
            ],
        }
    )
    assert second.version == first.version + 1
    assert second.fields == {"text": {"unit": "words", "x": "1"}, "id": {"key": "yes"}}
    schema = lance.dataset(namespace.describe_table({"id": ["people"]}).location).schema
    assert schema.field("text").metadata == {b"unit": b"words", b"x": b"1"}
    assert schema.metadata[b"team"] == b"blue"
    with pytest.raises(TableColumnNotFoundError):
        namespace.update_field_metadata({"id": ["people"], "updates": [{"path": "nope", "metadata": {}}]})
