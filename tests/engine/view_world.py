"""A folder of Lance tables with views over them, as tests see it: change the source, refresh, compare.

The expected rows are computed in plain Python from the source's ``to_table()``; nothing of the engine takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from airflow_provider_lance.api.jobs import JobSpec
from airflow_provider_lance.engine.context import JobContext, SilentReporter
from airflow_provider_lance.engine.refresh import run_refresh
from airflow_provider_lance.engine.view_definition import ViewDefinition
from airflow_provider_lance.engine.view_table import create_view

PEOPLE = pa.schema([("id", pa.int64()), ("text", pa.string()), ("score", pa.float64())])


def no_spark() -> Any:
    raise AssertionError("this refresh should not have needed Spark")


def people(ids: Iterable[int], tag: str = "t") -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "text": [f"{tag}{i}" for i in ids], "score": [i / 2 for i in ids]}, schema=PEOPLE)


class World:
    def __init__(self, root: Path, spark: Any = None) -> None:
        self.root = root
        self.make_spark: Callable[[], Any] = no_spark if spark is None else lambda: spark
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
        updated, fields, *which = part.update_columns(new, left_on="_rowid", with_offsets=offsets)
        operation = lance.LanceOperation.Update(
            updated_fragments=[updated],
            fields_modified=fields,
            update_mode="rewrite_columns",
            updated_fragment_offsets={part.fragment_id: which[0]} if which else None,
        )
        lance.LanceDataset.commit(self.path(name), operation, read_version=source.version)

    def view(self, name: str, query: str = "", **request: Any) -> ViewDefinition:
        body = {"query": query, **request} if query else request
        _, definition = create_view(self.path(name), ViewDefinition.from_request(body), self.open)
        return definition

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
        return {key.decode(): value.decode() for key, value in (self.open(name).schema.metadata or {}).items()}
