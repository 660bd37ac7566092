"""A view whose definition is declared again: equal, different and refused, or replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableAlreadyExistsError
from pyspark.sql import SparkSession

from airflow_provider_lance.engine.job.context import JobContext, SilentReporter
from airflow_provider_lance.engine.views import job as refresh_job
from airflow_provider_lance.engine.views.job import run_refresh
from airflow_provider_lance.namespace import SparkNamespace
from tests.namespace.recording_jobs import RecordingJobs

QUERY = "SELECT id, upper(text) AS shout FROM people WHERE id > 1"


class View:
    """The view ``v`` of one test, and the jobs that its requests submit."""

    def __init__(self, namespace: SparkNamespace, jobs: RecordingJobs, spark: SparkSession) -> None:
        self.namespace: Any = namespace  # its operations take dictionaries as well as models
        self.jobs, self.spark = jobs, spark

    def create(self, query: str, if_exists: str = "fail", **fields: Any) -> Any:
        context = {"if-exists": if_exists, **fields.pop("context", {})}
        request = {"id": ["v"], "query": query, "with_no_data": False, **fields, "context": context}
        return self.namespace.create_materialized_view(request)

    def run(self, job_id: str) -> dict[str, Any]:
        """Execute a submitted refresh."""
        spec = self.jobs.submissions[int(job_id.removeprefix("job-")) - 1].spec
        spec = replace(spec, managed=False)  # no server is there to create versions
        context = JobContext(spec=spec, make_spark=lambda: self.spark, reporter=SilentReporter(), job_id=job_id)
        result = run_refresh(context)
        self.jobs.end(job_id)
        return result

    @property
    def table(self) -> lance.LanceDataset:
        return lance.dataset(self.namespace.describe_table({"id": ["v"]}).location)

    def rows(self) -> list[dict[str, Any]]:
        names = [name for name in self.table.schema.names if not name.startswith("__")]
        return self.table.to_table(names).to_pylist()


@pytest.fixture
def view(people: SparkNamespace, jobs: RecordingJobs, spark: SparkSession) -> View:
    view = View(people, jobs, spark)
    view.run(view.create(QUERY).job_id)
    return view


def test_an_equal_definition_is_left_alone_or_refreshed(view: View) -> None:
    version = view.table.version
    text = "select id,\n  upper(text) as shout\nfrom people where id > 1"
    answer = view.create(text, "skip")
    assert (answer.version, answer.job_id) == (version, None)
    for if_exists in ("refresh", "replace"):
        assert view.run(view.create(text, if_exists).job_id)["mode"] == "no_op"
    with pytest.raises(TableAlreadyExistsError):
        view.create(text)


def test_a_different_definition_is_refused_with_both_texts(view: View) -> None:
    for if_exists in ("skip", "refresh"):
        with pytest.raises(InvalidInputError) as refused:
            view.create(QUERY.replace("upper", "lower"), if_exists)
        assert "upper(text)" in str(refused.value)
        assert "lower(text)" in str(refused.value)
        assert "if_exists='replace'" in str(refused.value)
    with pytest.raises(InvalidInputError, match="auto_refresh is False there and True here"):
        view.create(QUERY, "skip", auto_refresh=True)


def test_a_star_is_equal_to_the_columns_it_stood_for(
    people: SparkNamespace, jobs: RecordingJobs, spark: SparkSession
) -> None:
    view = View(people, jobs, spark)
    view.run(view.create("SELECT * FROM people").job_id)
    added = [{"name": "twice", "expression": "id * 2"}]
    view.namespace.alter_table_add_columns({"id": ["people"], "new_columns": added})
    assert view.create("SELECT * FROM people", "skip").job_id is None
    with pytest.raises(InvalidInputError, match="defined otherwise"):
        view.create("SELECT * FROM people WHERE id > 2", "skip")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (QUERY.replace("upper(text)", "lower(text)"), ["id", "shout"]),
        ("SELECT text AS words FROM people", ["words"]),
        ("SELECT length(text) AS size, count(*) AS many FROM people GROUP BY length(text)", ["size", "many"]),
    ],
)
def test_readers_keep_the_old_rows_until_the_refresh(view: View, query: str, expected: list[str]) -> None:
    before, schema = view.rows(), view.table.schema.names
    answer = view.create(query, "replace")
    assert view.rows() == before
    assert view.table.schema.names == schema
    described = view.namespace.describe_materialized_view({"id": ["v"]})
    assert "upper" not in described.query
    versions = view.table.version
    result = view.run(answer.job_id)
    assert result["mode"] == "rebuild"
    assert result["reason"] == "its definition was replaced"
    assert [name for name in view.table.schema.names if not name.startswith("__")] == expected
    assert view.rows() != before
    assert result["version"] == versions + 2, "the rows and their columns are one commit, the bookmark another"
    assert view.run(view.create(query, "refresh").job_id)["mode"] == "no_op"


def test_a_replaced_definition_follows_its_source_again(view: View) -> None:
    query = "SELECT id, text AS words FROM people"
    view.run(view.create(query, "replace").job_id)
    source = view.namespace.describe_table({"id": ["people"]}).location
    lance.write_dataset(pa.table({"id": [99], "text": ["new"]}), source, mode="append")
    result = view.run(view.create(query, "refresh").job_id)
    assert (result["mode"], result["rows_written"]) == ("incremental", 1)


def test_without_data_only_the_definition_changes(view: View, jobs: RecordingJobs) -> None:
    count = len(jobs.submissions)
    assert view.create("SELECT id FROM people", "replace", with_no_data=True).job_id is None
    assert len(jobs.submissions) == count
    job_id = view.namespace.refresh_materialized_view({"id": ["v"]}).job_id
    assert view.run(job_id)["mode"] == "rebuild"


def test_a_definition_stays_while_its_view_is_refreshed(view: View) -> None:
    job_id = view.namespace.refresh_materialized_view({"id": ["v"]}).job_id
    with pytest.raises(ConcurrentModificationError, match="wait for it or cancel it"):
        view.create("SELECT id FROM people", "replace")
    view.run(job_id)
    view.create("SELECT id FROM people", "replace")


def test_a_refresh_that_died_between_its_commits_is_finished(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = view.create("SELECT text AS words FROM people", "replace").job_id
    with monkeypatch.context() as patched:

        def die(*_: object) -> int:
            raise KeyboardInterrupt

        patched.setattr(refresh_job, "write_bookmark", die)
        with pytest.raises(KeyboardInterrupt):
            view.run(job_id)
    assert view.table.schema.names[0] == "words"
    rows = view.rows()
    result = view.run(job_id)
    assert result["mode"] == "rebuild"
    assert view.rows() == rows
    assert view.run(view.create("SELECT text AS words FROM people", "refresh").job_id)["mode"] == "no_op"


def test_the_same_request_again_continues(view: View) -> None:
    key = {"context": {"idempotency-key": "k"}}
    query = "SELECT text AS words FROM people"
    job_id = view.create(query, "replace", **key).job_id
    assert view.create(query, "replace", **key).job_id == job_id
    view.run(job_id)
    assert view.create(query, "replace", **key).job_id == job_id
