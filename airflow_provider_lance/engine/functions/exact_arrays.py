"""Results of functions as Arrow arrays of the declared type: every value is stored unchanged, or refused.

Arrow's own conversions change values silently: microseconds in a column of seconds, 6.5 in one of integers, 1e300 in
float32 (which makes it infinite), an aware datetime in a naive timestamp. Only the rounding of a fraction to the
precision of a float is accepted, because a float column is expected to round.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    AnyArray: TypeAlias = pa.Array[Any]
    # Values as a function of a user returned them; a pandas Series passes for a sequence.
    Values: TypeAlias = Sequence[Any] | np.ndarray

_DAY = 86_400 * 10**9
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH = datetime.datetime(1970, 1, 1)


def exact_array(values: Any, kind: pa.DataType) -> AnyArray:
    """Values of any origin (lists, NumPy, pandas, Arrow) as an array of ``kind``.

    An error, mostly a ValueError, names the first value that would be changed.
    """
    import numpy as np
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return exact_cast(values, kind)
    if getattr(values, "ndim", 1) > 1:
        values = list(np.asarray(values))
    dtype = str(getattr(values, "dtype", "object"))
    if dtype != "object":
        return exact_cast(_one_array(pa.array(values)), kind)
    array = _one_array(pa.array(values, type=kind))
    if _may_differ(kind):
        _check_values(values, array)
    return array


def _one_array(array: AnyArray | pa.ChunkedArray[Any]) -> AnyArray:
    """Arrow makes several chunks of values that do not fit into one array."""
    import pyarrow as pa

    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def exact_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of ``schema`` of a table that a function returned, each as its declared type."""
    import pyarrow as pa

    columns = []
    for field in schema:
        try:
            chunks = [exact_cast(chunk, field.type) for chunk in table.column(field.name).chunks]
        except Exception as error:
            raise ValueError(f"column {field.name}: {error}") from error
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, schema=schema)


def exact_cast(array: AnyArray, kind: pa.DataType) -> AnyArray:
    """An Arrow array as another type."""
    import pyarrow as pa

    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return exact_cast(array.storage, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, exact_cast(array, kind.storage_type))
    if isinstance(array, pa.DictionaryArray):
        return exact_cast(array.dictionary_decode(), kind)
    if pa.types.is_dictionary(kind):
        return pa.array(exact_cast(array, kind.value_type).to_pylist(), type=kind)
    stored = array.cast(kind)
    _check_cast(array, stored)
    return stored


def _refusal(value: object, kind: pa.DataType, reason: str) -> ValueError:
    text = str(value)
    return ValueError(f"{text if len(text) <= 100 else text[:97] + '...'} {reason} {kind}")


def _changed(value: object, stored: object, kind: pa.DataType) -> ValueError:
    return _refusal(value, kind, f"would be stored as {stored} in a column of")


def _not_whole(value: object, kind: pa.DataType) -> ValueError:
    return ValueError(f"{value} is not a whole number, which a column of {kind} holds")


# --- values of Python ------------------------------------------------------------------------------------------------


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values behind a dictionary or an extension type."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _may_differ(kind: pa.DataType) -> bool:
    """Whether Arrow may store a changed value; it refuses texts, bytes, booleans and decimals that it cannot store."""
    import pyarrow as pa

    kind = _storage_type(kind)
    return pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_floating(kind) or kind.num_fields > 0


def _storage(array: AnyArray) -> AnyArray:
    """The plain array behind an extension type or a dictionary."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _check_values(values: Values, stored: AnyArray) -> None:
    """Compare values of Python with what Arrow stored; for most types it is known at once that nothing changed."""
    import numpy as np
    import pyarrow as pa

    stored = _storage(stored)
    kind = stored.type
    if not _may_differ(kind) or (pa.types.is_floating(kind) and not _may_have_overflowed(stored)):
        return
    if isinstance(values, np.ndarray) and values.dtype != object:
        _check_cast(pa.array(values), stored)
        return
    if stored.null_count:
        values = list(itertools.compress(values, stored.is_valid().to_pylist()))
        stored = stored.drop_null()
    if isinstance(stored, pa.StructArray):
        _check_structs(values, stored)
    elif isinstance(stored, pa.MapArray):
        entries = [list(value.items()) if isinstance(value, Mapping) else list(value) for value in values]
        pairs = list(itertools.chain.from_iterable(entries))
        keys, items = _map_entries(stored)
        _check_values([key for key, _ in pairs], keys)
        _check_values([item for _, item in pairs], items)
    elif isinstance(stored, _list_arrays()):
        _check_lists(values, stored)
    elif pa.types.is_temporal(kind):
        _check_times(values, stored)
    else:
        _check_numbers(values, stored)


def _may_have_overflowed(stored: AnyArray) -> bool:
    """Whether there is an infinity among floats; half floats are always checked, because they round whole numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pa.types.is_float16(stored.type) or bool(pc.any(pc.is_inf(stored)).as_py())


