"""Load files into a table: find them, write their rows as fragments, and commit all of them at once with the key.

Tasks of Spark write the fragments of a large input, and the driver writes a small one. An upsert is a merge of all
rows with the whole table, which Lance does in one process with all its cores, so the driver does it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.definitions.json_types import JsonObject
from airflow_provider_lance.definitions.write_request import WriteRequest
from airflow_provider_lance.engine.job.claim import ClaimLostError
from airflow_provider_lance.engine.job.context import JobCancelledError, JobContext, JobError, Reporter
from airflow_provider_lance.engine.job.driver_work import DRIVER_BYTES
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.progress import ProgressMeter, TaskFigures
from airflow_provider_lance.engine.spark.session import progress_host
from airflow_provider_lance.engine.write.spark_rows import SparkRows
from airflow_provider_lance.engine.write.staged_shares import StagedShares
from airflow_provider_lance.storage.commits import ATTEMPTS, CommitConflict, Committer
from airflow_provider_lance.storage.input_files import Input, NoRowsError, find_input
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.writes import (
    Rows,
    RowsDoNotFitError,
    WriteResult,
    append_rows,
    create_from_fragments,
    find_write,
    replace_rows,
    replace_table,
    upsert_rows,
    write_new_share,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset, LanceOperation
    from lance.fragment import FragmentMetadata

_ATTEMPTS = 3


def run_write(context: JobContext) -> JsonObject:
    """Load the files of ``context.spec`` and return what was done.

    Returns ``{rows_written, rows_inserted, rows_updated, rows_deleted, created, version, input_files, seconds}``.
    Raises :class:`JobError` with the phase that failed.
    """
    started = time.monotonic()
    try:
        request = WriteRequest.parse(context.spec.request)
    except refusals() as error:
        raise JobError("plan", str(error)) from error
    with ProgressMeter(context.reporter, host=lambda: progress_host(context)) as meter:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                result = _Write(context, meter, request).run()
            except CommitConflict as conflict:
                context.reporter.event(f"{conflict} Starting over.", attempt=attempt)
                continue
            except (RowsDoNotFitError, NoRowsError) as error:
                raise JobError("write", str(error)) from error
            meter.phase("done")
            return {**result, "seconds": round(time.monotonic() - started, 3)}
    raise JobError("commit", "Others changed the table during every attempt to commit.", retryable=True)


@dataclass(frozen=True)
class _JobCommitter(Committer):
    """Commits only while the claim of the job is good."""

    reporter: Reporter | None = None

    def commit(
        self,
        operation: LanceOperation.BaseOperation,
        *,
        dataset: LanceDataset,
        properties: Mapping[str, str] | None = None,
        attempts: int = ATTEMPTS,
    ) -> int:
        self.check()
        version = super().commit(operation, dataset=dataset, properties=properties, attempts=attempts)
        failpoint("write-after-commit")
        return version

    def check(self) -> None:
        if self.reporter is not None:
            self.reporter.check_commit()
        failpoint("write-before-commit")


class _Write:
    """One attempt to write, from the table as it is now."""

    def __init__(self, context: JobContext, meter: ProgressMeter, request: WriteRequest) -> None:
        spec = context.spec
        self.context, self.meter, self.request = context, meter, request
        self.key = spec.write_key or context.job_id
        self.committer = _JobCommitter(
            TableRef(spec.location, request.branch, context.storage_options),
            context.job_id,
            context.namespace if spec.managed else None,
            tuple(spec.table_id),
            spec.managed,
            context.reporter,
        )

    def run(self) -> JsonObject:
        self.meter.phase("plan")
        self.context.reporter.check()
        dataset = self._open()
        if dataset is not None:
            spec = self.context.spec
            # Without a key of its own the first attempt of a job cannot have been here before.
            known = bool(spec.write_key) or self.context.attempt > 1
            found = find_write(dataset, self.key, spec.write_after) if known else None
            if found is not None:
                self.context.reporter.event(
                    f"An earlier driver has written these rows already, as version {found.version}"
                )
                StagedShares(self.committer.table, self.key).forget(with_data=False)
                return _result(found, created=found.version == 1)
            if self.request.mode == "create":
                raise JobError("plan", f"The table is there already, at version {dataset.version}.")
        source = find_input(self.request.path, self.request.file_format)
        on_spark = self.request.mode != "upsert" or dataset is None
        if on_spark and not self._fits_driver(source):
            return self._write_on_spark(dataset, source)
        self.meter.phase("write", rows_total=source.rows or 0)
        rows = Rows(lambda: self._counted(source.open()), self.request.max_rows_per_file)
        if dataset is None:
            fragments = write_new_share(
                rows.open(), self.committer.table, source.schema, self.request.max_rows_per_file
            )
            return self._create(fragments, source)
        if self.request.mode == "upsert":
            result = upsert_rows(self.committer, rows, self.request.on, self.key)
        else:
            result = self._write_with(rows)
        return _result(result, files=source.files)

    def _write_on_spark(self, dataset: LanceDataset | None, source: Input) -> JsonObject:
        rows = SparkRows(self.context, self.meter, self.request, source, self.committer.table, self.key)
        try:
            if dataset is None:
                fragments, _ = rows.write_new()
                result = self._create(fragments, source)
            else:
                result = _result(self._write_with(rows), files=source.files)
        except (JobCancelledError, JobError, RowsDoNotFitError) as error:
            # The driver that has the job now may use what this one staged, and so may the next try.
            if not isinstance(error, ClaimLostError) and not getattr(error, "retryable", False):
                rows.discard()
            raise
        rows.forget()
        return result

    def _write_with(self, rows: Rows | SparkRows) -> WriteResult:
        if self.request.mode == "overwrite":
            return (replace_table if self.request.replace_schema else replace_rows)(self.committer, rows, self.key)
        return append_rows(self.committer, rows, self.key)

    def _create(self, fragments: list[FragmentMetadata], source: Input) -> JsonObject:
        self.meter.phase("commit")
        self.committer.check()
        created = create_from_fragments(self.committer, fragments, source.schema, self.key)
        failpoint("write-after-commit")
        return _result(created, created=True, files=source.files)

    def _open(self) -> LanceDataset | None:
        """The newest version of the table; None where it was only declared."""
        try:
            return self.committer.table.open()
        except ValueError as error:
            if self.request.branch is None and "was not found" in str(error):
                return None
            raise JobError("plan", f"The table cannot be opened: {error}") from error

    def _fits_driver(self, source: Input) -> bool:
        if self.request.concurrency is not None or source.bytes > DRIVER_BYTES:
            return False
        return source.rows is None or source.rows <= self.context.driver_rows

    def _counted(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(reader.schema, self._batches(reader))

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(reader):
            self.context.reporter.check()
            self.meter.task_done(f"batch-{number}", TaskFigures(rows=batch.num_rows, bytes_written=batch.nbytes))
            yield batch


def _result(result: WriteResult, *, created: bool = False, files: int | None = None) -> JsonObject:
    figures: JsonObject = {
        "rows_written": result.inserted + result.updated,
        "rows_inserted": result.inserted,
        "rows_updated": result.updated,
        "rows_deleted": result.deleted,
        "created": created,
        "version": result.version,
    }
    return figures if files is None else {**figures, "input_files": files}
