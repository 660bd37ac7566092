"""Identifiers: what is sent is what comes back apart on the other side."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.api.ids import InvalidIdentifierError, join_id, parse_id, quote_id

delimiters = st.sampled_from(["$", ".", "/", "::", "§", "%", "ab"])
parts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), min_size=1, max_size=4)


@given(parts, delimiters)
def test_a_valid_identifier_survives_the_url(identifier: list[str], delimiter: str) -> None:
    try:
        parsed = parse_id(identifier, delimiter)
    except InvalidIdentifierError:
        joined = delimiter.join(identifier)
        assert joined.split(delimiter) != identifier or joined in {".", ".."}
        return
    if not parsed:
        assert identifier == [delimiter]
        return
    segment = quote_id(parsed, delimiter)
    assert segment.isascii()
    assert not set("/?#$ ") & set(segment)
    assert unquote(segment).split(delimiter) == identifier


@given(parts, delimiters)
def test_string_and_list_form_mean_the_same(identifier: list[str], delimiter: str) -> None:
    joined = delimiter.join(identifier)
    try:
        from_list = parse_id(identifier, delimiter)
    except InvalidIdentifierError:
        return
    assert parse_id(joined, delimiter) == from_list
    assert parse_id(join_id(from_list, delimiter), delimiter) == from_list


@pytest.mark.parametrize("root", [None, [], "", "$", ["$"], ()])
def test_the_root_has_many_spellings(root: object) -> None:
    assert parse_id(root) == []
    assert join_id([]) == "$"


@pytest.mark.parametrize(
    ("identifier", "says"),
    [
        (["a$b"], "contains the delimiter"),
        (["a", ""], "is empty"),
        ("a$$b", "is empty"),
        (["a", 1], "must be a string"),
        (7, "not int"),
        (["a\ud800"], "not valid Unicode"),
        ([".."], "no URL can carry"),
    ],
)
def test_a_malformed_identifier_says_what_is_wrong(identifier: object, says: str) -> None:
    with pytest.raises(InvalidIdentifierError, match=says):
        parse_id(identifier)


def test_only_the_delimiter_splits() -> None:
    assert parse_id("a.b/c") == ["a.b/c"]
    assert parse_id("a.b", ".") == ["a", "b"]
