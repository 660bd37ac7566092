"""``head`` and ``query``: rows of any type, shortened for people and whole for scripts."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pytest

from tests.cli.conftest import TITLES, Run


def test_head_shortens_vectors_and_shows_nulls_and_structs(run: Run, where: list[str]) -> None:
    answer = run("head", "articles", "-n", "2", "--columns", "id,title,lang,author,embedding", *where)
    assert answer.status == 0
    assert answer.out.splitlines() == [
        "id  title                 lang  author                                 embedding",
        "1   Lance in ten minutes  en    {name: Ada, mails: [ada@example.org]}  [0, 0.1, 0.2, … 4 items]",
        "2   Größe zählt           de    null                                   [0.4, 0.5, 0.6, … 4 items]",
    ]
    assert answer.err == "There are more rows than these 2; -n 20 shows more.\n"


def test_wide_characters_are_aligned(run: Run, where: list[str]) -> None:
    lines = run("head", "articles", "--columns", "title,id", *where).out.splitlines()
    assert lines[3] == "数据湖                3"
    assert lines[5] == "Short                 5"


def test_rows_as_json_are_whole(run: Run, where: list[str]) -> None:
    rows = run("head", "articles", "--json", *where).json_lines
    assert [row["title"] for row in rows] == TITLES
    assert rows[0]["author"] == {"name": "Ada", "mails": ["ada@example.org"]}
    assert rows[1]["author"] is None
    vector = rows[4]["embedding"]
    assert isinstance(vector, list)
    assert vector == pytest.approx([1.6, 1.7, 1.8, 1.9])
    assert rows[0]["length"] is None


def test_values_of_many_types(run: Run, where: list[str], kinds: pa.Table) -> None:
    rows = run("head", "kinds", "--json", *where).json_lines
    assert [row["text"] for row in rows] == kinds.column("text").to_pylist()
    assert [row["number"] for row in rows] == [0.1, None, None]
    assert [row["flag"] for row in rows] == [True, False, None]
    assert [row["bytes"] for row in rows] == [base64.b64encode(b"\x00\x01").decode(), "", None]
    assert [row["moment"] for row in rows] == ["1970-01-01 00:00:00.000000005Z", None, "2023-11-14 22:13:20.000000001Z"]
    assert [row["day"] for row in rows] == ["2026-01-02", None, "0001-01-01"]
    assert [row["span"] for row in rows] == ["3 s", None, "0 s"]
    assert [row["price"] for row in rows] == ["1.50", None, "-0.01"]
    assert [row["word"] for row in rows] == ["x", None, "y"]
    assert [row["deep"] for row in rows] == [[{"a": [1, 2, 3, 4]}], [], None]
    assert [row["a b"] for row in rows] == [1, 2, 3]
    table = run("head", "kinds", *where).out
    assert "a\\nb" in table
    assert "x" * 59 + "…" in table
    assert "2 bytes" in table
    assert "[{a: [1, 2, 3, … 4 items]}]" in table


def test_a_column_with_a_space_in_its_name_is_found(run: Run, where: list[str], kinds: pa.Table) -> None:
    assert run("head", "kinds", "--columns", "a b", "-n", "1", "--json", *where).json_lines == [{"a b": 1}]
    assert list(run("head", "sales$orders", "--columns", "größe in cm", "--json", *where).json_lines[0]) == [
        "größe in cm"
    ]


def test_a_field_of_a_struct(run: Run, where: list[str]) -> None:
    rows = run("head", "articles", "--columns", "author.name", "-n", "1", "--json", *where).json_lines
    assert list(rows[0].values()) == ["Ada"]


def test_blobs_are_shown_by_their_place(run: Run, where: list[str], kinds: pa.Table) -> None:
    answer = run("head", "blobs", *where)
    assert answer.status == 0, answer.err
    assert "size: 100" in answer.out
    assert "large_binary (blob)" in run("columns", "blobs", *where).out


def test_a_table_without_rows(run: Run, where: list[str]) -> None:
    answer = run("head", "empty", *where)
    assert answer.out.split() == ["id", "title", "lang", "author", "embedding"]
    assert answer.err == "0 rows.\n"
    assert run("head", "empty", "--json", *where).out == ""


def test_a_view_hides_the_row_ids_of_its_source(run: Run, where: list[str]) -> None:
    assert run("head", "long_titles", *where).out.split() == ["id", "title"]
    assert run("head", "long_titles", "--columns", "__source_row_id", *where).out.split() == ["__source_row_id"]


def test_query_selects_rows(run: Run, where: list[str]) -> None:
    rows = run("query", "articles", "--where", "lang = 'en' AND id > 1", "--columns", "id", "--json", *where).json_lines
    assert rows == [{"id": 4}]
    assert run("query", "articles", "--count", "--where", "lang IS NULL", *where).out == "1\n"
    assert run("query", "articles", "--count", "--json", *where).json == {"count": 5}


def test_query_reads_an_older_version(run: Run, where: list[str]) -> None:
    for at in (["--version", "1"], ["--tag", "production"]):
        rows = run("query", "articles", "-n", "1", "--json", *at, *where).json_lines
        assert list(rows[0]) == ["id", "title", "lang", "author", "embedding"]
    answer = run("query", "articles", "--version", "999", *where)
    assert answer.status == 1
    assert "has no version 999" in answer.err


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("idd > 3", "There is no column idd. Did you mean id?"),
        ("lenght(title) > 3", "The condition cannot be used: Invalid function 'lenght'. Did you mean 'length'?"),
        ("author.nme = 'x'", "The condition cannot be used: Field nme not found in struct."),
        ("title", "The condition cannot be used: The filter title does not return a boolean."),
    ],
)
@pytest.mark.parametrize("more", [[], ["--count"]])
def test_a_wrong_condition_is_one_sentence(
    run: Run, where: list[str], condition: str, sentence: str, more: list[str]
) -> None:
    answer = run("query", "articles", "--where", condition, *more, *where)
    assert (answer.status, answer.out, answer.err) == (1, "", f"airflow-lance: {sentence}\n")


def test_a_condition_that_is_no_expression(run: Run, where: list[str]) -> None:
    answer = run("query", "articles", "--where", "id >", *where)
    assert answer.status == 1
    assert "something is missing beside '>' at line 1, column 4" in answer.err


def test_data_cannot_steer_the_terminal(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    import lance

    lake = tmp_path_factory.mktemp("hostile")
    lance.write_dataset(pa.table({"text": ["\x1b[2J\x07 [red]x[/red]"]}), str(lake / "t.lance"))
    assert run("head", "t", "--root", str(lake)).out.splitlines()[1] == "\\x1b[2J\\x07 [red]x[/red]"
    assert json.loads(run("head", "t", "--json", "--root", str(lake)).out) == {"text": "\x1b[2J\x07 [red]x[/red]"}
