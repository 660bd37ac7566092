"""What the signature of a Python function says: its inputs by parameter name, its outputs by its return annotation.

Annotations are read when a column or view is declared. Nothing here runs the function, and pyarrow is imported only
where types are asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Union, cast, get_args, get_origin

from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.definitions.functions.envelope import Call
from airflow_provider_lance.definitions.functions.failure_policy import UdfError

if TYPE_CHECKING:
    import pyarrow as pa

_SCALARS: dict[object, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "binary",
    datetime.datetime: "timestamp(us)",
    datetime.date: "date32",
}
_ARRAYS = ("Array", "ChunkedArray")
_BATCHES = ("RecordBatch", "Table")
_LISTS = (list, tuple, Sequence, Collection, Iterable)
_ROWS = (*_LISTS, Iterator, Generator)
_ARRAY_ITEMS = re.compile(r"\b(Array|ChunkedArray)\[[^\[\]]*\]")
_GIVE_INPUTS = "Give the columns as inputs=[…], in the order of the parameters."
_GIVE_TYPE = (
    'Annotate it, such as `-> float` or `-> Annotated[list[float], "float32[384]"]`, or give type=… of the column.'
)


def is_stateful(function: object) -> bool:
    """Whether this is a class whose instances are called; a class like ``str`` is a function itself."""
    return inspect.isclass(function) and any("__call__" in base.__dict__ for base in function.__mro__)


def called_part(function: object) -> object:
    """The part of a function whose signature counts: the method ``__call__`` of a class or of an instance."""
    if is_stateful(function):
        return cast(type, function).__call__
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__ if callable(function) else function


def infer_call(function: Callable[..., object]) -> Call:
    """How a function is called, by the annotations of its parameters.

    One ``pa.RecordBatch`` means ``batch``, one or more ``pa.Array`` mean ``arrays``, anything else means ``scalar``.
    """
    try:
        parameters = _parameters(function)
    except UdfError:
        return "scalar"  # the signature of a function written in C cannot be read
    names = {parameter.name: _arrow_name(_resolved(function, parameter.annotation)) for parameter in parameters}
    arrays = [name for name, kind in names.items() if kind in _ARRAYS]
    if any(kind in _BATCHES for kind in names.values()):
        if len(names) > 1:
            raise UdfError(f"{_name(function)} takes a batch, so it can take nothing else: {', '.join(names)}.")
        return "batch"
    if not arrays:
        return "scalar"
    for parameter in parameters:
        if parameter.name not in arrays and parameter.default is parameter.empty:
            raise UdfError(
                f"the parameter {parameter.name!r} of {_name(function)} is no pa.Array, but {arrays[0]!r} is one. "
                "Annotate all inputs with pa.Array, or none."
            )
    return "arrays"


def infer_inputs(function: Callable[..., object], call: str) -> list[str]:
    """The columns that a function reads: the names of its parameters that have no default."""
    parameters = _parameters(function)
    if call == "batch":
        first = parameters[0].name if parameters else "its batch"
        raise UdfError(
            f"{_name(function)} gets a batch as {first!r}, which does not say its columns. Give them as inputs=[…]."
        )
    found = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise UdfError(
                f"the parameter {stars}{parameter.name} of {_name(function)} names no column. {_GIVE_INPUTS}"
            )
        if parameter.default is not parameter.empty:
            continue
        _refuse_keyword(function, parameter)
        found.append(parameter.name)
    return found


def check_inputs(function: Callable[..., object], call: str, inputs: Sequence[str]) -> None:
    """Refuse inputs that the function cannot take, by the name of the parameter or of the column."""
    try:
        parameters = _parameters(function)
    except UdfError:
        return
    if call == "batch":
        inputs = ["the batch"]
    positional: list[inspect.Parameter] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [parameter] * len(inputs)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(parameter)
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            _refuse_keyword(function, parameter)
    if len(inputs) > len(positional):
        raise UdfError(f"{_name(function)} has no parameter for the input {inputs[len(positional)]!r}.")
    for parameter in positional[len(inputs) :]:
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise UdfError(f"the parameter {parameter.name!r} of {_name(function)} gets no input: there are {inputs}.")


def check_arguments(function: Callable[..., object] | str, arguments: Mapping[str, object]) -> None:
    """Refuse arguments of a class that its ``__init__`` does not take."""
    if isinstance(function, str):
        return
    if not is_stateful(function):
        if arguments:
            raise UdfError(
                f"{_name(function)} is no class, so it takes no arguments such as {next(iter(arguments))!r}."
            )
        return
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise UdfError(f"the arguments of {_name(function)} do not fit its __init__: {error}") from None
    except ValueError:
        return  # it has no signature that Python can read


def infer_outputs(function: Callable[..., object], column: str) -> dict[str, pa.DataType]:
    """The columns that a function fills, with their types: ``column``, or one for each field of a dataclass."""
    annotation = _returned(function)
    fields = _fields(function, annotation)
    if fields is None:
        return {column: _type(function, annotation, "what it returns")}
    if column not in fields:
        raise UdfError(
            f"{_name(function)} returns the fields {', '.join(fields)}, and each becomes a column. Declare it under "
            f"one of these names instead of {column!r}, or give type=… for one column of structs."
        )
    return {name: _type(function, each, f"its output {name!r}") for name, each in fields.items()}


def output_names(function: Callable[..., object], column: str) -> list[str]:
    """The columns that a function fills, without their types: ``column``, or the fields of a dataclass."""
    return list(_fields(function, _returned(function)) or [column])


def row_schema(function: Callable[..., object]) -> pa.Schema:
    """The schema of the rows that a function yields: the fields of the dataclass or TypedDict in its annotation.

    >>> def chunks(text: str) -> Iterator[Chunk]: ...

    :param function: The function of a chunker or table function, whose return annotation is read.
    """
    import pyarrow as pa

    annotation = _returned(function)
    if get_origin(annotation) in _ROWS and (inside := get_args(annotation)):
        row = _resolved(function, inside[0])
        fields = _fields(function, row)
        if fields is None and get_origin(row) in _ROWS and get_args(row):  # the rows of each row of a batch
            fields = _fields(function, _resolved(function, get_args(row)[0]))
        if fields is not None:
            return pa.schema({name: _type(function, each, f"its column {name!r}") for name, each in fields.items()})
    raise UdfError(
        f"the annotation of {_name(function)} does not name the columns of its rows. Annotate it with an iterator of a "
        "dataclass or TypedDict, such as `-> Iterator[Chunk]`, or give output=…."
    )


def is_async(function: object) -> bool:
    """Whether a call of the function has to be awaited."""
    return inspect.iscoroutinefunction(inspect.unwrap(called_part(function)))  # type: ignore[arg-type]


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _refuse_keyword(function: object, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.KEYWORD_ONLY:
        raise UdfError(
            f"the parameter {parameter.name!r} of {_name(function)} can only be given by name, and inputs are given by "
            "position. Move it before the `*`, or give it a default."
        )


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    called = called_part(function)
    try:
        found = list(_signature(called).parameters.values())
    except (TypeError, ValueError):
        raise UdfError(f"the parameters of {_name(function)} cannot be read. {_GIVE_INPUTS}") from None
    bound = called is function
    return found if bound else found[1:]


def _signature(called: Any) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(called, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(called)


def _returned(function: Callable[..., object]) -> object:
    try:
        annotation = _signature(called_part(function)).return_annotation
    except (TypeError, ValueError):
        annotation = inspect.Signature.empty
    if annotation is inspect.Signature.empty:
        raise UdfError(f"{_name(function)} does not say what it returns. {_GIVE_TYPE}")
    return _resolved(function, annotation)


def _resolved(function: object, annotation: object) -> object:
    """An annotation as an object; text stays text where its names do not exist, as those of ``TYPE_CHECKING``."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return annotation
    called: Any = inspect.unwrap(called_part(function))  # type: ignore[arg-type]
    names: dict[str, object] = dict(getattr(called, "__globals__", {}))
    code, cells = getattr(called, "__code__", None), getattr(called, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    # Type checkers know pa.Array[Any], which Python itself cannot evaluate.
    for text in (annotation, _ARRAY_ITEMS.sub(r"\1", annotation)):
        with contextlib.suppress(Exception):
            return eval(text, names)  # noqa: S307 - the annotation of the user's own function, in its own process
    return annotation


def _arrow_name(annotation: object) -> str | None:
    """``RecordBatch`` for ``pa.RecordBatch``; None for what is not of pyarrow."""
    if isinstance(annotation, str):
        module, _, name = annotation.partition("[")[0].strip().rpartition(".")
        return name if module in ("pa", "pyarrow") else None
    annotation = get_origin(annotation) or annotation
    if getattr(annotation, "__module__", "").partition(".")[0] != "pyarrow":
        return None
    return getattr(annotation, "__name__", None)


def _fields(function: object, annotation: object) -> dict[str, object] | None:
    """The annotated fields of a dataclass, TypedDict or NamedTuple; None for any other annotation."""
    annotation = _without_none(annotation)
    if not inspect.isclass(annotation):
        return None
    is_tuple = issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    if not (dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation) or is_tuple):
        return None
    try:
        return dict(typing.get_type_hints(annotation, include_extras=True))
    except NameError as error:
        raise UdfError(f"the fields of {annotation.__qualname__}, which {_name(function)} returns: {error}.") from None


