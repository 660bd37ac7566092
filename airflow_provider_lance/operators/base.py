"""What all Lance operators share: the hook, calls of the namespace, and asset events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Unpack

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.configuration import DEFAULT_CONNECTION
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.operator_arguments import AirflowArguments, LanceArguments
from airflow_provider_lance.tasks.outlets import drop_other_tables, is_mapped, publish_change
from airflow_provider_lance.tasks.templating import read_table_id

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.common.compat.sdk import Context
    from pydantic import JsonValue

    from airflow_provider_lance.api.arrow import ArrowData
    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook
    from airflow_provider_lance.tasks.lineage import TableLineage, TaskLineage


class TableChange(NamedTuple):
    """A table that a task has changed, and what is known of the change."""

    table_id: list[str]
    version: int | None
    rows: int | None


class LanceBaseOperator(BaseOperator):
    """The base class of all operators. It is not for use in a DAG.

    :param lance_conn_id: The id of the namespace's connection. (templated)
    """

    ui_color = "#fde8d7"
    #: The table that this task has changed, with the version and the rows of its event.
    changed: TableChange | None = None
    template_fields: Sequence[str] = ("lance_conn_id",)

    def __init__(self, *, lance_conn_id: str = DEFAULT_CONNECTION, **kwargs: Unpack[AirflowArguments]) -> None:
        super().__init__(**kwargs)
        self.lance_conn_id = lance_conn_id

    @cached_property
    def hook(self) -> LanceNamespaceHook:
        from airflow_provider_lance.hooks.lance import LanceNamespaceHook

        return LanceNamespaceHook(self.lance_conn_id)

    def parse_id(self, identifier: Identifier) -> list[str]:
        """A table's or view's identifier as a list. The root namespace is refused."""
        return read_table_id(self.hook, identifier, self.task_id)

    def call(self, operation: str, fields: Mapping[str, object], data: ArrowData | None = None) -> JsonObject:
        """Run an operation of the namespace; an error becomes the task's failure."""
        answer = self.call_tolerant(operation, fields, data)
        assert answer is not None
        return answer

    def call_tolerant(
        self,
        operation: str,
        fields: Mapping[str, object],
        data: ArrowData | None = None,
        *,
        tolerate: Sequence[int] = (),
    ) -> JsonObject | None:
        """Run an operation of the namespace; ``None`` where it fails with one of the tolerated error codes."""
        try:
            return self.hook.call(operation, fields, data)
        except WireError as error:
            if error.code in tolerate:
                return None
            failure: AirflowException = task_error(error)
        # It is raised outside of the except block, because a chained frame could show the values of headers.
        raise log_failure(self.log, failure)

    def publish(self, context: Context, table_id: Sequence[str], **extra: JsonValue) -> None:
        """Write ``extra`` to the events of this table: of its declared outlets, and through aliases among them."""
        if self.has_dynamic_table or is_mapped(context):
            drop_other_tables(self, [table_id])
        publish_change(self, context, self.hook, table_id, **extra)
        version, rows = extra.get("version"), extra.get("rows")
        self.changed = TableChange(
            list(table_id), version if isinstance(version, int) else None, rows if isinstance(rows, int) else None
        )

    def facets(self, lineage: TableLineage) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider, with the version and the rows that the task wrote."""
        from airflow_provider_lance.tasks.lineage import lineage_facets

        if self.changed is not None:
            lineage = replace(lineage, version=self.changed.version, rows=self.changed.rows)
        return lineage_facets(self.hook, [*self.outlets, *self.inlets], lineage)

    @property
    def has_dynamic_table(self) -> bool:
        """Whether the table was not known when the DAG was parsed. Then its outlets are those of several tables."""
        return False


class LanceTableOperator(LanceBaseOperator):
    """The base class of the operators of one table. It is not for use in a DAG.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    """

    template_fields: Sequence[str] = (*LanceBaseOperator.template_fields, "table_id")

    def __init__(self, *, table_id: Identifier, **kwargs: Unpack[LanceArguments]) -> None:
        super().__init__(**kwargs)
        self.table_id = table_id
        self._table_was_template = False

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the fields as every operator does, and note whether the table's identifier was a template."""
        before = self.table_id
        super().render_template_fields(context, jinja_env)
        self._table_was_template = self.table_id != before

    @property
    def has_dynamic_table(self) -> bool:
        return self._table_was_template

    def describe(self, table_id: list[str], branch: str | None = None) -> JsonObject:
        """The description of a table, with its version and schema."""
        return self.call("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION})


def table_facets(operator: LanceTableOperator, path: object = None, branch: str | None = None) -> TaskLineage | None:
    """The lineage of a task that wrote a table, perhaps from files; ``None`` where it changed nothing."""
    from airflow_provider_lance.storage.input_files import stable_part
    from airflow_provider_lance.tasks.lineage import TableLineage

    if operator.changed is None:
        return None
    files = [] if path is None else [stable_part(str(path))]
    return operator.facets(TableLineage(output=operator.changed.table_id, files=files, branch=branch))
