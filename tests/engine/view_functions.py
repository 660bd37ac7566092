"""Table functions that tests name by import path, as a deployment that forbids pickles would, and views of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from airflow_provider_lance.definitions.arrow_types import arrow_schema
from airflow_provider_lance.functions import encode_schema, table_function_spec

WORDS = arrow_schema({"doc": "int64", "position": "int32", "word": "string"})
COUNTS = arrow_schema({"team": "string", "members": "int64", "ids": "list<int64>"})


def function_view(
    kind: Literal["chunker", "udtf"],
    function: Callable[..., object] | str,
    output: pa.Schema,
    query: str,
    **spec: Any,
) -> dict[str, Any]:
    """The request of a view whose rows a function makes; a name without a colon is one of this module."""
    if isinstance(function, str) and ":" not in function:
        function = f"{__name__}:{function}"
    return {
        "kind": kind,
        "source_query": query,
        "output_schema": encode_schema(output),
        "udtf_spec": table_function_spec(function, output=output, kind=kind, **spec),
    }


def split_words(doc: int, text: str) -> Iterator[dict[str, Any]]:
    """One row per word; a text of ``boom`` fails."""
    if text == "boom":
        raise ValueError("boom")
    for position, word in enumerate(text.split()):
        yield {"doc": doc, "position": position, "word": word}


def split_words_batched(batch: pa.RecordBatch) -> list[list[tuple[Any, ...]]]:
    return [
        [(doc, position, word) for position, word in enumerate(str(text).split())]
        for doc, text in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]


def split_words_arrow(batch: pa.RecordBatch) -> pa.Table:
    rows = [
        {"doc": doc, "position": position, "word": word, "__input_row": number}
        for number, (doc, text) in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for position, word in enumerate(text.split())
    ]
    return pa.Table.from_pylist(rows, schema=WORDS.append(pa.field("__input_row", pa.int64())))


def pairs(doc: int, text: str) -> list[Any]:
    """What is wrong with the rows of a text stands in it."""
    rows: dict[str, Any] = {
        "fraction": (doc, 1.75, text),
        "decimal": (doc, Decimal("0.5"), text),
        "type": (doc, "one", text),
        "short": (doc, text),
        "key": {"doc": doc, "position": 0, "wort": text},
    }
    return [rows.get(text, (doc, 0.0, text)), {"doc": doc, "word": text}]


def pairs_batched(batch: pa.RecordBatch) -> list[list[Any]]:
    return [pairs(doc, text) for doc, text in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def pairs_arrow(batch: pa.RecordBatch) -> pa.Table:
    """Arrow rows without one of their columns, whatever the texts are."""
    return pa.table({"doc": batch.column(0), "wort": batch.column(1), "__input_row": range(len(batch))})


def misspell(members: pa.Table) -> Iterator[dict[str, Any]]:
    yield {"team": "all", "member": members.num_rows, "ids": []}


def fraction(members: pa.Table) -> Iterator[dict[str, Any]]:
    yield {"team": "all", "members": members.num_rows / 8, "ids": []}


def count_members(members: pa.Table) -> Iterator[pa.RecordBatch]:
    """One row per team among the rows it is given; a partition by team gives it exactly one."""
    teams = members["team"].to_pylist()
    if "poison" in teams:
        raise RuntimeError("poison")
    for team, count in Counter(teams).items():
        ids = sorted(row["id"] for row in members.to_pylist() if row["team"] == team)
        yield pa.RecordBatch.from_pylist([{"team": team, "members": count, "ids": ids}], schema=COUNTS)


def fail_first_time(members: pa.Table) -> Iterator[dict[str, Any]]:
    """Fails on its first call in the folder named by the data, works after: a flaky dependency."""
    marker = Path(members["team"][0].as_py(), "seen")
    if not marker.exists():
        marker.touch()
        raise ConnectionError("not yet")
    yield {"team": "ok", "members": members.num_rows, "ids": [os.getpid() * 0]}
