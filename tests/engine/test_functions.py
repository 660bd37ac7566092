"""Python functions fill virtual columns: every calling style, type and way to fail."""

from __future__ import annotations

import base64
import json
from decimal import Decimal

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.engine.columns import virtual_column_entry, virtual_fields
from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.exact import exact_array
from airflow_provider_lance.engine.udf import wrap

from .backfills import assert_filled, backfill, column, declare_function, people

HERE = "tests.engine.functions"


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t.lance")


def test_import_path_row_by_row(spark, uri):
    declare_function(people(uri), f"{HERE}:double", ["id"], {"n": pa.int64()})
    assert backfill(spark, uri, "n")["rows_assigned"] == 100
    assert_filled(uri, rule=lambda row: row["id"] * 2)


def test_import_path_on_arrow_batches(spark, uri):
    declare_function(people(uri), f"{HERE}:lengths", ["text"], {"n": pa.int32()}, call="batch")
    backfill(spark, uri, "n")
    assert_filled(uri, rule=lambda row: None if row["text"] is None else len(row["text"]))


def test_pickled_function_with_threads(spark, uri):
    factor = 3
    declare_function(people(uri, rows=500, per_fragment=500), lambda number: number * factor, ["id"], {"n": pa.int64()})
    backfill(spark, uri, "n", intra_applier_concurrency=4, task_size=200)
    assert_filled(uri, rule=lambda row: row["id"] * 3)


def test_stateful_class_is_set_up_once_per_worker(spark, uri):
    kind = pa.struct([("process", pa.int64()), ("calls", pa.int64())])
    declare_function(people(uri), f"{HERE}:Counter", ["id"], {"n": kind})
    backfill(spark, uri, "n")
    seen = list(column(uri, "n").values())
    for process in {value["process"] for value in seen}:
        calls = sorted(value["calls"] for value in seen if value["process"] == process)
        assert calls == list(range(calls[0], calls[0] + len(calls)))


def test_several_outputs_share_one_call_and_one_file(spark, uri):
    def parts(text):
        return {"size": len(text or ""), "upper": (text or "").upper()}

    declare_function(people(uri), parts, ["text"], {"size": pa.int32(), "upper": pa.string()})
    result = backfill(spark, uri, "upper")
    assert result["columns"] == ["size", "upper"]
    assert_filled(uri, "size", lambda row: len(row["text"] or ""))
    assert_filled(uri, "upper", lambda row: (row["text"] or "").upper())
    assert backfill(None, uri, "size")["rows_assigned"] == 0


def test_batch_function_with_several_outputs(spark, uri):
    def parts(batch):
        text = pc.fill_null(batch.column(0), "")
        return pa.record_batch({"size": pc.utf8_length(text), "upper": pc.utf8_upper(text)})

    declare_function(people(uri), parts, ["text"], {"size": pa.int32(), "upper": pa.string()}, call="batch")
    backfill(spark, uri, "size")
    assert_filled(uri, "upper", lambda row: (row["text"] or "").upper())


@pytest.mark.parametrize("kind", [tuple, list])
def test_an_output_keeps_its_place_when_another_one_is_dropped(spark, uri, kind):
    outputs = {"a": pa.int64(), "n": pa.int64(), "c": pa.int64()}
    declare_function(people(uri), lambda i: kind([i, i * 10, i * 100]), ["id"], outputs)
    lance.dataset(uri).drop_columns(["a"])
    assert backfill(spark, uri, "n")["columns"] == ["n", "c"]
    assert_filled(uri, rule=lambda row: row["id"] * 10)
    assert_filled(uri, "c", rule=lambda row: row["id"] * 100)


def test_too_few_outputs_are_a_failed_row(spark, uri):
    outputs = {"a": pa.int64(), "n": pa.int64()}
    declare_function(people(uri), lambda i: (i,) if i == 7 else (i, i), ["id"], outputs, on_error="null")
    result = backfill(spark, uri, "n")
    assert [row["message"] for row in result["failed_rows"]] == [
        "ValueError: the function returned 1 values, too few for its output 'n'"
    ]
    assert_filled(uri, rule=lambda row: None if row["id"] == 7 else row["id"])


