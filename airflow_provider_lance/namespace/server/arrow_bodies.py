"""The size of an Arrow body after decoding, read from the heads of its messages without decoding anything.

A compressed buffer of a few kilobytes may decode to gigabytes, and a column of nulls has no buffers at all. The heads
are flatbuffers of Arrow's ``Message.fbs``, and every compressed buffer begins with its decoded length.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.namespace.server.error_bodies import HttpProblem

if TYPE_CHECKING:
    import pyarrow as pa

# The slots of the tables in Arrow's format/Message.fbs.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DICTIONARY_DATA = 1
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3


def check_arrow_body(data: bytes, max_bytes: int, max_rows: int) -> None:
    """Refuse a stream that holds more decoded bytes or rows than allowed. A body that is no stream is refused later."""
    import pyarrow as pa

    decoded = rows = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
            found = _measure(memoryview(message.metadata), message.body)
            decoded += found.decoded_bytes
            rows += found.rows
            if decoded > max_bytes:
                raise HttpProblem(
                    413,
                    f"The Arrow body holds more than {max_bytes} bytes once it is decoded ([limits] max_arrow_bytes).",
                )
            if rows > max_rows:
                raise HttpProblem(413, f"The Arrow body holds more than {max_rows} rows ([limits] max_arrow_rows).")
    except (pa.ArrowException, OSError, EOFError, struct.error, IndexError):
        return  # the error is reported when the body is read


@dataclass(frozen=True)
class _Measured:
    decoded_bytes: int
    rows: int


def _measure(head: memoryview, body: pa.Buffer | None) -> _Measured:
    root = _follow(head, 0)
    kind = _field(head, root, _HEADER_TYPE)
    if not kind or head[kind] not in {_DICTIONARY_BATCH, _RECORD_BATCH}:
        return _Measured(0, 0)
    batch = _follow(head, _field(head, root, _HEADER))
    if head[kind] == _DICTIONARY_BATCH:
        batch = _follow(head, _field(head, batch, _DICTIONARY_DATA))
    is_rows, length_at = head[kind] == _RECORD_BATCH, _field(head, batch, _LENGTH)
    rows = _int64(head, length_at) if is_rows and length_at else 0
    compressed = bool(_field(head, batch, _COMPRESSION))
    content = memoryview(body) if body is not None else memoryview(b"")
    decoded = 0
    for offset, length in _pairs(head, _field(head, batch, _BUFFERS)):
        if not length:
            continue
        size = _int64(content, offset) if compressed else -1
        decoded += size if size >= 0 else length
    # A value takes at least one bit, except in columns of nulls, whose length no buffer bounds.
    values = max((length for length, _ in _pairs(head, _field(head, batch, _NODES))), default=0)
    return _Measured(decoded, max(rows, values if values > 8 * decoded else 0))


def _field(head: memoryview, table: int, slot: int) -> int:
    """The offset of a table's field; 0 where the field is absent."""
    (back,) = struct.unpack_from("<i", head, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", head, vtable)
    entry = 4 + 2 * slot
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", head, vtable + entry)
    return table + offset if offset else 0


def _follow(head: memoryview, place: int) -> int:
    (offset,) = struct.unpack_from("<I", head, place)
    return place + int(offset)


def _int64(buffer: memoryview, place: int) -> int:
    (value,) = struct.unpack_from("<q", buffer, place)
    return int(value)


def _pairs(head: memoryview, place: int) -> list[tuple[int, int]]:
    """A vector of structs of two 64-bit numbers: nodes (length, nulls) and buffers (offset, length)."""
    if not place:
        return []
    vector = _follow(head, place)
    (count,) = struct.unpack_from("<I", head, vector)
    if vector + 4 + 16 * count > len(head):
        raise IndexError("a vector that is longer than its message")
    return list(struct.iter_unpack("<qq", head[vector + 4 : vector + 4 + 16 * count]))
