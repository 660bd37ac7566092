"""``LanceApplyOperator``: brings tables and views to their declaration."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.declarations import load_declarations
from airflow_provider_lance.declarations.apply import Applied, RefusedPlanError, apply_plan
from airflow_provider_lance.declarations.compare import make_plan
from airflow_provider_lance.declarations.plan import Part, read_parts
from airflow_provider_lance.operators.base import LanceBaseOperator
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.operator_arguments import LanceArguments
from airflow_provider_lance.tasks.outlets import drop_other_tables, is_mapped, publish_change
from airflow_provider_lance.tasks.templating import as_boolean

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.declarations.collection import Declarations, DeclarationSource
    from airflow_provider_lance.declarations.plan import Plan
    from airflow_provider_lance.tasks.lineage import TableLineage, TaskLineage


class LanceApplyOperator(LanceBaseOperator):
    """Compare declared tables and views with the namespace, and create or change what differs.

    The differences are logged like a plan: ``+`` is created, ``~`` is changed, ``-`` is dropped, and ``!`` cannot be
    made. If one cannot be made, the task fails and changes nothing. A second run finds no differences.

    The guide is ``docs/operators/apply.md``.

    :param declaration: The declaration: a :class:`~airflow_provider_lance.declarations.LanceTable`, a
        :class:`~airflow_provider_lance.declarations.LanceView`, a list of them, or the path of a YAML file or of a
        folder of such files. A relative path belongs to the folder of the DAG file. (templated)
    :param allow_drop: Whether columns and indices that are not declared are dropped. Otherwise they are kept and shown.
        (templated)
    :param plan_only: Whether the task only logs and returns the differences, without changing anything. (templated)
    :param only: The parts of the declaration that are compared: ``tables``, ``columns``, ``indices``, ``views``, or a
        list of them. By default it is all of them.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with the number of differences to ``create``, ``change``, ``drop``, ``keep`` and ``refuse``, the
        ``changes`` themselves, ``applied``, and the ``versions`` of the tables and views that were changed.
    """

    template_fields: Sequence[str] = (
        *LanceBaseOperator.template_fields,
        "declaration",
        "allow_drop",
        "plan_only",
    )

    def __init__(
        self,
        *,
        declaration: DeclarationSource,
        allow_drop: bool | str = False,
        plan_only: bool | str = False,
        only: Part | Collection[Part] | None = None,
        **kwargs: Unpack[LanceArguments],
    ) -> None:
        super().__init__(**kwargs)
        read_parts(only)
        self.declaration = declaration
        self.allow_drop = allow_drop
        self.plan_only = plan_only
        self.only = only
        self.applied = Applied()
        if not _is_template(declaration):
            self._load()  # an error in a file is an error of the DAG

    def execute(self, context: Context) -> JsonObject:
        allow_drop = bool(as_boolean("allow_drop", self.allow_drop))
        plan_only = bool(as_boolean("plan_only", self.plan_only))
        plan = self._compare(allow_drop)
        for line in plan.lines():
            self.log.info("%s", line)
        self.applied = applied = Applied()
        if not plan_only:
            self._apply(plan, applied, allow_drop)
        versions = {self.hook.join_id(changed): version for changed, version in applied.versions.items()}
        self._publish(context, applied)
        return {**plan.to_json(), "applied": not plan_only, "versions": versions}

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the tables and views that were changed, and their sources."""
        from airflow_provider_lance.tasks.lineage import applied_facets

        return applied_facets(self.hook, [*self.outlets, *self.inlets], self._lineages())

    def _lineages(self) -> Iterator[TableLineage]:
        from airflow_provider_lance.tasks.lineage import TableLineage, added_columns_lineage, view_lineage

        for table_id, version in self.applied.versions.items():
            changes = [change for change in self.applied.done if change.id == table_id]
            columns = [str(change.name) for change in changes if change.kind == "column" and change.action != "drop"]
            if any(change.kind == "view" for change in changes):
                lineage = view_lineage(self.hook, list(table_id))
            elif columns:
                lineage = added_columns_lineage(self.hook, list(table_id), {}, columns)
            else:
                lineage = TableLineage(output=list(table_id))
            yield replace(lineage, version=version)

    def _load(self) -> Declarations:
        return load_declarations(self.declaration, folder=self._folder)

    @property
    def _folder(self) -> Path | None:
        """The folder of the DAG file, which a relative path belongs to."""
        dag = self.get_dag()
        return Path(dag.fileloc).parent if dag is not None and dag.fileloc else None

    def _compare(self, allow_drop: bool) -> Plan:
        try:
            return make_plan(self._load(), self.hook, allow_drop=allow_drop, only=self.only)
        except (WireError, ValueError) as error:
            failure = task_error(error)
        raise log_failure(self.log, failure)

    def _apply(self, plan: Plan, applied: Applied, allow_drop: bool) -> None:
        failure: AirflowException
        try:
            apply_plan(plan, self.hook, allow_drop=allow_drop, applied=applied)
        except RefusedPlanError as error:
            failure = AirflowFailException(str(error))
        except (WireError, ValueError) as error:
            failure = task_error(error)
        else:
            if applied.done:
                self.log.info("Applied: %d changes.", len(applied.done))
            return
        for change in applied.done:
            self.log.info("Done before the failure: %s", change.line)
        raise log_failure(self.log, failure)

    def _publish(self, context: Context, applied: Applied) -> None:
        """Write the events of the declared outlets whose tables were changed."""
        if is_mapped(context) and applied.versions:
            drop_other_tables(self, list(applied.versions))
        for table_id, version in applied.versions.items():
            publish_change(self, context, self.hook, table_id, version=version)


def _is_template(declaration: object) -> bool:
    return isinstance(declaration, str | os.PathLike) and any(mark in os.fspath(declaration) for mark in ("{{", "{%"))
