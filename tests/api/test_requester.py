"""Who asked for a job: what an operator sends arrives, in any letters, and what cannot be read harms nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.api.jobs import Job
from airflow_provider_lance.api.requester import Requester
from airflow_provider_lance.api.settings import context_headers

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=100)


@given(NAMES, NAMES, NAMES, st.integers(-1, 10_000), st.integers(1, 100))
def test_what_is_sent_as_headers_arrives(dag: str, run: str, task: str, index: int, number: int) -> None:
    sent = Requester(dag, run, task, index, number)
    headers = context_headers(sent.to_context())
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    context = {name.removeprefix("x-lance-ctx-"): value for name, value in headers.items()}
    assert Requester.from_context(context) == sent
    assert Requester.from_dict(sent.to_dict()) == sent


def test_names_of_any_length_fit_into_a_head() -> None:
    longest = Requester("日" * 250, "🦆" * 250, "a" * 250).to_context()
    assert sum(map(len, longest.values())) < 4000
    read = Requester.from_context(longest)
    assert read is not None
    assert read.task_id == "a" * 250
    assert "日本".startswith(read.dag_id[:1])


def test_a_request_without_a_task_has_no_requester() -> None:
    assert Requester.from_context({"idempotency-key": "k", "map-index": "3"}) is None


@pytest.mark.parametrize("entry", [{"map-index": "many"}, {"try": "-7"}, {"map-index": "9" * 30}])
def test_numbers_that_are_none_are_refused_by_name(entry: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(entry))}` must be a whole number"):
        Requester.from_context({"dag-id": "etl", **entry})


@pytest.mark.parametrize("told", [None, "etl", ["etl"], {}, {"dag_id": 3}, {"dag_id": ""}])
def test_another_servers_idea_of_a_requester_is_left_alone(told: object) -> None:
    assert Job.from_wire({"job_id": "j", "requester": told}).requester is None


def test_in_words() -> None:
    assert Requester("etl", "manual__1", "fill").describe() == "etl · fill · manual__1"
    assert Requester("etl", "manual__1", "fill", 3, 2).describe() == "etl · fill[3] · manual__1 · try 2"
