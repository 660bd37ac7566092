"""Columns with rules: declared as LanceDB declares them, checked at once, their backfills submitted to the letter."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.namespace import SparkNamespace
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from tests.namespace.people import PEOPLE, present, stream, with_people
from tests.namespace.recording_jobs import RecordingJobs


def add(namespace: SparkNamespace, *columns: dict[str, Any], **fields: Any) -> int:
    return int(namespace.alter_table_add_columns({"id": ["people"], "new_columns": list(columns), **fields}).version)


def schema(namespace: SparkNamespace) -> Any:
    return lance.dataset(namespace.describe_table({"id": ["people"]}).location).schema


@pytest.mark.parametrize("name", ["_rowid", "_rowoffset", "_row_last_updated_at_version", "a`b", "a.b", " "])
def test_names_that_make_a_table_unreadable_are_refused(namespace: SparkNamespace, name: str) -> None:
    for rule in ({"computed": "length(text)"}, {"expression": "length(text)"}):
        with pytest.raises(InvalidInputError):
            add(namespace, {"name": name, **rule})
    with pytest.raises(InvalidInputError):
        add(namespace, {"name": name, "virtual_column": virtual(name)})
    with pytest.raises(InvalidInputError):
        namespace.alter_table_alter_columns({"id": ["people"], "alterations": [{"path": "id", "rename": name}]})
    assert namespace.describe_table({"id": ["people"]}).version == 1
    namespace.alter_table_alter_columns({"id": ["people"], "alterations": [{"path": "id", "rename": "number"}]})


def test_a_table_of_the_legacy_format_is_told_to_be_written_anew(namespace: SparkNamespace) -> None:
    location = Path(present(namespace.describe_table({"id": ["people"]}).location)).with_name("old.lance")
    lance.write_dataset(PEOPLE, location, data_storage_version="legacy")
    fields = {"id": ["old"], "new_columns": [{"name": "n", "computed": "length(text)"}]}
    with pytest.raises(UnsupportedOperationError, match='Write the table anew with data_storage_version="stable"'):
        namespace.alter_table_add_columns(fields)
    assert lance.dataset(location).version == 1


def test_an_index_that_a_columns_type_does_not_allow_is_the_callers_mistake(namespace: SparkNamespace) -> None:
    for index_type in ("RTREE", "BTREE2"):
        with pytest.raises(InvalidInputError):
            namespace.create_table_scalar_index({"id": ["people"], "column": "text", "index_type": index_type})


class Bomb:
    """Unpickled anywhere, it leaves a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def virtual(name: str = "vec", **fields: Any) -> dict[str, Any]:
    entry = {
        "input_columns": ["text"],
        "outputs": [{"column": name, "struct_field": name, "data_type": {"type": "int64"}, "nullable": True}],
        "image": "",
        "udf": base64.b64encode(b"opaque").decode(),
        "udf_name": "embed",
        "udf_version": "1",
        "udf_backend": "SomebodyElsesV7",
        **fields,
    }
    return {"name": name, "virtual_column": entry}


