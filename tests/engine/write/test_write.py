"""Files loaded by a job: every mode in the driver and on Spark, exactly once whatever dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.engine.job.context import JobCancelledError, JobContext, JobError, SilentReporter
from airflow_provider_lance.engine.write.job import run_write
from tests.engine.drivers import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(180)
ROWS, FILES = 4000, 4


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"t{number}" for number in ids]})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Four Parquet files of 1000 rows, with two row groups each."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        part = rows(number * 1000, 1000)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=500)
    return folder


def write(
    spark: SparkSession | None,
    uri: str,
    path: object,
    *,
    reporter: Any = None,
    job_id: str = "job",
    key: str = "",
    after: int = 0,
    on_spark: bool = True,
    **request: Any,
) -> dict[str, Any]:
    def make_spark() -> SparkSession:
        assert spark is not None, "this write should not have needed Spark"
        return spark

    context = JobContext(
        spec=JobSpec("write", ["t"], uri, request={"path": str(path), **request}, write_key=key, write_after=after),
        make_spark=make_spark,
        reporter=reporter or SilentReporter(),
        job_id=job_id,
        driver_rows=0 if on_spark else 1_000_000,
    )
    return dict(run_write(context))


def ids(uri: str) -> list[int]:
    return sorted(cast("list[int]", lance.dataset(uri).to_table(columns=["id"])["id"].to_pylist()))


def staged_files(uri: str) -> list[Path]:
    return list(Path(uri, "_write").rglob("*.json"))


@pytest.mark.parametrize("on_spark", [True, False], ids=["spark", "driver"])
def test_every_mode(spark: SparkSession, new_uri: str, files: Path, tmp_path: Path, on_spark: bool) -> None:
    reporter = SilentReporter()
    created = write(spark, new_uri, files, mode="create", on_spark=on_spark, job_id="a", reporter=reporter)
    assert (created["version"], created["created"], created["rows_inserted"]) == (1, True, ROWS)
    assert created["input_files"] == FILES
    assert ids(new_uri) == list(range(ROWS))
    assert lance.dataset(new_uri).has_stable_row_ids
    assert (reporter.latest.rows_done, reporter.latest.rows_total) == (ROWS, ROWS)

    appended = write(spark, new_uri, f"{files}/part-[01].parquet", on_spark=on_spark, job_id="b")
    assert (appended["version"], appended["created"], appended["rows_written"]) == (2, False, 2000)
    assert ids(new_uri) == sorted([*range(ROWS), *range(2000)])

    replaced = write(spark, new_uri, files, mode="overwrite", on_spark=on_spark, job_id="c")
    assert (replaced["rows_inserted"], replaced["rows_deleted"]) == (ROWS, 6000)
    assert ids(new_uri) == list(range(ROWS))

    more = tmp_path / "more.csv"
    more.write_text("id,text\n7,new\n9000,added\n")
    merged = write(spark, new_uri, more, mode="upsert", on=["id"], on_spark=on_spark, job_id="d")
    assert (merged["rows_inserted"], merged["rows_updated"]) == (1, 1)
    assert ids(new_uri) == [*range(ROWS), 9000]

    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"name": ["x", "y"]}), other)
    renamed = write(spark, new_uri, other, mode="overwrite", replace_schema=True, on_spark=on_spark, job_id="e")
    assert renamed["rows_inserted"] == 2
    assert lance.dataset(new_uri).schema.names == ["name"]
    assert not staged_files(new_uri)


def test_an_upsert_into_a_table_that_is_not_there_creates_it(spark: SparkSession, new_uri: str, files: Path) -> None:
    assert write(spark, new_uri, files, mode="upsert", on="id")["created"]
    assert ids(new_uri) == list(range(ROWS))


def test_files_have_about_the_size_that_was_asked_for(spark: SparkSession, new_uri: str, files: Path) -> None:
    write(spark, new_uri, files, max_rows_per_file=600, concurrency=1)
    sizes = [fragment.physical_rows for fragment in lance.dataset(new_uri).get_fragments()]
    assert sum(sizes) == ROWS
    assert max(sizes) <= 600
    assert len(sizes) <= 8, "a share is a whole number of row groups"


def test_the_same_key_writes_once(spark: SparkSession, new_uri: str, files: Path) -> None:
    first = write(spark, new_uri, files, key="the-run", job_id="a")
    write(spark, new_uri, f"{files}/part-0.parquet", job_id="other")
    again = write(None, new_uri, files, key="the-run", job_id="b")
    assert (again["version"], again["rows_inserted"]) == (first["version"], ROWS)
    assert len(ids(new_uri)) == ROWS + 1000


@pytest.mark.parametrize(
    ("request_fields", "told"),
    [
        ({"path": "/nowhere/*.parquet"}, "There is no file at /nowhere/*.parquet."),
        ({"mode": "create"}, "The table is there already, at version 1."),
        ({"mode": "upsert", "on": ["nr"]}, "The table has no column 'nr'; it has id, text."),
        ({"path": "{bad}"}, "The table has no column 'txt'; it has id, text."),
        ({"path": "{odd}"}, "The column 'id' is int64 in the table, and the rows have string"),
        ({"path": "{twice}", "mode": "upsert", "on": ["id"]}, "1 keys occur more than once in the rows"),
        ({"mode": "add"}, "mode is 'add'; it must be append, overwrite, upsert or create."),
        ({"colour": "red"}, "A write has no field 'colour'"),
    ],
)
@pytest.mark.parametrize("on_spark", [True, False], ids=["spark", "driver"])
def test_what_cannot_be_written_is_refused_and_changes_nothing(
    spark: SparkSession,
    new_uri: str,
    files: Path,
    tmp_path: Path,
    on_spark: bool,
    request_fields: dict[str, Any],
    told: str,
) -> None:
    lance.write_dataset(rows(0, 3), new_uri)
    (tmp_path / "bad.csv").write_text("id,txt\n1,x\n")
    (tmp_path / "odd.csv").write_text("id,text\none,x\n")
    (tmp_path / "twice.csv").write_text("id,text\n5,x\n5,y\n")
    names = {name: str(tmp_path / f"{name}.csv") for name in ("bad", "odd", "twice")}
    fields = {"path": str(files), **request_fields}
    fields["path"] = fields["path"].format(**names)
    with pytest.raises(JobError, match=r".") as failed:
        write(spark, new_uri, on_spark=on_spark, **fields)
    assert told in str(failed.value)
    assert not failed.value.retryable
    assert lance.dataset(new_uri).version == 1
    assert not staged_files(new_uri)


def test_a_cancelled_write_leaves_no_file(spark: SparkSession, new_uri: str, files: Path) -> None:
    class Cancelling(SilentReporter):
        def check_commit(self) -> None:
            raise JobCancelledError

    lance.write_dataset(rows(0, 3), new_uri)
    before = sorted(Path(new_uri, "data").iterdir())
    with pytest.raises(JobCancelledError):
        write(spark, new_uri, files, reporter=Cancelling())
    assert sorted(Path(new_uri, "data").iterdir()) == before
    assert not staged_files(new_uri)
    assert lance.dataset(new_uri).version == 1


def test_a_table_that_somebody_else_creates_meanwhile_is_appended_to(
    spark: SparkSession, new_uri: str, files: Path
) -> None:
    class Faster(SilentReporter):
        def check_commit(self) -> None:
            if not Path(new_uri, "_versions").exists():
                lance.write_dataset(rows(9000, 1), new_uri, enable_stable_row_ids=True)

    reporter = Faster()
    done = write(spark, new_uri, files, reporter=reporter)
    assert (done["version"], done["created"]) == (2, False)
    assert ids(new_uri) == [*range(ROWS), 9000]
    assert "Somebody else created the table first." in str(reporter.events)


def test_what_a_dead_driver_staged_is_not_written_again(spark: SparkSession, new_uri: str, files: Path) -> None:
    class Dies(SilentReporter):
        def check_commit(self) -> None:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        write(spark, new_uri, files, reporter=Dies(), key="run")
    staged = sorted(Path(new_uri, "data").iterdir())
    assert staged
    pq.write_table(rows(1000, 999), files / "part-1.parquet")  # a file that has changed meanwhile is read again
    reporter = SilentReporter()
    done = write(spark, new_uri, files, reporter=reporter, key="run", job_id="next")
    assert done["rows_inserted"] == ROWS - 1
    used = {file.path for fragment in lance.dataset(new_uri).get_fragments() for file in fragment.data_files()}
    assert len(used & {path.name for path in staged}) == len(staged) - 1
    assert "shares were staged by an earlier driver" in str(reporter.events)


def run_twice(uri: str, files: Path, tmp_path: Path, fault: str, driver_rows: int) -> list[Driver]:
    """Run a write until a driver ends without being killed; at most twice."""
    lance.write_dataset(rows(0, 1).slice(1), uri, enable_stable_row_ids=True)
    spec = {"job_type": "write", "location": uri, "request": {"path": str(files)}, "write_after": 1}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    arguments = [
        "--spec",
        str(path),
        "--job-id",
        "the-job",
        "--master",
        "local[2,4]",
        "--driver-rows",
        str(driver_rows),
    ]
    drivers = [Driver(arguments, tmp_path, LANCE_ENGINE_TEST_FAULT=fault)]
    if drivers[0].wait() == -9:
        drivers.append(Driver([*arguments, "--attempt", "2"], tmp_path))
        drivers[1].wait()
    assert drivers[-1].process.returncode == 0, drivers[-1].log.read_text()[-2000:]
    return drivers


@pytest.mark.parametrize("fault", ["write-before-commit", "write-after-commit"])
def test_a_driver_killed_around_its_commit_is_repeated_once(
    new_uri: str, files: Path, tmp_path: Path, fault: str
) -> None:
    first, second = run_twice(new_uri, files, tmp_path, fault, driver_rows=1_000_000)
    assert first.process.returncode == -9
    assert second.answer()["result"]["rows_inserted"] == ROWS
    assert ids(new_uri) == list(range(ROWS))


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        "write-before-commit",
        "write-after-commit",
        "write-task:once:{mark}",
        "write-task:once:{mark},write-before-commit",
    ],
)
def test_a_driver_and_a_worker_killed_on_spark_are_repeated_once(
    new_uri: str, files: Path, tmp_path: Path, fault: str
) -> None:
    drivers = run_twice(new_uri, files, tmp_path, fault.format(mark=tmp_path / "mark"), driver_rows=0)
    assert len(drivers) == (2 if "commit" in fault else 1)
    assert (tmp_path / "mark").exists() == ("write-task" in fault)
    assert drivers[-1].answer()["result"]["rows_inserted"] == ROWS
    assert ids(new_uri) == list(range(ROWS))
    assert not staged_files(new_uri)
