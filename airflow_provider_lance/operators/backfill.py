"""``LanceBackfillColumnOperator``: give a column its values, as a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.job_words import JobType
from airflow_provider_lance.operators.rendered import given, number, rendered_fields, text, truth, whole_number
from airflow_provider_lance.operators.result import describe_target
from airflow_provider_lance.operators.submit import LanceJobOperator

#: The request's own fields, besides ``id`` and ``column``, and what a rendered value must be; each is an argument.
REQUEST_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "branch": text,
    "where": text,
    "concurrency": whole_number,
    "intra_applier_concurrency": whole_number,
    "min_checkpoint_size": whole_number,
    "max_checkpoint_size": whole_number,
    "batch_checkpoint_flush_interval_seconds": number,
    "read_version": whole_number,
    "task_size": whole_number,
    "num_frags": whole_number,
    "checkpoint_size": whole_number,
    "commit_granularity": whole_number,
    "cluster": text,
    "manifest": text,
}


class LanceBackfillColumnOperator(LanceJobOperator):
    """Compute the values of a computed or virtual column (``AlterTableBackfillColumns``).

    Only rows whose value is missing or older than its inputs are computed. Arguments beyond these are those of
    :class:`~airflow_provider_lance.operators.submit.LanceJobOperator`.

    :param table_id: the table. (templated)
    :param column: the column. (templated)
    :param branch: of the table. (templated)
    :param where: an SQL predicate; the other rows keep their values. (templated)
    :param concurrency: Spark tasks at once.
    :param intra_applier_concurrency: threads per Spark task.
    :param task_size: rows per Spark task; splits a large fragment.
    :param checkpoint_size: rows per durable part, between ``min_checkpoint_size`` and ``max_checkpoint_size``.
    :param batch_checkpoint_flush_interval_seconds: a part is durable at the latest after so long.
    :param read_version: compute at this version of the table; conflicting fragments are left and counted.
    :param num_frags: at most so many fragments in this job.
    :param commit_granularity: fragments per commit.
    :param cluster: where it runs, a name from the server's configuration, or ``external``. (templated)
    :param manifest: the UDF's environment, a name from the server's configuration. (templated)
    :param plan_only: plan and report what would be done; compute and commit nothing.
    :param max_failed_rows: fail the job once the rule failed for more rows than this. (templated)
    :param max_failed_fraction: fail the job once the rule failed for more than this share of the rows, between 0 and 1:
        of all live rows, or with ``where`` of those it selects. (templated)
    """

    operation = "alter_table_backfill_columns"
    job_type = JobType.BACKFILL.value
    template_fields: Sequence[str] = (
        *LanceJobOperator.template_fields,
        "column",
        *REQUEST_FIELDS,
        "plan_only",
        "max_failed_rows",
        "max_failed_fraction",
    )

    def __init__(
        self,
        *,
        table_id: Identifier,
        column: str,
        branch: str | None = None,
        where: str | None = None,
        concurrency: int | None = None,
        intra_applier_concurrency: int | None = None,
        min_checkpoint_size: int | None = None,
        max_checkpoint_size: int | None = None,
        batch_checkpoint_flush_interval_seconds: float | None = None,
        read_version: int | None = None,
        task_size: int | None = None,
        num_frags: int | None = None,
        checkpoint_size: int | None = None,
        commit_granularity: int | None = None,
        cluster: str | None = None,
        manifest: str | None = None,
        plan_only: bool = False,
        max_failed_rows: int | None = None,
        max_failed_fraction: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(table_id=table_id, **kwargs)
        self.column = column
        self.branch = branch
        self.where = where
        self.concurrency = concurrency
        self.intra_applier_concurrency = intra_applier_concurrency
        self.min_checkpoint_size = min_checkpoint_size
        self.max_checkpoint_size = max_checkpoint_size
        self.batch_checkpoint_flush_interval_seconds = batch_checkpoint_flush_interval_seconds
        self.read_version = read_version
        self.task_size = task_size
        self.num_frags = num_frags
        self.checkpoint_size = checkpoint_size
        self.commit_granularity = commit_granularity
        self.cluster = cluster
        self.manifest = manifest
        self.plan_only = plan_only
        self.max_failed_rows = max_failed_rows
        self.max_failed_fraction = max_failed_fraction

    def target(self, table_id: list[str]) -> str:
        return describe_target(table_id, self.column)

    def request(self) -> dict[str, Any]:
        return {"column": self.column, **rendered_fields(self, REQUEST_FIELDS)}

    def options(self) -> dict[str, str]:
        options = {}
        if truth("plan_only", self.plan_only):
            options["plan"] = "true"
        if (most := whole_number("max_failed_rows", self.max_failed_rows)) is not None:
            options["max_failed_rows"] = str(most)
        if (share := number("max_failed_fraction", self.max_failed_fraction)) is not None:
            if not 0 <= share <= 1:
                raise AirflowFailException(f"max_failed_fraction is {share}; it must be between 0 and 1.")
            options["max_failed_fraction"] = str(share)
        return options

    def did_nothing(self, result: dict[str, Any]) -> bool:
        plan = result.get("plan")
        if isinstance(plan, dict):
            return not plan.get("fragments")
        return result.get("rows_assigned") == 0 and not result.get("rows_failed")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """For Airflow's OpenLineage provider: the table to itself, and the column from its inputs."""
        from airflow_provider_lance.operators.lineage import ColumnEdge, TableLineage, computed_inputs, lineage_facets

        table_id = self.parse_id(self.table_id)
        inputs = computed_inputs(self.hook, table_id, self.column, given(self.branch))
        return lineage_facets(
            self.hook,
            [*self.outlets, *self.inlets],
            TableLineage(
                output=table_id,
                inputs=[table_id],
                edges=[ColumnEdge(self.column, table_id, name) for name in inputs],
            ),
        )
