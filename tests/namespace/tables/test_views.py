"""Materialized views in both dialects, and the watch over what must stay fresh."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.functions.envelope import IMPORT_PATH_BACKEND, UdfEnvelope
from airflow_provider_lance.engine.views.commit_next import ViewTable
from airflow_provider_lance.engine.views.publish import write_bookmark
from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.tables.auto_refresh import Watcher, WatchSettings
from airflow_provider_lance.namespace.tables.catalog import Catalog
from airflow_provider_lance.storage.history import UNNAMED, read_commit
from airflow_provider_lance.storage.manifests import version_timestamp
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.view_state import Outcome, SourcePoint
from tests.columns_in_place import replace_column
from tests.namespace.people import PEOPLE, present, stream, with_people
from tests.namespace.recording_jobs import RecordingJobs

QUERY = "SELECT id, upper(text) AS shout FROM people WHERE id > 1"


def table_at(namespace: SparkNamespace, table_id: list[str]) -> TableRef:
    return TableRef(present(namespace.describe_table({"id": table_id}).location))


def create(namespace: SparkNamespace, name: str = "loud", **fields: Any) -> Any:
    return namespace.create_materialized_view({"id": [name], "query": QUERY, **fields})


class TestCreate:
    def test_in_lancedbs_dialect_without_data(self, namespace: SparkNamespace, jobs: RecordingJobs) -> None:
        answer = create(namespace, with_no_data=True)
        assert (answer.version, answer.job_id) == (1, None)
        assert not jobs.submissions
        described = namespace.describe_materialized_view({"id": ["loud"]})
        assert described.source_table == "people"
        assert described.filter == "id > 1"
        assert [(item.output_column, item.expression) for item in present(described.projections)] == [
            ("id", "id"),
            ("shout", "upper(text)"),
        ]
        assert "SELECT" in present(described.query)

    def test_lancedb_itself_opens_it(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        create(namespace, with_no_data=True)
        database = lancedb.connect(tmp_path)
        view = database.open_materialized_view("loud")
        view.refresh()
        assert database.open_table("loud").to_arrow()["shout"].to_pylist() == ["BB", "CCC"]
        assert namespace.describe_materialized_view({"id": ["loud"]}).source_table == "people"

    def test_with_data_submits_the_first_refresh(
        self, namespace: SparkNamespace, jobs: RecordingJobs, tmp_path: Path
    ) -> None:
        answer = create(namespace, with_no_data=False, context={"idempotency-key": "k"})
        (submission,) = jobs.submissions
        assert answer.job_id == "job-1"
        assert submission.spec.job_type == "refresh_materialized_view"
        assert submission.spec.table_id == ["loud"]
        assert submission.spec.tables == {"people": str(tmp_path / "people.lance")}
        assert submission.locks == ("view|loud",)
        assert submission.idempotency_key == "k"

    def test_again_with_its_key_goes_on_with_the_same_view(
        self, namespace: SparkNamespace, jobs: RecordingJobs
    ) -> None:
        def again(**fields: Any) -> Any:
            return create(namespace, with_no_data=False, context={"idempotency-key": "k"}, **fields)

        assert (again().job_id, again().job_id) == ("job-1", "job-1")
        jobs.end("job-1", "FAILED")
        assert again().job_id == "job-2", "the view is there, its data is not"
        jobs.end("job-2")
        assert again().job_id == "job-2"
        assert len(jobs.submissions) == 2
        with pytest.raises(TableAlreadyExistsError):
            again(query="SELECT id FROM people")
        with pytest.raises(TableAlreadyExistsError):
            create(namespace, with_no_data=False, context={"idempotency-key": "another"})
        namespace.drop_materialized_view({"id": ["loud"]})
        assert again().job_id == "job-3", "dropped meanwhile: created anew"

    def test_in_the_specs_dialect(self, namespace: SparkNamespace) -> None:
        types: dict[str, pa.DataType] = {"id": pa.int64(), "shout": pa.string()}
        schema = pa.schema(types)
        namespace.create_materialized_view(
            {
                "id": ["loud"],
                "kind": "query",
                "source_query": QUERY,
                "output_schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
            }
        )
        assert namespace.list_materialized_views({}).views == ["loud"]

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"query": "SELECT nope FROM people"}, InvalidInputError),
            ({"query": "SELECT id FROM nobody"}, TableNotFoundError),
            ({"query": "SELECT id FROM loud"}, TableNotFoundError),
            ({"query": "DROP TABLE people"}, InvalidInputError),
            ({"query": "SELECT id FROM `../people`"}, InvalidInputError),
            ({"with_no_data": "yes"}, InvalidInputError),
            ({"surprise": 1}, InvalidInputError),
        ],
    )
    def test_what_does_not_hold_leaves_nothing(
        self, namespace: SparkNamespace, fields: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            create(namespace, **fields)
        assert namespace.list_tables({}).tables == ["people"]

    def test_a_taken_name(self, namespace: SparkNamespace) -> None:
        with pytest.raises(TableAlreadyExistsError):
            create(namespace, "people")
        assert namespace.count_table_rows({"id": ["people"]}).count == 3

    def test_with_data_needs_somebody_to_fill_it(self, tmp_path: Path) -> None:
        alone = with_people(tmp_path / "alone")
        with pytest.raises(UnsupportedOperationError, match="jobs service"):
            create(alone, with_no_data=False)
        create(alone, with_no_data=True)
        assert alone.list_tables({}).tables == ["loud", "people"]

    def test_names_are_looked_up_beside_the_view_first(self, namespace: SparkNamespace, jobs: RecordingJobs) -> None:
        namespace.create_namespace({"id": ["team"]})
        namespace.create_materialized_view({"id": ["team", "far"], "query": QUERY, "with_no_data": False})
        namespace.create_table({"id": ["team", "people"]}, stream(PEOPLE))
        namespace.create_materialized_view({"id": ["team", "near"], "query": QUERY, "with_no_data": False})
        namespace.create_materialized_view(
            {"id": ["named"], "query": "SELECT id FROM `team$people`", "with_no_data": False}
        )
        far, near, named = (next(iter(item.spec.tables.values())) for item in jobs.submissions)
        assert far.endswith("/people.lance")
        assert near == named == namespace.describe_table({"id": ["team", "people"]}).location


class TestDescribe:
    JOIN = "SELECT a.id FROM people a JOIN pets b ON a.id = b.id"

    def test_tells_every_source_and_the_version_it_was_refreshed_from(self, namespace: SparkNamespace) -> None:
        namespace.create_namespace({"id": ["team"]})
        namespace.create_table({"id": ["team", "pets"]}, stream(PEOPLE))
        view_id = ["team", "joined"]
        namespace.create_materialized_view({"id": view_id, "query": self.JOIN, "with_no_data": True})
        before = namespace.describe_materialized_view({"id": view_id}).to_dict()
        assert before["source_table"] == "", "which has room for one name only"
        tables: dict[str, list[str]] = {"people": ["people"], "pets": ["team", "pets"]}
        assert before["sources"] == [{"name": name, "table_id": table_id} for name, table_id in tables.items()]
        namespace.insert_into_table({"id": ["team", "pets"]}, stream(PEOPLE))
        points = {}
        for name, table_id in tables.items():
            table = table_at(namespace, table_id)
            version = table.open().version
            points[name] = SourcePoint(version, version_timestamp(table, version))
        view = table_at(namespace, view_id)
        write_bookmark(ViewTable(view), view.open().version, Outcome(points, "rebuild"), "job")
        after = namespace.describe_materialized_view({"id": view_id}).to_dict()
        assert [(source["name"], source["version"]) for source in after["sources"]] == [("people", 1), ("pets", 2)]

    def test_a_source_that_is_gone_has_no_table(self, namespace: SparkNamespace) -> None:
        create(namespace, with_no_data=True)
        namespace.drop_table({"id": ["people"]})
        described = namespace.describe_materialized_view({"id": ["loud"]})
        assert described.source_table == "people"
        assert described.to_dict()["sources"] == [{"name": "people"}]


class TestRefresh:
    def test_is_submitted_to_the_letter(self, namespace: SparkNamespace, jobs: RecordingJobs) -> None:
        create(namespace, with_no_data=True)
        answer = namespace.refresh_materialized_view({"id": ["loud"], "full": True, "concurrency": 2})
        assert jobs.submissions[-1].spec.request == {"full": True, "concurrency": 2}
        assert not jobs.submissions[-1].spec.on_spark
        grouped = "SELECT count(*) AS n, min(id) AS least FROM people GROUP BY text"
        namespace.create_materialized_view({"id": ["grouped"], "query": grouped, "with_no_data": True})
        namespace.refresh_materialized_view({"id": ["grouped"]})
        assert jobs.submissions[-1].spec.on_spark, "its driver starts Spark at once"
        with pytest.raises(ConcurrentModificationError):
            namespace.refresh_materialized_view({"id": ["loud"]})
        jobs.end(answer.job_id)
        namespace.refresh_materialized_view({"id": ["loud"], "src_version": 1})

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"src_version": 99}, TableVersionNotFoundError),
            ({"concurrency": 0}, InvalidInputError),
            ({"output_limit": 1}, InvalidInputError),
            ({"cluster": "moon"}, InvalidInputError),
            ({"full": "yes"}, InvalidInputError),
            ({"id": ["people"]}, TableNotFoundError),
            ({"id": ["nobody"]}, TableNotFoundError),
        ],
    )
    def test_what_cannot_be_honoured_is_refused(
        self, namespace: SparkNamespace, jobs: RecordingJobs, fields: dict[str, Any], error: type[Exception]
    ) -> None:
        create(namespace, with_no_data=True)
        with pytest.raises(error):
            namespace.refresh_materialized_view({"id": ["loud"], **fields})
        assert not jobs.submissions


class TestListAndDrop:
    def test_lists_views_only_ours_and_lancedbs(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        create(namespace, with_no_data=True)
        namespace.declare_table({"id": ["declared"]})
        lancedb.connect(tmp_path).create_materialized_view("theirs", "people", select={"id": "id"}, with_no_data=True)
        assert namespace.list_materialized_views({}).views == ["loud", "theirs"]
        assert namespace.list_materialized_views({"limit": 1}).page_token == "loud"
        assert namespace.describe_materialized_view({"id": ["theirs"]}).source_table == "people"

    def test_drop(self, namespace: SparkNamespace, jobs: RecordingJobs) -> None:
        job_id = create(namespace, with_no_data=False).job_id
        with pytest.raises(TableNotFoundError, match="not a materialized view"):
            namespace.drop_materialized_view({"id": ["people"]})
        with pytest.raises(ConcurrentModificationError):
            namespace.drop_materialized_view({"id": ["loud"]})
        jobs.end(job_id)
        namespace.drop_materialized_view({"id": ["loud"]})
        assert namespace.list_tables({}).tables == ["people"]


class TestWatch:
    """Time is the test's own; a round is one look."""

    @pytest.fixture
    def now(self) -> list[float]:
        return [1000.0]

    def watch(self, namespace: SparkNamespace, now: list[float]) -> Watcher:
        watcher = namespace.watcher()
        watcher.clock = lambda: now[0]
        return watcher

    def refreshed(self, namespace: SparkNamespace) -> int:
        """What the engine leaves behind: the bookmark in the view's metadata. The source's version."""
        source = table_at(namespace, ["people"])
        view = table_at(namespace, ["loud"])
        version = source.open().version
        point = SourcePoint(version, version_timestamp(source, version))
        write_bookmark(ViewTable(view), view.open().version, Outcome({"people": point}, "rebuild"), "job")
        return version

    def finish_refresh(self, namespace: SparkNamespace, jobs: RecordingJobs, job_id: str) -> None:
        jobs.end(job_id, result={"source_version": self.refreshed(namespace)})

    def test_a_view_follows_its_source(self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]) -> None:
        create(namespace, with_no_data=True, auto_refresh=True)
        create(namespace, "manual", with_no_data=True)
        watcher = self.watch(namespace, now)
        (first,) = watcher.round()
        assert jobs.submissions[0].spec.table_id == ["loud"]
        now[0] += 1000
        assert watcher.round() == [], "its job still runs"
        self.finish_refresh(namespace, jobs, first)
        assert watcher.round() == [], "nothing new"
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        (second,) = watcher.round()
        self.finish_refresh(namespace, jobs, second)
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        assert watcher.round() == [], "cooling down"
        now[0] += 61
        assert len(watcher.round()) == 1

    def test_harmless_commits_start_nothing(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]
    ) -> None:
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        self.finish_refresh(namespace, jobs, *watcher.round())
        now[0] += 1000
        namespace.create_table_scalar_index({"id": ["people"], "column": "id", "index_type": "BTREE"})
        namespace.update_table_schema_metadata({"id": ["people"], "metadata": {"x": "y"}})
        assert watcher.round() == []

    def test_a_compaction_starts_nothing(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]
    ) -> None:
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        self.finish_refresh(namespace, jobs, *watcher.round())
        now[0] += 1000
        people = table_at(namespace, ["people"])
        version = people.open().version
        people.open().optimize.compact_files()
        operations = [
            commit.operation
            for version in range(version + 1, people.open().version + 1)
            if (commit := read_commit(people.open(), version)) is not None
        ]
        assert operations == [UNNAMED, "Rewrite"], "pylance has no name for the first"
        assert watcher.round() == []

    def test_a_column_of_the_source_that_is_dropped_starts_nothing(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]
    ) -> None:
        namespace.alter_table_add_columns({"id": ["people"], "new_columns": [{"name": "x", "expression": "id + 1"}]})
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        self.finish_refresh(namespace, jobs, *watcher.round())
        now[0] += 1000
        namespace.alter_table_drop_columns({"id": ["people"], "columns": ["x"]})
        assert watcher.round() == []

    @pytest.mark.parametrize(("column", "started"), [("text", 1), ("other", 0)])
    def test_a_backfill_counts_where_its_column_is_read(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float], column: str, started: int
    ) -> None:
        declared = {"name": "other", "computed": "upper(text)"}
        namespace.alter_table_add_columns({"id": ["people"], "new_columns": [declared]})
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        self.finish_refresh(namespace, jobs, *watcher.round())
        now[0] += 1000
        people = table_at(namespace, ["people"]).open()
        (fragment,) = people.get_fragments()
        replace_column(people, column, {fragment: pa.array(["x", "yy", "zzz"])})
        assert len(watcher.round()) == started

    def test_a_failed_job_is_tried_again_after_the_cooldown(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]
    ) -> None:
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        (job_id,) = watcher.round()
        jobs.end(job_id, "FAILED")
        assert watcher.round() == []
        now[0] += 61
        assert len(watcher.round()) == 1

    def test_thresholds(self, tmp_path: Path, jobs: RecordingJobs, now: list[float]) -> None:
        namespace = with_people(tmp_path / "slow", jobs, **{"watch.versions": "2", "watch.rows": "3"})
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        self.refreshed(namespace)
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE))
        assert watcher.round() == [], "three rows, but one version"
        namespace.delete_from_table({"id": ["people"], "predicate": "id = 1"})
        assert len(watcher.round()) == 1, "two versions; two rows more and one less"

    def test_a_column_follows_its_table(self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]) -> None:
        function = UdfEnvelope(IMPORT_PATH_BACKEND, path="os.path:basename")
        entry = virtual_column_entry(function, inputs=["text"], outputs={"n": pa.string()}) | {"auto_backfill": True}
        namespace.alter_table_add_columns({"id": ["people"], "new_columns": [{"name": "n", "virtual_column": entry}]})
        watcher = self.watch(namespace, now)
        assert watcher.round() == [], "the declaration's own job is queued"
        version = namespace.describe_table({"id": ["people"]}).version
        jobs.end("job-1", result={"source_version": version})
        now[0] += 1000
        assert watcher.round() == [], "and did it all"
        namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE.append_column("n", pa.nulls(3, pa.string()))))
        (job_id,) = watcher.round()
        assert json.dumps(jobs.rows[job_id]["spec"]["request"]) == '{"column": "n"}'

    def test_a_round_without_changes_opens_nothing(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(namespace, with_no_data=True, auto_refresh=True)
        watcher = self.watch(namespace, now)
        self.finish_refresh(namespace, jobs, *watcher.round())
        now[0] += 1000
        watcher.round()
        opened: list[Any] = []
        open_table = Catalog.open

        def counted(catalog: Catalog, *arguments: Any, **fields: Any) -> lance.LanceDataset:
            opened.append(arguments)
            return open_table(catalog, *arguments, **fields)

        monkeypatch.setattr(Catalog, "open", counted)
        watcher.round()
        assert opened == []

    def test_a_dropped_source_does_not_stop_the_others(
        self, namespace: SparkNamespace, jobs: RecordingJobs, now: list[float]
    ) -> None:
        namespace.create_table({"id": ["pets"]}, stream(PEOPLE))
        namespace.create_materialized_view(
            {"id": ["a"], "query": "SELECT id FROM pets", "with_no_data": True, "auto_refresh": True}
        )
        create(namespace, with_no_data=True, auto_refresh=True)
        namespace.drop_table({"id": ["pets"]})
        assert len(self.watch(namespace, now).round()) == 1

    def test_settings_are_checked(self) -> None:
        assert WatchSettings.from_properties({"watch.rows": "10", "watch.cooldown": "1.5"}) == WatchSettings(
            rows=10, cooldown=1.5
        )
        for text in ("many", "-1", "nan"):
            with pytest.raises(InvalidInputError):
                WatchSettings.from_properties({"watch.rows": text})
