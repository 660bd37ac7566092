"""What a function returns is stored as it is or refused, for every output type; the oracle is plain Python."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from airflow_provider_lance.engine.functions.exact_arrays import exact_array, exact_table
from tests.engine.backfills import backfill, column, declare_function, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HALF, SINGLE, DOUBLE = pa.float16(), pa.float32(), pa.float64()
FORMATS = {HALF: "<e", SINGLE: "<f", DOUBLE: "<d"}
WHOLE_LIMITS = {HALF: 2**11, SINGLE: 2**24, DOUBLE: 2**53}
MICROSECONDS: dict[Any, int] = {"s": 10**6, "ms": 1000, "us": 1, "ns": 1}
INTEGERS = {
    kind: (0 if kind.id in (pa.uint8().id, pa.uint16().id, pa.uint32().id, pa.uint64().id) else 1, kind.bit_width)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
TIMESTAMPS = [pa.timestamp(unit, zone) for unit in MICROSECONDS for zone in (None, "UTC", "Europe/Berlin")]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DURATIONS = [pa.duration(unit) for unit in MICROSECONDS]
DECIMALS = [pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal256(50, 0)]
KINDS: list[Any] = [
    *INTEGERS, *FORMATS, *TIMESTAMPS, *TIMES, *DURATIONS, *DECIMALS,
    pa.date32(), pa.date64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(),
]  # fmt: skip


def random_value(rng: random.Random) -> Any:
    micro = rng.choice([0, 0, 1, 500, 1000, 123_000, 500_000, 123_456])
    zone = rng.choice([None, None, UTC, timezone(timedelta(hours=2))])
    day = date(rng.choice([1, 1969, 1970, 2024, 9999]), rng.randint(1, 12), rng.randint(1, 28))
    clock = time(0, 0) if rng.random() < 0.3 else time(rng.randint(0, 23), 59, 58, micro)
    number = rng.choice([0, 1, 3, 255, 256, 2049, 2**24 + 1, 2**31, 2**53 + 1, 2**63, 10**30]) * rng.choice([1, -1])
    return rng.choice(
        [
            number,
            float(min(max(number, -(2**62)), 2**62)),
            rng.uniform(-1000, 1000),
            rng.choice([1e30, 1e39, -1e39, 65_504.0, 65_520.0, 1e300, 1e-300, float("inf"), float("-inf")]),
            Decimal(number),
            Decimal(number) / 4,
            datetime.combine(day, clock, zone),
            day,
            clock.replace(tzinfo=rng.choice([None, None, UTC])),
            timedelta(days=rng.randint(-3, 3), seconds=rng.randint(0, 5), microseconds=micro),
            rng.random() < 0.5,
            rng.choice(["", "text", "12", "1e300"]),
            rng.choice([b"", b"bytes"]),
        ]
    )


def fits(value: Any, kind: Any) -> bool:
    """Whether a column of ``kind`` can hold exactly this Python value."""
    if kind in INTEGERS:
        signed, bits = INTEGERS[kind]
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value in (np.inf, -np.inf):
            return False
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
        return value == int(value) and low <= value < high
    if kind in FORMATS:
        if isinstance(value, bool):
            return True
        if isinstance(value, int):
            return abs(value) <= WHOLE_LIMITS[kind] or (
                kind == HALF and abs(value) < 2**15 and rounded(value, kind) == value
            )
        return isinstance(value, float) and rounded(value, kind) is not None
    if kind in TIMESTAMPS:
        return (
            isinstance(value, datetime)
            and (value.tzinfo is None) == (kind.tz is None)
            and in_units(value, kind)
            and is_readable(value)
        )
    if kind in TIMES:
        return isinstance(value, time) and value.tzinfo is None and value.microsecond % MICROSECONDS[kind.unit] == 0
    if kind in DURATIONS:
        return isinstance(value, timedelta) and value.microseconds % MICROSECONDS[kind.unit] == 0
    if kind in (pa.date32(), pa.date64()):
        if isinstance(value, datetime):
            return value.tzinfo is None and value.time() == time(0)
        return isinstance(value, date)
    if kind in DECIMALS:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return False
        scaled = Decimal(value).scaleb(kind.scale)
        return scaled == int(scaled) and abs(scaled) < 10**kind.precision
    if kind == pa.bool_():
        return isinstance(value, bool)
    return isinstance(value, str | bytes)


def is_readable(value: datetime) -> bool:
    """Whether Python can read the instant back: in UTC it must not be before year 1 or after year 9999."""
    try:
        value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
    except OverflowError:
        return False
    return True


def rounded(value: float, kind: Any) -> float | None:
    """A number as a float of that size, by Python's own means; None where it overflows."""
    try:
        return float(struct.unpack(FORMATS[kind], struct.pack(FORMATS[kind], value))[0])
    except OverflowError:
        return None


