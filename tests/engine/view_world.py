"""A folder of Lance tables with views over them, as tests see it: change the source, refresh, compare.

The expected rows are computed in plain Python from the source's ``to_table()``; nothing of the engine takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.definitions.arrow_types import arrow_schema, text_metadata
from airflow_provider_lance.definitions.view_definition import ViewDefinition
from airflow_provider_lance.engine.job.context import JobContext, SilentReporter
from airflow_provider_lance.engine.views.job import run_refresh
from airflow_provider_lance.storage.view_table import empty_view

PEOPLE = arrow_schema({"id": "int64", "text": "string", "score": "float64"})


def no_spark() -> SparkSession:
    raise AssertionError("this refresh should not have needed Spark")


def people(ids: Iterable[int], tag: str = "t") -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "text": [f"{tag}{i}" for i in ids], "score": [i / 2 for i in ids]}, schema=PEOPLE)


def create_view(
    location: str,
    definition: ViewDefinition,
    open_source: Callable[[str], lance.LanceDataset],
    **options: Any,
) -> ViewDefinition:
    """Write the empty view at ``location``; its definition as it was stored. ``options`` are those of the writer."""
    empty, bound = empty_view(definition, open_source)
    lance.write_dataset(empty, location, enable_stable_row_ids=True, **options)
    return bound


class World:
    def __init__(self, root: Path, spark: SparkSession | None = None) -> None:
        self.root = root
        self.make_spark = no_spark if spark is None else lambda: spark
        self.reporter = SilentReporter()

    def path(self, name: str) -> str:
        return str(self.root / f"{name}.lance")

    def open(self, name: str) -> lance.LanceDataset:
        return lance.dataset(self.path(name))

    def table(self, name: str, data: pa.Table, *, rows_per_file: int = 4, stable: bool = True, **options: Any) -> None:
        lance.write_dataset(
            data, self.path(name), enable_stable_row_ids=stable, max_rows_per_file=rows_per_file, **options
        )

    def append(self, name: str, data: pa.Table) -> None:
        lance.write_dataset(data, self.path(name), mode="append", max_rows_per_file=4)

    def update_in_place(self, name: str, column: str, value: str, fragment: int, *, rows: int, offsets: bool) -> None:
        """New values for the first rows of a fragment, as ``update_columns`` writes them: the fragment stays.

        Without ``offsets`` the commit does not say which rows it touched, and Lance leaves their versions as they were.
        """
        source = self.open(name)
        part = source.get_fragments()[fragment]
        ids = part.to_table(columns=["_rowid"]).slice(0, rows)
        new = ids.append_column(column, pa.array([value] * len(ids)))
        if offsets:
            updated, fields, which = part.update_columns(new, left_on="_rowid", with_offsets=True)
            touched = {part.fragment_id: which}
        else:
            updated, fields = part.update_columns(new, left_on="_rowid")
            touched = None
        operation = lance.LanceOperation.Update(
            updated_fragments=[updated],
            fields_modified=fields,
            update_mode="rewrite_columns",
            updated_fragment_offsets=touched,
        )
        lance.LanceDataset.commit(self.path(name), operation, read_version=source.version)

    def view(self, name: str, query: str = "", **request: Any) -> ViewDefinition:
        body = {"query": query, **request} if query else request
        return create_view(self.path(name), ViewDefinition.from_request(body), self.open)

    def context(self, name: str, **request: Any) -> JobContext:
        definition = ViewDefinition.from_metadata(self.open(name).schema.metadata)
        assert definition is not None
        tables = {source: self.path(source) for source in definition.sources}
        spec = JobSpec("refresh_materialized_view", [name], self.path(name), request, tables=tables)
        return JobContext(spec, self.make_spark, reporter=self.reporter, job_id="job-1")

    def refresh(self, name: str, **request: Any) -> dict[str, Any]:
        return run_refresh(self.context(name, **request))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """The table's rows without the row id column, sorted: a view is a set of rows, their order is not promised."""
        data = self.open(name).to_table()
        names = columns or [column for column in data.column_names if column != "__source_row_id"]
        return sorted(zip(*(data[column].to_pylist() for column in names), strict=True), key=repr)

    def metadata(self, name: str) -> dict[str, str]:
        return text_metadata(self.open(name).schema.metadata)
