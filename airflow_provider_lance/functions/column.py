"""``UdfColumn``: a column that a Python function computes, declared in a DAG without importing Arrow or Lance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_lance.definitions.function_envelope import UdfError, UdfOptions, wrap
from airflow_provider_lance.definitions.json_types import JsonObject


@dataclass(frozen=True)
class UdfColumn:
    """A column that a Python function computes, for ``LanceAddColumnsOperator``.

    >>> UdfColumn("features.text:embed", inputs=["text"], type="float32[384]")

    :param function: The import path ``"package.module:function"`` of a function that is installed where Spark's workers
        run; or a function or class, which is pickled into the table with everything that it uses of the DAG file and of
        modules beside it. The server must allow pickles.
    :param inputs: The columns that the function gets, as field paths such as ``"text"`` or ``"meta.title"``.
    :param type: The type of the column in Arrow's notation, such as ``"int64"``, ``"list<string>"`` or
        ``"float32[384]"``, as ``LanceCreateTableOperator`` takes it.
    :param options: How the function is called: ``call``, ``on_error`` and ``retries``, as ``@udf`` takes them. These
        options take precedence over those of the function's own ``@udf`` decorator.
    :param version: The version of the function. Another version makes the values that were computed before outdated.
    """

    function: Callable[..., object] | str
    inputs: list[str]
    type: str
    options: UdfOptions = field(default_factory=UdfOptions)
    version: str = "1"

    @property
    def name(self) -> str:
        """The name under which the function is stored."""
        return self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "udf")

    def __repr__(self) -> str:
        return f"UdfColumn({self.name}, inputs={self.inputs}, type={self.type!r})"

    def entry(self, column: str) -> JsonObject:
        """The ``virtual_column`` of an ``add_columns`` request. The function is wrapped when this is called.

        :param column: The name of the column that the function fills.
        """
        from airflow_provider_lance.definitions.arrow_types import arrow_schema
        from airflow_provider_lance.definitions.column_rules import virtual_column_entry

        kind = arrow_schema({column: self.type}).field(column).type
        try:
            envelope = wrap(self.function, **self.options)
        except UdfError as error:
            raise UdfError(f"The column {column!r} cannot be declared: {error}") from error
        return virtual_column_entry(
            envelope,
            inputs=self.inputs,
            outputs={column: kind},
            name=self.name,
            version=self.version,
        )
