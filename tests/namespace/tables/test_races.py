"""Two at once: of the same request on the same name each one's answer is what then holds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import LanceNamespaceError, TableAlreadyExistsError, TableNotFoundError

from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.tables import views
from airflow_provider_lance.namespace.tables.table_writer import TableWriter
from tests.namespace.people import PEOPLE, files_below, make_namespace, present, queried, stream, with_people


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Every call in a thread of its own, all begun together; what each returned, or the error it raised."""
    ready = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        ready.wait()
        try:
            return call()
        except LanceNamespaceError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def rows(namespace: SparkNamespace, table: str) -> list[int]:
    answer = namespace.query_table({"id": [table], "k": 1000, "vector": [], "columns": ["id"]})
    return sorted(map(present, queried(answer.data)["id"].to_pylist()))


def meanwhile(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], Any]) -> None:
    """Somebody else acts once, right before the first call of ``owner.name`` goes on."""
    original, acted = getattr(owner, name), threading.Event()

    def patched(*arguments: Any, **fields: Any) -> Any:
        if not acted.is_set():
            acted.set()
            act()
        return original(*arguments, **fields)

    monkeypatch.setattr(owner, name, patched)


class TestFirstVersion:
    def test_every_first_insert_that_was_accepted_is_in_the_table(self, tmp_path: Path) -> None:
        servers = [make_namespace(tmp_path) for _ in range(4)]
        for table in ("a", "b", "c"):
            servers[0].declare_table({"id": [table]})
            answers = at_once(
                *(
                    partial(server.insert_into_table, {"id": [table]}, stream(pa.table({"id": [number]})))
                    for number, server in enumerate(servers)
                )
            )
            assert sorted(answer.version for answer in answers) == [1, 2, 3, 4]
            assert rows(servers[0], table) == [0, 1, 2, 3]

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_an_insert_that_was_not_the_first_after_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
    ) -> None:
        namespace, other = make_namespace(tmp_path), make_namespace(tmp_path)
        namespace.declare_table({"id": ["t"]})
        first = stream(pa.table({"id": [10]}))
        meanwhile(
            monkeypatch, TableWriter, "write_first_version", lambda: other.insert_into_table({"id": ["t"]}, first)
        )
        assert namespace.insert_into_table({"id": ["t"], "mode": mode}, stream(pa.table({"id": [1]}))).version == 2
        assert rows(namespace, "t") == ([1, 10] if mode == "append" else [1])
        assert present(namespace.describe_table({"id": ["t"]}).metadata)["stable_row_ids"] == "true"

    def test_a_create_that_comes_second_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import lance

        namespace, other = make_namespace(tmp_path), make_namespace(tmp_path)
        theirs = stream(pa.table({"id": [10]}))
        # In the worst moment: our rows are written and not committed.
        meanwhile(monkeypatch, lance.LanceDataset, "commit", lambda: other.create_table({"id": ["t"]}, theirs))
        with pytest.raises(TableAlreadyExistsError):
            namespace.create_table({"id": ["t"]}, stream(PEOPLE))
        assert rows(namespace, "t") == [10]
        assert namespace.describe_table({"id": ["t"]}).version == 1
        assert len([path for path in files_below(tmp_path / "t.lance") if "/data/" in path]) == 1

    def test_where_either_may_exist_both_creates_succeed(self, tmp_path: Path) -> None:
        servers = [make_namespace(tmp_path) for _ in range(4)]
        request = {"id": ["t"], "mode": "exist_ok"}
        answers = at_once(*(partial(server.create_table, request, stream(PEOPLE)) for server in servers))
        assert [answer.version for answer in answers] == [1] * 4
        assert rows(servers[0], "t") == [1, 2, 3]

    def test_a_commit_whose_answer_was_lost_is_no_lost_race(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import lance

        commit = lance.LanceDataset.commit

        def commit_and_fail(*arguments: Any, **fields: Any) -> Any:
            commit(*arguments, **fields)
            raise OSError("Generic S3 error: operation timed out")

        monkeypatch.setattr(lance.LanceDataset, "commit", commit_and_fail)
        namespace = make_namespace(tmp_path)
        assert namespace.create_table({"id": ["t"]}, stream(PEOPLE)).version == 1
        assert rows(namespace, "t") == [1, 2, 3]


class TestGoing:
    @pytest.mark.parametrize("table_id", [["t"], ["team", "t"]])
    def test_of_many_drops_at_once_each_drops_the_table_or_finds_none(
        self, tmp_path: Path, table_id: list[str]
    ) -> None:
        namespace = make_namespace(tmp_path)
        namespace.create_namespace({"id": ["team"]})
        for _ in range(3):
            namespace.create_table({"id": table_id}, stream(PEOPLE))
            answers = at_once(*[partial(namespace.drop_table, {"id": table_id})] * 6)
            failed = [answer for answer in answers if isinstance(answer, Exception)]
            assert {type(error) for error in failed} <= {TableNotFoundError}
            assert len(failed) < len(answers)
        assert namespace.list_all_tables({}).tables == []

    def test_of_two_renames_one_leaves_no_trace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        namespace, other = with_people(tmp_path), make_namespace(tmp_path)
        theirs = {"id": ["people"], "new_table_name": "theirs"}
        meanwhile(monkeypatch, os, "rename", lambda: other.rename_table(theirs))
        with pytest.raises(TableNotFoundError):
            namespace.rename_table({"id": ["people"], "new_table_name": "mine"})
        assert namespace.list_tables({}).tables == ["theirs"]
        assert rows(namespace, "theirs") == [1, 2, 3]
        namespace.create_table({"id": ["mine"]}, stream(PEOPLE))


class TestViews:
    def test_a_view_that_fails_takes_nobody_elses_table_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        namespace = with_people(tmp_path)
        meanwhile(monkeypatch, views, "empty_view", lambda: namespace.create_table({"id": ["v"]}, stream(PEOPLE)))
        with pytest.raises(TableAlreadyExistsError):
            namespace.create_materialized_view({"id": ["v"], "query": "SELECT id FROM people", "with_no_data": True})
        assert rows(namespace, "v") == [1, 2, 3]
        assert namespace.list_materialized_views({}).views == []
