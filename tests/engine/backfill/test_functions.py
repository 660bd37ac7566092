"""Python functions fill virtual columns: every calling style, type and way to fail."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.column_rules import virtual_column_entry, virtual_fields
from airflow_provider_lance.definitions.functions.envelope import wrap
from airflow_provider_lance.engine.functions.exact_arrays import exact_array
from airflow_provider_lance.engine.job.context import JobError
from tests.engine.backfills import assert_filled, backfill, column, declare_function, people, rename_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HERE = "tests.engine.functions"


def test_import_path_row_by_row(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), f"{HERE}:double", ["id"], {"n": pa.int64()})
    assert backfill(spark, new_uri, "n")["rows_assigned"] == 100
    assert_filled(new_uri, rule=lambda row: row["id"] * 2)


def test_import_path_on_arrow_batches(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), f"{HERE}:lengths", ["text"], {"n": pa.int32()}, call="batch")
    backfill(spark, new_uri, "n")
    assert_filled(new_uri, rule=lambda row: None if row["text"] is None else len(row["text"]))


def test_pickled_function_with_threads(spark: SparkSession, new_uri: str) -> None:
    factor = 3
    declare_function(
        people(new_uri, rows=500, per_fragment=500), lambda number: number * factor, ["id"], {"n": pa.int64()}
    )
    backfill(spark, new_uri, "n", intra_applier_concurrency=4, task_size=200)
    assert_filled(new_uri, rule=lambda row: row["id"] * 3)


def test_stateful_class_is_set_up_once_per_worker(spark: SparkSession, new_uri: str) -> None:
    kind = pa.struct([("process", pa.int64()), ("calls", pa.int64())])
    declare_function(people(new_uri), f"{HERE}:Counter", ["id"], {"n": kind})
    backfill(spark, new_uri, "n")
    seen = list(column(new_uri, "n").values())
    for process in {value["process"] for value in seen}:
        calls = sorted(value["calls"] for value in seen if value["process"] == process)
        assert calls == list(range(calls[0], calls[0] + len(calls)))


def test_several_outputs_share_one_call_and_one_file(spark: SparkSession, new_uri: str) -> None:
    def parts(text: str | None) -> dict[str, Any]:
        return {"size": len(text or ""), "upper": (text or "").upper()}

    declare_function(people(new_uri), parts, ["text"], {"size": pa.int32(), "upper": pa.string()})
    result = backfill(spark, new_uri, "upper")
    assert result["columns"] == ["size", "upper"]
    assert_filled(new_uri, "size", lambda row: len(row["text"] or ""))
    assert_filled(new_uri, "upper", lambda row: (row["text"] or "").upper())
    assert backfill(None, new_uri, "size")["rows_assigned"] == 0


def test_batch_function_with_several_outputs(spark: SparkSession, new_uri: str) -> None:
    def parts(batch: Any) -> Any:
        text: Any = pc.fill_null(batch.column(0), "")
        return pa.record_batch({"size": pc.utf8_length(text), "upper": pc.utf8_upper(text)})

    declare_function(people(new_uri), parts, ["text"], {"size": pa.int32(), "upper": pa.string()}, call="batch")
    backfill(spark, new_uri, "size")
    assert_filled(new_uri, "upper", lambda row: (row["text"] or "").upper())


@pytest.mark.parametrize("kind", [tuple, list])
def test_an_output_keeps_its_place_when_another_one_is_dropped(
    spark: SparkSession, new_uri: str, kind: Callable[[list[int]], Any]
) -> None:
    outputs = {"a": pa.int64(), "n": pa.int64(), "c": pa.int64()}
    declare_function(people(new_uri), lambda i: kind([i, i * 10, i * 100]), ["id"], outputs)
    lance.dataset(new_uri).drop_columns(["a"])
    assert backfill(spark, new_uri, "n")["columns"] == ["n", "c"]
    assert_filled(new_uri, rule=lambda row: row["id"] * 10)
    assert_filled(new_uri, "c", rule=lambda row: row["id"] * 100)


def test_too_few_outputs_are_a_failed_row(spark: SparkSession, new_uri: str) -> None:
    outputs = {"a": pa.int64(), "n": pa.int64()}
    declare_function(people(new_uri), lambda i: (i,) if i == 7 else (i, i), ["id"], outputs, on_error="null")
    result = backfill(spark, new_uri, "n")
    assert [row["message"] for row in result["failed_rows"]] == [
        "ValueError: the function returned 1 values, too few for its output 'n'"
    ]
    assert_filled(new_uri, rule=lambda row: None if row["id"] == 7 else row["id"])


def test_a_null_struct_is_null_in_every_output(spark: SparkSession, new_uri: str) -> None:
    def parts(batch: Any) -> Any:
        odd = pa.array([number % 2 == 1 for number in batch.column(0).to_pylist()])
        texts = pa.array(["text"] * batch.num_rows)
        return pa.StructArray.from_arrays([batch.column(0), texts], ["a", "n"], mask=odd)

    declare_function(people(new_uri), parts, ["id"], {"a": pa.int64(), "n": pa.string()}, call="batch")
    backfill(spark, new_uri, "n")
    assert_filled(new_uri, "a", rule=lambda row: None if row["id"] % 2 else row["id"])
    assert_filled(new_uri, rule=lambda row: None if row["id"] % 2 else "text")


@pytest.mark.parametrize("make", [pa.record_batch, pa.table])
def test_the_column_of_a_batch_is_found_by_name(
    spark: SparkSession, new_uri: str, make: Callable[[dict[str, Any]], Any]
) -> None:
    def tripled(batch: Any) -> Any:
        numbers = batch.column(0).to_pylist()
        return make({"id": numbers, "n": [number * 3 for number in numbers]})

    declare_function(people(new_uri), tripled, ["id"], {"n": pa.int64()}, call="batch")
    rename_column(new_uri, "n", "renamed")
    backfill(spark, new_uri, "renamed")
    assert_filled(new_uri, "renamed", rule=lambda row: row["id"] * 3)


def test_the_only_column_of_a_batch_needs_no_name(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), lambda batch: pa.table({"x": batch[0]}), ["id"], {"n": pa.int64()}, call="batch")
    backfill(spark, new_uri, "n")
    assert_filled(new_uri, rule=lambda row: row["id"])


def test_several_columns_of_which_none_is_the_target_are_refused(spark: SparkSession, new_uri: str) -> None:
    def pair(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"x": batch.column(0), "y": batch.column(0)})

    declare_function(people(new_uri), pair, ["id"], {"n": pa.int64()}, call="batch")
    with pytest.raises(JobError, match=r"returned columns \['x', 'y'\], none of them named 'n'"):
        backfill(spark, new_uri, "n")


def test_a_fraction_is_not_cut_to_a_whole_number(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), lambda i: i / 2, ["id"], {"n": pa.int64()}, on_error="null")
    result = backfill(spark, new_uri, "n")
    assert (result["rows_assigned"], result["rows_failed"]) == (50, 50)
    assert result["failed_rows"][0]["message"].endswith(".5 is not a whole number, which a column of int64 holds")
    assert_filled(new_uri, rule=lambda row: None if row["id"] % 2 else row["id"] // 2)


ITEMS = pa.struct([("a", pa.int32()), ("b", pa.float32())])


@pytest.mark.parametrize(
    ("kind", "whole", "fraction"),
    [
        (pa.uint8(), 3.0, 2.5),
        (pa.int64(), Decimal(3), Decimal("2.5")),
        (pa.int64(), np.float32(3), np.float32(2.5)),
        (pa.dictionary(pa.int32(), pa.int64()), 3, 2.5),
        (pa.timestamp("s"), 3, 2.5),
        (pa.list_(pa.int32()), [3, None], [3, 2.5]),
        (pa.list_(pa.int32(), 2), [3, 4], [3, 2.5]),
        (pa.fixed_shape_tensor(pa.int32(), [2]), [3, 4], [3, 2.5]),
        (pa.list_(pa.int32()), np.array([3.0]), np.array([2.5])),
        (pa.list_(ITEMS), [{"a": 3, "b": 2.5}, None], [{"a": 2.5}]),
        (ITEMS, {"b": 2.5}, {"a": 2.5}),
        (ITEMS, (3, 2.5), (2.5, 3)),
        (pa.map_(pa.string(), pa.int32()), {"x": 3}, {"x": 2.5}),
        (pa.map_(pa.string(), pa.int32()), [("x", 3)], [("x", 2.5)]),
    ],
)
def test_whole_numbers_are_whole_at_any_depth(kind: pa.DataType, whole: object, fraction: object) -> None:
    assert exact_array([whole, None], kind) == pa.array([whole, None], kind)
    with pytest.raises(ValueError, match=r"2\.5 is not a whole number"):
        exact_array([None, fraction], kind)


@pytest.mark.parametrize("container", [list, pd.Series, lambda lists: np.array([*lists, None], dtype=object)[:-1]])
def test_lists_of_whole_numbers_may_come_in_any_container(container: Callable[[list[list[int]]], Any]) -> None:
    lists = [[1, 2], [3]]
    assert exact_array(container(lists), pa.list_(pa.int32())).to_pylist() == lists


OUTPUTS: dict[str, tuple[pa.DataType, Callable[[int], object]]] = {
    "list": (pa.list_(pa.int64()), lambda i: [i] * (i % 3)),
    "vector": (pa.list_(pa.float32(), 4), lambda i: [float(i)] * 4),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), lambda i: {"a": i, "b": str(i)}),
    "binary": (pa.binary(), lambda i: bytes([i % 256])),
    "string": (pa.string(), str),
    "null": (pa.string(), lambda i: None),
    "time": (pa.timestamp("us", "UTC"), lambda i: None),
    "bool": (pa.bool_(), lambda i: i % 2 == 0),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_types_in_one_part_and_in_many(spark: SparkSession, new_uri: str, name: str) -> None:
    kind, rule = OUTPUTS[name]
    dataset = people(new_uri, rows=60, per_fragment=30)
    declare_function(dataset, rule, ["id"], {"n": kind})
    dataset.delete("id % 4 = 1")
    backfill(spark, new_uri, "n", where="id < 20", checkpoint_size=4)
    backfill(spark, new_uri, "n", where="id >= 15", task_size=9)
    assert_filled(new_uri, rule=lambda row: rule(row["id"]))


def test_nested_inputs(spark: SparkSession, new_uri: str) -> None:
    rows = [{"a": i, "b c": {"d": i * 2}} for i in range(40)]
    dataset = lance.write_dataset(pa.table({"id": range(40), "s": rows}), new_uri)
    declare_function(dataset, lambda a, d: a + d, ["s.a", "s.`b c`.d"], {"n": pa.int64()})
    backfill(spark, new_uri, "n")
    assert_filled(new_uri, rule=lambda row: row["id"] * 3)


def refuses_42(call: str) -> Callable[..., Any]:
    """The identity, row by row or on batches, except for 42."""

    def of_row(value: int) -> int:
        if value == 42:
            raise ValueError("no 42 here")
        return value

    def of_batch(batch: Any) -> list[int]:
        return [of_row(value) for value in batch.column(0).to_pylist()]

    return of_batch if call == "batch" else of_row


@pytest.mark.parametrize("call", ["scalar", "batch"])
def test_a_failing_row_fails_the_job_and_nothing_is_written(spark: SparkSession, new_uri: str, call: str) -> None:
    declare_function(people(new_uri), refuses_42(call), ["id"], {"n": pa.int64()}, call=call)
    with pytest.raises(JobError, match=r"fragment 4: ValueError: no 42 here"):
        backfill(spark, new_uri, "n")
    assert set(column(new_uri, "n").values()) == {None}


@pytest.mark.parametrize("call", ["scalar", "batch"])
@pytest.mark.parametrize("stable", [False, True])
def test_failed_rows_become_null_and_are_reported_with_row_id(
    spark: SparkSession, new_uri: str, call: str, stable: bool
) -> None:
    dataset = people(new_uri, enable_stable_row_ids=stable)
    declare_function(dataset, refuses_42(call), ["id"], {"n": pa.int64()}, call=call, on_error="null")
    result = backfill(spark, new_uri, "n")
    assert (result["rows_assigned"], result["rows_failed"], result["rows_remaining"]) == (99, 1, 1)
    [failed] = result["failed_rows"]
    assert failed["message"] == "ValueError: no 42 here"
    found = lance.dataset(new_uri).scanner(columns=["id"], filter="id = 42", with_row_id=True).to_table()
    assert failed["row_id"] == found["_rowid"][0].as_py()
    assert_filled(new_uri, rule=lambda row: None if row["id"] == 42 else row["id"])


def test_a_value_of_the_wrong_type_is_a_failed_row(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), lambda i: "text" if i == 7 else i, ["id"], {"n": pa.int64()}, on_error="null")
    result = backfill(spark, new_uri, "n")
    assert (result["rows_assigned"], result["rows_failed"]) == (99, 1)
    assert_filled(new_uri, rule=lambda row: None if row["id"] == 7 else row["id"])


def test_retry_tries_again(spark: SparkSession, new_uri: str, tmp_path: Path) -> None:
    marker = tmp_path / "failed-once"

    def flaky(value: int) -> int:
        if value == 13 and not marker.exists():
            marker.touch()
            raise ConnectionError("try later")
        return value

    declare_function(people(new_uri), flaky, ["id"], {"n": pa.int64()}, on_error="retry")
    assert backfill(spark, new_uri, "n")["rows_failed"] == 0
    assert_filled(new_uri, rule=lambda row: row["id"])


def test_the_request_overrides_the_columns_error_policy(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), f"{HERE}:odd_only", ["id"], {"n": pa.int64()}, on_error="fail")
    assert backfill(spark, new_uri, "n", options={"on_error": "null"})["rows_failed"] == 50


def test_a_batch_of_the_wrong_length_is_refused(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), lambda batch: batch.column(0).slice(1), ["id"], {"n": pa.int64()}, call="batch")
    with pytest.raises(JobError, match="returned 9 values for 10 rows"):
        backfill(spark, new_uri, "n")


def test_a_missing_module_is_told_once_and_not_retried(spark: SparkSession, new_uri: str) -> None:
    declare_function(people(new_uri), "no_such_package.here:f", ["id"], {"n": pa.int64()})
    with pytest.raises(JobError, match="cannot be imported where Spark's Python workers run") as caught:
        backfill(spark, new_uri, "n")
    assert not caught.value.retryable


def test_foreign_envelopes_are_kept_and_refused(spark: SparkSession, new_uri: str) -> None:
    dataset = people(new_uri)
    entry = virtual_column_entry(wrap(f"{HERE}:double"), inputs=["id"], outputs={"n": pa.int64()})
    entry |= {"udf_backend": "DockerUDFSpecV1", "udf": base64.b64encode(b"opaque").decode()}
    dataset.add_columns(virtual_fields(dataset.schema, entry))
    metadata = lance.dataset(new_uri).schema.field("n").metadata or {}
    stored = json.loads(metadata[b"virtual_column.definition"])
    assert stored["udf"] == entry["udf"]
    with pytest.raises(InvalidInputError, match="DockerUDFSpecV1"):
        backfill(spark, new_uri, "n")


def test_a_new_version_of_the_function_makes_its_values_stale(spark: SparkSession, new_uri: str) -> None:
    dataset = people(new_uri)
    declare_function(dataset, f"{HERE}:double", ["id"], {"n": pa.int64()}, version="1")
    backfill(spark, new_uri, "n")
    metadata = lance.dataset(new_uri).schema.field("n").metadata or {}
    definition = json.loads(metadata[b"virtual_column.definition"]) | {"udf_version": "2"}
    lance.dataset(new_uri).update_field_metadata({"n": {"virtual_column.definition": json.dumps(definition)}})
    assert backfill(spark, new_uri, "n")["rows_assigned"] == 100
