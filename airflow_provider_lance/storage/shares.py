"""Work cut into shares, one for each task of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


def contiguous_shares(items: Sequence[_T], rows: Sequence[int], count: int) -> list[list[_T]]:
    """Cut ``items`` in their order into at most ``count`` shares of about the same number of rows; none is empty."""
    total, before = sum(rows) or 1, 0
    shares: list[list[_T]] = [[] for _ in range(max(1, count))]
    for item, size in zip(items, rows, strict=True):
        shares[min(len(shares) - 1, before * len(shares) // total)].append(item)
        before += size
    return [share for share in shares if share]