def _check_structs(values: Values, stored: pa.StructArray) -> None:
    kind = stored.type
    names = {part.name for part in kind}
    for keys in {tuple(value) for value in values if isinstance(value, Mapping)}:
        unknown = [str(key) for key in keys if key not in names]
        if unknown:
            raise _refusal(", ".join(unknown), kind, "is no field of")
    for at, part in enumerate(kind):
        if _may_differ(part.type):
            _check_values([_member(value, part.name, at) for value in values], stored.field(at))


def _member(value: Any, name: str, at: int) -> object:
    """A field of a value that Arrow accepts as a struct: a dictionary, its items, or a tuple of the values."""
    if isinstance(value, tuple):
        return value[at]
    return dict(value).get(name)


def _check_lists(values: Values, stored: pa.ListArray[Any]) -> None:
    import numpy as np
    import pyarrow as pa

    for value in values:
        if isinstance(value, str):
            raise _refusal(repr(value), stored.type, "is a text and not a")
    members = stored.flatten()
    if pa.types.is_floating(members.type) and not _may_have_overflowed(members):
        return
    if len(values) and all(
        isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype != object for value in values
    ):
        _check_values(np.concatenate(values), members)
    else:
        _check_values(list(itertools.chain.from_iterable(values)), members)


def _check_numbers(values: Values, stored: AnyArray) -> None:
    import numpy as np
    import pyarrow as pa

    kind = stored.type
    whole = pa.types.is_integer(kind)
    kinds = set(map(type, values))
    if whole and not any(issubclass(found, float | decimal.Decimal | np.floating | pa.Scalar) for found in kinds):
        return
    for value, number in zip(map(_as_python, values), stored.to_pylist(), strict=True):
        if whole:
            if value != number:
                raise _not_whole(value, kind)
            continue
        rounded = isinstance(value, float | np.floating) and number is not None and math.isfinite(number)
        if not rounded and value != number and value == value:
            raise _changed(value, number, kind)


def _as_python(value: object) -> object:
    import pyarrow as pa

    return value.as_py() if isinstance(value, pa.Scalar) else value


def _check_times(values: Values, stored: AnyArray) -> None:
    import pyarrow as pa

    kind = stored.type
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    size = _DAY if pa.types.is_date32(kind) else _NANOSECONDS["ms" if pa.types.is_date64(kind) else kind.unit]
    numbers = stored.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    for value, number in zip(map(_as_python, values), numbers, strict=True):
        if isinstance(value, datetime.datetime | datetime.time):
            aware = value.tzinfo is not None
            if aware and not zoned:
                raise _refusal(value, kind, "has a time zone, which is lost in a column of")
            if zoned and not aware:
                raise _refusal(value, kind, "has no time zone, which is needed in a column of")
        exact = _nanoseconds(value)
        if exact is not None and number is not None:
            if exact != number * size:
                raise _changed(value, stored[numbers.index(number)], kind)
        elif isinstance(value, float | decimal.Decimal) and value != number:
            raise _not_whole(value, kind)


def _nanoseconds(value: object) -> int | None:
    """A date or time in nanoseconds since 1970 or midnight, or a duration in nanoseconds; None for anything else."""
    if isinstance(value, datetime.datetime):
        finer = int(getattr(value, "nanosecond", 0))  # pandas has it
        if hasattr(value, "to_pydatetime"):
            moment: datetime.datetime = value.to_pydatetime(warn=False)
        else:
            moment = value
        if moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        return _duration_nanoseconds(moment - _EPOCH) + finer
    if isinstance(value, datetime.date):
        return (value - _EPOCH.date()).days * _DAY
    if isinstance(value, datetime.timedelta):
        return _duration_nanoseconds(value)
    if isinstance(value, datetime.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000
    return None


def _duration_nanoseconds(value: datetime.timedelta) -> int:
    microseconds = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
    return microseconds * 1000 + int(getattr(value, "nanoseconds", 0))


# --- values of Arrow -------------------------------------------------------------------------------------------------


def _check_cast(array: AnyArray, stored: AnyArray) -> None:
    """Compare an array with what a cast made of it."""
    import pyarrow as pa

    for given, kept in _leaves(array, stored):
        if given.type == kept.type:
            continue
        if pa.types.is_floating(kept.type):
            _check_floats(given, kept)
        elif pa.types.is_temporal(given.type) or pa.types.is_temporal(kept.type):
            _check_zone(given, kept)
            _check_way_back(given, kept)
        elif not (_is_text(given.type) or _is_text(kept.type)):
            _check_way_back(given, kept)


def _list_arrays() -> tuple[type[pa.ListArray[Any]], ...]:
    """The classes of arrays whose values are lists; ``flatten`` gives the members of all lists."""
    import pyarrow as pa

    kinds: Any = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray, pa.ListViewArray, pa.LargeListViewArray)
    return tuple(kinds)


