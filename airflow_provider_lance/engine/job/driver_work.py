"""Which work a driver does itself: SQL over few rows, for which a Spark session costs more than the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance import LanceFragment

# One process reads some millions of rows a second.
DRIVER_ROWS = 2_000_000
DRIVER_BYTES = 512 << 20


def fits_driver(rows: int, fragments: Iterable[LanceFragment], *, driver_rows: int, concurrency: int | None) -> bool:
    """Whether ``rows`` rows of these fragments are few and narrow enough; whoever asks for concurrency gets Spark."""
    return not concurrency and rows <= driver_rows and _data_bytes(rows, fragments) <= DRIVER_BYTES


def _data_bytes(rows: int, fragments: Iterable[LanceFragment]) -> int:
    """About how many bytes of data files ``rows`` rows of these fragments are; wide rows belong on Spark."""
    size = total = 0
    for fragment in fragments:
        size += sum(file.file_size_bytes or 0 for file in fragment.data_files())
        total += fragment.physical_rows
    return size * rows // total if total else 0
