"""Rules in field metadata: LanceDB's keys, ours, what is refused, and no Spark to read any of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from airflow_provider_lance.definitions.arrow_types import text_metadata
from airflow_provider_lance.definitions.backfill_request import BackfillRequest, check_storable
from airflow_provider_lance.definitions.column_rules import (
    column_rule,
    computed_field,
    virtual_column_entry,
    virtual_fields,
)
from airflow_provider_lance.definitions.expressions import (
    expression_inputs,
    expression_type,
    find_field,
    format_path,
    parse_path,
)
from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope, UdfPolicy, udf, wrap
from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy, UdfError
from airflow_provider_lance.engine.functions.load_function import loaded_function

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "text": pa.string(),
    "s": pa.struct([("a", pa.int64()), ("b c", pa.struct([("d", pa.int64())]))]),
}
SCHEMA = pa.schema(COLUMNS)


def with_computed(expression: str = "length(text)") -> pa.Schema:
    return pa.schema([*SCHEMA, computed_field(SCHEMA, "n", expression)])


def changed(field: pa.Field[pa.DataType], key: str, value: str) -> dict[bytes | str, bytes | str]:
    """The metadata of a field with another value of one key."""
    return {name: value if name == key else old for name, old in text_metadata(field.metadata).items()}


def test_the_server_reads_rules_without_spark() -> None:
    code = (
        "import sys\n"
        "import airflow_provider_lance.definitions.backfill_request\n"
        "import airflow_provider_lance.definitions.column_rules\n"
        "import airflow_provider_lance.definitions.functions.envelope\n"
        "import airflow_provider_lance.engine.spark.submit_command\n"
        "heavy = {'pyspark', 'airflow', 'lance', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_computed_field_is_declared_as_lancedb_declares_it() -> None:
    field = computed_field(SCHEMA, "n", "length(text)")
    assert field.type == pa.int32()
    assert field.metadata == {
        b"computed_column": b"true",
        b"computed_column.kind": b"sql",
        b"computed_column.expression": b"length(text)",
        b"computed_column.inputs": b'["text"]',
        b"computed_refresh.source_signature": b"{}",
    }


@pytest.mark.parametrize(
    ("expression", "inputs"),
    [
        ("length(text) + id", ("id", "text")),
        ("s.`b c`.d * 2", ("s.`b c`.d",)),
        ("TEXT", ("text",)),
        ("s IS NULL", ("s",)),
        ("s.`b c` IS NULL", ("s.`b c`",)),
        ("s.a + cast(s IS NULL as int)", ("s",)),
        ("`s`.a + id", ("id", "s.a")),
        ("'text'", ()),
        ("1 + 1", ()),
    ],
)
def test_inputs_are_what_an_expression_cannot_do_without(expression: str, inputs: tuple[str, ...]) -> None:
    assert expression_inputs(SCHEMA, expression) == inputs


@pytest.mark.parametrize(("expression", "inputs"), [("a + 0", ("a",)), ("`A` + 0", ("A",)), ("a + `A`", ("a", "A"))])
def test_columns_whose_names_differ_by_case_are_told_apart(expression: str, inputs: tuple[str, ...]) -> None:
    assert expression_inputs(pa.schema([("a", pa.int64()), ("A", pa.int64())]), expression) == inputs


def test_a_table_with_blobs_has_expressions_too() -> None:
    schema = pa.schema([*SCHEMA, lance.blob_field("blob")])
    assert computed_field(schema, "n", "id + 1").type == pa.int64()
    assert expression_inputs(schema, "blob IS NULL") == ("blob",)
    assert expression_type(schema, "blob") == pa.large_binary()
    with_n = pa.schema([*schema, computed_field(schema, "n", "id")])
    BackfillRequest.parse({"column": "n", "where": "id = 1"}).check(with_n)


def test_inputs_that_a_declaration_does_not_state_are_found() -> None:
    field = computed_field(SCHEMA, "n", "s.a + id")
    stated = field.with_metadata(changed(field, "computed_column.inputs", '["s"]'))
    assert column_rule(pa.schema([*SCHEMA, stated]), "n").inputs == ("s", "id")


@pytest.mark.parametrize("virtual", [False, True])
def test_a_renamed_input_is_named(virtual: bool) -> None:
    entry = virtual_column_entry(wrap("m:f"), inputs=["text"], outputs={"n": pa.int32()})
    fields = virtual_fields(SCHEMA, entry) if virtual else [computed_field(SCHEMA, "n", "length(text)")]
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("text").with_name("body"), *fields])
    with pytest.raises(TableColumnNotFoundError, match="'n' is made from 'text', which was renamed or dropped"):
        BackfillRequest("n").check(schema)


def test_a_name_that_lance_cannot_read_is_refused_at_declaration() -> None:
    with pytest.raises(InvalidInputError, match="backtick"):
        computed_field(SCHEMA, "we`ird", "id")
    with pytest.raises(InvalidInputError, match="backtick"):
        virtual_fields(SCHEMA, virtual_column_entry(wrap("m:f"), inputs=["id"], outputs={"we`ird": pa.int32()}))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("random()", "another value on every run"),
        ("now ( )", "another value on every run"),
        ("length(text) + CURRENT_DATE", "another value on every run"),
        ("uuid()", "another value on every run"),
        ("_rowid", "changes when rows move"),
        ("nope + 1", "No field named nope"),
        ("CASE WHEN id > 1 THEN 1 END", "not supported"),
    ],
)
def test_expressions_without_a_stable_value_are_refused(expression: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        computed_field(SCHEMA, "n", expression)


def test_a_column_cannot_be_computed_from_itself() -> None:
    with pytest.raises(InvalidInputError, match="from itself"):
        computed_field(SCHEMA, "id", "id + 1")


@pytest.mark.parametrize("path", ["a", "a.b", "a.`b.c`.`d``e`"])
def test_paths_survive_a_round_trip(path: str) -> None:
    assert format_path(parse_path(path)) == path


@pytest.mark.parametrize("path", ["", ".", "a.", "a..b", "`a", "a`b"])
def test_broken_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_path(path)


def test_a_missing_field_says_what_is_there() -> None:
    with pytest.raises(TableColumnNotFoundError, match=r"^There is no field 'x' in s, which has a, b c\.$"):
        find_field(SCHEMA, "s.x")
    with pytest.raises(TableColumnNotFoundError, match=r"^There is no column 'length'; the table has id, s, text\.$"):
        find_field(SCHEMA, "length")


def test_an_unknown_kind_of_computed_column_is_left_alone() -> None:
    field = computed_field(SCHEMA, "n", "id")
    schema = pa.schema([*SCHEMA, field.with_metadata(changed(field, "computed_column.kind", "function"))])
    with pytest.raises(InvalidInputError, match="left alone"):
        column_rule(schema, "n")


def test_the_outputs_of_one_function_belong_together_and_survive_a_rename() -> None:
    entry = virtual_column_entry(wrap("m:f"), inputs=["id"], outputs={"p": pa.int32(), "q": pa.list_(pa.float32(), 3)})
    p, q = virtual_fields(SCHEMA, entry)
    rule = column_rule(pa.schema([*SCHEMA, p.with_name("renamed"), q]), "q")
    assert (rule.targets, rule.struct_fields) == (("renamed", "q"), ("p", "q"))
    assert q.type == pa.list_(pa.float32(), 3)


def test_a_virtual_column_must_be_nullable_and_know_its_inputs() -> None:
    entry = virtual_column_entry(wrap("m:f"), inputs=["nope"], outputs={"p": pa.int32()})
    with pytest.raises(TableColumnNotFoundError):
        virtual_fields(SCHEMA, entry)
    entry = virtual_column_entry(wrap("m:f"), inputs=["id"], outputs={"p": pa.int32()})
    entry["outputs"][0]["nullable"] = False
    with pytest.raises(InvalidInputError, match="must be nullable"):
        virtual_fields(SCHEMA, entry)


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.int64()))])
def test_a_map_output_is_refused_with_what_to_declare_instead(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match=r"Output 'm' is of type .*list of structs with key and value"):
        virtual_column_entry(wrap("m:f"), inputs=["id"], outputs={"m": kind})
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
    (field,) = virtual_fields(SCHEMA, virtual_column_entry(wrap("m:f"), inputs=["id"], outputs={"m": pairs}))
    assert field.type == pairs


# --- envelopes -------------------------------------------------------------------------------------------------------


def test_a_pickle_carries_its_sha_and_an_altered_one_is_refused() -> None:
    envelope = wrap(lambda x: x + 1)
    with loaded_function(UdfEnvelope.decode(envelope.backend, envelope.encode())) as function:
        assert function(1) == 2
    forged = replace(envelope, pickle=b"another function")
    with pytest.raises(UdfError, match="was altered"):
        UdfEnvelope.decode(forged.backend, forged.encode())


def test_a_pickle_of_another_python_is_refused_before_it_runs() -> None:
    envelope = replace(wrap(lambda x: x), python="3.7", sha256="other")
    with pytest.raises(UdfError, match=r"pickled by Python 3\.7"), loaded_function(envelope):
        pass


def test_large_pickles_are_refused() -> None:
    payload = bytes(2 << 20)
    with pytest.raises(UdfError, match=r"setup\(\)"):
        wrap(lambda: payload)


@pytest.mark.parametrize("path", ["os.system", "os:", ":f", "a b:c", "m:f()", "m;n:f"])
def test_import_paths_name_a_module_and_a_function(path: str) -> None:
    with pytest.raises(UdfError, match="not of the form"):
        wrap(path)


def test_the_decorators_options_travel_and_can_be_overridden() -> None:
    @udf(call="batch", on_error="null", retries=2)
    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    assert wrap(function).policy == ErrorPolicy("null", 2)
    assert wrap(function, on_error="retry", retries=None).policy == ErrorPolicy("fail", 3)
    with pytest.raises(UdfError, match="on_error"):
        wrap(function, on_error="explode")  # type: ignore[arg-type]


def test_a_deployment_can_forbid_pickles_and_name_import_paths() -> None:
    policy = UdfPolicy.from_environment({"LANCE_UDF_PICKLES": "forbid", "LANCE_UDF_IMPORTS": "good.package, other"})
    policy.check(wrap("good.package.deep:f"))
    with pytest.raises(UdfError, match="outside the import paths"):
        policy.check(wrap("good.packages:f"))
    with pytest.raises(UdfError, match="not allowed here"):
        policy.check(wrap(lambda: 1))


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "needs a column"),
        ({"column": ""}, "not empty"),
        ({"column": "n", "surprise": 1}, "no field 'surprise'"),
        ({"column": "n", "task_size": 0}, "1 or more"),
        ({"column": "n", "num_frags": -3}, "1 or more"),
        ({"column": "n", "concurrency": True}, "whole number"),
        ({"column": "n", "concurrency": 1.5}, "whole number"),
        ({"column": "n", "batch_checkpoint_flush_interval_seconds": 0}, "above 0"),
        ({"column": "n", "batch_checkpoint_flush_interval_seconds": float("inf")}, "above 0"),
        ({"column": "n", "min_checkpoint_size": 5, "max_checkpoint_size": 4}, "above max_checkpoint_size"),
        ({"column": "n", "checkpoint_size": 3, "min_checkpoint_size": 5}, "outside its bounds"),
        ({"column": "n", "where": "id +"}, "cannot be planned"),
        ({"column": "n", "where": "id + 1"}, "not boolean"),
        ({"column": "text"}, "has no rule"),
        ({"column": "s.a"}, "inside a struct"),
    ],
)
def test_what_cannot_be_honoured_is_refused(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        BackfillRequest.parse(request_).check(with_computed())


@pytest.mark.parametrize(
    "options",
    [{"plan": "maybe"}, {"max_failed_rows": "-1"}, {"max_failed_rows": "x"}, {"on_error": "ignore"}, {"retries": "a"}],
)
def test_context_entries_are_checked_too(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        BackfillRequest.parse({"column": "n"}, options)


def test_a_full_request_is_read_to_the_letter() -> None:
    body = {
        "id": ["t"],
        "column": "n",
        "where": "id > 3",
        "concurrency": 4,
        "intra_applier_concurrency": 2,
        "min_checkpoint_size": 10,
        "max_checkpoint_size": 1000,
        "checkpoint_size": 100,
        "batch_checkpoint_flush_interval_seconds": 2.5,
        "read_version": 2,
        "task_size": 5000,
        "num_frags": 7,
        "commit_granularity": 3,
        "branch": "dev",
        "cluster": "local",
        "manifest": None,
    }
    parsed = BackfillRequest.parse(body, {"plan": "true", "max_failed_rows": "5"})
    parsed.check(with_computed())
    assert (parsed.flush_seconds, parsed.plan, parsed.max_failed_rows, parsed.manifest) == (2.5, True, 5, None)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, ErrorPolicy("fail", 5)),
        ({"on_error": "null"}, ErrorPolicy("null", 5)),
        ({"on_error": "retry"}, ErrorPolicy("fail", 5)),
        ({"on_error": "null", "retries": "0"}, ErrorPolicy("null", 0)),
        ({"retries": "1"}, ErrorPolicy("fail", 1)),
    ],
)
def test_a_request_changes_only_that_part_of_the_error_policy_it_names(
    options: dict[str, str], policy: ErrorPolicy
) -> None:
    entry = virtual_column_entry(wrap("m:f", retries=5), inputs=["id"], outputs={"n": pa.int32()})
    rule = column_rule(pa.schema([*SCHEMA, *virtual_fields(SCHEMA, entry)]), "n")
    assert BackfillRequest.parse({"column": "n"}, options).error_policy(rule) == policy


def test_types_whose_files_lance_cannot_read_back_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="map"):
        check_storable(pa.field("m", pa.list_(pa.map_(pa.string(), pa.int32()))), "2.1")
    with pytest.raises(InvalidInputError, match="struct"):
        check_storable(pa.field("m", pa.struct([("a", pa.int32())])), "2.0")
    with pytest.raises(InvalidInputError, match="blob"):
        check_storable(pa.field("m", pa.large_binary(), metadata={"lance-encoding:blob": "true"}), "2.1")
    check_storable(pa.field("m", pa.map_(pa.string(), pa.int32())), "2.2")
