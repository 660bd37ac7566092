"""``UdfColumn``: a column that a Python function computes, declared in a DAG without importing Arrow or Lance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.definitions.functions.envelope import UdfOptions, wrap
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.functions.signature import (
    check_inputs,
    infer_inputs,
    infer_outputs,
    output_names,
)
from airflow_provider_lance.definitions.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class UdfColumn:
    """A column that a Python function computes, for ``LanceAddColumnsOperator``.

    >>> def words(text: str) -> int: ...
    >>> UdfColumn(words)
    >>> UdfColumn("features.text:embed", inputs=["text"], type="float32[384]")

    :param function: A function or class, which is pickled into the table with everything that it uses of the DAG file
        and of modules beside it; the server must allow pickles. Or the import path ``"package.module:function"`` of a
        function that is installed where Spark's workers run, with ``inputs`` and ``type``.
    :param inputs: The columns that the function gets, in the order of its parameters, as field paths such as ``"text"``
        or ``"meta.title"``. By default they are the names of its parameters that have no default.
    :param type: The type of the column in Arrow's notation, such as ``"int64"``, ``"list<string>"`` or
        ``"float32[384]"``, as ``LanceCreateTableOperator`` takes it, or as an Arrow type. By default it is the type of
        the return annotation. A dataclass or TypedDict becomes one column for each of its fields.
    :param options: How the function is called: the arguments of ``@udf``. These options take precedence over those of
        the function's own ``@udf`` decorator.
    :param version: The version of the function. Another version makes the values that were computed before outdated.
    :param arguments: The arguments of the class's ``__init__``, by name, stored as JSON. Other arguments make the
        values that were computed before outdated.
    """

    function: Callable[..., object] | str
    inputs: list[str] | None = None
    type: str | pa.DataType | None = None
    options: UdfOptions = field(default_factory=UdfOptions)
    version: str = "1"
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name under which the function is stored."""
        return self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "udf")

    def __repr__(self) -> str:
        parts = [self.name]
        parts += [] if self.inputs is None else [f"inputs={self.inputs}"]
        parts += [] if self.type is None else [f"type={str(self.type)!r}"]
        parts += [f"arguments={dict(self.arguments)}"] if self.arguments else []
        return f"UdfColumn({', '.join(parts)})"

    def input_columns(self) -> list[str]:
        """The columns that the function gets, as field paths."""
        if self.inputs is None and not isinstance(self.function, str):
            return infer_inputs(self.function, "scalar")
        return list(self.inputs or [])

    def output_columns(self, column: str) -> list[str]:
        """The columns that the function fills, if it is declared under a name.

        :param column: The name of the column.
        """
        if self.type is not None or isinstance(self.function, str):
            return [column]
        return output_names(self.function, column)

    def entry(self, column: str) -> JsonObject:
        """The ``virtual_column`` of an ``add_columns`` request. The function is wrapped when this is called.

        :param column: The name of the column that the function fills.
        """
        from airflow_provider_lance.definitions.column_rules import virtual_column_entry

        try:
            envelope = wrap(self.function, arguments=self.arguments, **self.options)
            inputs = self._inputs(envelope.call)
            outputs = self._outputs(column)
        except UdfError as error:
            raise UdfError(f"The column {column!r} cannot be declared: {error}") from error
        return virtual_column_entry(envelope, inputs=inputs, outputs=outputs, name=self.name, version=self.version)

    def _inputs(self, call: str) -> list[str]:
        if isinstance(self.function, str):
            if self.inputs is None:
                raise UdfError(f"the import path {self.function} does not say its inputs: give inputs=[…].")
            return self.inputs
        if self.inputs is None:
            return infer_inputs(self.function, call)
        check_inputs(self.function, call, self.inputs)
        return self.inputs

    def _outputs(self, column: str) -> dict[str, pa.DataType]:
        if isinstance(self.type, str):
            return {column: arrow_schema({column: self.type}).field(column).type}
        if self.type is not None:
            return {column: self.type}
        if isinstance(self.function, str):
            raise UdfError(f"the import path {self.function} does not say what it returns: give type=….")
        return infer_outputs(self.function, column)
