"""Inputs and outputs of a function are read from its signature, and refusals name the parameter."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NotRequired, TypedDict

import pyarrow as pa
import pytest
from lance.schema import json_to_schema

from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope, wrap
from airflow_provider_lance.definitions.functions.table_function import TableFunction
from airflow_provider_lance.functions import UdfColumn, UdfError, row_schema, table_function_spec, udf

if TYPE_CHECKING:
    import pyarrow as arrow_of_type_checkers


@dataclass
class Parts:
    size: int
    vector: Annotated[list[float], "float32[4]"]


class Words(TypedDict):
    first: str
    rest: NotRequired[list[str] | None]


class Place(NamedTuple):
    x: float
    y: float


@dataclass
class Chunk:
    doc: int
    word: str


def declared(
    function: Callable[..., object], column: str = "n", **fields: Any
) -> tuple[list[str], dict[str, Any], str]:
    """The inputs, the outputs with their types, and the call of a declaration."""
    entry = UdfColumn(function, **fields).entry(column)
    types = [{"name": out["column"], "type": out["data_type"], "nullable": True} for out in entry["outputs"]]
    schema = json_to_schema({"fields": types})
    envelope = UdfEnvelope.decode(entry["udf_backend"], entry["udf"])
    return entry["input_columns"], {field.name: field.type for field in schema}, envelope.call


def returns(annotation: object) -> Callable[..., object]:
    def function(text: str) -> object:
        return text

    function.__annotations__["return"] = annotation
    return function


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (float, pa.float64()),
        (int | None, pa.int64()),
        (bool, pa.bool_()),
        (str, pa.string()),
        (bytes, pa.binary()),
        (datetime.date, pa.date32()),
        (datetime.datetime, pa.timestamp("us")),
        (list[float], pa.list_(pa.float64())),
        (tuple[int, ...], pa.list_(pa.int64())),
        (list[list[str | None]], pa.list_(pa.list_(pa.string()))),
        (Annotated[list[float], "float32[384]"], pa.list_(pa.float32(), 384)),
        (Annotated[float, pa.float16()] | None, pa.float16()),
        (Annotated[pa.Array, "int8"], pa.int8()),
        (list[Place], pa.list_(pa.struct([("x", pa.float64()), ("y", pa.float64())]))),
        ("Annotated[pa.Array, 'int8']", pa.int8()),
    ],
)
def test_the_return_annotation_is_the_type_of_the_column(annotation: object, kind: pa.DataType) -> None:
    assert declared(returns(annotation)) == (["text"], {"n": kind}, "scalar")


def test_an_explicit_type_wins_over_the_annotation() -> None:
    assert declared(returns(int), type="int16")[1] == {"n": pa.int16()}
    assert declared(returns(Parts), type=pa.struct([("size", pa.int8())]))[1] == {"n": pa.struct([("size", pa.int8())])}


@pytest.mark.parametrize(
    ("annotation", "outputs"),
    [
        (Parts, {"size": pa.int64(), "vector": pa.list_(pa.float32(), 4)}),
        (Words, {"first": pa.string(), "rest": pa.list_(pa.string())}),
        (Place | None, {"x": pa.float64(), "y": pa.float64()}),
    ],
)
def test_each_field_of_a_class_becomes_a_column(annotation: object, outputs: dict[str, pa.DataType]) -> None:
    first, *_ = outputs
    assert declared(returns(annotation), first)[1] == outputs
    with pytest.raises(UdfError, match=f"Declare it under one of these names instead of 'n'.*{first}|{first}.*'n'"):
        declared(returns(annotation), "n")


def test_parameters_are_columns_and_defaults_are_kept() -> None:
    def join(text: str, title: str, separator: str = " ", *, upper: bool = False) -> str:
        return text + separator + title

    assert declared(join)[0] == ["text", "title"]
    assert declared(join, inputs=["meta.text", "title", "by"])[0] == ["meta.text", "title", "by"]


def test_the_parameters_of_a_class_are_those_of_its_call() -> None:
    @udf
    class Scale:
        def __call__(self, number: int) -> float:
            return number / 2

    assert declared(Scale) == (["number"], {"n": pa.float64()}, "scalar")


def test_arrow_annotations_say_how_a_function_is_called() -> None:
    def of_arrays(text: pa.Array[Any], id: pa.Array[Any]) -> Annotated[pa.Array[Any], "int32"]:
        return text

    def of_batch(batch: arrow_of_type_checkers.RecordBatch) -> int:
        return 0

    def of_type_checkers(batch: pa.RecordBatch) -> Annotated[list[int], "int64"]:
        return [1]

    of_batch.__annotations__["batch"] = "pa.RecordBatch"
    assert declared(of_arrays) == (["text", "id"], {"n": pa.int32()}, "arrays")
    assert declared(of_batch, inputs=["text"])[2] == "batch"
    assert declared(of_type_checkers, inputs=["text"])[1:] == ({"n": pa.int64()}, "batch")
    assert wrap(udf(call="scalar")(of_batch)).call == "scalar"
    assert wrap(len).call == "scalar"


def star(*values: int) -> int:
    return sum(values)


def by_name(text: str, *, lang: str) -> str:
    return text + lang


def batch_and_more(batch: pa.RecordBatch, size: int) -> int:
    return size


def array_and_more(text: pa.Array[Any], size: int) -> int:
    return size


def says_nothing(text):  # type: ignore[no-untyped-def]
    return text


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (UdfColumn(star), r"the parameter \*values of star names no column"),
        (UdfColumn(by_name), "the parameter 'lang' of by_name can only be given by name"),
        (UdfColumn(batch_and_more, ["a"]), "batch_and_more takes a batch, so it can take nothing else: batch, size"),
        (UdfColumn(array_and_more), "the parameter 'size' of array_and_more is no pa.Array, but 'text' is one"),
        (UdfColumn(says_nothing), "says_nothing does not say what it returns"),
        (UdfColumn(returns(Any)), "the annotation .*Any of what it returns has no Arrow type"),
        (UdfColumn(returns(dict[str, int])), "has no Arrow type"),
        (UdfColumn(returns("Unknown")), "the annotation Unknown of what it returns has no Arrow type"),
        (UdfColumn(returns(int), inputs=["a", "b"]), "has no parameter for the input 'b'"),
        (UdfColumn(returns(int), inputs=[]), "the parameter 'text' of .*function gets no input"),
        (UdfColumn("a.b:c", type="int64"), "the import path a.b:c does not say its inputs"),
        (UdfColumn("a.b:c", ["x"]), "the import path a.b:c does not say what it returns"),
        (UdfColumn(lambda batch: 1, ["x"], "int64", {"call": "batch"}), None),
    ],
)
def test_what_a_signature_does_not_say_is_refused_by_name(column: UdfColumn, reason: str | None) -> None:
    if reason is None:
        column.entry("n")
        return
    with pytest.raises(UdfError, match=f"The column 'n' cannot be declared: .*{reason}"):
        column.entry("n")


def test_a_chunker_is_declared_by_its_function_alone() -> None:
    def split_words(id: int, text: str) -> Iterator[Chunk]:
        for word in text.split():
            yield Chunk(id, word)

    def of_batches(batch: pa.RecordBatch) -> list[list[Chunk]]:
        return [[] for _ in range(batch.num_rows)]

    spec = table_function_spec(split_words)
    assert (spec["input_columns"], "batch" in spec) == (["id", "text"], False)
    assert TableFunction.decode(spec["udtf"]).output == row_schema(split_words)
    assert row_schema(split_words) == arrow_schema({"doc": "int64", "word": "string"})
    spec = table_function_spec(of_batches, inputs=["text"])
    assert (spec["batch"], TableFunction.decode(spec["udtf"]).output) == (True, row_schema(split_words))
    with pytest.raises(UdfError, match="does not name the columns of its rows"):
        row_schema(returns(Iterator[tuple[int, str]]))
    with pytest.raises(UdfError, match=r"and not a pa\.Array for each column"):
        table_function_spec(array_and_chunks)


def array_and_chunks(text: pa.Array[Any]) -> Iterator[Chunk]:
    yield Chunk(1, "")


def test_the_options_of_a_function_do_not_change_its_pickle() -> None:
    def half(number: int) -> float:
        return number / 2

    class Half:
        def __call__(self, number: int) -> float:
            return number / 2

    for function in (half, Half):
        plain = wrap(function)
        marked = wrap(udf(on_error="null", retries=7)(function))
        assert (marked.sha256, marked.fingerprint) == (plain.sha256, plain.fingerprint)
        assert (marked.on_error, marked.retries) == ("null", 7)
