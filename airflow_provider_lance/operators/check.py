"""``LanceTableCheckOperator``: a gate with figures, for before a tag moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from airflow_provider_lance.api.ids import Identifier
from airflow_provider_lance.api.versions import WITH_VERSION
from airflow_provider_lance.operators.base import LanceBaseOperator, choice
from airflow_provider_lance.operators.rendered import given, literal, number, version_number, whole_number

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class LanceTableCheckOperator(LanceBaseOperator):
    """Count, compare, and fail or end as skipped with the figures.

    :param table_id: the table. (templated)
    :param min_rows: at least so many rows. (templated)
    :param max_rows: at most so many rows. (templated)
    :param not_null: a column or columns whose nulls are counted; or column → how many it may have. A dot leads into a
        struct. (templated)
    :param max_nulls: how many each of them may have, a count (``10``) or a share of the rows (``0.01``). (templated)
    :param predicate: an SQL predicate that every row must satisfy. A row for which it is null does not. (templated)
    :param version: of the table to check, its newest by default. (templated)
    :param branch: of the table. (templated)
    :param on_failure: ``fail`` the task without another try, or ``skip_task``: end it, and what follows, as skipped.
    :return: ``{"table_id", "version", "rows", "nulls": {…}, "violations", "problems": []}``.
    """

    template_fields: Sequence[str] = (
        *LanceBaseOperator.template_fields,
        "table_id",
        "min_rows",
        "max_rows",
        "not_null",
        "max_nulls",
        "predicate",
        "version",
        "branch",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"predicate": "sql"}

    def __init__(
        self,
        *,
        table_id: Identifier,
        min_rows: int | None = None,
        max_rows: int | None = None,
        not_null: str | Sequence[str] | Mapping[str, float] = (),
        max_nulls: float | str = 0,
        predicate: str | None = None,
        version: int | str | None = None,
        branch: str | None = None,
        on_failure: Literal["fail", "skip_task"] = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        choice("on_failure", on_failure, "fail", "skip_task")
        self.table_id = table_id
        self.min_rows = min_rows
        self.max_rows = max_rows
        self.not_null = not_null
        self.max_nulls = max_nulls
        self.predicate = predicate
        self.version = version
        self.branch = branch
        self.on_failure = on_failure

    def execute(self, context: Context) -> dict[str, Any]:
        table_id = self.parse_id(self.table_id)
        version = version_number("version", None if self.version == "latest" else self.version)
        least, most_rows = whole_number("min_rows", self.min_rows), whole_number("max_rows", self.max_rows)
        columns = literal(self.not_null) or ()
        columns = [columns] if isinstance(columns, str) else columns
        allowed = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, self.max_nulls)
        predicate, branch = given(self.predicate), given(self.branch)
        limits = {column: number("max_nulls", limit) or 0.0 for column, limit in allowed.items()}
        if version is None:
            # One version for all figures, whoever writes meanwhile.
            version = self.answer("describe_table", {"id": table_id, "branch": branch, **WITH_VERSION}).get("version")
        at = {"id": table_id, "version": version, "branch": branch}

        def count(predicate: str | None = None) -> int:
            return int(self.answer("count_table_rows", {**at, "predicate": predicate})["count"])

        rows = count()
        nulls = {column: count(f"{_quoted(column)} IS NULL") for column in limits}
        violations = rows - count(predicate) if predicate else None
        problems = []
        if least is not None and rows < least:
            problems.append(f"{rows:,} rows, at least {least:,} expected")
        if most_rows is not None and rows > most_rows:
            problems.append(f"{rows:,} rows, at most {most_rows:,} expected")
        for column, limit in limits.items():
            most = limit * rows if 0 < limit < 1 else limit
            if nulls[column] > most:
                problems.append(f"{nulls[column]:,} of {rows:,} values of {column} are null, at most {most:,g} allowed")
        if violations:
            problems.append(f"{violations:,} of {rows:,} rows violate {predicate}")
        figures = {
            "table_id": table_id,
            "version": at["version"],
            "rows": rows,
            "nulls": nulls,
            "violations": violations,
            "problems": problems,
        }
        self.log.info("Checked %s: %s", "$".join(table_id), figures)
        if problems:
            context["ti"].xcom_push(key="figures", value=figures)
            message = f"Table {'$'.join(table_id)} at version {at['version']}: {'; '.join(problems)}."
            raise (AirflowSkipException if self.on_failure == "skip_task" else AirflowFailException)(message)
        return figures


def _quoted(column: str) -> str:
    """A column's name in SQL, whatever it is made of; one with backticks was quoted by whoever wrote it."""
    return column if "`" in column else ".".join(f"`{part}`" for part in column.split("."))
