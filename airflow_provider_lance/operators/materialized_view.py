"""Materialized views: ``LanceCreateMaterializedViewOperator`` and ``LanceRefreshMaterializedViewOperator``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier, join_id
from airflow_provider_lance.api.job_words import IF_EXISTS, JobType
from airflow_provider_lance.operators.base import choice, log_reason
from airflow_provider_lance.operators.rejoin import submitted_before
from airflow_provider_lance.operators.rendered import given, mapping, rendered_fields, text, truth, whole_number
from airflow_provider_lance.operators.submit import LanceJobOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_TABLE_EXISTS = 5
#: The fields of a refresh, besides ``id``, and what a rendered value must be; each is an argument.
REFRESH_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "src_version": whole_number,
    "full": truth,
    "max_rows_per_fragment": whole_number,
    "concurrency": whole_number,
    "intra_applier_concurrency": whole_number,
    "source_task_size": whole_number,
    "output_limit": whole_number,
    "cluster": text,
    "manifest": text,
}


class _ViewOperator(LanceJobOperator):
    job_type = JobType.REFRESH.value

    def did_nothing(self, result: dict[str, Any]) -> bool:
        if str(result.get("mode", "")).lower() in {"no_op", "noop", "none", "unchanged"}:
            return True
        if "plan" in result:
            return False  # there is a plan only where there is work
        return result.get("rows_written") == 0 and not result.get("rows_deleted")

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """For Airflow's OpenLineage provider: from the source tables, and a single one's columns, to the view's."""
        from airflow_provider_lance.operators.lineage import lineage_facets, view_lineage

        return lineage_facets(
            self.hook, [*self.outlets, *self.inlets], view_lineage(self.hook, self.parse_id(self.table_id))
        )