def _without_none(annotation: object) -> object:
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        if len(kinds) == 1:
            return kinds[0]
    return annotation


def _type(function: object, annotation: object, what: str) -> pa.DataType:
    """The Arrow type of an annotation; UdfError says which part of the function has none."""
    import pyarrow as pa

    annotation = _without_none(_resolved(function, annotation))
    if get_origin(annotation) is Annotated:
        kind, *extras = get_args(annotation)
        for extra in extras:
            if isinstance(extra, pa.DataType):
                return extra
            if isinstance(extra, str):
                return _named_type(extra, what)
        return _type(function, kind, what)
    if get_origin(annotation) in (typing.Required, typing.NotRequired):
        return _type(function, get_args(annotation)[0], what)
    if isinstance(annotation, type) and annotation in _SCALARS:
        return _named_type(_SCALARS[annotation], what)
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in _LISTS and inside and (origin is not tuple or inside[1:] == (...,)):
        return pa.list_(_type(function, inside[0], what))
    fields = _fields(function, annotation)
    if fields is not None:
        return pa.struct([(name, _type(function, each, f"{what}.{name}")) for name, each in fields.items()])
    shown = annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", repr(annotation))
    raise UdfError(f"{_name(function)}: the annotation {shown} of {what} has no Arrow type. {_GIVE_TYPE}")


def _named_type(text: str, what: str) -> pa.DataType:
    try:
        found: pa.DataType = arrow_schema({what: text}).field(0).type
    except ValueError as error:
        raise UdfError(f"the type of {what}: {error}") from None
    return found
