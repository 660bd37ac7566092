"""Table functions that tests name by import path, as a deployment that forbids pickles would."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

WORDS = pa.schema([("doc", pa.int64()), ("position", pa.int32()), ("word", pa.string())])
COUNTS = pa.schema([("team", pa.string()), ("members", pa.int64()), ("ids", pa.list_(pa.int64()))])


def split_words(doc: int, text: str) -> Iterator[dict[str, Any]]:
    """One row per word; a text of ``boom`` fails."""
    if text == "boom":
        raise ValueError("boom")
    for position, word in enumerate(text.split()):
        yield {"doc": doc, "position": position, "word": word}


def split_words_batched(batch: pa.RecordBatch) -> list[list[tuple[Any, ...]]]:
    return [
        [(doc, position, word) for position, word in enumerate(text.split())]
        for doc, text in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    ]


def split_words_arrow(batch: pa.RecordBatch) -> pa.Table:
    rows = [
        {"doc": doc, "position": position, "word": word, "__input_row": number}
        for number, (doc, text) in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for position, word in enumerate(text.split())
    ]
    return pa.Table.from_pylist(rows, schema=WORDS.append(pa.field("__input_row", pa.int64())))


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
