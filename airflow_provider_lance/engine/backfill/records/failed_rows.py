"""Rows on which a column's rule failed, listed in a small file for each column file that has some.

The list is named after the column file that has the nulls. The worker writes it before that column file can be
committed and it never changes, so a commit carries only the number of failed rows.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    import numpy as np

    from airflow_provider_lance.storage.table import TableFiles

_PREFIX, _SUFFIX = "failed-", ".json"


class FailedRow(TypedDict):
    """A failed row as results and failures report it."""

    row_id: NotRequired[int]  # not known of a row whose task still runs
    fragment_id: NotRequired[int]
    row_offset: NotRequired[int]
    message: str


def describe_failed_row(row: FailedRow) -> str:
    """``row 17: ValueError: …``."""
    return f"row {row['row_id']}: {row['message']}" if "row_id" in row else row["message"]


@dataclass(frozen=True)
class FailedRows:
    """The failed rows of one fragment. ``listed`` are rows that commits and records of release 0.1 name themselves."""

    count: int = 0
    listed: tuple[int, ...] | None = None

    @classmethod
    def from_list(cls, offsets: Iterable[int]) -> FailedRows:
        listed = tuple(offsets)
        return cls(len(listed), listed)

    def read(self, files: TableFiles, folder: str, column_files: tuple[str, ...]) -> np.ndarray | None:
        """The physical rows in ascending order; None where their file is gone."""
        import numpy as np

        if self.listed is not None:
            return np.array(sorted(self.listed), dtype=np.int64)
        if not self.count:
            return np.empty(0, dtype=np.int64)
        for name in column_files:
            document = files.read_json(failed_path(folder, name))
            if isinstance(document, dict) and document.get("format") == 1:
                offsets = decode_rows(document["rows"])
                if len(offsets) == self.count:
                    return offsets
        return None


def write_failed(files: TableFiles, folder: str, column_file: str, offsets: Iterable[int]) -> int:
    """List the failed rows of a column file and return their number; without any, no file is written."""
    rows = sorted(set(offsets))
    if rows:
        files.write_json(failed_path(folder, column_file), {"format": 1, "rows": encode_rows(rows)})
    return len(rows)


def failed_path(folder: str, column_file: str) -> str:
    return f"{folder}/{_PREFIX}{column_file.removesuffix('.lance')}{_SUFFIX}"


def column_file_of(path: str) -> str | None:
    """The column file whose failed rows are at ``path``; None for any other path."""
    name = path.rpartition("/")[2]
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    return f"{name.removeprefix(_PREFIX).removesuffix(_SUFFIX)}.lance"


def encode_rows(offsets: Iterable[int]) -> str:
    """Ascending row numbers as text: their compressed distances. 10 % of a million rows take 100 kB."""
    import numpy as np

    rows = np.fromiter(offsets, dtype=np.int64)
    distances = np.diff(rows, prepend=0).astype("<u4")
    return base64.b64encode(zlib.compress(distances.tobytes())).decode()


def decode_rows(text: str) -> np.ndarray:
    """The row numbers that :func:`encode_rows` encoded."""
    import numpy as np

    distances = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<u4")
    return np.cumsum(distances, dtype=np.int64)
