"""``UdfColumn``: a column that a Python function computes, written down in a DAG without importing anything heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class UdfColumn:
    """A virtual column for ``LanceAddColumnsOperator``.

    >>> UdfColumn("features.text:embed", inputs=["text"], type="float32[384]")

    :param function: an import path ``"package.module:function"`` that Spark's workers can import, or a function or
        class, which is pickled into the table (and must be allowed there) with what it uses of the DAG file and of
        modules beside it.
    :param inputs: the columns it gets.
    :param type: of the column, as ``LanceCreateTableOperator`` writes types.
    :param options: how it is called (``call``, ``on_error``, ``retries``); they win over those of the function's own
        ``@udf`` decorator.
    :param version: of the function; a new one makes the values outdated.
    """

    function: Callable[..., Any] | str
    inputs: list[str]
    type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    version: str = "1"

    @property
    def name(self) -> str:
        return self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "udf")

    def __repr__(self) -> str:
        return f"UdfColumn({self.name}, inputs={self.inputs}, type={self.type!r})"

    def entry(self, column: str) -> dict[str, Any]:
        """The request's entry; wraps the function now, on the worker."""
        from airflow.providers.common.compat.sdk import AirflowFailException

        from airflow_provider_lance.engine.columns import virtual_column_entry
        from airflow_provider_lance.engine.udf import UdfError, wrap
        from airflow_provider_lance.operators.arrow import arrow_schema

        kind = arrow_schema({column: self.type}).field(column).type
        try:
            envelope = wrap(self.function, **self.options)
        except UdfError as error:
            raise AirflowFailException(f"The column {column!r} cannot be declared: {error}") from error
        return virtual_column_entry(
            envelope,
            inputs=self.inputs,
            outputs={column: kind},
            name=self.name,
            version=self.version,
        )