def in_units(value: datetime, kind: Any) -> bool:
    if kind.unit == "ns" and not 1678 < value.year < 2262:
        return False
    return value.microsecond % MICROSECONDS[kind.unit] == 0


def same(value: Any, stored: Any, kind: Any) -> bool:
    """Whether what is read back means what the function returned."""
    if kind in FORMATS and isinstance(value, float):
        return bool(stored == rounded(value, kind))
    if kind in DECIMALS and isinstance(value, float):
        return bool(float(stored) == value)
    if kind in FORMATS and isinstance(value, Decimal):
        return math.isclose(stored, value, rel_tol=1e-6)
    if isinstance(value, date) and not isinstance(value, datetime) and isinstance(stored, datetime):
        return stored.tzinfo is None and stored == datetime.combine(value, time(0))
    if isinstance(value, datetime) and isinstance(stored, date) and not isinstance(stored, datetime):
        return value.tzinfo is None and value == datetime.combine(stored, time(0))
    if isinstance(value, datetime) and isinstance(stored, datetime):
        return (value.tzinfo is None) == (stored.tzinfo is None) and value == stored
    if isinstance(value, bytes):
        return bool(stored == (value if isinstance(stored, bytes) else value.decode()))
    if isinstance(value, str):
        return bool(stored == (value.encode() if isinstance(stored, bytes) else value))
    return bool(stored == value)


NESTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "plain": (lambda kind: kind, lambda value: value, lambda stored: stored),
    "list": (pa.list_, lambda value: [None, value], lambda stored: stored[1]),
    "vector": (lambda kind: pa.list_(kind, 2), lambda value: [value, None], lambda stored: stored[0]),
    "struct": (lambda kind: pa.struct([("a", kind)]), lambda value: {"a": value}, lambda stored: stored["a"]),
    "tuple": (lambda kind: pa.struct([("a", kind)]), lambda value: (value,), lambda stored: stored["a"]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: {"k": value}, lambda stored: stored[0][1]),
    "structs": (
        lambda kind: pa.list_(pa.struct([("a", pa.list_(kind))])),
        lambda value: [None, {"a": [value]}],
        lambda stored: stored[1]["a"][0],
    ),
}


def check_python_values(rng: random.Random, cases: int) -> None:
    for _ in range(cases):
        value, kind = random_value(rng), rng.choice(KINDS)
        if isinstance(value, int | float | Decimal) and pa.types.is_temporal(kind):
            continue  # Arrow's own numbers, in the column's unit
        nest = rng.choice(list(NESTS))
        outer, put, get = NESTS[nest]
        rows = [None, put(value), None]
        stored: Any
        try:
            stored = exact_array(rows, outer(kind)).to_pylist()
        except Exception as error:
            stored = error
        if isinstance(stored, Exception) or not fits(value, kind):
            assert fits(value, kind) is not isinstance(stored, Exception), f"{value!r} in {kind} ({nest}): {stored!r}"
            continue
        assert same(value, get(stored[1]), kind), f"{value!r} in {kind} ({nest}) became {stored}"
        assert (stored[0], stored[2]) == (None, None)