class TestAddColumns:
    def test_an_expression_is_evaluated_once(self, namespace: SparkNamespace) -> None:
        assert add(namespace, {"name": "twice", "expression": "id * 2"}) == 2
        location = namespace.describe_table({"id": ["people"]}).location
        assert lance.dataset(location).to_table()["twice"].to_pylist() == [2, 4, 6]

    def test_a_computed_column_is_declared_as_lancedb_does_it(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        add(namespace, {"name": "n", "computed": "length(text)"})
        ours = schema(namespace).field("n")
        database = lancedb.connect(tmp_path / "lancedb")
        table = database.create_table("people", PEOPLE, storage_options={"new_table_enable_stable_row_ids": "true"})
        table.add_columns(computed={"n": "length(text)"})
        theirs = lance.dataset(tmp_path / "lancedb" / "people.lance").schema.field("n")
        assert ours.type == theirs.type
        assert ours.metadata == theirs.metadata

    def test_a_virtual_column_is_kept_and_never_unpickled(self, namespace: SparkNamespace, tmp_path: Path) -> None:
        mark = str(tmp_path / "unpickled")
        payload = base64.b64encode(pickle.dumps(Bomb(mark))).decode()
        add(namespace, virtual(udf=payload, field_metadata={"team": "blue"}))
        field = schema(namespace).field("vec")
        definition = json.loads(field.metadata[b"virtual_column.definition"])
        assert definition["udf"] == payload
        assert field.metadata[b"team"] == b"blue"
        with pytest.raises(InvalidInputError, match="SomebodyElsesV7"):
            namespace.alter_table_backfill_columns({"id": ["people"], "column": "vec"})
        assert not os.path.exists(mark)

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            ({"name": "n", "computed": "length(nope)"}, "nope"),
            ({"name": "n", "computed": "random()"}, "another value"),
            ({"name": "n", "computed": "length("}, "length"),
            ({"name": "n", "expression": "nope + 1"}, "nope"),
            ({"name": "n", "expression": "id", "computed": "id"}, "exactly one"),
            ({"name": "n"}, "exactly one"),
            ({"name": "id", "computed": "id + 1"}, "id"),
            ({"name": "a.b", "computed": "id + 1"}, "name"),
            ({"name": "", "computed": "id + 1"}, "name"),
            (virtual(outputs=[]), "output"),
        ],
    )
    def test_a_wrong_rule_is_refused_and_changes_nothing(
        self, namespace: SparkNamespace, column: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidInputError, match=message):
            add(namespace, {"name": "fine", "computed": "id + 1"}, column)
        assert schema(namespace).names == ["id", "text"]

    def test_an_input_that_is_not_there(self, namespace: SparkNamespace) -> None:
        with pytest.raises(TableColumnNotFoundError):
            add(namespace, virtual(input_columns=["nope"]))

    def test_on_a_branch(self, namespace: SparkNamespace) -> None:
        namespace.create_table_branch({"id": ["people"], "name": "trial"})
        add(namespace, {"name": "n", "computed": "length(text)"}, branch="trial")
        fields = present(namespace.describe_table({"id": ["people"], "branch": "trial"}).var_schema).fields
        assert [field.name for field in fields] == ["id", "text", "n"]
        assert schema(namespace).names == ["id", "text"]

    def test_auto_backfill_submits_at_once(self, namespace: SparkNamespace, jobs: RecordingJobs) -> None:
        from airflow_provider_lance.definitions.functions.envelope import IMPORT_PATH_BACKEND, UdfEnvelope

        envelope = UdfEnvelope(IMPORT_PATH_BACKEND, path="os.path:basename")
        add(namespace, virtual(udf=envelope.encode(), udf_backend=IMPORT_PATH_BACKEND, auto_backfill=True))
        (submission,) = jobs.submissions
        assert submission.spec.request == {"column": "vec"}
        assert submission.spec.on_spark, "functions never run in the driver"


