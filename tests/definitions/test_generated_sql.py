"""Generated expressions and conditions with odd quotes, comments and names; Lance's own results are the truth.

``pytest -m soak`` and the profile ``soak`` make it long.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.definitions.expressions import check_filter, expression_inputs, one_expression, parse_path

ROWS = 12
WORDS = ["a", "it's", 'say "hi"', "-- b", "/* b", "*/", "b", "t2", ";", ")", "", "\\", "`b`", "é"]
NAMES = ["b", "t2", "it's", "x y", "list", "end", "Up", "é"]


def data(changed: str | None = None) -> pa.Table:
    def values(name: str) -> list[str]:
        return [f"{name}{number}{'!' if name == changed else ''}" for number in range(ROWS)]

    columns: dict[str, Any] = {name: values(name) for name in NAMES}
    columns["s"] = [{"p": value, "q r": value * 2} for value in values("s")]
    return pa.table({"id": list(range(ROWS)), **columns})


@functools.cache
def dataset(changed: str | None = None) -> lance.LanceDataset:
    return lance.write_dataset(data(changed), "memory://")


def quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark


strings = st.builds(quoted, st.sampled_from(WORDS) | st.text("ab'\"`-/*; \n\\", max_size=6), st.sampled_from("'\""))
gaps = st.sampled_from(["", "", " ", "\n", " /* it's */ ", ' -- "b\n', " /* t2 -- */", "/**/"])
plain = [name for name in NAMES if name.isascii() and name.isalnum()]
columns = st.one_of(
    st.sampled_from(NAMES).map(lambda name: (f"`{name}`", name)),
    st.sampled_from(plain).map(lambda name: (name, name)),
    st.sampled_from([("s.p", "s"), ("s.`q r`", "s"), ("s['p']", "s"), ('s["q r"]', "s"), ("`s`.p", "s")]),
)
pieces = st.lists(st.one_of(columns, strings.map(lambda text: (text, None))), min_size=1, max_size=5)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, set[str]]:
    """A concatenation, which every one of its columns changes, and these columns."""
    parts = [("b", "b"), *draw(pieces)]
    spelled = ",".join(f"{draw(gaps)}{text}{draw(gaps)}" for text, _ in draw(st.permutations(parts)))
    return f"{draw(gaps)}concat({spelled}){draw(gaps)}", {name for _, name in parts if name is not None}


def check_inputs(expression: str, used: set[str]) -> None:
    schema = dataset().schema
    inputs = expression_inputs(schema, expression)
    assert {parse_path(path)[0] for path in inputs} == used
    text = one_expression(expression).text
    result = dataset().scanner(columns={"x": text}).to_table()
    for name in [*NAMES, "s"]:
        other = dataset(name).scanner(columns={"x": text}).to_table()
        assert (other != result) == (name in used), name


conditions = st.recursive(
    st.one_of(
        st.tuples(st.just("id < {}"), st.integers(0, ROWS)),
        st.tuples(st.just("`id` >= {}"), st.integers(0, ROWS)),
        st.tuples(st.just("concat(b, {}) <> ''"), strings),
        st.tuples(st.just("t2 = {}"), strings),
    ).map(lambda found: found[0].format(found[1])),
    lambda inner: st.one_of(
        st.builds(lambda left, gap, right: f"{left}{gap} AND {right}", inner, gaps, inner),
        st.builds(lambda left, gap, right: f"({left}{gap}) OR{gap} ({right})", inner, gaps, inner),
        inner.map(lambda condition: f"NOT ({condition})"),
    ),
    max_leaves=4,
)
damage = st.sampled_from([")", "(", "'", '"', "`", ";", ",", "--", "/*", "*/", " x", ") OR (", "; drop", ""])


def check_condition(text: str) -> None:
    """A condition is refused, or it and its opposite split all rows, alone and inside a larger condition."""
    try:
        check_filter(dataset().schema, text)
    except InvalidInputError:
        return
    clean = one_expression(text).text
    found = dataset().count_rows(clean)
    assert found + dataset().count_rows(f"NOT ({clean})") == ROWS, clean
    assert found == dataset().count_rows(f"({clean}) AND id >= 0"), clean


@given(expressions())
def test_recorded_inputs_are_those_that_change_the_result(generated: tuple[str, set[str]]) -> None:
    check_inputs(*generated)


@given(conditions, gaps)
def test_a_condition_is_accepted_with_its_comments(condition: str, gap: str) -> None:
    text = f"{gap}{condition}{gap}"
    check_filter(dataset().schema, text)
    check_condition(text)


@given(conditions, damage, st.floats(0, 1))
def test_a_damaged_condition_is_refused_or_whole(condition: str, added: str, where: float) -> None:
    place = round(where * len(condition))
    check_condition(condition[:place] + added + condition[place:])


@pytest.mark.soak
@settings(max_examples=int(os.environ.get("SOAK_EXAMPLES", "3000")), derandomize=False)
@given(expressions(), conditions, damage, st.floats(0, 1))
def test_many_generated_texts(generated: tuple[str, set[str]], condition: str, added: str, where: float) -> None:
    check_inputs(*generated)
    place = round(where * len(condition))
    check_condition(condition[:place] + added + condition[place:])