def test_a_null_struct_is_null_in_every_output(spark, uri):
    def parts(batch):
        odd = pc.equal(pc.bit_wise_and(batch.column(0), 1), 1)
        texts = pa.array(["text"] * batch.num_rows)
        return pa.StructArray.from_arrays([batch.column(0), texts], ["a", "n"], mask=odd)

    declare_function(people(uri), parts, ["id"], {"a": pa.int64(), "n": pa.string()}, call="batch")
    backfill(spark, uri, "n")
    assert_filled(uri, "a", rule=lambda row: None if row["id"] % 2 else row["id"])
    assert_filled(uri, rule=lambda row: None if row["id"] % 2 else "text")


@pytest.mark.parametrize("make", [pa.record_batch, pa.table])
def test_the_column_of_a_batch_is_found_by_name(spark, uri, make):
    def tripled(batch):
        return make({"id": batch.column(0), "n": pc.multiply(batch.column(0), 3)})

    declare_function(people(uri), tripled, ["id"], {"n": pa.int64()}, call="batch")
    lance.dataset(uri).alter_columns({"path": "n", "name": "renamed"})
    backfill(spark, uri, "renamed")
    assert_filled(uri, "renamed", rule=lambda row: row["id"] * 3)


def test_the_only_column_of_a_batch_needs_no_name(spark, uri):
    declare_function(people(uri), lambda batch: pa.table({"x": batch[0]}), ["id"], {"n": pa.int64()}, call="batch")
    backfill(spark, uri, "n")
    assert_filled(uri, rule=lambda row: row["id"])


def test_several_columns_of_which_none_is_the_target_are_refused(spark, uri):
    def pair(batch):
        return pa.record_batch({"x": batch.column(0), "y": batch.column(0)})

    declare_function(people(uri), pair, ["id"], {"n": pa.int64()}, call="batch")
    with pytest.raises(JobError, match=r"returned columns \['x', 'y'\], none of them named 'n'"):
        backfill(spark, uri, "n")


