"""Inserts with an idempotency key: a request that comes again with its key stores its rows once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tests.namespace.people import stream, with_people

KEYED = {"idempotency-key": "load-17"}


def more(*ids: int) -> bytes:
    return stream(pa.table({"id": pa.array(ids, pa.int64()), "text": [f"more{number}" for number in ids]}))


@pytest.mark.parametrize("branch", [None, "trial"])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_repeated_insert_gets_the_first_answer(tmp_path: Path, branch: str | None, mode: str) -> None:
    namespace = with_people(tmp_path)
    if branch:
        namespace.create_table_branch({"id": ["people"], "name": branch})
    request = {"id": ["people"], "mode": mode, "branch": branch, "context": KEYED}
    count = {"id": ["people"], "branch": branch}
    first = namespace.insert_into_table(request, more(100, 101))
    rows = namespace.count_table_rows(count)
    again = namespace.insert_into_table(request, more(100, 101))
    assert (again.version, again.num_inserted_rows) == (first.version, first.num_inserted_rows)
    assert first.num_inserted_rows == 2
    assert namespace.count_table_rows(count) == rows


def test_another_key_stores_the_rows_again(tmp_path: Path) -> None:
    namespace = with_people(tmp_path)
    request = {"id": ["people"], "mode": "append", "context": KEYED}
    first = namespace.insert_into_table(request, more(100))
    other = namespace.insert_into_table({**request, "context": {"idempotency-key": "load-18"}}, more(100))
    assert other.version is not None
    assert first.version is not None
    assert other.version > first.version


def test_rows_that_do_not_fit_are_the_callers_mistake(tmp_path: Path) -> None:
    namespace = with_people(tmp_path)
    with pytest.raises(InvalidInputError, match="The table has no column 'txt'; it has id, text"):
        namespace.insert_into_table(
            {"id": ["people"], "mode": "append", "context": KEYED}, stream(pa.table({"txt": ["x"]}))
        )
