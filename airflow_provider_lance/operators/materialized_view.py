"""Operators that define a materialized view, and that refresh one, as a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import IF_EXISTS, JobType
from airflow_provider_lance.definitions.sql.names import same_query
from airflow_provider_lance.operators.job_base import LanceJobOperator
from airflow_provider_lance.tasks.errors import log_failure
from airflow_provider_lance.tasks.operator_arguments import JobArguments
from airflow_provider_lance.tasks.rejoin import submitted_before
from airflow_provider_lance.tasks.templating import (
    Reader,
    as_boolean,
    as_integer,
    as_mapping,
    as_text,
    choice,
    rendered_fields,
)

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.lineage import TaskLineage

IfViewExists = Literal["fail", "skip", "refresh", "replace"]
#: The fields of ``CreateMaterializedView``, besides ``id``, and what a rendered value must be. Each is an argument.
CREATE_FIELDS: dict[str, Reader] = {
    "query": as_text,
    "kind": as_text,
    "source_query": as_text,
    "output_schema": as_text,
    "udtf_spec": as_mapping,
    "with_no_data": as_boolean,
    "auto_refresh": as_boolean,
    "refresh_policy": as_text,
}
#: The fields of ``RefreshMaterializedView``, besides ``id``, and what a rendered value must be. Each is an argument.
REFRESH_FIELDS: dict[str, Reader] = {
    "src_version": as_integer,
    "full": as_boolean,
    "refresh_policy": as_text,
    "max_rows_per_fragment": as_integer,
    "concurrency": as_integer,
    "intra_applier_concurrency": as_integer,
    "source_task_size": as_integer,
    "output_limit": as_integer,
    "cluster": as_text,
    "manifest": as_text,
}


class _ViewOperator(LanceJobOperator):
    """The base class of the operators of a view."""

    job_type = JobType.REFRESH.value

    def did_nothing(self, result: JsonObject) -> bool:
        if str(result.get("mode", "")).lower() in {"no_op", "noop", "none", "unchanged"}:
            return True
        if "plan" in result:
            return False  # there is a plan only where there is work
        return result.get("rows_written") == 0 and not result.get("rows_deleted")

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the view's sources, and the columns of a single source."""
        from airflow_provider_lance.tasks.lineage import view_lineage

        return self.facets(view_lineage(self.hook, self.parse_id(self.table_id)))


