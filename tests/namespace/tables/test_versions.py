"""Versions: a staged manifest is checked, becomes a version once, and a lost race loses nothing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
)

from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.tables.catalog import Catalog
from tests.namespace.people import PEOPLE, make_namespace, present, stream, with_people
from tests.namespace.staging import stage


def by_hand(request: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The request as a person would send it: no size, no e_tag."""
    return {key: request[key] for key in ("id", "version", "manifest_path")} | changes


def overwrite_staged(request: dict[str, Any], content: bytes) -> None:
    Path("/", request["manifest_path"]).write_bytes(content)


@pytest.fixture
def namespace(tmp_path: Path) -> SparkNamespace:
    return with_people(tmp_path)


def rows(namespace: SparkNamespace, table: str = "people") -> int:
    return lance.dataset(namespace.describe_table({"id": [table]}).location).count_rows()


def test_a_commit_becomes_a_version(namespace: SparkNamespace) -> None:
    before = time.time() * 1000
    request = stage(namespace)
    made = present(namespace.create_table_version({**request, "metadata": {"job": "nightly"}}).version)
    assert made.version == 2
    assert made.manifest_path.endswith("/_versions/18446744073709551613.manifest")
    assert made.manifest_size == request["manifest_size"]
    assert made.metadata == {"job": "nightly"}
    assert before - 2000 < present(made.timestamp_millis) < time.time() * 1000 + 2000
    assert rows(namespace) == 6
    described = present(namespace.describe_table_version({"id": ["people"], "version": 2}).version)
    assert (described.metadata, described.timestamp_millis) == (made.metadata, made.timestamp_millis)
    listed = namespace.list_table_versions({"id": ["people"], "descending": True}).versions
    assert [(version.version, version.metadata) for version in listed] == [(2, {"job": "nightly"}), (1, None)]


@pytest.mark.parametrize("hand", [False, True], ids=["lance", "by hand"])
def test_an_identical_replay_gets_the_same_answer(namespace: SparkNamespace, hand: bool) -> None:
    request = stage(namespace)
    request = {**(by_hand(request) if hand else request), "metadata": {"a": "b"}}
    first = namespace.create_table_version(request)
    assert namespace.create_table_version(request) == first
    namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
    assert namespace.create_table_version(request) == first, "also after others went on"
    assert rows(namespace) == 9


def test_another_commit_of_the_same_version_loses(namespace: SparkNamespace) -> None:
    mine, theirs = stage(namespace), stage(namespace)
    namespace.create_table_version(mine)
    for request in (theirs, by_hand(theirs)):
        with pytest.raises(ConcurrentModificationError):
            namespace.create_table_version(request)
    assert rows(namespace) == 6


def test_a_gap_in_versions_is_refused(namespace: SparkNamespace) -> None:
    request = stage(namespace)
    with pytest.raises(ConcurrentModificationError, match="next one is 2"):
        namespace.create_table_version({**request, "version": 3})


def _junk(content: bytes) -> dict[str, bytes]:
    return {
        "four bytes": b"junk",
        "nothing": b"",
        "truncated": content[:-5],
        "beheaded": content[50:],
        "bits flipped": bytes(byte ^ 255 if index % 7 == 0 else byte for index, byte in enumerate(content)),
        "zeros": bytes(len(content)),
        "zeros with the right end": bytes(len(content)) + b"LANC",
    }


@pytest.mark.parametrize("kind", list(_junk(b"x" * 100)))
def test_junk_is_refused_and_the_table_stays_openable(namespace: SparkNamespace, kind: str) -> None:
    request = stage(namespace)
    content = Path("/", request["manifest_path"]).read_bytes()
    overwrite_staged(request, _junk(content)[kind])
    with pytest.raises(InvalidInputError, match=r"not a readable Lance manifest|says it is version 0"):
        namespace.create_table_version(by_hand(request))
    assert rows(namespace) == 3
    overwrite_staged(request, content)
    namespace.create_table_version(by_hand(request))
    assert rows(namespace) == 6