def check_arrays(rng: random.Random, cases: int) -> None:
    """Arrow, NumPy and pandas results are cast; what a cast accepts must mean the same."""
    kinds = [kind for kind in KINDS if not (pa.types.is_string(kind) or pa.types.is_large_string(kind))]
    accepted = 0
    for _ in range(cases):
        value, kind = random_value(rng), rng.choice(kinds)
        nest = rng.choice(list(NESTS))
        outer, put, get = NESTS[nest]
        form = rng.choice(["arrow", "numpy", "pandas"])
        if isinstance(value, time):
            value = value.replace(tzinfo=None)  # Arrow has no times with zones: it drops them before we see them
        try:
            natural = pa.array([None, put(value), None])
        except (pa.ArrowException, OverflowError):
            continue
        if nest != "plain" or not pa.types.is_primitive(natural.type) or isinstance(value, date | time):
            form = "arrow"
        if form == "numpy":
            natural = (
                np.array([value] * 2, dtype=natural.type.to_pandas_dtype()) if not isinstance(value, date) else natural
            )
        elif form == "pandas":
            natural = pd.Series([value] * 2)
        try:
            stored = exact_array(natural, outer(kind)).to_pylist()
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue
        if isinstance(value, str) or (isinstance(value, int) and pa.types.is_temporal(kind)):
            continue
        accepted += 1
        found = get(stored[1])
        if isinstance(value, datetime | timedelta | time | date) and isinstance(found, int | float):
            continue
        assert same(value, found, kind), f"{form}: {value!r} in {kind} ({nest}) became {stored}"
    assert accepted > cases / 20


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("seed", range(4))
def test_every_value_is_stored_as_it_is_or_refused(seed: int) -> None:
    check_python_values(random.Random(seed), 1500)
    check_arrays(random.Random(seed), 1500)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_every_value_is_stored_as_it_is_or_refused_for_long() -> None:
    rng = random.Random()
    check_python_values(rng, 300_000)
    check_arrays(rng, 300_000)


NOON = datetime(2024, 5, 6, 12, 30, 15, 123_456)
CUT = [
    (pa.timestamp("s"), NOON),
    (pa.timestamp("ms"), NOON),
    (pa.date32(), NOON),
    (pa.duration("s"), timedelta(milliseconds=1.5)),
    (pa.time32("s"), NOON.time()),
    (pa.float32(), 1e300),
    (pa.list_(pa.float32(), 1), [1e300]),
    (pa.timestamp("us"), NOON.replace(tzinfo=UTC)),
    (pa.timestamp("us", "UTC"), NOON),
    (pa.struct([("a", pa.int64())]), {"a": 1, "misspelt": 2}),
]


@pytest.mark.parametrize(("kind", "value"), CUT, ids=lambda value: str(value))
def test_a_result_that_would_be_cut_is_refused_in_every_form(kind: pa.DataType, value: Any) -> None:
    natural = pa.array([value])
    for given in ([value], natural, pa.chunked_array([natural]), natural.to_pandas()):
        with pytest.raises((ValueError, TypeError)):
            exact_array(given, kind)
    with pytest.raises(ValueError, match="column x"):
        exact_table(pa.table({"x": natural}), pa.schema([("x", kind)]))


@pytest.mark.parametrize("call", ["scalar", "batch", "numpy", "pandas"])
def test_a_row_whose_result_does_not_fit_fails_alone_and_costs_no_second_call(
    spark: SparkSession, tmp_path: Path, call: str
) -> None:
    uri = str(tmp_path / "t.lance")
    calls = tmp_path / "calls"

    def single(batch: Any) -> Any:
        with calls.open("a") as file:
            file.write("x")
        values = [1e300 if number == 7 else number / 2 for number in batch.column(0).to_pylist()]
        if call == "pandas":
            return pd.Series(values, index=values)
        return np.array(values) if call == "numpy" else pa.array(values)

    if call == "scalar":
        declare_function(people(uri), lambda i: 1e300 if i == 7 else i / 2, ["id"], {"n": SINGLE}, on_error="null")
    else:
        declare_function(people(uri), single, ["id"], {"n": SINGLE}, call="batch", on_error="null")
    result = backfill(spark, uri, "n")
    assert (result["rows_assigned"], result["rows_failed"]) == (99, 1)
    [failed] = result["failed_rows"]
    assert failed["row_id"] == 7
    assert "1e+300 would be stored as inf in a column of float" in failed["message"]
    assert column(uri, "n") == {i: None if i == 7 else i / 2 for i in range(100)}
    assert call == "scalar" or len(calls.read_text()) == 10


def test_rows_of_numpy_fill_a_vector(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    declare_function(
        people(uri), lambda batch: np.ones((batch.num_rows, 3)), ["id"], {"n": pa.list_(SINGLE, 3)}, call="batch"
    )
    backfill(spark, uri, "n")
    assert set(map(tuple, column(uri, "n").values())) == {(1.0, 1.0, 1.0)}


def test_a_whole_data_frame_is_no_column_of_its_names(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")

    def named(batch: pa.RecordBatch) -> Any:
        return pd.DataFrame({"n": [str(i) for i in batch.column(0).to_pylist()], "rest": 0})

    declare_function(people(uri, per_fragment=2), named, ["id"], {"n": pa.string()}, call="batch")
    backfill(spark, uri, "n")
    assert column(uri, "n") == {i: str(i) for i in range(100)}