class LanceCreateMaterializedViewOperator(_ViewOperator):
    """Define a view and, unless ``with_no_data``, wait for its first refresh (``CreateMaterializedView``).

    Give either ``query``, or ``kind``, ``source_query`` and ``output_schema``.

    The guide is ``docs/operators/create_materialized_view.md``.

    :param table_id: The view's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param query: The view's SQL query, or the name of a ``.sql`` file that holds it. (templated)
    :param kind: The kind of the view: ``query``, ``udtf`` or ``chunker``. (templated)
    :param source_query: The serialized query of the view's source. (templated)
    :param output_schema: The Arrow schema of the view's rows, in IPC format and base64. (templated)
    :param udtf_spec: The function of a ``udtf`` or ``chunker`` view. (templated)
    :param with_no_data: Whether the view is only defined, without a first refresh. (templated)
    :param auto_refresh: Whether the server refreshes the view when its source changes. (templated)
    :param refresh_policy: How the view is refreshed: ``auto`` (the cheaper way), ``incremental`` (computed anew only
        where no technique applies), ``incremental_strict`` (fails instead of being computed anew) or ``full``.
        (templated)
    :param if_exists: What happens if the view exists. ``fail`` fails the task. ``skip`` succeeds without a job, and
        ``refresh`` refreshes the view, both only if its definition is equal, and fail with both texts otherwise.
        ``replace`` replaces a different definition and refreshes. Readers keep the old rows, in the old columns, until
        that refresh.
    :param wait_for_completion: Whether the task waits for the job's end. Otherwise it succeeds with the ``job_id``,
        for a :class:`~airflow_provider_lance.sensors.job.LanceJobSensor`, and the job has no lease.
    :param deferrable: Whether the task waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration.
    :param poll_interval: The seconds between two polls of the job. The default is ``[lance] poll_interval``.
    :param timeout: How long the job may take, counted from its submission. The default is ``execution_timeout``. The
        job is cancelled after that, and the task fails with a timeout, on a worker as well as deferred.
    :param cancel_on_kill: Whether the job is cancelled when the task is killed, cleared or marked.
    :param on_conflict: What happens if another job already writes the same view. ``fail`` fails the task. ``join``
        waits for that job and takes its result if its request is equal, and fails otherwise. ``wait`` waits for its
        end, within ``timeout``, and then submits. That job is never cancelled.
    :param lease_seconds: The seconds after which the server ends a job that nobody has asked about. The default is
        ``[lance] job_lease_seconds``.
    :param skip_if_unchanged: Whether the task ends as skipped when there is nothing to do.
    :param request_context: More context entries of the request, which are sent as ``x-lance-ctx-<key>``. (templated)
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``job_id``, ``job_type``, ``table_id``, ``state``, ``version`` and the job's ``result``.
    """

    operation = "create_materialized_view"
    template_fields: Sequence[str] = (*_ViewOperator.template_fields, *CREATE_FIELDS)
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **_ViewOperator.template_fields_renderers,
        "query": "sql",
        "source_query": "sql",
        "udtf_spec": "json",
    }

    def __init__(
        self,
        *,
        query: str | None = None,
        kind: str | None = None,
        source_query: str | None = None,
        output_schema: str | None = None,
        udtf_spec: Mapping[str, object] | str | None = None,
        with_no_data: bool | str = False,
        auto_refresh: bool | str | None = None,
        refresh_policy: str | None = None,
        if_exists: IfViewExists = "fail",
        **kwargs: Unpack[JobArguments],
    ) -> None:
        super().__init__(**kwargs)
        if (query is None) == (source_query is None):
            raise ValueError("Give the view either as `query`, or as `kind`, `source_query` and `output_schema`.")
        if source_query is not None and (kind is None or output_schema is None):
            raise ValueError("`source_query` needs `kind` and `output_schema` beside it.")
        self.query = query
        self.kind = kind
        self.source_query = source_query
        self.output_schema = output_schema
        self.udtf_spec = udtf_spec
        self.with_no_data = with_no_data
        self.auto_refresh = auto_refresh
        self.refresh_policy = refresh_policy
        self.if_exists = choice("if_exists", if_exists, IfViewExists)

    def request(self) -> dict[str, object]:
        return rendered_fields(self, CREATE_FIELDS)

    def options(self) -> dict[str, str]:
        return {} if self.if_exists == "fail" else {IF_EXISTS: self.if_exists}

    def submit(self, context: Context, table_id: list[str]) -> JsonObject:
        created_before = submitted_before(context)
        entries = self.full_request_context(context, table_id)
        if created_before and self.if_exists == "skip":
            entries[IF_EXISTS] = "refresh"  # an earlier try created the view, and its rows are still missing
        try:
            answer = self.hook.call(self.operation, {"id": table_id, **self.request(), "context": entries})
            if self.if_exists == "skip" and not answer.get("job_id"):
                self.log.info("The view is there, at version %s, or was only to be defined.", answer.get("version"))
            return answer
        except WireError as error:
            if error.code != ErrorCode.TABLE_ALREADY_EXISTS or (self.if_exists == "fail" and not created_before):
                raise
        # A server that refuses although `if-exists` was sent does not compare definitions.
        if created_before:
            self.log.info("An earlier try created the view; its data is still to come.")
        else:
            self._compare_query(table_id)
        if self.if_exists == "skip" and not created_before:
            return {"version": self.hook.current_version(table_id)}
        entries = self.full_request_context(context, table_id)
        return self.hook.call("refresh_materialized_view", {"id": table_id, "context": entries})

    def _compare_query(self, table_id: list[str]) -> None:
        """Compare the query with the one that the server describes, and fail if they differ."""
        query: object = None
        try:
            query = self.hook.call("describe_materialized_view", {"id": table_id}).get("query")
        except WireError as error:
            self.log.info("The server does not describe its view: %s", error)
        wanted = self.query if self.query is not None else self.source_query
        if not isinstance(query, str) or not query.strip():
            self.log.warning(
                "The view is there already, and the server does not tell its query: it was not compared with this one."
            )
        elif not same_query(query, str(wanted)):
            failed = AirflowFailException(
                f"The view {self.hook.join_id(table_id)} is defined otherwise: query is {query!r} there and "
                f"{wanted!r} here. This server cannot change it: drop the view and create it again."
            )
            raise log_failure(self.log, failed)
        else:
            self.log.info("The view is there already, with an equal query (if_exists=%s).", self.if_exists)


