"""The order of columns and views, checked on random graphs; and what ``select`` and ``exclude`` choose."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.declarations import DeclarationError, Declarations, LanceTable, LanceView
from airflow_provider_lance.declarations.graph import Graph, column_levels, make_graph
from airflow_provider_lance.declarations.selection import select_nodes
from airflow_provider_lance.functions import UdfColumn

Edges = dict[int, set[int]]


@st.composite
def edges(draw: st.DrawFn) -> Edges:
    """A random graph without cycles over shuffled numbers: each reads some of those that come before it."""
    order = draw(st.permutations(range(draw(st.integers(1, 12)))))
    return {
        number: set(draw(st.lists(st.sampled_from(order[:place]), max_size=3))) if place else set()
        for place, number in enumerate(order)
    }


def reaches(graph: Edges, start: int, goal: int) -> bool:
    """Whether a path leads from ``start`` to what it reads. Independent of the code under test."""
    return any(below == goal or reaches(graph, below, goal) for below in graph[start])


def position(graph: Graph) -> dict[str, int]:
    return {node.name: place for place, node in enumerate(graph.nodes)}


@given(edges())
def test_a_column_comes_after_every_column_that_it_reads(graph: Edges) -> None:
    computed = {f"c{n}": " + ".join(["id", *(f"c{m}" for m in sorted(reads))]) for n, reads in graph.items()}
    table = LanceTable("t", computed={name: computed[name] for name in sorted(computed)})
    place = position(make_graph(Declarations.of([table])))
    levels = column_levels(table, computed)
    level_of = {name: number for number, level in enumerate(levels) for name in level}
    assert sorted(level_of) == sorted(computed)
    for number in graph:
        assert place["t"] > place[f"t.c{number}"]
        for other in graph:
            if reaches(graph, number, other):
                assert place[f"t.c{number}"] > place[f"t.c{other}"]
                assert level_of[f"c{number}"] > level_of[f"c{other}"]


@given(edges(), st.data())
def test_a_view_comes_after_every_view_that_it_reads_with_any_choice(graph: Edges, data: st.DataObject) -> None:
    def query(reads: set[int]) -> str:
        return "SELECT base.id FROM base" + "".join(f" JOIN v{m} ON base.id = v{m}.id" for m in sorted(reads))

    views = [LanceView(f"v{number}", query(graph[number])) for number in sorted(graph)]
    made = make_graph(Declarations.of([LanceTable("base", computed={"n": "id + 1"}), *views]))
    place = position(made)
    for number in graph:
        for other in graph:
            assert (place[f"v{number}"] > place[f"v{other}"]) or not reaches(graph, number, other)
    # What was left out in between does not lose the order of what is left.
    chosen = set(data.draw(st.sets(st.sampled_from(sorted(graph)), min_size=1)))
    nodes = {int(node.name[1:]): node for node in made.nodes if node.kind == "view"}
    kept = [nodes[number] for number in chosen]
    for number in chosen:
        waits = {int(node.name[1:]) for node in made.nearest(nodes[number], kept)}
        assert waits <= {other for other in chosen if reaches(graph, number, other)}
        for other in chosen:
            if reaches(graph, number, other):
                assert other in waits or any(reaches(graph, between, other) for between in waits)
    everything = {node.name for node in select_nodes(made, f"+v{min(chosen)}")}
    above = {f"v{other}" for other in graph if reaches(graph, min(chosen), other)}
    assert everything == {*above, f"v{min(chosen)}", "base", "base.n"}


def test_a_cycle_is_named() -> None:
    with pytest.raises(DeclarationError, match=r"Columns of t read each other: (a → b → a|b → a → b)\."):
        make_graph(Declarations.of([LanceTable("t", computed={"a": "b + 1", "b": "upper(a)"})]))
    views = [LanceView("a", "SELECT id FROM b"), LanceView("b", "SELECT id FROM a")]
    with pytest.raises(DeclarationError, match=r"Views read each other: (a → b → a|b → a → b)\."):
        make_graph(Declarations.of(views))


def test_the_name_of_a_function_and_a_text_are_no_columns() -> None:
    table = LanceTable("t", computed={"upper": "lower(a)", "lower": "upper(a) || 'upper' || b.upper"})
    assert column_levels(table, table.computed) == [["upper", "lower"]]


def test_functions_read_columns_and_fill_several() -> None:
    pair = {"input_columns": ["text"], "outputs": [{"column": "x"}, {"column": "y"}]}
    table = LanceTable(
        "t", computed={"z": "y + 1"}, virtual={"x": pair, "last": UdfColumn("a:b", ["z", "meta.x"], "int64")}
    )
    assert column_levels(table, [*table.computed, *table.virtual]) == [["x"], ["z"], ["last"]]


class Parts(TypedDict):
    first: str
    rest: str


def test_the_signature_of_a_function_says_what_it_reads_and_fills() -> None:
    def split(name: str) -> Parts:
        return {"first": name[:1], "rest": name[1:]}

    def longer(rest: str, factor: int = 2) -> int:
        return len(rest) * factor

    table = LanceTable(
        "t", computed={"name": "trim(text)"}, virtual={"n": UdfColumn(longer), "first": UdfColumn(split)}
    )
    assert column_levels(table, [*table.computed, *table.virtual]) == [["name"], ["first"], ["n"]]
    with pytest.raises(DeclarationError, match="The table t declares its column 'rest' twice"):
        replace(table, computed={"rest": "text"})


def test_a_table_beside_the_view_is_read_before_one_at_the_root() -> None:
    tables = [LanceTable("people"), LanceTable("team$people"), LanceTable("other")]
    views = [LanceView("team$v", "SELECT id FROM people JOIN other"), LanceView("w", "SELECT id FROM team.people")]
    graph = make_graph(Declarations.of([*tables, *views]))
    reads = {node.name: [parent.name for parent in graph.parents[node]] for node in graph.nodes}
    assert reads["team$v"] == ["team$people", "other"]
    assert reads["w"] == ["team$people"]


class TestSelection:
    @pytest.fixture
    def graph(self) -> Graph:
        articles = LanceTable(
            "articles",
            computed={"a": "id + 1", "b": "a + 1"},
            views=[
                LanceView("long_articles", "SELECT id FROM articles", tags=["hourly"]),
                LanceView("long_words", "SELECT id FROM long_articles"),
            ],
            tags=["nightly"],
        )
        return make_graph(Declarations.of([articles, LanceTable("other", computed={"c": "id"})]))

    @pytest.mark.parametrize(
        ("select", "exclude", "names"),
        [
            ("articles", None, {"articles", "articles.a", "articles.b"}),
            ("articles.a", None, {"articles.a"}),
            ("+articles.b", None, {"articles.a", "articles.b"}),
            ("articles.b+", None, {"articles.b", "articles", "long_articles", "long_words"}),
            ("tag:nightly", "long_*", {"articles", "articles.a", "articles.b"}),
            ("tag:nightly,long_*", None, {"long_articles", "long_words"}),
            (["tag:hourly", "other.c"], None, {"long_articles", "other.c"}),
            ("tag:hourly other", None, {"long_articles", "other", "other.c"}),
            (None, ["articles+"], {"other", "other.c"}),
            ("+long_words+", ["other", "*.a"], {"articles", "articles.b", "long_articles", "long_words"}),
        ],
    )
    def test_what_is_chosen(self, graph: Graph, select: str, exclude: str, names: set[str]) -> None:
        assert {node.name for node in select_nodes(graph, select, exclude)} == names

    @pytest.mark.parametrize(
        ("select", "exclude", "said"),
        [
            (
                "long_word",
                None,
                "select has 'long_word', and the declaration has no such table, column or view. Did you",
            ),
            (
                None,
                "tag:nightli+",
                "exclude has 'tag:nightli+', and the declaration has no such tag. Did you mean 'nigh",
            ),
            ("zzz", None, "no such table, column or view. There are articles.a, "),
        ],
    )
    def test_a_word_that_means_nothing_is_an_error(self, graph: Graph, select: str, exclude: str, said: str) -> None:
        with pytest.raises(DeclarationError) as failed:
            select_nodes(graph, select, exclude)
        assert said in str(failed.value)
