"""Dataclasses that users' functions return, as the dicts that Arrow takes for structs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


def plain_rows(rows: Sequence[Any]) -> Sequence[Any]:
    """The same values, with dicts in place of dataclasses, also inside lists."""
    return [_plain(row) for row in rows] if any(map(_has_dataclass, rows)) else rows


def _has_dataclass(row: Any) -> bool:
    """Whether a value is a dataclass or a list of some; the first item of a list speaks for the others."""
    while isinstance(row, list | tuple) and row:
        row = row[0]
    return hasattr(row, "__dataclass_fields__")


def _plain(row: Any) -> Any:
    if isinstance(row, list | tuple):
        return [_plain(each) for each in row]
    return dataclasses.asdict(row) if dataclasses.is_dataclass(row) and not isinstance(row, type) else row