def _leaves(array: AnyArray, stored: AnyArray) -> Iterator[tuple[AnyArray, AnyArray]]:
    """The plain arrays inside two nested ones of the same shape."""
    import pyarrow as pa

    if array.type == stored.type:
        return
    array, stored = _storage(array), _storage(stored)
    if isinstance(stored, pa.StructArray) and isinstance(array, pa.StructArray):
        array, stored = array.drop_null(), stored.drop_null()
        names = [part.name for part in array.type]
        unknown = sorted(set(names) - {part.name for part in stored.type})
        if unknown:
            raise _refusal(", ".join(unknown), stored.type, "is no field of")
        for at, part in enumerate(stored.type):
            if part.name in names:
                yield from _leaves(array.field(names.index(part.name)), stored.field(at))
    elif isinstance(stored, pa.MapArray) and isinstance(array, pa.MapArray):
        for given, kept in zip(_map_entries(array), _map_entries(stored), strict=True):
            yield from _leaves(given, kept)
    elif isinstance(stored, _list_arrays()) and isinstance(array, _list_arrays()):
        yield from _leaves(array.flatten(), stored.flatten())
    else:
        yield array, stored


def _map_entries(array: pa.MapArray[Any, Any]) -> tuple[AnyArray, AnyArray]:
    """The keys and the items of all maps."""
    array = array.drop_null()
    if not len(array):
        return array.keys.slice(0, 0), array.items.slice(0, 0)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.keys.slice(first, last - first), array.items.slice(first, last - first)


def _check_floats(given: AnyArray, kept: AnyArray) -> None:
    """Refuse numbers that became infinite, and whole numbers that were rounded; rounded fractions are accepted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(given.type):
        _raise_at(given, kept, pc.not_equal(kept.cast(pa.float64()), given.cast(pa.float64())))
        return
    if pa.types.is_boolean(given.type):
        return
    infinite: pa.BooleanArray = pc.is_inf(kept)
    if not pc.any(infinite).as_py():
        return
    if _is_text(given.type):
        infinite = pc.and_not(infinite, pc.match_substring(given, "inf", ignore_case=True))
    elif pa.types.is_floating(given.type):
        infinite = pc.and_not(infinite, pc.is_inf(given))
    _raise_at(given, kept, infinite)


def _check_zone(given: AnyArray, kept: AnyArray) -> None:
    import pyarrow as pa

    def zoned(kind: pa.DataType) -> bool:
        return pa.types.is_timestamp(kind) and kind.tz is not None

    if pa.types.is_temporal(given.type) and pa.types.is_temporal(kept.type):
        if zoned(given.type) and not zoned(kept.type):
            raise _refusal(given.type, kept.type, "has a time zone, which is lost in a column of")
        if zoned(kept.type) and not zoned(given.type):
            raise _refusal(given.type, kept.type, "has no time zone, which is needed in a column of")


def _check_way_back(given: AnyArray, kept: AnyArray) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_text(given.type) or _is_text(kept.type):
        return
    try:
        back = kept.cast(given.type, safe=False)
    except pa.ArrowNotImplementedError:
        raise _refusal(given.type, kept.type, "cannot be stored as it is in a column of") from None
    _raise_at(given, kept, pc.not_equal(back, given))


def _raise_at(given: AnyArray, kept: AnyArray, differs: AnyArray) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    first = pc.index(differs, True).as_py()
    if first >= 0 and pa.types.is_floating(given.type) and pa.types.is_integer(kept.type):
        raise _not_whole(given[first], kept.type)
    if first >= 0:
        raise _changed(given[first], kept[first], kept.type)


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are texts or bytes, which Arrow parses and prints exactly, or refuses."""
    import pyarrow as pa

    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )
