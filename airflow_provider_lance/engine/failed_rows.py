"""Rows on which a column's rule failed, whatever their number: kept in a small file beside the column's.

The file is named after the column file that has the nulls. The worker writes it before that column file can be
committed and nobody changes it later, so a commit needs to carry no more than the number of rows.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from airflow_provider_lance.engine.table import TableFiles

_PREFIX, _SUFFIX = "failed-", ".json"


@dataclass(frozen=True)
class FailedRows:
    """The failed rows of one fragment. ``listed`` are those of commits and records that named them one by one."""

    count: int = 0
    listed: tuple[int, ...] | None = None

    @classmethod
    def of(cls, offsets: Iterable[int]) -> FailedRows:
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
    """Keep the failed rows of a column file; returns how many they are. Without any there is no file."""
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
    """Ascending row numbers as short text: the distances between them, compressed. 10 % of a million take 100 kB."""
    import numpy as np

    rows = np.fromiter(offsets, dtype=np.int64)
    distances = np.diff(rows, prepend=0).astype("<u4")
    return base64.b64encode(zlib.compress(distances.tobytes())).decode()


def decode_rows(text: str) -> np.ndarray:
    import numpy as np

    distances = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<u4")
    return np.cumsum(distances, dtype=np.int64)
