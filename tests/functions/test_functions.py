"""The names that users import to write functions: what they build, and that importing them is cheap."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

import airflow_provider_lance.functions
from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.definitions.functions.table_function import TableFunction
from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec
from airflow_provider_lance.functions import UdfColumn, UdfError, table_function_spec, udf

WORDS = arrow_schema({"doc": "int64", "word": "string"})


def split_words(doc: int, text: str) -> Iterator[tuple[int, str]]:
    for word in text.split():
        yield doc, word


def test_importing_the_functions_imports_neither_arrow_nor_lance() -> None:
    code = (
        "import sys, airflow_provider_lance.functions\n"
        "print([name for name in ('pyarrow', 'lance', 'sqlglot', 'lance_namespace') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("name", airflow_provider_lance.functions.__all__)
def test_every_name_explains_each_of_its_arguments(name: str) -> None:
    exported = getattr(airflow_provider_lance.functions, name)
    documentation = inspect.getdoc(exported) or ""
    assert documentation
    if exported is not UdfError:
        missing = [one for one in inspect.signature(exported).parameters if f":param {one}:" not in documentation]
        assert not missing


def test_a_chunkers_spec_has_its_envelope_and_its_sum() -> None:
    spec = table_function_spec(split_words, output=WORDS, inputs=["id", "text"], version="7", on_error="null")
    assert spec | {"udtf": "", "udtf_sha": ""} == {
        "kind": "chunker",
        "udtf": "",
        "udtf_sha": "",
        "udtf_name": "split_words",
        "udtf_version": "7",
        "input_columns": ["id", "text"],
    }
    assert spec["udtf_sha"] == hashlib.sha256(spec["udtf"].encode()).hexdigest()
    function = TableFunction.decode(spec["udtf"])
    assert (function.output, function.envelope.policy.on_error) == (WORDS, "null")
    assert UdtfSpec.from_request("chunker", spec).input_columns == ("id", "text")


def test_a_table_functions_spec_has_what_was_given() -> None:
    spec = table_function_spec(
        "teams.count:members",
        output=WORDS,
        kind="udtf",
        name="members",
        partition_by="team",
        error_handling={"mode": "skip"},
        num_cpus=2,
        memory=1 << 30,
        manifest='{"pip": ["pyarrow"]}',
    )
    given = {"partition_by": "team", "error_handling": {"mode": "skip"}, "num_cpus": 2, "memory": 1 << 30}
    assert given.items() <= spec.items()
    assert (spec["kind"], spec["udtf_name"]) == ("udtf", "members")
    assert TableFunction.decode(spec["udtf"]).envelope.path == "teams.count:members"


def test_a_spec_that_a_server_would_refuse_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidInputError, match="input_columns is required for a chunker"):
        table_function_spec("words:split", output=WORDS)
    with pytest.raises(InvalidInputError, match="belongs to batch functions"):
        table_function_spec(split_words, output=WORDS, inputs=["id", "text"], partition_by="id")
    with pytest.raises(UdfError, match="not of the form package"):
        table_function_spec("split words", output=WORDS, inputs=["id"])


def test_a_columns_options_take_precedence_over_its_decorator() -> None:
    @udf(call="batch", retries=4)
    def length(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    entry = UdfColumn(length, inputs=["text"], type="int64", options={"retries": 1}, version="2").entry("n")
    assert (entry["udf_name"], entry["udf_version"], entry["input_columns"]) == ("length", "2", ["text"])
    assert [output["column"] for output in entry["outputs"]] == ["n"]
    with pytest.raises(UdfError, match="The column 'n' cannot be declared: retries is -1"):
        UdfColumn(length, inputs=["text"], type="int64", options={"retries": -1}).entry("n")
