"""Arrow bodies: whatever the source, the same rows arrive; large ones are never held whole."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_lance.api.arrow import ArrowBody, read_arrow

TABLE = pa.table({"a": range(1000), "b": [str(i) for i in range(1000)]})


def stream_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


SOURCES: dict[str, tuple[Any, bool]] = {
    "table": (lambda: TABLE, True),
    "batch": (lambda: TABLE.combine_chunks().to_batches()[0], True),
    "bytes": (lambda: stream_bytes(TABLE), True),
    "reader": (lambda: TABLE.to_reader(100), False),
    "iterator": (lambda: iter(TABLE.to_batches(100)), False),
    "tables": (lambda: (TABLE.slice(i, 500) for i in (0, 500)), False),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_rows_arrive(name: str) -> None:
    make, replayable = SOURCES[name]
    body = ArrowBody(make())
    assert body.replayable is replayable
    assert read_arrow(b"".join(body)) == TABLE
    assert body.can_send is replayable

    async def collect() -> bytes:
        return b"".join([chunk async for chunk in ArrowBody(make())])

    assert read_arrow(asyncio.run(collect())) == TABLE


def test_a_schema_alone_is_a_table_without_rows() -> None:
    assert read_arrow(b"".join(ArrowBody(TABLE.schema))) == TABLE.slice(0, 0)


def test_anything_else_is_refused_with_a_sentence() -> None:
    with pytest.raises(TypeError, match="an iterator of batches"):
        b"".join(ArrowBody([{"a": 1}]))  # type: ignore[list-item]


def test_a_large_source_is_streamed() -> None:
    batch = pa.record_batch({"a": pa.array(range(100_000))})
    body = ArrowBody(batch for _ in range(100))  # 80 MB in all
    tracemalloc.start()
    total = sum(len(chunk) for chunk in body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 80_000_000
    assert peak < 8_000_000