class TestBackfill:
    @pytest.fixture(autouse=True)
    def _column(self, namespace: SparkNamespace) -> None:
        add(namespace, {"name": "n", "computed": "length(text)"})

    def test_is_submitted_with_everything_the_request_said(
        self, namespace: SparkNamespace, jobs: RecordingJobs, tmp_path: Path
    ) -> None:
        request = {
            "column": "n",
            "where": "id > 1",
            "concurrency": 2,
            "task_size": 100,
            "read_version": 2,
            "cluster": "external",
            "manifest": "torch",
        }
        context = {"idempotency-key": "k", "lease-seconds": "60", "plan": "true", "max-failed-rows": "3"}
        answer = namespace.alter_table_backfill_columns({"id": ["people"], "context": context, **request})
        (submission,) = jobs.submissions
        assert answer.job_id == "job-1"
        assert submission.spec.to_dict() == {
            "job_type": "backfill_column",
            "table_id": ["people"],
            "location": str(tmp_path / "people.lance"),
            "request": request,
            "options": {"plan": "true", "max_failed_rows": "3"},
            "managed": True,
            "tables": {},
            "write_key": "",
            "write_after": 0,
            "on_spark": False,
        }
        assert submission.locks == (), "a plan writes nothing"
        assert (submission.idempotency_key, submission.waiter_seconds) == ("k", 60)
        namespace.alter_table_backfill_columns({"id": ["people"], **request})
        assert jobs.submissions[1].locks == ("people|main|n",)
        assert (submission.cluster, submission.environment) == ("external", "torch")

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"column": "text"}, InvalidInputError),
            ({"column": "nope"}, TableColumnNotFoundError),
            ({"concurrency": 0}, InvalidInputError),
            ({"task_size": -1}, InvalidInputError),
            ({"min_checkpoint_size": 10, "max_checkpoint_size": 5}, InvalidInputError),
            ({"where": "nope > 1"}, InvalidInputError),
            ({"read_version": 99}, TableVersionNotFoundError),
            ({"read_version": 1}, TableColumnNotFoundError),
            ({"read_version": -1}, InvalidInputError),
            ({"branch": "none"}, TableBranchNotFoundError),
            ({"cluster": "moon"}, InvalidInputError),
            ({"manifest": "unknown"}, InvalidInputError),
            ({"id": ["nobody"]}, TableNotFoundError),
            ({"context": {"plan": "perhaps"}}, InvalidInputError),
        ],
    )
    def test_what_cannot_be_honoured_is_refused_before_a_job_exists(
        self, namespace: SparkNamespace, jobs: RecordingJobs, fields: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            namespace.alter_table_backfill_columns({"id": ["people"], "column": "n", **fields})
        assert not jobs.submissions

    def test_one_writer_per_column_and_branch(self, namespace: SparkNamespace) -> None:
        namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"})
        with pytest.raises(ConcurrentModificationError):
            namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"})
        namespace.create_table_branch({"id": ["people"], "name": "trial"})
        namespace.alter_table_backfill_columns({"id": ["people"], "column": "n", "branch": "trial"})

    def test_without_a_jobs_service(self, tmp_path: Path) -> None:
        alone = with_people(tmp_path / "alone")
        add(alone, {"name": "n", "computed": "length(text)"})
        with pytest.raises(UnsupportedOperationError, match="jobs_url"):
            alone.alter_table_backfill_columns({"id": ["people"], "column": "n"})


class TestTransactions:
    @pytest.mark.parametrize(
        ("state", "word"),
        [
            ("QUEUED", "Queued"),
            ("RUNNING", "Running"),
            ("DONE", "Succeeded"),
            ("FAILED", "Failed"),
            ("CANCELLED", "Canceled"),
        ],
    )
    def test_a_job_is_a_transaction(
        self, namespace: SparkNamespace, jobs: RecordingJobs, state: str, word: str
    ) -> None:
        add(namespace, {"name": "n", "computed": "length(text)"})
        job_id = namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
        jobs.end(job_id, state)
        assert namespace.describe_transaction({"id": [job_id]}).status == word

    def test_cancel_by_transaction(self, namespace: SparkNamespace, jobs: RecordingJobs) -> None:
        add(namespace, {"name": "n", "computed": "length(text)"})
        job_id = namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
        with pytest.raises(InvalidInputError):
            namespace.alter_transaction({"id": [job_id], "actions": [{"setStatusAction": {"status": "Succeeded"}}]})
        answer = namespace.alter_transaction({"id": [job_id], "actions": [{"setStatusAction": {"status": "Canceled"}}]})
        assert answer.status == "Canceled"
        assert jobs.rows[job_id]["state"] == "CANCELLED"

    def test_lances_own_transactions_and_unknown_ones(self, namespace: SparkNamespace) -> None:
        restored = namespace.restore_table({"id": ["people"], "version": 1}).transaction_id
        assert namespace.describe_transaction({"id": ["people", restored]}).status == "SUCCEEDED"
        with pytest.raises(TransactionNotFoundError):
            namespace.describe_transaction({"id": ["unknown"]})


def test_a_job_in_the_way_is_named_whatever_the_table_is_called(namespace: SparkNamespace, jobs: RecordingJobs) -> None:
    """The text of the error has the table's name, which must not be read as Lance's reason."""
    namespace.create_table({"id": ["unimplemented"]}, stream(PEOPLE))
    add(namespace, {"name": "n", "computed": "length(text)"}, id=["unimplemented"])
    job_id = namespace.alter_table_backfill_columns({"id": ["unimplemented"], "column": "n"}).job_id
    with pytest.raises(JobConflictError) as caught:
        namespace.drop_table({"id": ["unimplemented"]})
    assert caught.value.instance == job_id


def test_the_jobs_api_passes_through(namespace: SparkNamespace, jobs: RecordingJobs) -> None:
    add(namespace, {"name": "n", "computed": "length(text)"})
    job_id = namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"}).job_id
    assert namespace.describe_job({"job_id": job_id}).job_state == "QUEUED"
    assert [row["job_id"] for row in namespace.list_jobs({}).jobs] == [job_id]
    assert namespace.query_job_events({"job_id": job_id}) == b"events"
    assert namespace.cancel_job({"job_id": job_id}).job_id == job_id
    with pytest.raises(TransactionNotFoundError):
        namespace.describe_job({"job_id": "unknown"})


def test_a_column_lancedb_declared_is_ours_to_fill(tmp_path: Path, jobs: RecordingJobs) -> None:
    database = lancedb.connect(tmp_path)
    table = database.create_table("people", PEOPLE, storage_options={"new_table_enable_stable_row_ids": "true"})
    table.add_columns(computed={"n": "length(text)"})
    namespace = SparkNamespace(jobs, root=str(tmp_path))
    namespace.insert_into_table({"id": ["people"]}, stream(PEOPLE.append_column("n", pa.nulls(3, pa.int32()))))
    namespace.alter_table_backfill_columns({"id": ["people"], "column": "n"})
    assert jobs.submissions[0].locks == ("people|main|n",)
