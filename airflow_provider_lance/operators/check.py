"""``LanceTableCheckOperator``: checks the rows of a table, for example before a tag moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from airflow_provider_lance.operators.base import LanceTableOperator
from airflow_provider_lance.tasks.operator_arguments import TableArguments
from airflow_provider_lance.tasks.templating import (
    as_integer,
    as_number,
    as_version,
    choice,
    none_if_blank,
    parse_literal,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.tasks.templating import TaskOutput

OnFailure = Literal["fail", "skip_task"]


@dataclass(frozen=True)
class _Figures:
    """What was counted, which is also what the task returns."""

    table_id: list[str]
    version: int | None
    rows: int
    nulls: dict[str, int]
    violations: int | None
    problems: list[str] = field(default_factory=list)


class LanceTableCheckOperator(LanceTableOperator):
    """Count the rows, nulls and violations of a table, and fail or skip if a limit is exceeded.

    The guide is ``docs/operators/table_check.md``.

    :param table_id: The table's identifier, as a list of strings or as one string with the connection's delimiter.
        (templated)
    :param min_rows: The smallest number of rows that is accepted. (templated)
    :param max_rows: The largest number of rows that is accepted. (templated)
    :param not_null: The column or columns whose nulls are counted, or a mapping from a column to the number of nulls
        that it may have. A dot in a name leads into a struct. (templated)
    :param max_nulls: How many nulls each of these columns may have, as a count (``10``) or as a share of the rows
        (``0.01``). (templated)
    :param predicate: An SQL predicate that every row must satisfy, or the name of a ``.sql`` file that holds it. A row
        for which it is null does not. (templated)
    :param version: The version to check. By default it is the newest. (templated)
    :param branch: The branch of the table. By default it is the main branch. (templated)
    :param on_failure: What happens if a limit is exceeded. ``fail`` fails the task without another try, and
        ``skip_task`` ends the task as skipped.
    :param lance_conn_id: The id of the namespace's connection. (templated)
    :return: A dict with ``table_id``, ``version``, ``rows``, ``nulls``, ``violations`` and ``problems``.
    """

    template_fields: Sequence[str] = (
        *LanceTableOperator.template_fields,
        "min_rows",
        "max_rows",
        "not_null",
        "max_nulls",
        "predicate",
        "version",
        "branch",
    )
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"predicate": "sql", "not_null": "json"}

    def __init__(
        self,
        *,
        min_rows: int | str | None = None,
        max_rows: int | str | None = None,
        not_null: str | Sequence[str] | Mapping[str, float] = (),
        max_nulls: float | str = 0,
        predicate: str | None = None,
        version: int | str | TaskOutput | None = None,
        branch: str | None = None,
        on_failure: OnFailure = "fail",
        **kwargs: Unpack[TableArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.min_rows = min_rows
        self.max_rows = max_rows
        self.not_null = not_null
        self.max_nulls = max_nulls
        self.predicate = predicate
        self.version = version
        self.branch = branch
        self.on_failure = choice("on_failure", on_failure, OnFailure)

    def execute(self, context: Context) -> JsonObject:
        table_id = self.parse_id(self.table_id)
        least, most = as_integer("min_rows", self.min_rows), as_integer("max_rows", self.max_rows)
        limits = self._null_limits()
        figures = self._count(table_id, limits)
        if least is not None and figures.rows < least:
            figures.problems.append(f"{figures.rows:,} rows, at least {least:,} expected")
        if most is not None and figures.rows > most:
            figures.problems.append(f"{figures.rows:,} rows, at most {most:,} expected")
        figures.problems.extend(self._column_problems(figures, limits))
        name = self.hook.join_id(table_id)
        self.log.info("%s", _summary(name, figures))
        if figures.problems:
            context["ti"].xcom_push(key="figures", value=asdict(figures))
            message = f"Table {name} at version {figures.version}: {'; '.join(figures.problems)}."
            raise (AirflowSkipException if self.on_failure == "skip_task" else AirflowFailException)(message)
        return asdict(figures)

    def _null_limits(self) -> dict[str, float]:
        """How many nulls each column may have."""
        columns = parse_literal(self.not_null) or ()
        if isinstance(columns, str):
            columns = [columns]
        if not isinstance(columns, Mapping):
            columns = dict.fromkeys(columns, self.max_nulls)  # type: ignore[call-overload]
        return {column: as_number("max_nulls", limit) or 0.0 for column, limit in columns.items()}

    def _count(self, table_id: list[str], columns: Mapping[str, float]) -> _Figures:
        predicate, branch = none_if_blank(self.predicate), none_if_blank(self.branch)
        version = as_version("version", None if self.version == "latest" else self.version)
        if version is None:
            # All figures are of one version, even if the table is written in the meantime.
            version = self.describe(table_id, branch).get("version")
        at = {"id": table_id, "version": version, "branch": branch}

        def count(predicate: str | None = None) -> int:
            return int(self.call("count_table_rows", {**at, "predicate": predicate})["count"])

        rows = count()
        return _Figures(
            table_id=table_id,
            version=version,
            rows=rows,
            nulls={column: count(f"{_quoted(column)} IS NULL") for column in columns},
            violations=rows - count(predicate) if predicate else None,
        )

    def _column_problems(self, figures: _Figures, limits: Mapping[str, float]) -> Iterator[str]:
        """The limits of columns and of the predicate that are exceeded, in words."""
        rows = figures.rows
        for column, limit in limits.items():
            nulls, allowed = figures.nulls[column], limit * rows if 0 < limit < 1 else limit
            if nulls > allowed:
                yield f"{nulls:,} of {rows:,} values of {column} are null, at most {allowed:,g} allowed"
        if figures.violations:
            yield f"{figures.violations:,} of {rows:,} rows violate {self.predicate}"


def _summary(name: str, figures: _Figures) -> str:
    """One line of what was counted, such as ``articles: version 7 has 20,000 rows, 3 nulls in text.``"""
    counted = [f"{figures.rows:,} rows"]
    counted += [f"{nulls:,} nulls in {column}" for column, nulls in figures.nulls.items()]
    if figures.violations is not None:
        counted.append(f"{figures.violations:,} rows that violate the predicate")
    version = "" if figures.version is None else f"version {figures.version} has "
    return f"{name}: {version}{', '.join(counted)}."


def _quoted(column: str) -> str:
    """A column's name in SQL. A name that contains backticks is taken as quoted already."""
    return column if "`" in column else ".".join(f"`{part}`" for part in column.split("."))
