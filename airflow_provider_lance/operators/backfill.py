"""``LanceBackfillColumnOperator``: computes the values of a column, as a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.job_states import JobType
from airflow_provider_lance.operators.job_base import LanceJobOperator
from airflow_provider_lance.tasks.job_outcome import describe_target
from airflow_provider_lance.tasks.operator_arguments import JobArguments
from airflow_provider_lance.tasks.templating import (
    Reader,
    as_boolean,
    as_integer,
    as_number,
    as_text,
    none_if_blank,
    rendered_fields,
)

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.lineage import TaskLineage

#: The request's fields, besides ``id`` and ``column``, and what a rendered value must be. Each is an argument.
REQUEST_FIELDS: dict[str, Reader] = {
    "branch": as_text,
    "where": as_text,
    "concurrency": as_integer,
    "intra_applier_concurrency": as_integer,
    "min_checkpoint_size": as_integer,
    "max_checkpoint_size": as_integer,
    "batch_checkpoint_flush_interval_seconds": as_number,
    "read_version": as_integer,
    "task_size": as_integer,
    "num_frags": as_integer,
    "checkpoint_size": as_integer,
    "commit_granularity": as_integer,
    "cluster": as_text,
    "manifest": as_text,
}


class LanceBackfillColumnOperator(LanceJobOperator):
    """Compute the values of a computed or virtual column (``AlterTableBackfillColumns``).

    Without ``where``, only rows whose value is missing or older than its inputs are computed.

    The guide is ``docs/operators/backfill_column.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param column: The name of the column. (templated)
    :param branch: The branch of the table. By default it is the main branch. (templated)
    :param where: An SQL predicate that selects the rows to compute, or the name of a ``.sql`` file that holds it. The
        other rows keep their values. (templated)
    :param concurrency: How many Spark tasks run at once. (templated)
    :param intra_applier_concurrency: How many threads of a Spark task call the function. (templated)
    :param min_checkpoint_size: The smallest number of rows in a checkpoint. (templated)
    :param max_checkpoint_size: The largest number of rows in a checkpoint. (templated)
    :param batch_checkpoint_flush_interval_seconds: The seconds after which finished values are written to a checkpoint
        at the latest. (templated)
    :param read_version: The version of the table at which the values are computed. Fragments that were changed since
        are left out and counted. (templated)
    :param task_size: The number of rows of a Spark task. A larger fragment is split. (templated)
    :param num_frags: The largest number of fragments that this job computes. (templated)
    :param checkpoint_size: The number of rows in a checkpoint, between ``min_checkpoint_size`` and
        ``max_checkpoint_size``. (templated)
    :param commit_granularity: The number of fragments in a commit. (templated)
    :param cluster: The cluster on which the job runs: a name from the server's configuration, or ``external``.
        (templated)
    :param manifest: The environment of the function: a name from the server's configuration. (templated)
    :param plan_only: Whether the job only reports what it would do, without computing anything. (templated)
    :param max_failed_rows: The largest number of rows for which the rule may fail before the job fails. (templated)
    :param max_failed_fraction: The largest share of the rows, between 0 and 1, for which the rule may fail before the
        job fails. It is a share of all live rows, or of those that ``where`` selects. (templated)
    :param only: ``failed`` computes just the rows for which the rule failed in an earlier job. Rows that have no value
        yet or an outdated one stay as they are. (templated)
    :param sample: The number of rows on which the job only tries the rule. Its result has their inputs, outputs and
        seconds, and nothing is written. (templated)
    :param wait_for_completion: Whether the task waits for the job's end. Otherwise it succeeds with the ``job_id``,
        for a :class:`~airflow_provider_lance.sensors.job.LanceJobSensor`, and the job has no lease.
    :param deferrable: Whether the task waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration.
    :param poll_interval: The seconds between two polls of the job. The default is ``[lance] poll_interval``.
    :param timeout: How long the job may take, counted from its submission. The default is ``execution_timeout``. The
        job is cancelled after that, and the task fails with a timeout, on a worker as well as deferred.
    :param cancel_on_kill: Whether the job is cancelled when the task is killed, cleared or marked.
    :param on_conflict: What happens if another job already writes the same column. ``fail`` fails the task. ``join``
        waits for that job and takes its result if its request is equal, and fails otherwise. ``wait`` waits for its
        end, within ``timeout``, and then submits. That job is never cancelled.
    :param lease_seconds: The seconds after which the server ends a job that nobody has asked about. The default is
        ``[lance] job_lease_seconds``.
    :param skip_if_unchanged: Whether the task ends as skipped when there is nothing to do.
    :param request_context: More context entries of the request, which are sent as ``x-lance-ctx-<key>``. (templated)
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``job_id``, ``job_type``, ``table_id``, ``state``, ``version`` and the job's ``result``.
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
        "only",
        "sample",
    )
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **LanceJobOperator.template_fields_renderers,
        "where": "sql",
    }

    def __init__(
        self,
        *,
        column: str,
        branch: str | None = None,
        where: str | None = None,
        concurrency: int | str | None = None,
        intra_applier_concurrency: int | str | None = None,
        min_checkpoint_size: int | str | None = None,
        max_checkpoint_size: int | str | None = None,
        batch_checkpoint_flush_interval_seconds: float | str | None = None,
        read_version: int | str | None = None,
        task_size: int | str | None = None,
        num_frags: int | str | None = None,
        checkpoint_size: int | str | None = None,
        commit_granularity: int | str | None = None,
        cluster: str | None = None,
        manifest: str | None = None,
        plan_only: bool | str = False,
        max_failed_rows: int | str | None = None,
        max_failed_fraction: float | str | None = None,
        only: str | None = None,
        sample: int | str | None = None,
        **kwargs: Unpack[JobArguments],
    ) -> None:
        super().__init__(**kwargs)
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
        self.only = only
        self.sample = sample

    def target(self, table_id: list[str]) -> str:
        return describe_target(self.hook.join_id(table_id), self.column)

    def request(self) -> dict[str, object]:
        return {"column": self.column, **rendered_fields(self, REQUEST_FIELDS)}

    def options(self) -> dict[str, str]:
        options = {}
        if as_boolean("plan_only", self.plan_only):
            options["plan"] = "true"
        if (most := as_integer("max_failed_rows", self.max_failed_rows)) is not None:
            options["max_failed_rows"] = str(most)
        if (share := as_number("max_failed_fraction", self.max_failed_fraction)) is not None:
            if not 0 <= share <= 1:
                raise AirflowFailException(f"max_failed_fraction is {share}; it must be between 0 and 1.")
            options["max_failed_fraction"] = str(share)
        if (only := as_text("only", self.only)) is not None:
            if only != "failed":
                raise AirflowFailException(f"only is {only!r}; it must be 'failed'.")
            options["only"] = only
        if (rows := as_integer("sample", self.sample)) is not None:
            options["sample"] = str(rows)
        return options

    def did_nothing(self, result: JsonObject) -> bool:
        plan = result.get("plan")
        if isinstance(plan, dict):
            return not plan.get("fragments")
        if "sample" in result:
            return False
        return result.get("rows_assigned") == 0 and not result.get("rows_failed")

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the table, and the input columns of the column."""
        from airflow_provider_lance.tasks.lineage import backfill_lineage

        table_id, branch = self.parse_id(self.table_id), none_if_blank(self.branch)
        return self.facets(backfill_lineage(self.hook, table_id, self.column, branch))