def test_a_fraction_is_not_cut_to_a_whole_number(spark, uri):
    declare_function(people(uri), lambda i: i / 2, ["id"], {"n": pa.int64()}, on_error="null")
    result = backfill(spark, uri, "n")
    assert (result["rows_assigned"], result["rows_failed"]) == (50, 50)
    assert result["failed_rows"][0]["message"].endswith(".5 is not a whole number, which a column of int64 holds")
    assert_filled(uri, rule=lambda row: None if row["id"] % 2 else row["id"] // 2)


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
def test_whole_numbers_are_whole_at_any_depth(kind, whole, fraction):
    assert exact_array([whole, None], kind) == pa.array([whole, None], kind)
    with pytest.raises(ValueError, match=r"2\.5 is not a whole number"):
        exact_array([None, fraction], kind)


OUTPUTS = {
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
def test_output_types_in_one_part_and_in_many(spark, uri, name):
    kind, rule = OUTPUTS[name]
    dataset = people(uri, rows=60, per_fragment=30)
    declare_function(dataset, rule, ["id"], {"n": kind})
    dataset.delete("id % 4 = 1")
    backfill(spark, uri, "n", where="id < 20", checkpoint_size=4)
    backfill(spark, uri, "n", where="id >= 15", task_size=9)
    assert_filled(uri, rule=lambda row: rule(row["id"]))


def test_nested_inputs(spark, uri):
    rows = [{"a": i, "b c": {"d": i * 2}} for i in range(40)]
    dataset = lance.write_dataset(pa.table({"id": range(40), "s": rows}), uri)
    declare_function(dataset, lambda a, d: a + d, ["s.a", "s.`b c`.d"], {"n": pa.int64()})
    backfill(spark, uri, "n")
    assert_filled(uri, rule=lambda row: row["id"] * 3)


@pytest.mark.parametrize("call", ["scalar", "batch"])
def test_a_failing_row_fails_the_job_and_nothing_is_written(spark, uri, call):
    def fragile(value):
        if call == "batch":
            value = value.column(0)
            if pc.any(pc.equal(value, 42)).as_py():
                raise ValueError("no 42 here")
            return value
        if value == 42:
            raise ValueError("no 42 here")
        return value

    declare_function(people(uri), fragile, ["id"], {"n": pa.int64()}, call=call)
    with pytest.raises(JobError, match=r"fragment 4: ValueError: no 42 here"):
        backfill(spark, uri, "n")
    assert set(column(uri, "n").values()) == {None}


@pytest.mark.parametrize("call", ["scalar", "batch"])
@pytest.mark.parametrize("stable", [False, True])
def test_failed_rows_become_null_and_are_reported_with_row_id(spark, uri, call, stable):
    def fragile(value):
        if call == "batch":
            value = value.column(0)
            if pc.any(pc.equal(value, 42)).as_py():
                raise ValueError("no 42 here")
            return value
        if value == 42:
            raise ValueError("no 42 here")
        return value

    dataset = people(uri, enable_stable_row_ids=stable)
    declare_function(dataset, fragile, ["id"], {"n": pa.int64()}, call=call, on_error="null")
    result = backfill(spark, uri, "n")
    assert (result["rows_assigned"], result["rows_failed"], result["rows_remaining"]) == (99, 1, 1)
    [failed] = result["failed_rows"]
    assert failed["message"] == "ValueError: no 42 here"
    found = lance.dataset(uri).scanner(columns=["id"], filter="id = 42", with_row_id=True).to_table()
    assert failed["row_id"] == found["_rowid"][0].as_py()
    assert_filled(uri, rule=lambda row: None if row["id"] == 42 else row["id"])


def test_a_value_of_the_wrong_type_is_a_failed_row(spark, uri):
    declare_function(people(uri), lambda i: "text" if i == 7 else i, ["id"], {"n": pa.int64()}, on_error="null")
    result = backfill(spark, uri, "n")
    assert (result["rows_assigned"], result["rows_failed"]) == (99, 1)
    assert_filled(uri, rule=lambda row: None if row["id"] == 7 else row["id"])


def test_retry_tries_again(spark, uri, tmp_path):
    marker = tmp_path / "failed-once"

    def flaky(value):
        if value == 13 and not marker.exists():
            marker.touch()
            raise ConnectionError("try later")
        return value

    declare_function(people(uri), flaky, ["id"], {"n": pa.int64()}, on_error="retry")
    assert backfill(spark, uri, "n")["rows_failed"] == 0
    assert_filled(uri, rule=lambda row: row["id"])


def test_the_request_overrides_the_columns_error_policy(spark, uri):
    declare_function(people(uri), f"{HERE}:odd_only", ["id"], {"n": pa.int64()}, on_error="fail")
    assert backfill(spark, uri, "n", options={"on_error": "null"})["rows_failed"] == 50


def test_a_batch_of_the_wrong_length_is_refused(spark, uri):
    declare_function(people(uri), lambda batch: batch.column(0).slice(1), ["id"], {"n": pa.int64()}, call="batch")
    with pytest.raises(JobError, match="returned 9 values for 10 rows"):
        backfill(spark, uri, "n")


def test_a_missing_module_is_told_once_and_not_retried(spark, uri):
    declare_function(people(uri), "no_such_package.here:f", ["id"], {"n": pa.int64()})
    with pytest.raises(JobError, match="cannot be imported where Spark's Python workers run") as caught:
        backfill(spark, uri, "n")
    assert not caught.value.retryable


def test_foreign_envelopes_are_kept_and_refused(spark, uri):
    dataset = people(uri)
    entry = virtual_column_entry(wrap(f"{HERE}:double"), inputs=["id"], outputs={"n": pa.int64()})
    entry |= {"udf_backend": "DockerUDFSpecV1", "udf": base64.b64encode(b"opaque").decode()}
    dataset.add_columns(virtual_fields(dataset.schema, entry))
    stored = json.loads(lance.dataset(uri).schema.field("n").metadata[b"virtual_column.definition"])
    assert stored["udf"] == entry["udf"]
    with pytest.raises(InvalidInputError, match="DockerUDFSpecV1"):
        backfill(spark, uri, "n")


def test_a_new_version_of_the_function_makes_its_values_stale(spark, uri):
    dataset = people(uri)
    declare_function(dataset, f"{HERE}:double", ["id"], {"n": pa.int64()}, version="1")
    backfill(spark, uri, "n")
    field = lance.dataset(uri).schema.field("n")
    definition = json.loads(field.metadata[b"virtual_column.definition"]) | {"udf_version": "2"}
    lance.dataset(uri).update_field_metadata({"n": {"virtual_column.definition": json.dumps(definition)}})
    assert backfill(spark, uri, "n")["rows_assigned"] == 100