class LanceRefreshMaterializedViewOperator(_ViewOperator):
    """Refresh a view from its source (``RefreshMaterializedView``).

    The guide is ``docs/operators/refresh_materialized_view.md``.

    :param table_id: The view's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param src_version: The version of the source to refresh to. By default it is the newest. (templated)
    :param full: Whether the view is rebuilt instead of applying the changes of its source. (templated)
    :param refresh_policy: How the view is refreshed: ``auto`` (the cheaper way), ``incremental`` (computed anew only
        where no technique applies), ``incremental_strict`` (fails instead of being computed anew) or ``full``. The
        default is the policy of the view. (templated)
    :param max_rows_per_fragment: The largest number of rows in a new fragment of the view. (templated)
    :param concurrency: How many Spark tasks run at once. (templated)
    :param intra_applier_concurrency: How many threads of a Spark task call the function. (templated)
    :param source_task_size: The number of source rows of a Spark task. (templated)
    :param output_limit: The largest number of rows of a chunker's view. (templated)
    :param cluster: The cluster on which the job runs: a name from the server's configuration, or ``external``.
        (templated)
    :param manifest: The environment of the function for this refresh, as inline JSON. (templated)
    :param wait_for_completion: Whether the task waits for the job's end. Otherwise it succeeds with the ``job_id``,
        for a :class:`~airflow_provider_lance.sensors.job.LanceJobSensor`, and the job has no lease.
    :param deferrable: Whether the task waits in the triggerer instead of on a worker. The default is ``[operators]
        default_deferrable`` of Airflow's configuration.
    :param poll_interval: The seconds between two polls of the job. The default is ``[lance] poll_interval``.
    :param timeout: How long the job may take, counted from its submission. The default is ``execution_timeout``. The
        job is cancelled after that, and the task fails with a timeout, on a worker as well as deferred.
    :param cancel_on_kill: Whether the job is cancelled when the task is killed, cleared or marked.
    :param on_conflict: What happens if another job already writes the same view. ``fail`` fails the task. ``join``
        waits for that job and takes its result if its request is equal, and fails otherwise. ``wait`` waits for its
        end, within ``timeout``, and then submits. That job is never cancelled.
    :param lease_seconds: The seconds after which the server ends a job that nobody has asked about. The default is
        ``[lance] job_lease_seconds``.
    :param skip_if_unchanged: Whether the task ends as skipped when there is nothing to do.
    :param request_context: More context entries of the request, which are sent as ``x-lance-ctx-<key>``. (templated)
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``job_id``, ``job_type``, ``table_id``, ``state``, ``version`` and the job's ``result``.
    """

    operation = "refresh_materialized_view"
    template_fields: Sequence[str] = (*_ViewOperator.template_fields, *REFRESH_FIELDS)

    def __init__(
        self,
        *,
        src_version: int | str | None = None,
        full: bool | str | None = None,
        refresh_policy: str | None = None,
        max_rows_per_fragment: int | str | None = None,
        concurrency: int | str | None = None,
        intra_applier_concurrency: int | str | None = None,
        source_task_size: int | str | None = None,
        output_limit: int | str | None = None,
        cluster: str | None = None,
        manifest: str | None = None,
        **kwargs: Unpack[JobArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.src_version = src_version
        self.full = full
        self.refresh_policy = refresh_policy
        self.max_rows_per_fragment = max_rows_per_fragment
        self.concurrency = concurrency
        self.intra_applier_concurrency = intra_applier_concurrency
        self.source_task_size = source_task_size
        self.output_limit = output_limit
        self.cluster = cluster
        self.manifest = manifest

    def request(self) -> dict[str, object]:
        return rendered_fields(self, REFRESH_FIELDS)

    def unchanged(self, table_id: list[str]) -> str | None:
        """Compare the versions that the view was refreshed from with the newest ones, where the server tells them."""
        from airflow_provider_lance.tasks.lineage import view_sources

        request = self.request()
        if request.get("full") or request.get("refresh_policy") == "full" or "src_version" in request:
            return None
        try:
            sources = view_sources(self.hook, table_id)
            for source in sources:
                if source.refreshed_version is None:
                    return None
                if self.hook.current_version(source.table_id) != source.refreshed_version:
                    return None
        except WireError as error:
            self.log.info("Whether a source has changed cannot be told, so the view is refreshed: %s", error)
            return None
        if not sources:
            return None
        join_id = self.hook.join_id
        seen = " and ".join(f"version {source.refreshed_version} of {join_id(source.table_id)}" for source in sources)
        return f"The view {join_id(table_id)} is up to date with {seen}."
