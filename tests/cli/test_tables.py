"""``tables``, ``show``, ``columns``, ``views``, ``tags`` and ``versions``, of a server and of a folder alike."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from tests.cli.conftest import Run
from tests.namespace.server_process import ServerProcess


def cells(text: str) -> list[list[str]]:
    """The rows of a plain table; its columns are two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_tables_has_name_kind_rows_version_columns_and_size(run: Run, where: list[str]) -> None:
    answer = run("tables", *where)
    assert answer.status == 0
    header, *rows = cells(answer.out)
    assert header == ["NAME", "KIND", "ROWS", "VERSION", "COLUMNS", "SIZE"]
    found = {row[0]: row[1:] for row in rows}
    assert found["articles"][:2] == ["table", "5"]
    assert found["articles"][3] == "9"
    assert found["articles"][4].endswith("kB")
    assert found["empty"] == ["table", "0", "1", "5", "0 B"]
    assert found["long_titles"][:2] == ["view", "0"]
    assert found["planned"] == ["declared"]
    assert "sales$orders" not in found
    assert "Namespaces in the root namespace: sales." in answer.err


def test_tables_of_one_namespace_and_of_all(run: Run, where: list[str]) -> None:
    assert [row[0] for row in cells(run("tables", "sales", *where).out)] == ["NAME", "sales$orders"]
    everywhere = [row[0] for row in cells(run("tables", "--all", *where).out)]
    assert {"articles", "sales$orders"} <= set(everywhere)
    assert [row[0] for row in cells(run("tables", "sales", "--all", *where).out)] == ["NAME", "sales$orders"]


def test_tables_as_json_is_one_document(run: Run, where: list[str]) -> None:
    document = json.loads(run("tables", "--json", *where).out)
    assert document["namespaces"] == ["sales"]
    found = {table["name"]: table for table in document["tables"]}
    assert found["articles"]["rows"] == 5
    assert found["articles"]["columns"] == 9
    assert found["articles"]["bytes"] > 0
    assert found["planned"] == {
        "name": "planned",
        "kind": "declared",
        "rows": None,
        "version": None,
        "columns": 0,
        "bytes": None,
    }


def test_a_folder_without_tables_says_so(run: Run, tmp_path: Path) -> None:
    answer = run("tables", "--root", str(tmp_path))
    assert (answer.status, answer.out) == (0, "")
    assert answer.err == f"There are no tables in the root namespace of {tmp_path}.\n"
    assert list(tmp_path.iterdir()) == []  # looking writes nothing


def test_a_table_that_cannot_be_read_does_not_hide_the_others(run: Run, tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "good.lance"))
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "bad.lance"))
    for manifest in (tmp_path / "bad.lance" / "_versions").iterdir():
        manifest.write_bytes(b"junk")
    answer = run("tables", "--root", str(tmp_path))
    assert [row[:2] for row in cells(answer.out)[1:]] == [["bad", "unreadable"], ["good", "table"]]
    assert "bad cannot be described: " in answer.err


def test_show_has_everything_about_a_table(run: Run, where: list[str]) -> None:
    answer = run("show", "articles", *where)
    assert answer.status == 0
    facts, _, columns = answer.out.partition("\n\n")
    title, *lines = facts.splitlines()
    assert title.startswith("articles: table, version ")
    found = {name: text.strip() for name, _, text in (line.partition(" ") for line in lines)}
    assert found["rows"].startswith("5 in 1 fragment, ")
    assert found["tags"] == "production is version 1"
    assert found["indices"] == "id_idx (BTree) on id"
    assert found["location"].endswith("articles.lance")
    header, *rows = cells(columns)
    assert header == ["COLUMN", "TYPE", "NULLABLE", "RULE"]
    assert ["author", "struct<name: string, mails: list<string>>", "yes"] in rows
    assert ["embedding", "fixed_size_list<float>[4]", "yes"] in rows
    assert ["length", "int32", "yes", "length(title)"] in rows
    assert ["summary", "string", "yes", "sum(title), version 1, from texts:summarize"] in rows


def test_show_as_json_has_the_same(run: Run, where: list[str]) -> None:
    document = json.loads(run("show", "articles", "--json", *where).out)
    assert document["tags"] == {"production": 1}
    assert document["indices"][0]["columns"] == ["id"]
    assert document["fragments"] == 1
    assert document["stable_row_ids"] is True
    rules = {column["name"]: column["rule"] for column in document["columns"] if "rule" in column}
    assert rules["length"] == {"kind": "sql", "expression": "length(title)", "inputs": ["title"]}
    assert rules["summary"]["path"] == "texts:summarize"
    assert rules["summary"]["outputs"] == ["summary"]


def test_show_of_a_declared_table(run: Run, where: list[str]) -> None:
    answer = run("show", "planned", *where)
    assert answer.out.startswith("planned: declared, without data yet\n")
    assert json.loads(run("show", "planned", "--json", *where).out)["kind"] == "declared"


def test_columns(run: Run, where: list[str]) -> None:
    assert ["id", "int64", "yes"] in cells(run("columns", "articles", *where).out)
    document = json.loads(run("columns", "articles", "--json", *where).out)
    assert document[0] == {"name": "id", "type": "int64", "nullable": True}


def test_tags(run: Run, where: list[str]) -> None:
    assert cells(run("tags", "articles", *where).out) == [["TAG", "VERSION", "BRANCH"], ["production", "1"]]
    assert json.loads(run("tags", "articles", "--json", *where).out) == [{"tag": "production", "version": 1}]
    assert run("tags", "empty", *where).err == "empty has no tags.\n"


