"""A Python function applied to scanned batches: its calling convention, and what becomes of rows it fails on.

This module runs in Spark workers and knows nothing of files.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.column_rules import ColumnRule
from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy, UdfError
from airflow_provider_lance.engine.backfill.row_batches import BatchSizer, ComputedRows, ScannedRows, null_rows
from airflow_provider_lance.engine.functions.async_function import AsyncFunction
from airflow_provider_lance.engine.functions.dataclass_rows import plain_rows
from airflow_provider_lance.engine.functions.exact_arrays import exact_array
from airflow_provider_lance.engine.functions.guarded_call import call_with_retries
from airflow_provider_lance.engine.functions.load_function import loaded_function
from airflow_provider_lance.engine.functions.user_traceback import user_traceback
from airflow_provider_lance.engine.functions.worker_variables import hide_secrets
from airflow_provider_lance.engine.job.context import JobError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from airflow_provider_lance.engine.functions.exact_arrays import AnyArray


class RowFailure(JobError):
    """The rule failed on a row and the policy says that this fails the job."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__("compute", message, traceback=traceback)

    def __reduce__(self) -> tuple[type[RowFailure], tuple[str, str]]:
        return RowFailure, (str(self), self.traceback)


@contextmanager
def opened_function(envelope: UdfEnvelope) -> Iterator[Callable[..., Any]]:
    """The function of a rule in a worker; JobError says why it cannot be set up."""
    with ExitStack() as stack:
        try:
            function = stack.enter_context(loaded_function(envelope))
        except UdfError:
            raise
        except Exception as error:
            # Raised as it is, Spark would run the task again and report a lost worker in the end.
            message = f"the function cannot be set up where Spark's Python workers run: {_describe(error)}"
            raise JobError("load", message, traceback=user_traceback(error)) from error
        yield function


