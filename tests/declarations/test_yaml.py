"""Declarations in files: what a file may say, and errors that name the file, the line, the key and near names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_lance.declarations import (
    DeclarationError,
    Declarations,
    LanceChecks,
    LanceIndex,
    LanceTable,
    LanceView,
    LanceViewFunction,
    load_declarations,
)
from airflow_provider_lance.functions import UdfColumn

WHOLE = """
table: sales$articles
schema:
  id: int64 not null
  no: string
computed: {words: "length(no)"}
virtual:
  vector: {function: "texts:embed", inputs: [no], type: "float32[8]", version: 2, call: batch, on_error: null}
views:
  long: SELECT * FROM `sales$articles`
  big: &defaults
    query: SELECT 1 AS one FROM long
    checks: {min_rows: 3, max_nulls: 0.5}
    tags: [hourly]
  bigger:
    <<: *defaults
    query: SELECT 2 AS two FROM long
  chunks:
    query: SELECT id, no FROM `sales$articles`
    function: {function: "texts:split", output: {id: int64, word: string}, inputs: [id, no], num_cpus: 2}
    auto_refresh: true
    refresh_policy: incremental
    sources: [[sales, articles]]
indices:
  - {column: id, type: BTREE}
  - {column: vector, type: IVF_PQ, name: near, num_partitions: 4, distance_type: cosine}
checks: {min_rows: 1, not_null: vector, predicate: id > 0}
promote: production
tags: [nightly]
"""


def test_a_file_says_what_the_objects_say(tmp_path: Path) -> None:
    (tmp_path / "articles.yaml").write_text(WHOLE)
    declared = load_declarations("articles.yaml", folder=tmp_path)
    checks = LanceChecks(min_rows=3, max_nulls=0.5)
    expected = LanceTable(
        ["sales", "articles"],
        schema={"id": "int64 not null", "no": "string"},
        computed={"words": "length(no)"},
        virtual={"vector": UdfColumn("texts:embed", ["no"], "float32[8]", {"call": "batch", "on_error": "null"}, "2")},
        views=[
            LanceView("long", "SELECT * FROM `sales$articles`"),
            LanceView("big", "SELECT 1 AS one FROM long", checks=checks, tags=["hourly"]),
            LanceView("bigger", "SELECT 2 AS two FROM long", checks=checks, tags=["hourly"]),
            LanceView(
                "chunks",
                "SELECT id, no FROM `sales$articles`",
                LanceViewFunction(
                    "texts:split", {"id": "int64", "word": "string"}, inputs=["id", "no"], options={"num_cpus": 2}
                ),
                auto_refresh=True,
                refresh_policy="incremental",
                sources=["sales$articles"],
            ),
        ],
        indices=[
            LanceIndex("id", "BTREE"),
            LanceIndex("vector", "IVF_PQ", "near", {"distance_type": "cosine", "num_partitions": 4}),
        ],
        checks=LanceChecks(min_rows=1, not_null=["vector"], predicate="id > 0"),
        promote="production",
        tags=["nightly"],
    )
    assert declared == Declarations.of([expected])
    assert [view.tags for view in declared.views[:2]] == [("nightly",), ("nightly", "hourly")]


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.yaml").write_text("table: a\n---\ntable: b\n")
    (tmp_path / "deep" / "c.json").write_text('{"tables": {"c": {}}, "views": {"v": "SELECT 1 AS x FROM c"}}')
    (tmp_path / "notes.txt").write_text("no declaration")
    declared = load_declarations(tmp_path)
    assert [table.name for table in declared.tables] == ["a", "b", "c"]
    assert [view.name for view in declared.views] == ["v"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("table: a\nviews:\n  v: {qurey: x}", "line 3, views.v: there is no key 'qurey'. Did you mean 'query'?"),
        ("tabels: {a: {}}", "line 1: there is no key 'tabels'. Did you mean 'tables' or 'table'?"),
        ("table: a\nschema: {}\nschema: {}", "line 3, schema: the key is there twice."),
        ("table: a\ncomputed:\n  n: [x]", "line 3, computed.n: a text is expected here, not a list."),
        ("table: a\ncomputed: [x]", "line 2, computed: keys with values are expected here, not a list."),
        ("table: a: b", "line 1: this is not YAML: mapping values are not allowed"),
        ("table: a\nschema: {n: int64}\ncomputed: {n: '1'}", "The table a declares its column 'n' twice."),
        (
            "table: a\nvirtual:\n  e: {function: f, inputs: x, type: t}",
            "line 3, virtual.e.function: a function is named",
        ),
        ("table: a\nvirtual:\n  e: {function: 'a:f', inputs: x}", "line 3, virtual.e: the key 'type' is missing."),
        ("table: a\nchecks: {min_rows: 1.5}", "line 2, checks.min_rows: a whole number is expected here, not '1.5'."),
        ("table: a\nindices: [{column: x}]", "line 2, indices.1: the key 'type' is missing."),
        ("table: a\nindices: [{column: x, type: BTREE, num_partitons: 2}]", "Did you mean 'num_partitions'"),
        ("views: {v: {query: '', tags: [a]}}", "line 1, views.v.query: a text is expected here, not nothing."),
        (
            "views: {v: {query: SELECT, refresh_policy: fast}}",
            "The view v: `refresh_policy` is one of auto, incremental, incremental_strict, full, not 'fast'.",
        ),
        ("views: {v: {query: SELECT, auto_refresh: maybe}}", "true or false is expected here, not 'maybe'."),
        ("table: ''", "line 1, table: a text is expected here, not nothing."),
        ("# nothing", "declares no table and no view."),
        ("tables: {a: {}}\n---\ntable: a", "a is declared twice."),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "articles.yaml"
    file.write_text(text)
    with pytest.raises(DeclarationError) as failed:
        load_declarations(file)
    assert said in str(failed.value)
    if "line" in said:
        assert str(failed.value).startswith(str(file))


def test_a_file_that_is_not_there_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"There is no file .*nothing\.yaml"):
        load_declarations(tmp_path / "nothing.yaml")
    with pytest.raises(DeclarationError, match=r"has no file that ends in \.yaml, \.yml, \.json"):
        load_declarations(tmp_path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LanceTable(""), "A table needs a name"),
        (lambda: LanceTable(["a", ""]), "is empty"),
        (lambda: LanceView("v", " "), "The view v: `query` must be a text"),
        (lambda: LanceTable("t", tags="nightly"), "`tags` is a list of texts"),
        (lambda: LanceTable("t", indices=[LanceIndex("a", "BTREE"), LanceIndex("a", "BITMAP")]), "'a_idx' twice"),
        (lambda: LanceIndex("a", "IVF_PQ", options={"partitions": 3}), "Did you mean 'num_partitions'"),
        (lambda: LanceViewFunction("a:b", {"x": "int64"}, kind="split"), "is 'chunker' or 'udtf', not 'split'"),  # type: ignore[arg-type]
        (lambda: Declarations.of(["articles"]), "A declaration is a LanceTable or a LanceView"),  # type: ignore[list-item]
    ],
)
def test_objects_complain_as_well(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(DeclarationError) as failed:
        make()
    assert said in str(failed.value)


DOCS = Path(__file__).parents[2] / "docs"


def test_the_files_that_the_page_shows_can_be_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "declarations.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        shown = block.strip().removeprefix('--8<-- "').removesuffix('"')
        if block.startswith("--8<--"):
            declared = load_declarations(DOCS.parent / shown)
        else:
            (tmp_path / "shown.yaml").write_text(block)
            declared = load_declarations(tmp_path / "shown.yaml")
        assert declared.tables
        assert declared.views
