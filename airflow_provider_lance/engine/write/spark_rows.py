"""Rows of files, written as fragments by the Python workers of Spark. Only fragment metadata comes back to the driver.

Spark's workers import this module, so it imports Lance only inside a task.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_provider_lance.definitions.write_request import WriteRequest
from airflow_provider_lance.engine.job.context import JobContext, JobError
from airflow_provider_lance.engine.job.failpoints import failpoint
from airflow_provider_lance.engine.job.progress import ProgressAddress, ProgressMeter, ProgressSender, TaskFigures
from airflow_provider_lance.engine.spark.driver_wait import run_action, start_spark
from airflow_provider_lance.engine.spark.python_worker import prepare_python_worker
from airflow_provider_lance.engine.spark.session import default_parallelism
from airflow_provider_lance.engine.write.staged_shares import StagedShare, StagedShares
from airflow_provider_lance.storage.input_files import Input, Share
from airflow_provider_lance.storage.shares import contiguous_shares
from airflow_provider_lance.storage.table import TableRef
from airflow_provider_lance.storage.writes import RowsDoNotFitError, RowStream, write_new_share, write_share

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

# A share is written in seconds, so that progress is seen and a driver that dies loses little.
_SHARE_BYTES = 256 << 20
# Starting a task costs tens of milliseconds, and a share may take no longer than a tenth of a second. A few tasks per
# core even out their times.
_TASKS_PER_CORE = 3


@dataclass(frozen=True)
class SparkRows:
    """The rows of an input, as a writer for ``storage.writes``. ``key`` is that of the write."""

    context: JobContext
    meter: ProgressMeter
    request: WriteRequest
    source: Input
    table: TableRef
    key: str

    def write(
        self, dataset: lance.LanceDataset, mode: Literal["append", "overwrite"]
    ) -> tuple[list[FragmentMetadata], pa.Schema]:
        """Write all rows as fragments of a table that is there."""
        # Rows that cannot fit are refused here, before any task starts.
        schema = RowStream(self.source.schema.empty_table().to_reader(), dataset.schema if mode == "append" else None)
        fields = [(field.id(), field.name()) for field in dataset.lance_schema.fields()] if mode == "append" else []
        form = f"{mode} {fields} {dataset.data_storage_version} {dataset.has_stable_row_ids}"
        return self._run(dataset.version, mode, form), schema.schema

    def write_new(self) -> tuple[list[FragmentMetadata], pa.Schema]:
        """Write all rows as fragments of a table without a version."""
        return self._run(None, "create", "create"), self.source.schema

    def discard(self) -> None:
        """Remove what was staged. No commit may have been tried."""
        StagedShares(self.table, self.key).forget(with_data=True)

    def forget(self) -> None:
        """Remove the files about what was staged, after its commit."""
        StagedShares(self.table, self.key).forget(with_data=False)

    def _staged(self, form: str) -> StagedShares:
        described = f"{form} {self.request.max_rows_per_file} {self.source.schema}"
        return StagedShares(self.table, self.key, hashlib.sha256(described.encode()).hexdigest())

    def _run(self, version: int | None, mode: str, form: str) -> list[FragmentMetadata]:
        from lance.fragment import FragmentMetadata

        if not self.context.spark_started:
            start_spark(self.context)
        spark = self.context.spark.sparkContext
        parallel = self.request.concurrency or default_parallelism(spark)
        shares = self.source.cut(self._share_count(parallel))
        staging = self._staged(form)
        done = staging.find(shares)
        if done:
            rows = sum(staged.rows for staged in done.values())
            self.context.reporter.event(
                f"{len(done)} of {len(shares)} shares were staged by an earlier driver", rows=rows
            )
        self.meter.phase("write", fragments_total=len(shares), rows_total=self.source.rows or 0)
        for place, staged in done.items():
            self.meter.task_done(f"staged-{place}", _figures(staged))
        left = [(place, share) for place, share in enumerate(shares) if place not in done]
        if left:
            groups = contiguous_shares(left, [1] * len(left), self.request.concurrency or parallel * _TASKS_PER_CORE)
            writer = ShareWriter(
                staging, version, mode, self.source.schema, self.request.max_rows_per_file, self.meter.address
            )
            rdd = spark.parallelize(groups, len(groups))
            for number, figures, written in run_action(
                self.context, rdd.mapPartitionsWithIndex(writer).collect, "write"
            ):
                self.meter.task_done(f"task-{number}", figures)
                if isinstance(written, str):
                    raise JobError("write", written)
                done |= written
        return [FragmentMetadata.from_json(text) for place in range(len(shares)) for text in done[place].fragments]

    def _share_count(self, parallel: int) -> int:
        """Files of about ``max_rows_per_file`` rows, no share of many bytes, and work for every core."""
        by_rows = math.ceil((self.source.rows or 0) / self.request.max_rows_per_file)
        least = max(by_rows, math.ceil(self.source.bytes / _SHARE_BYTES), 1)
        return math.ceil(least / parallel) * parallel


@dataclass(frozen=True)
class ShareWriter:
    """What runs inside a Spark task: it writes its shares one after the other and notes each of them as staged."""

    staging: StagedShares
    version: int | None
    mode: str
    schema: pa.Schema
    max_rows_per_file: int
    address: ProgressAddress

    def __call__(
        self, number: int, partition: Iterable[Sequence[tuple[int, Share]]]
    ) -> Iterator[tuple[int, TaskFigures, dict[int, StagedShare] | str]]:
        prepare_python_worker()
        import pyarrow as pa

        sender = ProgressSender(self.address, f"task-{number}")
        done: dict[int, StagedShare] = {}
        try:
            for place, share in (one for group in partition for one in group):
                failpoint("write-task")
                done[place] = staged = self._stage(share)
                self.staging.save(share, staged)
                sender.figures.add(_figures(staged))
                sender.tick()
        except (RowsDoNotFitError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            # The error is returned, not raised: Spark would read the same rows three more times.
            yield number, sender.figures, str(error)
            return
        finally:
            sender.close()
        yield number, sender.figures, done

    def _stage(self, share: Share) -> StagedShare:
        table = self.staging.table
        if self.version is None:
            found = write_new_share(share.open(), table, self.schema, self.max_rows_per_file)
        else:
            mode: Literal["append", "overwrite"] = "append" if self.mode == "append" else "overwrite"
            found, _ = write_share(share.open(), table.open(self.version), mode, self.max_rows_per_file)
        kept = [fragment for fragment in found if fragment.physical_rows]
        return StagedShare(
            tuple(json.dumps(fragment.to_json()) for fragment in kept),
            sum(fragment.physical_rows for fragment in kept),
            sum(file.file_size_bytes or 0 for fragment in kept for file in fragment.files),
        )


def _figures(staged: StagedShare) -> TaskFigures:
    return TaskFigures(fragments=1, rows=staged.rows, bytes_written=staged.bytes)
