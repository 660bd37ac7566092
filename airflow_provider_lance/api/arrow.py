"""Arrow data on its way in and out: a table, a batch reader, batches or IPC bytes become one IPC stream.

pyarrow is imported inside the functions: a client that only moves metadata never pays for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
_FILE_MAGIC = b"ARROW1"
_CHUNK = 1 << 20


class ArrowBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request body that httpx can stream, sync or async.

    ``replayable``: made again from the start for a retry. A reader or an iterator can be read only once, so after
    its first byte went out (``started``) the request is not sent again.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self.replayable = _is_bytes(data) or _has_batches(data)
        self.started = False

    @property
    def length(self) -> int | None:
        """In bytes, where it is known before encoding."""
        return memoryview(self._data).nbytes if _is_bytes(self._data) else None

    @property
    def can_send(self) -> bool:
        return self.replayable or not self.started

    def __iter__(self) -> Iterator[bytes]:
        self.started = True
        if _is_bytes(self._data):
            view = memoryview(self._data)
            for start in range(0, len(view), _CHUNK):
                yield bytes(view[start : start + _CHUNK])
            return
        yield from _encode(self._data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # The source may read files or compute: keep that off the event loop.
        chunks = iter(self)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk


def _encode(data: Any) -> Iterator[bytes]:
    import pyarrow as pa

    schema, batches = _open(data)
    sink = _Chunks()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield from sink.take()
        for batch in batches:
            writer.write(batch)
            yield from sink.take()
    yield from sink.take()


class _Chunks:
    """A file that hands on what is written to it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def flush(self) -> None:
        return

    def close(self) -> None:
        return

    def take(self) -> Iterator[bytes]:
        if self._parts:
            joined = b"".join(self._parts)
            self._parts.clear()
            yield joined


def _open(data: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    import pyarrow as pa

    if isinstance(data, pa.Schema):
        return data, ()
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches(max_chunksize=65536)
    if isinstance(data, pa.RecordBatch):
        return data.schema, (data,)
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader
    iterator = iter(data)
    first = next(iterator, None)
    if not isinstance(first, pa.RecordBatch | pa.Table):
        raise TypeError(
            f"Expected a pyarrow Table, RecordBatch, RecordBatchReader, Schema, an iterator of batches or Arrow IPC "
            f"bytes, got {type(data).__name__} of {type(first).__name__}."
        )
    return first.schema, (batch for item in _chain(first, iterator) for batch in _batches(item))


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _batches(item: Any) -> Iterable[pa.RecordBatch]:
    return item.to_batches() if hasattr(item, "to_batches") else (item,)


def _is_bytes(data: Any) -> bool:
    return isinstance(data, bytes | bytearray | memoryview)


def _has_batches(data: Any) -> bool:
    """In-memory Arrow data, recognised without importing pyarrow."""
    module = type(data).__module__
    return module.startswith("pyarrow") and type(data).__name__ in {"Table", "RecordBatch", "Schema"}


def read_arrow(content: bytes) -> pa.Table:
    """An Arrow IPC answer, file or stream format."""
    import pyarrow as pa

    if not content:
        return pa.table({})
    source = pa.BufferReader(content)
    if content.startswith(_FILE_MAGIC):
        return pa.ipc.open_file(source).read_all()
    return pa.ipc.open_stream(source).read_all()
