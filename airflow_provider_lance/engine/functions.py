"""A Python function applied to scanned batches: its calling convention, its pace, and what becomes of rows it fails on.

Runs in Spark workers. Knows nothing of files.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.columns import ColumnRule
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.udf import ErrorPolicy, load

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_ROWS = 8192
SQL_BATCH_ROWS = 16_384  # functions get fewer: what they need for each row is their own affair
_RETRY_SECONDS = 0.1


@dataclass
class Chunk:
    """Values of some rows of a fragment in ascending order; ``failed`` are (physical row, message) pairs."""

    offsets: np.ndarray
    values: pa.RecordBatch
    failed: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Scanned:
    """Some live rows of a fragment as they were read: which physical rows they are, and the columns asked for."""

    offsets: np.ndarray
    values: pa.RecordBatch


def split(batch: pa.RecordBatch | pa.Table) -> tuple[np.ndarray, pa.RecordBatch | pa.Table]:
    """A batch that was read with row addresses as physical rows and the columns that were asked for."""
    import numpy as np

    index = batch.schema.get_field_index("_rowaddr")
    addresses = batch.column(index).to_numpy()
    return (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64), batch.drop_columns(["_rowaddr"])


def split_offsets(batch: pa.RecordBatch, name: str) -> Chunk:
    """A stored batch whose column ``name`` holds the physical rows."""
    import pyarrow as pa

    values = batch.drop_columns([name])
    return Chunk(batch.column(name).to_numpy(), pa.RecordBatch.from_arrays(values.columns, schema=values.schema))


class Pace:
    """How many rows a function gets at once: as many as take about a second, so that work becomes durable in time.

    Begins small, because nothing is known of the function yet, and is kept for all tasks of a worker.
    """

    FIRST, SECONDS = 64, 1.0

    def __init__(self, limit: int | None = None, seconds: float = SECONDS, most: int = BATCH_ROWS) -> None:
        self.limit = min(most, limit or most)
        self.seconds = min(self.SECONDS, seconds)
        self.rows = min(self.FIRST, self.limit)

    def slices(self, batches: Iterable[Scanned]) -> Iterator[Scanned]:
        for batch in batches:
            if len(batch.offsets) <= self.rows:
                if len(batch.offsets):
                    yield batch
                continue
            position = 0
            while position < len(batch.offsets):
                size = self.rows
                yield Scanned(batch.offsets[position : position + size], batch.values.slice(position, size))
                position += size

    def learn(self, rows: int, seconds: float) -> None:
        if seconds < self.seconds / 4 and rows >= self.rows:
            self.rows = min(self.limit, self.rows * 4)
        elif seconds > self.seconds * 2:
            self.rows = max(1, self.rows // 2)


_paces: dict[tuple[str, int | None, float], Pace] = {}


def pace_for(rule: ColumnRule, limit: int | None, seconds: float) -> Pace:
    """This worker's pace for a rule, with what earlier tasks taught it."""
    most = BATCH_ROWS if rule.expression is None else SQL_BATCH_ROWS
    return _paces.setdefault((rule.fingerprint, limit, seconds), Pace(limit, seconds, most))


class RowFailure(JobError):
    """The rule failed on a row and the policy says that this fails the job."""

    def __init__(self, message: str) -> None:
        super().__init__("compute", message)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowFailure, (str(self),)


