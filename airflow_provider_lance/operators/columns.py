"""``LanceAddColumnsOperator``: adds columns to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.declarations.columns import compare_columns, replace_rules
from airflow_provider_lance.declarations.namespace_state import column_rules
from airflow_provider_lance.operators.base import LanceTableOperator
from airflow_provider_lance.tasks.errors import log_failure, task_error
from airflow_provider_lance.tasks.operator_arguments import TableArguments
from airflow_provider_lance.tasks.templating import as_mapping, choice, none_if_blank

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.functions import UdfColumn
    from airflow_provider_lance.tasks.lineage import TaskLineage

IfColumnExists = Literal["fail", "skip", "replace"]


class LanceAddColumnsOperator(LanceTableOperator):
    """Add columns to a table (``AlterTableAddColumns``).

    The guide is ``docs/operators/add_columns.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param expressions: The SQL expression of each column whose values are written now. (templated)
    :param computed: The SQL expression of each column whose rule is declared, or the name of a ``.sql`` file that holds
        it. A backfill computes the values. (templated)
    :param virtual: The Python function of each column whose rule is declared, as a
        :class:`~airflow_provider_lance.functions.UdfColumn` or as the request's own entry with ``input_columns``,
        ``outputs`` and ``udf``. A backfill computes the values. (templated)
    :param branch: The branch of the table. By default it is the main branch. (templated)
    :param if_exists: What happens if a column exists. ``fail`` fails the task. ``skip`` accepts a column with an equal
        rule, and fails with both rules for a different one. ``replace`` replaces a different rule; all values of the
        column are outdated then, and readers see them until the next backfill. ``expressions`` are not kept with the
        table, so they are neither compared nor replaced.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``version``, and the names of the columns in ``added`` and ``replaced``.
    """

    template_fields: Sequence[str] = (
        *LanceTableOperator.template_fields,
        "expressions",
        "computed",
        "virtual",
        "branch",
    )
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"expressions": "json", "computed": "json", "virtual": "json"}

    def __init__(
        self,
        *,
        expressions: Mapping[str, str] | str | None = None,
        computed: Mapping[str, str] | str | None = None,
        virtual: Mapping[str, UdfColumn | Mapping[str, object]] | str | None = None,
        branch: str | None = None,
        if_exists: IfColumnExists = "fail",
        **kwargs: Unpack[TableArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.if_exists = choice("if_exists", if_exists, IfColumnExists)
        if not (expressions or computed or virtual):
            raise ValueError("Give at least one column in `expressions`, `computed` or `virtual`.")
        self.expressions = expressions
        self.computed = computed
        self.virtual = virtual
        self.branch = branch

    def execute(self, context: Context) -> JsonObject:
        table_id, branch = self.parse_id(self.table_id), none_if_blank(self.branch)
        columns = self._columns()
        described: JsonObject = {}
        new = columns
        replaced: list[JsonObject] = []
        if self.if_exists != "fail":
            described = self.describe(table_id, branch)
            new, replaced = self._missing_and_different(table_id, columns, column_rules(described))
        result = {"table_id": table_id, "added": _names(new), "replaced": _names(replaced)}
        if not new and not replaced:
            self.publish(context, table_id, version=described.get("version"))
            return {**result, **_version(described)}
        fields = {"id": table_id, "branch": branch, "new_columns": [*new, *replaced]}
        answer = self._replace(fields, replaced) if replaced else self.call("alter_table_add_columns", fields)
        name, version = self.hook.join_id(table_id), answer.get("version")
        if new:
            self.log.info("Added %s to table %s, version %s.", ", ".join(_names(new)), name, version)
        if replaced:
            self.log.info(
                "Replaced the rule of %s of table %s, version %s.", ", ".join(_names(replaced)), name, version
            )
        self.publish(context, table_id, version=version)
        return {**result, **_version(answer)}

    def _columns(self) -> list[JsonObject]:
        """The entries of the request, one for each column or function."""
        from airflow_provider_lance.functions import UdfColumn

        kinds = {"expression": self.expressions, "computed": self.computed, "virtual_column": self.virtual}
        try:
            return [
                {"name": name, kind: rule.entry(name) if isinstance(rule, UdfColumn) else rule}
                for kind, rules in kinds.items()
                for name, rule in (as_mapping(kind, rules) or {}).items()
            ]
        except ValueError as error:
            raise log_failure(self.log, task_error(error)) from error

    def get_openlineage_facets_on_complete(self, task_instance: TaskInstance) -> TaskLineage | None:
        """The lineage for Airflow's OpenLineage provider: the table, and the inputs of the columns."""
        from airflow_provider_lance.tasks.lineage import added_columns_lineage

        if self.changed is None:
            return None
        columns = self._columns()
        expressions = {column["name"]: str(column["expression"]) for column in columns if "expression" in column}
        return self.facets(added_columns_lineage(self.hook, self.changed.table_id, expressions, _names(columns)))

    def _missing_and_different(
        self, table_id: list[str], columns: list[JsonObject], rules: dict[str, dict[str, str]]
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """The columns that the table lacks, and those whose rule differs. Fails where a rule must not be replaced."""
        from airflow_provider_lance.definitions.differences import declared_columns

        compared = compare_columns(rules, columns)
        for column in compared.equal:
            names = declared_columns(column)
            self.log.info("Column %s is there already, with an equal rule (if_exists=%s).", names, self.if_exists)
            if "expression" in column:
                self.log.info("The table does not keep the expression of %s: it was not compared.", column["name"])
        different = compared.different
        if different and self.if_exists == "skip":
            listed = " ".join(f"Column {column['name']!r}: {differences}." for column, differences in different)
            failed = AirflowFailException(
                f"The table {self.hook.join_id(table_id)} has columns of these names with other rules. {listed} "
                "if_exists='replace' changes them."
            )
            raise log_failure(self.log, failed)
        for column, differences in different:
            if "expression" in column:
                raise AirflowFailException(
                    f"Column {column['name']!r}: {differences}. The values of an expression are written once, so there "
                    "is no rule to replace: declare it in `computed`, or drop the column first."
                )
            self.log.info("Replacing the rule of column %s: %s.", column["name"], differences)
        return compared.new, [column for column, _ in different]

    def _replace(self, fields: JsonObject, replaced: list[JsonObject]) -> JsonObject:
        try:
            return replace_rules(self.hook, fields, replaced)
        except WireError as error:
            failure = task_error(error)
        raise log_failure(self.log, failure)


def _names(columns: list[JsonObject]) -> list[str]:
    return [column["name"] for column in columns]


def _version(answer: JsonObject) -> JsonObject:
    return {} if answer.get("version") is None else {"version": answer["version"]}
