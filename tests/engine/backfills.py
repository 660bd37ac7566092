"""What backfill tests share: small tables, declared columns, a run, and the truth in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.engine.backfill import run_backfill
from airflow_provider_lance.engine.columns import computed_field, virtual_column_entry, virtual_fields
from airflow_provider_lance.engine.context import JobContext, SilentReporter
from airflow_provider_lance.engine.udf import wrap

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
    outputs: dict[str, pa.DataType],
    **options: Any,
) -> None:
    version = options.pop("version", "1")
    entry = virtual_column_entry(wrap(function, **options), inputs=inputs, outputs=outputs, version=version)
    dataset.add_columns(virtual_fields(dataset.schema, entry))


def backfill(
    spark: Any,
    uri: str,
    column: str,
    *,
    options: dict[str, Any] | None = None,
    reporter: Any = None,
    job_id: str | None = None,
    storage_options: dict[str, str] | None = None,
    namespace: Any = None,
    table_id: list[str] | None = None,
    managed: bool = False,
    **request: Any,
) -> dict[str, Any]:
    def make_spark() -> Any:
        assert spark is not None, "this backfill should not have needed Spark"
        return spark

    context = JobContext(
        spec=JobSpec(
            "backfill_column", table_id or ["t"], uri, {"column": column, **request}, options or {}, managed=managed
        ),
        make_spark=make_spark,
        reporter=reporter or SilentReporter(),
        storage_options=storage_options or {},
        namespace=namespace,
        job_id=job_id or f"job-{next(_jobs)}",
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


class Interleaving(SilentReporter):
    """A reporter that lets another writer act at the worst moment: right before the first commits."""

    def __init__(self, *writers: Callable[[], Any]) -> None:
        super().__init__()
        self.writers = list(writers)

    def check_commit(self) -> None:
        if self.writers:
            self.writers.pop(0)()


def die() -> None:
    """A writer for :class:`Interleaving` that ends the job before its commit: all it leaves are checkpoints."""
    raise ConnectionAbortedError("the driver is gone")
