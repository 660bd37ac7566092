"""Arrow data in requests and answers: a table, a batch reader, batches or IPC bytes become one IPC stream.

pyarrow is imported inside the functions, so that a client which only moves metadata does not load it.
"""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, TypeGuard

import httpx

if TYPE_CHECKING:
    from typing import Protocol

    import pyarrow as pa
    from typing_extensions import Buffer

    class ArrowStream(Protocol):
        """Data of any library that exports Arrow's C stream, such as a polars or a pandas frame."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

    _Batches = (
        pa.Table | pa.RecordBatch | pa.RecordBatchReader | pa.Schema | ArrowStream | Iterable[pa.RecordBatch | pa.Table]
    )
    #: Arrow data to send. A schema stands for no rows.
    ArrowData = _Batches | bytes | bytearray | memoryview

ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
_FILE_MAGIC = b"ARROW1"
_CHUNK = 1 << 20
_BYTES = (bytes, bytearray, memoryview)


class ArrowBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A request body that httpx can stream, sync or async.

    ``replayable``: it can be encoded again for a retry. A reader or an iterator can be read only once, so that the
    request is not sent again after its first byte was sent (``started``).
    """

    def __init__(self, data: ArrowData | None) -> None:
        self._data = data
        self.replayable = isinstance(data, _BYTES) or _has_batches(data)
        self.started = False

    @property
    def length(self) -> int | None:
        """The number of bytes, where it is known before encoding."""
        return memoryview(self._data).nbytes if isinstance(self._data, _BYTES) else None

    @property
    def can_send(self) -> bool:
        return self.replayable or not self.started

    def __iter__(self) -> Iterator[bytes]:
        self.started = True
        if isinstance(self._data, _BYTES):
            view = memoryview(self._data)
            for start in range(0, len(view), _CHUNK):
                yield bytes(view[start : start + _CHUNK])
            return
        yield from _encode(self._data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # The source may read files or compute, which would block the event loop.
        chunks = iter(self)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk


def _encode(data: _Batches | None) -> Iterator[bytes]:
    import pyarrow as pa

    schema, batches = _open(data)
    sink = _Chunks()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        yield from sink.take()
        for batch in batches:
            writer.write(batch)
            yield from sink.take()
    yield from sink.take()


class _Chunks(io.RawIOBase):
    """A file whose content is taken away piece by piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def take(self) -> Iterator[bytes]:
        if self._parts:
            joined = b"".join(self._parts)
            self._parts.clear()
            yield joined


def _open(data: _Batches | None) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    import pyarrow as pa

    if isinstance(data, pa.Schema):
        return data, ()
    if isinstance(data, pa.Table):
        return data.schema, data.to_batches(max_chunksize=65536)
    if isinstance(data, pa.RecordBatch):
        return data.schema, (data,)
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, data
    if _is_stream(data):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader
    iterator = iter(data) if isinstance(data, Iterable) else iter(())
    first = next(iterator, None)
    if not isinstance(first, pa.RecordBatch | pa.Table):
        raise TypeError(
            f"Expected a pyarrow Table, RecordBatch, RecordBatchReader, Schema, an iterator of batches or Arrow IPC "
            f"bytes, got {type(data).__name__} of {type(first).__name__}."
        )
    items = itertools.chain([first], iterator)
    return first.schema, (batch for item in items for batch in _batches(item))


def _batches(item: pa.RecordBatch | pa.Table) -> Iterable[pa.RecordBatch]:
    import pyarrow as pa

    return item.to_batches() if isinstance(item, pa.Table) else (item,)


def _is_stream(data: object) -> TypeGuard[ArrowStream]:
    return hasattr(data, "__arrow_c_stream__")


def _has_batches(data: object) -> bool:
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
