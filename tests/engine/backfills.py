"""What backfill tests share: small tables, declared columns, a run, and the truth in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.definitions.column_rules import computed_field, virtual_column_entry, virtual_fields
from airflow_provider_lance.definitions.functions.envelope import wrap
from airflow_provider_lance.engine.backfill.job import BackfillResult, run_backfill
from airflow_provider_lance.engine.job.context import JobContext, Reporter, SilentReporter
from airflow_provider_lance.functions import UdfColumn

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace
    from pyspark.sql import SparkSession

_jobs = itertools.count()


def people(uri: str, rows: int = 100, per_fragment: int = 10, **options: Any) -> lance.LanceDataset:
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "text": pa.array([None if i % 11 == 5 else "x" * (i % 13) for i in range(rows)]),
        }
    )
    return lance.write_dataset(table, uri, max_rows_per_file=per_fragment, **options)


def declare(dataset: lance.LanceDataset, name: str, expression: str) -> None:
    dataset.add_columns(computed_field(dataset.schema, name, expression))


def declare_function(
    dataset: lance.LanceDataset,
    function: Callable[..., Any] | str,
    inputs: list[str],
    outputs: Mapping[str, pa.DataType],
    **options: Any,
) -> None:
    version = options.pop("version", "1")
    entry = virtual_column_entry(wrap(function, **options), inputs=inputs, outputs=dict(outputs), version=version)
    dataset.add_columns(virtual_fields(dataset.schema, entry))


def declare_column(dataset: lance.LanceDataset, name: str, column: UdfColumn) -> None:
    """Declare a column as ``LanceAddColumnsOperator`` does."""
    dataset.add_columns(virtual_fields(dataset.schema, column.entry(name)))


def rename_column(uri: str, name: str, new_name: str) -> None:
    change: Any = {"path": name, "name": new_name}
    lance.dataset(uri).alter_columns(change)


def restore(uri: str, version: int) -> None:
    dataset: Any = lance.dataset(uri, version=version)
    dataset.restore()


def backfill(
    spark: SparkSession | None,
    uri: str,
    column: str,
    *,
    options: dict[str, Any] | None = None,
    reporter: Reporter | None = None,
    job_id: str | None = None,
    storage_options: dict[str, str] | None = None,
    namespace: LanceNamespace | None = None,
    table_id: list[str] | None = None,
    managed: bool = False,
    driver_rows: int = 0,  # most tests are of what runs on Spark
    **request: Any,
) -> BackfillResult:
    def make_spark() -> SparkSession:
        assert spark is not None, "this backfill should not have needed Spark"
        return spark

    context = JobContext(
        spec=JobSpec(
            "backfill_column", table_id or ["t"], uri, {"column": column, **request}, options or {}, managed=managed
        ),
        make_spark=make_spark,
        reporter=reporter or SilentReporter(),
        storage_options=storage_options or {},
        connect=None if namespace is None else lambda: namespace,
        job_id=job_id or f"job-{next(_jobs)}",
        driver_rows=driver_rows,
    )
    return run_backfill(context)


def column(uri: str, name: str, key: str = "id", **options: Any) -> dict[Any, Any]:
    """The column's values by key, read the plain way."""
    rows = lance.dataset(uri, **options).to_table([key, name]).to_pylist()
    return {row[key]: row[name] for row in rows}


def length_plus_id(row: dict[str, Any]) -> int | None:
    """What Lance's ``length(text) + id`` means."""
    return None if row["text"] is None else len(row["text"]) + row["id"]


def assert_filled(uri: str, name: str = "n", rule: Callable[[dict[str, Any]], Any] = length_plus_id) -> None:
    rows = lance.dataset(uri).to_table().to_pylist()
    wrong = [(row, rule(row)) for row in rows if row[name] != rule(row)]
    assert not wrong, wrong[:3]


def events(reporter: SilentReporter) -> list[str]:
    """The messages of the events that a job reported."""
    return [str(event["message"]) for event in reporter.events]


class Interleaving(SilentReporter):
    """A reporter that lets another writer act at the worst moment: right before the first commits."""

    def __init__(self, *writers: Callable[[], object]) -> None:
        super().__init__()
        self.writers = list(writers)

    def check_commit(self) -> None:
        if self.writers:
            self.writers.pop(0)()


def die() -> None:
    """A writer for :class:`Interleaving` that ends the job before its commit: all it leaves are checkpoints."""
    raise ConnectionAbortedError("the driver is gone")