class Function:
    """A loaded function with its calling convention and error policy, applied to scanned batches."""

    def __init__(self, rule: ColumnRule, schema: pa.Schema, policy: ErrorPolicy, fragment_id: int, pace: Pace) -> None:
        assert rule.envelope is not None
        self.function = load(rule.envelope)
        self.call = rule.envelope.call
        self.parts = rule.struct_fields if rule.places else ()
        self.places = rule.places
        self.names = (*rule.targets, *rule.struct_fields)
        self.schema = schema
        self.types = schema.types
        self.policy = policy
        self.fragment_id = fragment_id
        self.pace = pace

    def __call__(self, scanned: Scanned) -> Chunk:
        offsets, inputs = scanned.offsets, scanned.values
        started = time.monotonic()
        chunk = self._batches(offsets, inputs) if self.call == "batch" else self._rows(offsets, inputs)
        self.pace.learn(len(offsets), time.monotonic() - started)
        return chunk

    def _rows(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> Chunk:
        columns = [column.to_pylist() for column in inputs.columns]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(offsets))
        results: list[Any] = []
        failed: list[tuple[int, str]] = []
        function, retries = self.function, self.policy.retries
        for arguments in rows:
            try:
                # The one loop in which Python's own cost shows: nothing here that a row does not need.
                results.append(self._attempt(partial(function, *arguments)) if retries else function(*arguments))
            except Exception as error:
                failed.append(self._fail(int(offsets[len(results)]), error))
                results.append(None)
        return Chunk(offsets, self._array(offsets, results, failed), failed)

    def _array(self, offsets: np.ndarray, results: list[Any], failed: list[tuple[int, str]]) -> pa.RecordBatch:
        import pyarrow as pa

        def build(rows: list[Any]) -> list[pa.Array]:
            if not self.parts:
                return [exact_array(rows, self.types[0])]
            return [
                exact_array([None if row is None else _part(row, name, at) for row in rows], kind)
                for name, at, kind in zip(self.parts, self.places, self.types, strict=True)
            ]

        try:
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)
        except Exception:
            # One value of another type spoils the whole conversion: find it, and treat it as a failed row.
            for index, result in enumerate(results):
                try:
                    build([result])
                except Exception as error:
                    failed.append(self._fail(int(offsets[index]), error))
                    results[index] = None
            failed.sort()
            return pa.RecordBatch.from_arrays(build(results), schema=self.schema)

    def _batches(self, offsets: np.ndarray, inputs: pa.RecordBatch) -> Chunk:
        import pyarrow as pa

        try:
            result = self._attempt(lambda: self._checked(self.function(inputs), inputs.num_rows))
            return Chunk(offsets, result)
        except Exception as error:
            if self.policy.on_error == "fail":
                place = f"rows {offsets[0]} to {offsets[-1]} of fragment {self.fragment_id}"
                raise RowFailure(f"The function failed on a batch, {place}: {_describe(error)}") from error
            if len(offsets) == 1:
                nulls = pa.RecordBatch.from_arrays([pa.nulls(1, part.type) for part in self.schema], schema=self.schema)
                return Chunk(offsets, nulls, [(int(offsets[0]), _describe(error))])
        middle = len(offsets) // 2
        left = self._batches(offsets[:middle], inputs.slice(0, middle))
        right = self._batches(offsets[middle:], inputs.slice(middle))
        arrays = [
            pa.concat_arrays([first, second])
            for first, second in zip(left.values.columns, right.values.columns, strict=True)
        ]
        values = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return Chunk(offsets, values, left.failed + right.failed)

    def _checked(self, result: Any, rows: int) -> pa.RecordBatch:
        """Whatever a batch function may return, as a batch of the target columns."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(result, pa.ChunkedArray | pa.Table):
            result = result.combine_chunks()
        if self.parts and isinstance(result, pa.StructArray):
            # Not result.field(): that has values where the struct itself is null.
            columns = [pc.struct_field(result, name) for name in self.parts]
        elif self.parts:
            columns = [result[name] for name in self.parts]
        elif isinstance(result, pa.RecordBatch | pa.Table):
            columns = [self._only_column(result)]
        else:
            columns = [result]
        columns = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
        arrays = []
        for column, kind in zip(columns, self.types, strict=True):
            array = column if isinstance(column, pa.Array) else exact_array(column, kind)
            if len(array) != rows:
                raise ValueError(f"the function returned {len(array)} values for {rows} rows")
            arrays.append(array if array.type == kind else array.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _only_column(self, result: pa.RecordBatch | pa.Table) -> pa.Array:
        """Of a function with one output: the column named as its target or as the part of the result it declared."""
        if result.num_columns == 1:
            return result.column(0)
        for name in self.names:
            if name in result.schema.names:
                return result.column(name)
        raise ValueError(f"the function returned columns {result.schema.names}, none of them named {self.names[0]!r}")

    def _attempt(self, call: Callable[[], Any]) -> Any:
        for attempt in range(self.policy.retries + 1):
            try:
                return call()
            except Exception:
                if attempt == self.policy.retries:
                    raise
                time.sleep(_RETRY_SECONDS * 2**attempt)
        raise AssertionError("unreachable")

    def _fail(self, offset: int, error: Exception) -> tuple[int, str]:
        if self.policy.on_error == "fail":
            place = f"row {offset} of fragment {self.fragment_id}"
            raise RowFailure(f"The function failed on {place}: {_describe(error)}") from error
        return offset, _describe(error)


def _part(row: Any, name: str, at: int) -> Any:
    if not isinstance(row, tuple | list):
        return row[name]
    if at >= len(row):
        raise ValueError(f"the function returned {len(row)} values, too few for its output {name!r}")
    return row[at]


def exact_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Python values as an array. Arrow cuts 6.5 to the integer 6 without a word; here that is an error."""
    import pyarrow as pa

    array = pa.array(values, type=kind)
    # Arrays of numbers, NumPy's and pandas', Arrow does not cut.
    plain = isinstance(values, list | tuple) or str(getattr(values, "dtype", "")) == "object"
    if plain and _holds_whole_numbers(kind):
        _check_whole(values, kind)
    return array


def _holds_whole_numbers(kind: pa.DataType) -> bool:
    import pyarrow as pa

    kind = _plain(kind)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return True
    return any(_holds_whole_numbers(kind.field(i).type) for i in range(kind.num_fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values behind a dictionary or an extension type."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_whole(values: Sequence[Any], kind: pa.DataType) -> None:
    """Refuse numbers with a fraction where whole ones are stored. Mostly the set of their Python types settles it."""
    import decimal

    import numpy as np
    import pyarrow as pa

    kind = _plain(kind)
    if not kind.num_fields:
        fractions = (float, decimal.Decimal, np.floating)
        suspects = any(issubclass(found, fractions) for found in set(map(type, values)))
        for value in values if suspects else ():
            if isinstance(value, fractions) and value != int(value):
                raise ValueError(f"{value} is not a whole number, which a column of {kind} holds")
        return
    present = [value for value in values if value is not None]
    if pa.types.is_map(kind):
        present = [value.items() if isinstance(value, dict) else value for value in present]
    parts: list[tuple[pa.DataType, list[Any]]]
    if pa.types.is_struct(kind):
        parts = [(part.type, [_member(value, part.name, at) for value in present]) for at, part in enumerate(kind)]
    else:
        parts = [(kind.field(0).type, list(itertools.chain.from_iterable(present)))]
    for part, members in parts:
        if _holds_whole_numbers(part):
            _check_whole(members, part)


def _member(value: Any, name: str, at: int) -> Any:
    """A field of what Arrow takes for a struct: a dictionary, its items, or the values in order."""
    if isinstance(value, tuple):
        return value[at]
    return dict(value).get(name)


def _describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 500 else text[:497] + "..."