class FunctionApplier:
    """A loaded function with its calling convention and error policy, applied to scanned batches."""

    def __init__(
        self,
        function: Callable[..., Any],
        rule: ColumnRule,
        schema: pa.Schema,
        policy: ErrorPolicy,
        fragment_id: int,
        batch_sizer: BatchSizer,
    ) -> None:
        assert rule.envelope is not None
        self.function = function
        self.call = rule.envelope.call
        self.parts = rule.struct_fields if rule.places else ()
        self.places = rule.places
        self.names = (*rule.targets, *rule.struct_fields)
        self.schema = schema
        self.types = schema.types
        self.policy = policy
        self.fragment_id = fragment_id
        self.batch_sizer = batch_sizer

    def __call__(self, scanned: ScannedRows) -> ComputedRows:
        offsets, inputs = scanned.offsets, scanned.values
        started = time.monotonic()
        apply = self._apply_to_rows if self.call == "scalar" else self._apply_to_batch
        computed = apply(offsets, inputs)
        self.batch_sizer.learn(len(offsets), time.monotonic() - started)
        return computed

    def _apply_to_rows(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> ComputedRows:
        columns = [column.to_pylist() for column in inputs.columns]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(offsets))
        results: list[Any] = []
        failed: list[tuple[int, str]] = []
        function, retries = self.function, self.policy.retries
        if isinstance(function, AsyncFunction):
            for result, failure in function.map(rows, self.policy):
                if failure is not None:
                    failed.append(self._fail(int(offsets[len(results)]), failure))
                results.append(result)
            return ComputedRows(offsets, self._convert(offsets, results, failed), failed)
        for arguments in rows:
            try:
                # This loop runs once per row, so it must not do more than a row needs.
                results.append(
                    call_with_retries(self.policy, partial(function, *arguments)) if retries else function(*arguments)
                )
            except Exception as error:
                failed.append(self._fail(int(offsets[len(results)]), error))
                results.append(None)
        return ComputedRows(offsets, self._convert(offsets, results, failed), failed)

    def _convert(self, offsets: np.ndarray, results: list[Any], failed: list[tuple[int, str]]) -> pa.RecordBatch:
        import pyarrow as pa

        def build(rows: list[Any]) -> list[AnyArray]:
            if not self.parts:
                return [exact_array(plain_rows(rows), self.types[0])]
            return [
                exact_array(plain_rows([None if row is None else _output(row, name, at) for row in rows]), kind)
                for name, at, kind in zip(self.parts, self.places, self.types, strict=True)
            ]

        try:
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)
        except Exception:
            # One value of another type fails the whole conversion, so each is converted alone to find the failed rows.
            for index, result in enumerate(results):
                try:
                    build([result])
                except Exception as error:
                    failed.append(self._fail(int(offsets[index]), error))
                    results[index] = None
            failed.sort()
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)

    def _apply_to_batch(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> ComputedRows:
        try:
            arguments = inputs.columns if self.call == "arrays" else (inputs,)
            columns = call_with_retries(self.policy, lambda: self._columns(self.function(*arguments), inputs.num_rows))
        except Exception as error:
            if self._is_fatal(error):
                place = f"rows {offsets[0]} to {offsets[-1]} of fragment {self.fragment_id}"
                message = f"the function failed on a batch, {place}: {_describe(error)}"
                raise RowFailure(message, user_traceback(error)) from error
            if len(offsets) == 1:
                return ComputedRows(offsets, null_rows(1, self.schema), [(int(offsets[0]), _describe(error))])
        else:
            failed: list[tuple[int, str]] = []
            batches = list(self._convert_columns(offsets, columns, failed))
            return ComputedRows(offsets, _concatenate(batches), failed)
        middle = len(offsets) // 2
        left = self._apply_to_batch(offsets[:middle], inputs.slice(0, middle))
        right = self._apply_to_batch(offsets[middle:], inputs.slice(middle))
        return ComputedRows(offsets, _concatenate([left.values, right.values]), left.failed + right.failed)

    def _convert_columns(
        self, offsets: np.ndarray, columns: list[Any], failed: list[tuple[int, str]]
    ) -> Iterator[pa.RecordBatch]:
        """Convert what the function returned to batches of the target columns, with nulls for the rows that do not fit.

        The rows that do not fit are found by halving the result; the function is not called again.
        """
        import pyarrow as pa

        try:
            arrays = [exact_array(column, kind) for column, kind in zip(columns, self.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            return
        except Exception as error:
            if len(offsets) == 1:
                failed.append(self._fail(int(offsets[0]), error))
                yield null_rows(1, self.schema)
                return
        middle = len(offsets) // 2
        yield from self._convert_columns(offsets[:middle], [_slice(column, 0, middle) for column in columns], failed)
        yield from self._convert_columns(
            offsets[middle:], [_slice(column, middle, len(offsets)) for column in columns], failed
        )

    def _columns(self, result: Any, rows: int) -> list[Any]:
        """Split the result of a batch function, which may have many types, into the values of each target column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(result, str | bytes | set):
            raise TypeError(f"the function returned a {type(result).__name__}, not a sequence of {rows} values")
        if hasattr(result, "iloc") and result.ndim == 2:
            result = pa.Table.from_pandas(result, preserve_index=False)
        if isinstance(result, pa.ChunkedArray | pa.Table):
            result = result.combine_chunks()
        if self.parts and isinstance(result, pa.StructArray):
            # result.field() would return values where the struct itself is null.
            columns = [pc.struct_field(result, name) for name in self.parts]
        elif self.parts:
            columns = [result[name] for name in self.parts]
        elif isinstance(result, pa.RecordBatch | pa.Table):
            columns = [self._only_column(result, result.schema.names)]
        elif isinstance(result, Mapping):
            columns = [self._only_column(result, list(result))]
        else:
            columns = [result if hasattr(result, "__len__") else list(result)]
        for column in columns:
            if len(column) != rows:
                raise ValueError(f"the function returned {len(column)} values for {rows} rows")
        return columns

    def _only_column(self, result: Any, names: list[str]) -> Any:
        """The only column of a result, or the one that has the name of the target or of the declared output."""
        chosen = names if len(names) == 1 else [name for name in self.names if name in names]
        if not chosen:
            raise ValueError(f"the function returned columns {names}, none of them named {self.names[0]!r}")
        return result[chosen[0]]

    def _is_fatal(self, error: Exception) -> bool:
        """Whether an error fails the job, after all retries."""
        return self.policy.decide(error, self.policy.retries) == "fail"

    def _fail(self, offset: int, error: Exception) -> tuple[int, str]:
        if self._is_fatal(error):
            place = f"row {offset} of fragment {self.fragment_id}"
            raise RowFailure(f"the function failed on {place}: {_describe(error)}", user_traceback(error)) from error
        return offset, _describe(error)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(column) for column in columns], schema=batches[0].schema)


def _slice(column: Any, start: int, stop: int) -> Any:
    """Values by position, also of a pandas Series, which would slice by its index."""
    return column.iloc[start:stop] if hasattr(column, "iloc") else column[start:stop]


def _output(row: Any, name: str, at: int) -> Any:
    if not isinstance(row, tuple | list):
        return getattr(row, name) if hasattr(row, "__dataclass_fields__") else row[name]
    if at >= len(row):
        raise ValueError(f"the function returned {len(row)} values, too few for its output {name!r}")
    return row[at]


def _describe(error: BaseException) -> str:
    text = hide_secrets(f"{type(error).__name__}: {error}")
    return text if len(text) <= 500 else text[:497] + "..."