def test_versions_are_newest_first(run: Run, where: list[str]) -> None:
    header, *rows = cells(run("versions", "articles", *where).out)
    assert header == ["VERSION", "CREATED", "ROWS", "TAGS"]
    numbers = [int(row[0]) for row in rows]
    assert numbers == sorted(numbers, reverse=True)
    assert rows[-1][0] == "1"
    assert rows[-1][2:] == ["5", "production"]
    document = json.loads(run("versions", "articles", "-n", "2", "--json", *where).out)
    assert [version["version"] for version in document] == numbers[:2]
    assert document[0]["rows"] == 5


def test_views_tell_their_sources_and_their_lag(run: Run, where: list[str], lake: Path) -> None:
    answer = run("show", "long_titles", *where)
    assert "\nsources    articles: " in answer.out
    assert "SELECT id, title FROM articles WHERE length(title) > 10" in answer.out
    (view,) = json.loads(run("views", "--json", *where).out)
    assert view["name"] == "long_titles"
    assert view["sources"][0]["table"] == "articles"
    assert "SELECT id, title" in run("views", *where).out
    assert run("views", "sales", *where).err.startswith("There are no materialized views in the namespace sales of ")


def test_how_far_a_view_is_behind(run: Run, tmp_path: Path) -> None:
    from tests.cli.conftest import make_lake

    make_lake(tmp_path)
    where = ["--root", str(tmp_path)]
    current = json.loads(run("show", "articles", "--json", *where).out)["version"]
    assert "articles: never refreshed" in run("views", *where).out
    view = lance.dataset(str(tmp_path / "long_titles.lance"))
    view.update_schema_metadata({"mv.source_version": "1", "mv.source_version_ts": "0", "mv.refreshed_at_ms": "1000"})
    behind = f"articles: {current - 1} versions behind: refreshed from version 1 of {current}"
    shown = run("show", "long_titles", *where).out
    assert behind in shown
    assert "refreshed  19" in shown  # 1969 or 1970, wherever the test runs
    assert behind in run("views", *where).out
    view.update_schema_metadata({"mv.source_version": str(current)})
    assert f"articles: up to date with version {current}" in run("show", "long_titles", *where).out


@pytest.mark.parametrize("command", ["show", "columns", "head", "query", "tags", "versions"])
def test_a_mistyped_table_is_answered_with_near_names(run: Run, where: list[str], command: str) -> None:
    answer = run(command, "artcles", *where)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err == "airflow-lance: There is no table artcles. Did you mean articles?\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "sales"], "There is no table sales. Did you mean sales$orders?"),
        (["show", "orders"], "There is no table orders. Did you mean sales$orders?"),
        (["show", "zebra"], "There is no table zebra."),
        (["tables", "slaes"], "There is no namespace slaes. Did you mean sales?"),
        (["query", "articles", "--tag", "prod"], "There is no tag prod. Did you mean production?"),
        (["head", "articles", "--columns", "id,titel"], "There is no column titel. Did you mean title?"),
        (["head", "planned"], "Table planned is declared, but has no data yet."),
    ],
)
def test_other_names_that_do_not_exist(run: Run, where: list[str], arguments: list[str], sentence: str) -> None:
    answer = run(*arguments, *where)
    assert (answer.status, answer.err) == (1, f"airflow-lance: {sentence}\n")


def test_a_place_that_is_none(run: Run, tmp_path: Path, lake: Path) -> None:
    assert (
        run("tables", "--root", str(tmp_path / "none")).err == f"airflow-lance: There is no folder {tmp_path}/none.\n"
    )
    assert not (tmp_path / "none").exists()
    answer = run("tables", "--root", str(lake / "articles.lance"))
    assert f"give --root {lake} and the table's name articles." in answer.err
    answer = run("tables", "--url", "127.0.0.1:1")
    assert answer.status == 1
    assert answer.err.startswith("airflow-lance: http://127.0.0.1:1 gave no answer: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tables", "--url", "x", "--root", "y"], "not allowed with argument"),
        (["tables", "--root", "{lake}", "--key", "x"], "a folder asks for no key"),
        (["tables", "--root", "{lake}", "--storage-option", "region"], "--storage-option 'region' is not NAME=VALUE."),
        (["tables", "--url", "x", "--storage-option", "a=b"], "--storage-option belongs to --root"),
        (["tables", "--key", "x", "--key-file", "y"], "Give --key or --key-file, not both."),
        (["head", "articles", "-n", "0"], "'0' is not a whole number above 0"),
        (["head", "articles", "--columns", ",", "--root", "{lake}"], "--columns names no column."),
        (["query", "articles", "--version", "1", "--tag", "a"], "not allowed with argument"),
        (["query", "articles", "--count", "--columns", "id", "--root", "{lake}"], "--count counts rows"),
        (["nonsense"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(run: Run, lake: Path, arguments: list[str], words: str) -> None:
    answer = run(*(argument.replace("{lake}", str(lake)) for argument in arguments))
    assert answer.status == 2
    assert words in answer.err


def test_the_server_can_be_named_in_several_ways(
    run: Run, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (server.url, f"localhost:{server.port}", f"127.0.0.1:{server.port}"):
        assert run("columns", "empty", "--url", url).status == 0, url
    monkeypatch.setenv("LANCE_URL", f"localhost:{server.port}")
    assert run("columns", "empty").status == 0


def test_storage_options_reach_the_storage(run: Run, lake: Path) -> None:
    answer = run(
        "tables",
        "--root",
        "s3://bucket/lake",
        "--storage-option",
        "region=eu",
        "--storage-option",
        "endpoint=http://127.0.0.1:1",
        "--storage-option",
        "allow_http=true",
        "--storage-option",
        "access_key_id=a",
        "--storage-option",
        "secret_access_key=b",
        "--storage-option",
        "max_retries=0",
    )
    assert answer.status == 1
    assert "127.0.0.1:1" in answer.err
    assert answer.err.count("\n") == 1
