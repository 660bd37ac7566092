"""A declaration, compared with a namespace and applied to it: the lines of the plan, and what is there afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.cli.connection import FolderConnection
from airflow_provider_lance.declarations import (
    DeclarationError,
    Declarations,
    LanceIndex,
    LanceTable,
    LanceView,
    LanceViewFunction,
    load_declarations,
)
from airflow_provider_lance.declarations.apply import Applied, RefusedPlanError, apply_plan
from airflow_provider_lance.declarations.compare import make_plan
from airflow_provider_lance.declarations.manifest import make_manifest, table_ids
from airflow_provider_lance.functions import UdfColumn

ARTICLES = LanceTable(
    "articles",
    schema={"id": "int64", "text": "string"},
    computed={"twice": "words * 2", "words": "length(text)"},
    virtual={"vector": UdfColumn("texts:embed", ["text"], "float32[4]")},
    views=[
        LanceView("short_words", "SELECT w.id FROM long_words w JOIN articles a ON w.id = a.id"),
        LanceView("long_words", "select * from articles where words > 3"),
    ],
    indices=[LanceIndex("id", "BTREE")],
)


class Folder:
    """A folder of tables, as the functions of declarations call it; it counts the requests that change something."""

    def __init__(self, root: Path) -> None:
        self.connection = FolderConnection(str(root), {})
        self.root = root
        self.changes: list[str] = []
        self.fails: dict[str, WireError] = {}

    def call(self, operation: str, fields: Mapping[str, object], data: Any = None) -> dict[str, Any]:
        if not operation.startswith(("describe", "list", "namespace_exists", "count")):
            self.changes.append(operation)
        if operation in self.fails:
            raise self.fails.pop(operation)
        return self.connection.request(operation, {k: v for k, v in fields.items() if v is not None}, data)

    def schema(self, table: str) -> pa.Schema:
        return lance.dataset(str(self.root / f"{table}.lance")).schema

    def rule(self, table: str, column: str) -> str:
        return (self.schema(table).field(column).metadata or {})[b"computed_column.expression"].decode()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "lake").mkdir()
    return Folder(tmp_path / "lake")


def bring(folder: Folder, *declared: LanceTable | LanceView, **options: Any) -> list[str]:
    """Apply a declaration, and return the lines of its plan without the summary."""
    plan = make_plan(Declarations.of(declared), folder, **options)
    apply_plan(plan, folder, allow_drop=bool(options.get("allow_drop")))
    return [line.strip() for line in plan.lines()][1:]


def summary(folder: Folder, *declared: LanceTable | LanceView, **options: Any) -> str:
    return make_plan(Declarations.of(declared), folder, **options).summary


def test_what_is_missing_is_created_in_order_and_a_second_time_nothing_is(folder: Folder) -> None:
    assert bring(folder, ARTICLES) == [
        "+ table articles: id int64, text string",
        "+ column articles.words: length(text)",
        "+ column articles.vector: texts:embed(text), version 1",
        "+ column articles.twice: words * 2",
        "+ index articles.id_idx: BTREE on id",
        "+ view long_words: select * from articles where words > 3",
        "+ view short_words: SELECT w.id FROM long_words w JOIN articles a ON w.id = a.id",
    ]
    assert folder.schema("articles").names == ["id", "text", "words", "vector", "twice"]
    folder.changes.clear()
    assert bring(folder, ARTICLES) == []
    assert summary(folder, ARTICLES) == "No changes: the namespace has 1 table and 2 views as declared."
    assert folder.changes == []


def test_a_plan_changes_nothing(folder: Folder) -> None:
    plan = make_plan(Declarations.of([ARTICLES]), folder)
    assert plan.summary == "Plan for 1 table and 2 views: 7 to create, 0 to change, 0 to drop."
    assert folder.changes == []
    assert plan.to_json()["create"] == 7
    assert plan.to_json()["changes"][1] == {
        "action": "create",
        "kind": "column",
        "id": ["articles"],
        "name": "words",
        "text": "length(text)",
    }


def test_what_differs_is_changed_and_shown_with_both_texts(folder: Folder) -> None:
    bring(folder, ARTICLES)
    changed = replace(
        ARTICLES,
        schema={"id": "int64", "text": "string", "tags": "list<string>", "seen": "timestamp(us, UTC)"},
        computed={"twice": "words * 3", "words": "length(text)"},
        virtual={"vector": UdfColumn("texts:embed", ["text"], "float32[4]", version="2")},
        views=[
            LanceView("long_words", "SELECT id FROM articles WHERE words > 5", auto_refresh=True, refresh_policy="full")
        ],
    )
    assert bring(folder, changed) == [
        "+ column articles.tags: list<string>",
        "+ column articles.seen: timestamp(us, UTC)",
        "~ column articles.vector: udf_version is '1' there and '2' here",
        "~ column articles.twice: expression is 'words * 2' there and 'words * 3' here",
        "~ view long_words: query is 'SELECT id, text, words, vector, twice FROM articles WHERE words > 3' there and "
        "'SELECT id FROM articles WHERE words > 5' here; auto_refresh is False there and True here; "
        "refresh_policy is 'auto' there and 'full' here",
    ]
    assert folder.rule("articles", "twice") == "words * 3"
    assert folder.schema("articles").field("tags").type == pa.list_(pa.string())
    assert folder.schema("articles").field("seen").type == pa.timestamp("us", "UTC")
    assert bring(folder, changed) == []


def test_nothing_is_dropped_unless_it_is_told(folder: Folder) -> None:
    bring(folder, ARTICLES)
    less = replace(
        ARTICLES, computed={"words": "length(text)"}, virtual={}, indices=[LanceIndex("text", "FTS")], views=()
    )
    kept = "it is not declared; kept, because allow_drop is not set"
    assert bring(folder, less) == [
        f"- column articles.vector: {kept}",
        f"- column articles.twice: {kept}",
        "+ index articles.text_idx: FTS on text",
        f"- index articles.id_idx: {kept}",
    ]
    assert summary(folder, less).startswith("No changes")
    assert "twice" in folder.schema("articles").names
    assert bring(folder, less, allow_drop=True) == [
        "- column articles.vector: it is not declared",
        "- column articles.twice: it is not declared",
        "- index articles.id_idx: it is not declared",
    ]
    assert folder.schema("articles").names == ["id", "text", "words"]
    assert bring(folder, less, allow_drop=True) == []


def test_a_table_without_a_schema_keeps_its_loaded_columns_out_of_the_comparison(folder: Folder) -> None:
    bring(folder, ARTICLES)
    rules = replace(ARTICLES, schema=None)
    assert bring(folder, rules, allow_drop=True) == []
    with pytest.raises(RefusedPlanError, match="! table other: it is not there, and without a `schema` it cannot be"):
        bring(folder, LanceTable("other", computed={"n": "id"}))


@pytest.mark.parametrize(
    ("changed", "options", "said"),
    [
        (
            {"schema": {"id": "string", "text": "string"}},
            {},
            "! column articles.id: its type is int64 there and string",
        ),
        (
            {"schema": {**(ARTICLES.schema or {}), "z": "int64 not null"}},
            {},
            "! column articles.z: it is not there, and",
        ),
        (
            {"schema": {**(ARTICLES.schema or {}), "z": "month_day_nano_interval"}},
            {},
            "Lance's SQL has no word for the",
        ),
        ({"schema": {"id": "int64"}, "computed": {"text": "'x'"}}, {}, "! column articles.text: rule is 'no rule:"),
        (
            {"schema": {**(ARTICLES.schema or {}), "words": "int32"}, "computed": {}},
            {},
            "it is computed there, and the",
        ),
        ({"virtual": {"vector": UdfColumn("texts:embed", ["text"], "float32[8]")}}, {}, "allow_drop drops the column"),
        ({"indices": [LanceIndex("id", "BITMAP")]}, {}, "! index articles.id_idx: its type is BTree there and BITMAP"),
        ({"computed": {"twice": "words * 2"}}, {"allow_drop": True}, "and the rule of twice reads it: declare it"),
        (
            {"views": [LanceView("articles2", "SELECT id FROM articles")]},
            {},
            "it is a table there, and no materialized",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_changed(
    folder: Folder, changed: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    bring(folder, ARTICLES, LanceTable("articles2", schema={"id": "int64"}))
    folder.changes.clear()
    with pytest.raises(RefusedPlanError) as failed:
        bring(folder, replace(ARTICLES, **changed), **options)
    assert said in str(failed.value)
    assert folder.changes == []


def test_a_view_is_no_table(folder: Folder) -> None:
    bring(folder, ARTICLES)
    with pytest.raises(RefusedPlanError, match="! table long_words: it is a materialized view there; declare it as a"):
        bring(folder, LanceTable("long_words", schema={"id": "int64"}))


def test_a_type_that_cannot_be_kept_is_dropped_first_where_that_is_allowed(folder: Folder) -> None:
    bring(folder, ARTICLES)
    wider = replace(ARTICLES, virtual={"vector": UdfColumn("texts:embed", ["text"], "float32[8]")})
    (line,) = bring(folder, wider, allow_drop=True)
    assert line.startswith("~ column articles.vector: outputs is")
    assert folder.schema("articles").field("vector").type == pa.list_(pa.float32(), 8)
    assert bring(folder, wider) == []


def test_an_interrupted_plan_is_carried_on(folder: Folder) -> None:
    folder.fails["create_materialized_view"] = WireError("away", code=ErrorCode.SERVICE_UNAVAILABLE, status=503)
    plan = make_plan(Declarations.of([ARTICLES]), folder)
    applied = Applied()
    with pytest.raises(WireError):
        apply_plan(plan, folder, applied=applied)
    assert [change.target for change in applied.done][-1] == "index articles.id_idx"
    assert [line[:18] for line in bring(folder, ARTICLES)] == ["+ view long_words:", "+ view short_words"]
    assert bring(folder, ARTICLES) == []


def test_namespaces_are_created_with_their_tables(folder: Folder) -> None:
    orders = LanceTable("sales$eu$orders", schema={"id": "int64"})
    assert bring(folder, orders)[:2] == ["+ namespace sales: it is not there", "+ namespace sales$eu: it is not there"]
    assert bring(folder, orders) == []


def test_a_view_with_a_function_is_compared_by_its_parts(folder: Folder) -> None:
    split = LanceViewFunction("texts:split", {"id": "int64", "word": "string"}, inputs=["id", "text"])
    view = LanceView("words", "SELECT id, text FROM articles", split)
    bring(folder, LanceTable("articles", schema=ARTICLES.schema), view)
    assert bring(folder, view) == []
    (line,) = bring(folder, replace(view, function=replace(split, version="2")))
    assert line == "~ view words: udtf_version is '1' there and '2' here"
    with pytest.raises(DeclarationError, match="The view words cannot be declared"):
        bring(folder, replace(view, function=replace(split, output={"id": "nonsense"})))


def test_an_index_of_vectors_waits_for_rows(folder: Folder) -> None:
    table = LanceTable(
        "v", schema={"v": "float32[4]"}, indices=[LanceIndex("v", "IVF_FLAT", options={"distance_type": "l2"})]
    )
    assert bring(folder, table)[-1] == "The index v.v_idx is made from rows: apply again once there are some."
    rows = pa.table({"v": pa.array([[1.0, 2, 3, 4]] * 300, pa.list_(pa.float32(), 4))})
    folder.call("insert_into_table", {"id": ["v"]}, rows)
    assert bring(folder, table) == ["+ index v.v_idx: IVF_FLAT on v"]
    assert bring(folder, table) == []


def test_a_part_of_a_declaration_by_itself(folder: Folder) -> None:
    assert [line[:10] for line in bring(folder, ARTICLES, only=["tables", "columns"])] == [
        "+ table ar",
        *["+ column a"] * 3,
    ]
    assert bring(folder, ARTICLES, only="indices") == ["+ index articles.id_idx: BTREE on id"]
    with pytest.raises(ValueError, match="`only` names 'tables', 'columns', 'indices' or 'views', not 'view'"):
        bring(folder, ARTICLES, only="view")


def test_a_server_that_keeps_the_old_definition_is_found_out(folder: Folder) -> None:
    """LanceDB's servers know no ``if-exists`` and answer that the view is there."""
    bring(folder, ARTICLES)
    changed = LanceView("long_words", "SELECT id FROM articles")
    taken = WireError("there is one", code=ErrorCode.TABLE_ALREADY_EXISTS, status=409)
    folder.fails["create_materialized_view"] = taken
    with pytest.raises(WireError, match="This server cannot change a view: allow_drop drops it"):
        bring(folder, changed)
    folder.fails["create_materialized_view"] = taken
    folder.changes.clear()
    bring(folder, changed, allow_drop=True)
    assert folder.changes == ["create_materialized_view", "drop_materialized_view", "create_materialized_view"]
    assert bring(folder, changed) == []


def test_a_manifest_has_the_order_of_a_catalog_and_cannot_be_applied(folder: Folder, tmp_path: Path) -> None:
    import json

    from airflow_provider_lance.declarations.graph import make_graph

    bring(folder, ARTICLES, LanceTable("sales$orders", schema={"id": "int64"}))
    manifest = make_manifest(folder, table_ids(folder, [], nested=True), "a folder")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    declared = load_declarations(tmp_path / "manifest.json")
    assert [table.name for table in declared.tables] == ["articles", "sales$orders"]
    names = [node.name for node in make_graph(declared).nodes]
    wanted = [node.name for node in make_graph(Declarations.of([ARTICLES])).nodes]
    assert sorted(names) == sorted([*wanted, "sales$orders"])
    assert [name for name in names if "words" in name or "twice" in name] == [
        "articles.words",
        "articles.twice",
        "long_words",
        "short_words",
    ]
    with pytest.raises(DeclarationError, match="so it cannot be applied"):
        make_plan(declared, folder)
    assert [each[-1] for each in table_ids(folder, ["sales"], nested=False)] == ["orders"]
