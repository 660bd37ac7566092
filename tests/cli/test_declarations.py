"""``apply`` and ``manifest`` against a folder and a real server: the same words as the operator has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from airflow_provider_lance.declarations import load_declarations
from airflow_provider_lance.namespace import SparkNamespace
from tests.cli.conftest import Run

NOTES = """
table: {name}
schema: {{id: int64, text: string}}
computed: {{words: {rule}}}
views:
  {name}_long: SELECT id FROM {name} WHERE words > 3
"""


@pytest.fixture
def notes(tmp_path: Path, lake: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A declaration whose table and view belong to one test, and are dropped after it."""
    name = "notes_" + "".join(letter if letter.isalnum() else "_" for letter in request.node.name).lower()
    file = tmp_path / f"{name}.yaml"
    file.write_text(NOTES.format(name=name, rule="length(text)"))
    yield file
    namespace = SparkNamespace(root=str(lake))
    for made in {name, f"{name}_long"} & set(namespace.list_tables({"id": []}).tables):
        namespace.drop_table({"id": [made]})


def test_a_plan_changes_nothing_and_an_apply_is_complete(run: Run, where: list[str], notes: Path) -> None:
    name = notes.stem
    planned = run("apply", str(notes), "--plan", *where)
    assert planned.out.splitlines() == [
        "Plan for 1 table and 1 view: 3 to create, 0 to change, 0 to drop.",
        f"  + table {name}: id int64, text string",
        f"  + column {name}.words: length(text)",
        f"  + view {name}_long: SELECT id FROM {name} WHERE words > 3",
    ]
    assert run("show", name, *where).status == 1
    done = run("apply", str(notes), *where)
    assert (done.status, done.out.splitlines()[-1]) == (0, "Applied: 3 changes.")
    again = run("apply", str(notes), *where)
    assert again.out == "No changes: the namespace has 1 table and 1 view as declared.\n"
    notes.write_text(NOTES.format(name=name, rule="length(text) * 2"))
    document = cast("dict[str, object]", run("apply", str(notes), "--json", *where).json)
    assert (document["change"], document["applied"]) == (1, True)
    run("apply", str(notes), *where)
    assert "length(text) * 2" in run("columns", name, *where).out


def test_what_cannot_be_made_ends_with_one_sentence(run: Run, where: list[str], notes: Path) -> None:
    run("apply", str(notes), *where)
    notes.write_text(NOTES.format(name=notes.stem, rule="length(text)").replace("id: int64", "id: string"))
    for plan in ([], ["--plan"]):
        answer = run("apply", str(notes), *plan, *where)
        assert answer.status == 1
        assert f"  ! column {notes.stem}.id: its type is int64 there and string here" in answer.out
        assert answer.err == "airflow-lance: The declaration cannot be applied, and nothing was changed.\n"


def test_columns_that_are_not_declared_are_dropped_only_when_told(run: Run, where: list[str], notes: Path) -> None:
    run("apply", str(notes), *where)
    notes.write_text(f"table: {notes.stem}\nschema: {{id: int64}}\ncomputed: {{words: '1 + 1'}}\n")
    kept = run("apply", str(notes), *where)
    assert f"  - column {notes.stem}.text: it is not declared; kept, because allow_drop is not set" in kept.out
    dropped = run("apply", str(notes), "--allow-drop", *where)
    assert f"  - column {notes.stem}.text: it is not declared\n" in dropped.out
    assert "text" not in run("columns", notes.stem, *where).out


def test_mistakes_are_named(run: Run, where: list[str], notes: Path) -> None:
    notes.write_text(f"table: {notes.stem}\ncomputd: {{}}\n")
    answer = run("apply", str(notes), *where)
    assert answer.status == 1
    assert answer.err == f"airflow-lance: {notes}, line 2: there is no key 'computd'. Did you mean 'computed'?\n"
    assert "There is no file" in run("apply", "nothing.yaml", *where).err
    notes.write_text(NOTES.format(name=notes.stem, rule="lenght(text)"))
    wrong = run("apply", str(notes), *where)
    assert wrong.status == 1
    assert f"Done before the failure: + table {notes.stem}: id int64, text string" in wrong.err
    assert "Did you mean 'length'?" in wrong.err


def test_a_manifest_is_written_in_one_step(run: Run, where: list[str], tmp_path: Path) -> None:
    printed = cast("dict[str, dict[str, object]]", run("manifest", *where).json)
    assert printed["tables"]["articles"] == {
        "computed": dict.fromkeys(("length", "broken", "endless"), "length(title)"),
        "virtual": {
            "summary": {
                "input_columns": ["title"],
                "udf_name": "sum",
                "udf_version": "1",
                "outputs": [{"column": "summary"}],
            }
        },
    }
    assert printed["views"]["long_titles"] == {
        "query": "SELECT id, title FROM articles WHERE length(title) > 10",
        "sources": [["articles"]],
    }
    assert "planned" not in printed["tables"]
    file = tmp_path / "manifest.json"
    answer = run("manifest", "--all", "--output", str(file), *where)
    assert answer.err.startswith("Wrote ")
    assert "sales$orders" in json.loads(file.read_text())["tables"]
    assert load_declarations(file).is_manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert "cannot be written" in run("manifest", "--output", str(tmp_path / "no" / "m.json"), *where).err
    assert run("apply", str(file), *where).status == 1