@given(noise=st.binary(max_size=600))
def test_random_bytes_never_become_a_version(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    namespace = with_people(tmp_path_factory.mktemp("noise"))
    location = Path(present(namespace.describe_table({"id": ["people"]}).location))
    staged = location / "_versions" / "staged-by-hand"
    staged.write_bytes(noise)
    with pytest.raises(InvalidInputError):
        namespace.create_table_version({"id": ["people"], "version": 2, "manifest_path": str(staged).lstrip("/")})
    assert lance.dataset(location).count_rows() == 3


def test_a_manifest_of_another_version_is_refused(namespace: SparkNamespace, tmp_path: Path) -> None:
    copy = tmp_path / "people.lance" / "_versions" / "staged"
    shutil.copy(tmp_path / "people.lance" / "_versions" / "18446744073709551614.manifest", copy)
    with pytest.raises(InvalidInputError, match="says it is version 1"):
        namespace.create_table_version({"id": ["people"], "version": 2, "manifest_path": str(copy).lstrip("/")})


def test_missing_files_are_named(namespace: SparkNamespace, tmp_path: Path) -> None:
    data = tmp_path / "people.lance" / "data"
    before = set(os.listdir(data))
    request = stage(namespace)
    (added,) = set(os.listdir(data)) - before
    os.rename(data / added, tmp_path / added)
    with pytest.raises(InvalidInputError, match=added):
        namespace.create_table_version(request)
    os.rename(tmp_path / added, data / added)
    namespace.create_table_version(request)
    assert rows(namespace) == 6


def test_many_new_files_are_checked_too(namespace: SparkNamespace, tmp_path: Path) -> None:
    data = tmp_path / "people.lance" / "data"
    before = set(os.listdir(data))
    request = stage(namespace, pa.table({"id": range(50), "text": ["x"] * 50}), max_rows_per_file=1)
    added = sorted(set(os.listdir(data)) - before)
    assert len(added) == 50
    os.rename(data / added[7], tmp_path / added[7])
    with pytest.raises(InvalidInputError, match=added[7]):
        namespace.create_table_version(request)
    os.rename(tmp_path / added[7], data / added[7])
    namespace.create_table_version(request)
    assert rows(namespace) == 53


@pytest.mark.parametrize("change", [{"manifest_size": 1}, {"e_tag": '"other"'}], ids=["size", "e_tag"])
def test_size_and_e_tag_must_match(namespace: SparkNamespace, change: dict[str, Any]) -> None:
    request = stage(namespace)
    with pytest.raises(InvalidInputError, match="request says"):
        namespace.create_table_version({**request, **change})
    assert rows(namespace) == 3


@pytest.mark.parametrize(
    "path",
    [
        "etc/passwd",
        "/etc/passwd",
        "{table}/../people.lance/_versions/x",
        "file:///{table}/_versions/x",
        "_versions/x",
        "{table}/_versions/18446744073709551614.manifest",
        "{table}/_versions/\0",
        "{table}/_versions/not-there",
        "{table}/",
    ],
)
def test_only_a_staged_file_of_this_table(namespace: SparkNamespace, tmp_path: Path, path: str) -> None:
    path = path.replace("{table}", str(tmp_path / "people.lance").lstrip("/"))
    with pytest.raises(InvalidInputError, match="manifest"):
        namespace.create_table_version({"id": ["people"], "version": 2, "manifest_path": path})


class TestNamingSchemes:
    def test_the_tables_own_scheme_is_kept(self, namespace: SparkNamespace) -> None:
        request = stage(namespace)
        with pytest.raises(InvalidInputError, match="scheme V2"):
            namespace.create_table_version({**request, "naming_scheme": "V1"})
        with pytest.raises(InvalidInputError, match="V1 or V2"):
            namespace.create_table_version({**request, "naming_scheme": "V3"})
        namespace.create_table_version({**request, "naming_scheme": None})
        assert rows(namespace) == 6

    def test_a_v1_table_goes_on_as_v1(self, tmp_path: Path) -> None:
        lance.write_dataset(PEOPLE, tmp_path / "old.lance", enable_v2_manifest_paths=False)
        namespace = make_namespace(tmp_path)
        request = stage(namespace, table="old")
        made = present(namespace.create_table_version({**request, "naming_scheme": None}).version)
        assert made.manifest_path.endswith("/_versions/2.manifest")
        assert rows(namespace, "old") == 6

    @pytest.mark.parametrize(("scheme", "name"), [("V1", "1.manifest"), ("V2", "18446744073709551614.manifest")])
    def test_the_first_version_chooses(self, namespace: SparkNamespace, scheme: str, name: str) -> None:
        namespace.declare_table({"id": ["fresh"]})
        request = stage(namespace, table="fresh")
        made = present(namespace.create_table_version({**request, "naming_scheme": scheme}).version)
        assert made.manifest_path.endswith(f"/_versions/{name}")
        assert rows(namespace, "fresh") == 3


def test_branches_have_versions_of_their_own(namespace: SparkNamespace) -> None:
    namespace.create_table_branch({"id": ["people"], "name": "trial"})
    branch = lance.dataset(namespace_client=namespace, table_id=["people"]).checkout_version(("trial", None))
    lance.write_dataset(PEOPLE, branch, mode="append")
    assert namespace.count_table_rows({"id": ["people"], "branch": "trial"}).count == 6
    assert rows(namespace) == 3
    versions = namespace.list_table_versions({"id": ["people"], "branch": "trial"}).versions
    assert [version.version for version in versions][-1] == 2
    with pytest.raises(TableBranchNotFoundError):
        namespace.list_table_versions({"id": ["people"], "branch": "none"})


def test_a_table_with_a_space_in_its_name(namespace: SparkNamespace) -> None:
    namespace.create_namespace({"id": ["my team"]})
    namespace.create_table({"id": ["my team", "my table"]}, stream(PEOPLE))
    lance.write_dataset(PEOPLE, namespace_client=namespace, table_id=["my team", "my table"], mode="append")
    assert namespace.count_table_rows({"id": ["my team", "my table"]}).count == 6


class TestBatch:
    def test_several_tables_at_once(self, namespace: SparkNamespace) -> None:
        namespace.create_table({"id": ["pets"]}, stream(PEOPLE))
        entries = [stage(namespace), stage(namespace, table="pets")]
        made = namespace.batch_create_table_versions({"entries": entries}).versions
        assert [version.version for version in made] == [2, 2]
        assert (rows(namespace), rows(namespace, "pets")) == (6, 6)
        again = namespace.batch_create_table_versions({"entries": entries}).versions
        assert again == made

    def test_none_if_one_is_wrong(self, namespace: SparkNamespace) -> None:
        namespace.create_table({"id": ["pets"]}, stream(PEOPLE))
        entries = [stage(namespace), stage(namespace, table="pets")]
        overwrite_staged(entries[1], b"junk")
        with pytest.raises(InvalidInputError):
            namespace.batch_create_table_versions({"entries": [entries[0], by_hand(entries[1])]})
        assert (rows(namespace), rows(namespace, "pets")) == (3, 3)

    def test_none_if_a_race_is_lost_midway(self, namespace: SparkNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        namespace.create_table({"id": ["pets"]}, stream(PEOPLE))
        entries = [stage(namespace), stage(namespace, table="pets")]
        call = Catalog.call
        put = 0

        def others_come_first(catalog: Catalog, name: str, request: Any, data: bytes | None = None) -> Any:
            nonlocal put
            if name == "create_table_version":
                put += 1
                if put == 2:
                    lance.write_dataset(PEOPLE, namespace_location(namespace, "pets"), mode="append")
            return call(catalog, name, request, data)

        monkeypatch.setattr(Catalog, "call", others_come_first)
        with pytest.raises(ConcurrentModificationError):
            namespace.batch_create_table_versions({"entries": entries})
        assert (rows(namespace), rows(namespace, "pets")) == (3, 6)
        assert namespace.describe_table({"id": ["people"]}).version == 1

    def test_one_entry_per_table(self, namespace: SparkNamespace) -> None:
        entry = stage(namespace)
        with pytest.raises(InvalidInputError, match="same table"):
            namespace.batch_create_table_versions({"entries": [entry, entry]})


def namespace_location(namespace: SparkNamespace, table: str) -> str:
    return str(namespace.describe_table({"id": [table]}).location)


def test_delete_versions_but_never_the_newest(namespace: SparkNamespace) -> None:
    namespace.create_table_version({**stage(namespace), "metadata": {"a": "b"}})
    namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
    with pytest.raises(InvalidInputError, match="newest"):
        namespace.batch_delete_table_versions({"id": ["people"], "ranges": [{"start_version": 1, "end_version": 4}]})
    with pytest.raises(InvalidInputError, match="empty"):
        namespace.batch_delete_table_versions({"id": ["people"], "ranges": [{"start_version": 2, "end_version": 2}]})
    namespace.batch_delete_table_versions({"id": ["people"], "ranges": [{"start_version": 1, "end_version": 3}]})
    with pytest.raises(TableVersionNotFoundError):
        namespace.describe_table_version({"id": ["people"], "version": 2})
    assert rows(namespace) == 9
    assert not list(Path(namespace_location(namespace, "people")).glob("_version_records/*"))


def test_a_tagged_version_is_not_deleted(namespace: SparkNamespace) -> None:
    for _ in range(3):
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
    namespace.create_table_branch({"id": ["people"], "name": "trial"})
    namespace.insert_into_table({"id": ["people"], "branch": "trial"}, stream(PEOPLE))
    namespace.insert_into_table({"id": ["people"], "branch": "trial"}, stream(PEOPLE))
    namespace.create_table_tag({"id": ["people"], "tag": "keep", "version": 2})
    namespace.create_table_tag({"id": ["people"], "tag": "tried", "version": 5, "branch": "trial"})
    everything = {"id": ["people"], "ranges": [{"start_version": 1, "end_version": 4}]}
    with pytest.raises(InvalidInputError, match="'keep'"):
        namespace.batch_delete_table_versions(everything)
    with pytest.raises(InvalidInputError, match="'tried'"):
        namespace.batch_delete_table_versions(
            {"id": ["people"], "branch": "trial", "ranges": [{"start_version": 5, "end_version": 6}]}
        )
    assert namespace.describe_table({"id": ["people"], "tag": "keep"}).version == 2
    namespace.delete_table_tag({"id": ["people"], "tag": "keep"})
    namespace.batch_delete_table_versions(everything)
    with pytest.raises(InvalidInputError, match="all versions at once is not supported"):
        namespace.batch_delete_table_versions({"id": ["people"], "ranges": [{"start_version": 0, "end_version": -1}]})


class TestPages:
    @staticmethod
    def read(namespace: SparkNamespace, operation: str, field: str, **fields: Any) -> list[Any]:
        """Everything a listing has, read in pages of two."""
        found, token = [], None
        while True:
            request = {"id": ["people"], "limit": 2, "page_token": token, **fields}
            answer = getattr(namespace, operation)(request)
            assert len(getattr(answer, field)) <= 2
            found += list(getattr(answer, field))
            token = answer.page_token
            if token is None:
                return found

    def test_of_versions(self, namespace: SparkNamespace) -> None:
        for _ in range(4):
            namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        for fields, expected in (({}, [1, 2, 3, 4, 5]), ({"descending": True}, [5, 4, 3, 2, 1])):
            pages = self.read(namespace, "list_table_versions", "versions", **fields)
            assert [entry.version for entry in pages] == expected
            whole = namespace.list_table_versions({"id": ["people"], **fields})
            assert ([entry.version for entry in whole.versions], whole.page_token) == (expected, None)
        with pytest.raises(InvalidInputError, match="page_token"):
            namespace.list_table_versions({"id": ["people"], "page_token": "junk"})

    def test_of_tags_and_branches(self, namespace: SparkNamespace) -> None:
        names = ["a", "b", "c", "d", "e"]
        for name in reversed(names):
            namespace.create_table_tag({"id": ["people"], "tag": name, "version": 1})
            namespace.create_table_branch({"id": ["people"], "name": name})
        assert self.read(namespace, "list_table_tags", "tags") == names
        assert self.read(namespace, "list_table_branches", "branches") == names
        assert namespace.list_table_tags({"id": ["people"]}).tags["c"].version == 1

    @pytest.mark.parametrize("operation", ["list_table_versions", "list_table_tags", "list_table_branches"])
    def test_have_at_least_one_row(self, namespace: SparkNamespace, operation: str) -> None:
        for limit in (0, -1):
            with pytest.raises(InvalidInputError, match="limit"):
                getattr(namespace, operation)({"id": ["people"], "limit": limit})


@pytest.mark.parametrize("name", ["é", "💥", "a b", "a%b", "a#b", ""])
def test_tags_and_branches_have_names_that_are_found_again(namespace: SparkNamespace, name: str) -> None:
    namespace.create_table_branch({"id": ["people"], "name": "team/trial"})
    namespace.create_table_tag({"id": ["people"], "tag": "release-1.0_a", "version": 1})
    for branch in (None, "team/trial"):
        with pytest.raises(InvalidInputError):
            namespace.create_table_tag({"id": ["people"], "tag": name, "version": 1, "branch": branch})
    with pytest.raises(InvalidInputError):
        namespace.create_table_branch({"id": ["people"], "name": name})
    assert list(namespace.list_table_tags({"id": ["people"]}).tags) == ["release-1.0_a"]
    assert namespace.get_table_tag_version({"id": ["people"], "tag": "release-1.0_a"}).version == 1


class TestRaces:
    """Exactly one of many commits of the same version wins, whoever they are."""

    CONTENDERS = 8

    def test_between_threads(self, namespace: SparkNamespace) -> None:
        requests = [stage(namespace) for _ in range(self.CONTENDERS)]
        outcomes: list[str] = []
        ready = threading.Barrier(self.CONTENDERS)

        def contend(request: dict[str, Any]) -> None:
            ready.wait()
            outcomes.append(_outcome(namespace, {**request, "metadata": {"path": request["manifest_path"]}}))

        threads = [threading.Thread(target=contend, args=(request,)) for request in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["lost"] * (self.CONTENDERS - 1) + ["won"]
        assert rows(namespace) == 6
        made = namespace.describe_table_version({"id": ["people"], "version": 2}).version
        assert present(made.metadata)["path"] in {request["manifest_path"] for request in requests}

    def test_between_processes(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        requests = [stage(namespace) for _ in range(2)]
        # Lance is not fork-safe: each contender is a fresh interpreter, and so a server of its own.
        context = multiprocessing.get_context("spawn")
        with context.Pool(2, _prepare, (str(tmp_path), context.Barrier(2))) as pool:
            outcomes = pool.map(_contend, requests, chunksize=1)
        assert sorted(outcomes) == ["lost", "won"]
        assert rows(namespace) == 6

    def test_writers_that_retry_lose_no_row(self, namespace: SparkNamespace) -> None:
        def write() -> None:
            for _ in range(5):
                lance.write_dataset(PEOPLE, namespace_client=namespace, table_id=["people"], mode="append")

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert rows(namespace) == 3 + 4 * 5 * 3
        assert namespace.describe_table({"id": ["people"]}).version == 1 + 4 * 5


def _outcome(namespace: SparkNamespace, request: dict[str, Any]) -> str:
    try:
        namespace.create_table_version(request)
    except ConcurrentModificationError:
        return "lost"
    return "won"


_contender: tuple[SparkNamespace, Any]


def _prepare(root: str, start: Any) -> None:
    global _contender
    _contender = SparkNamespace(root=root), start


def _contend(request: dict[str, Any]) -> str:
    namespace, start = _contender
    start.wait(60)
    return _outcome(namespace, request)
