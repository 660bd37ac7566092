"""Functions that are declared by their annotations alone fill columns on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import lance
import pyarrow as pa

from airflow_provider_lance.functions import UdfColumn, udf
from tests.engine.backfills import assert_filled, backfill, declare_column, people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Place:
    x: int
    y: int


@dataclass
class Parts:
    size: int
    places: list[Place]


class Both(TypedDict):
    lower: str
    upper: str


def test_values_arrays_and_dataclasses(spark: SparkSession, new_uri: str) -> None:
    def half(id: int) -> float:
        return id / 2

    def lengths(text: pa.Array[Any], id: pa.Array[Any]) -> Annotated[pa.Array[Any], "int32"]:
        texts: list[Any] = text.to_pylist()
        return pa.array([len(one or "") + number for one, number in zip(texts, id.to_numpy(), strict=True)], pa.int32())

    def parts(text: str | None, id: int) -> Parts:
        return Parts(len(text or ""), [Place(id, 1)] * (id % 3))

    def both(batch: pa.RecordBatch) -> Both:
        texts = [text or "" for text in batch.column("text").to_pylist()]
        return {"lower": texts, "upper": [text.upper() for text in texts]}  # type: ignore[typeddict-item]

    def place(id: int) -> Place:
        return Place(id, -id)

    people(new_uri)
    declare_column(lance.dataset(new_uri), "half", UdfColumn(half))
    declare_column(lance.dataset(new_uri), "length", UdfColumn(udf(lengths)))
    declare_column(lance.dataset(new_uri), "size", UdfColumn(parts))
    declare_column(lance.dataset(new_uri), "upper", UdfColumn(both, inputs=["text"]))
    kind = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    declare_column(lance.dataset(new_uri), "place", UdfColumn(place, type=kind))
    for name in ("half", "length", "size", "upper", "place"):
        assert backfill(spark, new_uri, name)["rows_failed"] == 0
    assert_filled(new_uri, "half", lambda row: row["id"] / 2)
    assert_filled(new_uri, "length", lambda row: len(row["text"] or "") + row["id"])
    assert_filled(new_uri, "size", lambda row: len(row["text"] or ""))
    assert_filled(new_uri, "places", lambda row: [{"x": row["id"], "y": 1}] * (row["id"] % 3))
    assert_filled(new_uri, "lower", lambda row: row["text"] or "")
    assert_filled(new_uri, "upper", lambda row: (row["text"] or "").upper())
    assert_filled(new_uri, "place", lambda row: {"x": row["id"], "y": -row["id"]})
    assert lance.dataset(new_uri).schema.field("length").type == pa.int32()