class LanceCreateMaterializedViewOperator(_ViewOperator):
    """Define a view and, unless ``with_no_data``, wait for its first refresh (``CreateMaterializedView``).

    Give either ``query`` (SQL, as LanceDB's client does) or ``kind``, ``source_query`` and ``output_schema``. The
    arguments for waiting are those of :class:`~airflow_provider_lance.operators.submit.LanceJobOperator`.

    :param table_id: the view. (templated)
    :param query: the view's SQL. (templated)
    :param kind: ``query``, ``udtf`` or ``chunker``. (templated)
    :param source_query: the serialized source query. (templated)
    :param output_schema: the output's Arrow schema in IPC format, base64. (templated)
    :param udtf_spec: the function of a ``udtf`` or ``chunker`` view. (templated)
    :param with_no_data: only define it. (templated)
    :param auto_refresh: let the server refresh it when its source moves. (templated)
    :param if_exists: for a view that is there: ``fail``; ``skip`` (succeed without a job) or ``refresh`` it, both only
        if its definition is equal to this one, and fail with both texts otherwise; or ``replace`` a different
        definition and refresh. Readers keep the old rows, in the old columns, until that refresh.
    """

    operation = "create_materialized_view"
    template_fields: Sequence[str] = (
        *_ViewOperator.template_fields,
        "query",
        "source_query",
        "output_schema",
        "kind",
        "udtf_spec",
        "with_no_data",
        "auto_refresh",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"query": "sql", "source_query": "sql"}

    def __init__(
        self,
        *,
        table_id: Identifier,
        query: str | None = None,
        kind: str | None = None,
        source_query: str | None = None,
        output_schema: str | None = None,
        udtf_spec: dict[str, Any] | None = None,
        with_no_data: bool = False,
        auto_refresh: bool | None = None,
        if_exists: Literal["fail", "skip", "refresh", "replace"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(table_id=table_id, **kwargs)
        if (query is None) == (source_query is None):
            raise ValueError("Give the view either as `query`, or as `kind`, `source_query` and `output_schema`.")
        if source_query is not None and (kind is None or output_schema is None):
            raise ValueError("`source_query` needs `kind` and `output_schema` beside it.")
        choice("if_exists", if_exists, "fail", "skip", "refresh", "replace")
        self.query = query
        self.kind = kind
        self.source_query = source_query
        self.output_schema = output_schema
        self.udtf_spec = udtf_spec
        self.with_no_data = with_no_data
        self.auto_refresh = auto_refresh
        self.if_exists = if_exists

    def request(self) -> dict[str, Any]:
        fields = {
            "query": self.query,
            "kind": given(self.kind),
            "source_query": self.source_query,
            "output_schema": self.output_schema,
            "udtf_spec": mapping("udtf_spec", self.udtf_spec),
            "with_no_data": truth("with_no_data", self.with_no_data),
            "auto_refresh": truth("auto_refresh", self.auto_refresh),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def options(self) -> dict[str, str]:
        return {} if self.if_exists == "fail" else {IF_EXISTS: self.if_exists}

    def submit(self, context: Context, table_id: list[str]) -> dict[str, Any]:
        ours = submitted_before(context)
        sent = self._request_context(context, table_id)
        if ours and self.if_exists == "skip":
            sent[IF_EXISTS] = "refresh"  # an earlier try created the view; its data is still to come
        try:
            answer = self.hook.call(self.operation, {"id": table_id, **self.request(), "context": sent})
            if self.if_exists == "skip" and not answer.get("job_id"):
                self.log.info("The view is there, at version %s, or was only to be defined.", answer.get("version"))
            return answer
        except WireError as error:
            if error.code != _TABLE_EXISTS or (self.if_exists == "fail" and not ours):
                raise
        # The server does not compare definitions itself.
        if ours:
            self.log.info("An earlier try created the view; its data is still to come.")
        else:
            self._compare(table_id)
        if self.if_exists == "skip" and not ours:
            return {"version": self.hook.current_version(table_id)}
        return self.hook.call(
            "refresh_materialized_view", {"id": table_id, "context": self._request_context(context, table_id)}
        )

    def _compare(self, table_id: list[str]) -> None:
        """Compare with what a server tells of its view, where the server itself does not; fails for another one."""
        query: Any = None
        try:
            query = self.hook.call("describe_materialized_view", {"id": table_id}).get("query")
        except WireError as error:
            self.log.info("The server does not describe its view: %s", error)
        wanted = self.query if self.query is not None else self.source_query
        if not isinstance(query, str) or not query.strip():
            self.log.warning(
                "The view is there already, and the server does not tell its query: it was not compared with this one."
            )
        elif _words(query) != _words(str(wanted)):
            failed = AirflowFailException(
                f"The view {join_id(table_id)} is defined otherwise: query is {query!r} there and {wanted!r} here. "
                "This server cannot change it: drop the view and create it again."
            )
            raise log_reason(self.log, failed)
        else:
            self.log.info("The view is there already, with an equal query (if_exists=%s).", self.if_exists)


def _words(query: str) -> list[str]:
    """A query's text without its line breaks and indentation; servers may quote names that need no quotes."""
    return query.replace("`", "").rstrip("; \n").split()


class LanceRefreshMaterializedViewOperator(_ViewOperator):
    """Bring a view up to its source (``RefreshMaterializedView``).

    The arguments for waiting are those of :class:`~airflow_provider_lance.operators.submit.LanceJobOperator`.

    :param table_id: the view. (templated)
    :param src_version: of the source to refresh to; its newest by default. (templated)
    :param full: rebuild instead of applying the changes. (templated)
    :param max_rows_per_fragment: of the view's new fragments. (templated)
    :param concurrency: Spark tasks at once. (templated)
    :param intra_applier_concurrency: threads per Spark task. (templated)
    :param source_task_size: source rows per work item. (templated)
    :param output_limit: cut a chunker's view to so many rows. (templated)
    :param cluster: where it runs, a name from the server's configuration, or ``external``. (templated)
    :param manifest: the function's environment for this refresh, as inline JSON. (templated)
    """

    operation = "refresh_materialized_view"
    template_fields: Sequence[str] = (*_ViewOperator.template_fields, *REFRESH_FIELDS)

    def __init__(
        self,
        *,
        table_id: Identifier,
        src_version: int | None = None,
        full: bool | None = None,
        max_rows_per_fragment: int | None = None,
        concurrency: int | None = None,
        intra_applier_concurrency: int | None = None,
        source_task_size: int | None = None,
        output_limit: int | None = None,
        cluster: str | None = None,
        manifest: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(table_id=table_id, **kwargs)
        self.src_version = src_version
        self.full = full
        self.max_rows_per_fragment = max_rows_per_fragment
        self.concurrency = concurrency
        self.intra_applier_concurrency = intra_applier_concurrency
        self.source_task_size = source_task_size
        self.output_limit = output_limit
        self.cluster = cluster
        self.manifest = manifest

    def request(self) -> dict[str, Any]:
        return rendered_fields(self, REFRESH_FIELDS)

    def unchanged(self, table_id: list[str]) -> str | None:
        """Compare the versions the view was refreshed from with its sources' newest, where the server tells them."""
        from airflow_provider_lance.operators.lineage import view_sources

        request = self.request()
        if request.get("full") or "src_version" in request:
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
        seen = " and ".join(f"version {source.refreshed_version} of {'$'.join(source.table_id)}" for source in sources)
        return f"The view {'$'.join(table_id)} is up to date with {seen}."
