"""What a write has staged so far: one small file for each share of its input, with the fragments that hold the rows.

A driver that dies leaves these files. The next one of the same write takes their fragments instead of writing the rows
again. The files are beside the data, in a folder that Lance's cleanup leaves alone, and are removed after the commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    from airflow_provider_lance.storage.input_files import Share

_FOLDER = "_write"


@dataclass(frozen=True)
class StagedShare:
    """The fragments of one share, as JSON, and their rows and bytes."""

    fragments: tuple[str, ...]
    rows: int
    bytes: int

    def files(self) -> list[str]:
        found = [json.loads(text) for text in self.fragments]
        return [f"data/{file['path']}" for fragment in found for file in fragment["files"]]


@dataclass(frozen=True)
class StagedShares:
    """The staged shares of the write with this key. ``form`` is what the fragments depend on besides their rows."""

    table: TableRef
    key: str
    form: str = ""

    @property
    def folder(self) -> str:
        return f"{_FOLDER}/{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"

    def path(self, share: Share) -> str:
        digest = hashlib.sha256(f"{self.form}\n{share.name}".encode()).hexdigest()
        return f"{self.folder}/{digest}.json"

    def save(self, share: Share, staged: StagedShare) -> None:
        document = {"fragments": list(staged.fragments), "rows": staged.rows, "bytes": staged.bytes}
        self.table.files().write_json(self.path(share), document)

    def find(self, shares: Sequence[Share]) -> dict[int, StagedShare]:
        """The shares, by their place in the list, that an earlier driver staged and whose files are all there."""
        files = self.table.files()
        there = set(files.names(self.folder))
        found: dict[int, StagedShare] = {}
        for place, share in enumerate(shares):
            path = self.path(share)
            if path not in there:
                continue
            document = files.read_json(path)
            if isinstance(document, dict):
                staged = StagedShare(tuple(document["fragments"]), int(document["rows"]), int(document["bytes"]))
                if all(files.exists(name) for name in staged.files()):
                    found[place] = staged
        return found

    def forget(self, *, with_data: bool) -> None:
        """Remove the files about shares, and with ``with_data`` the rows too, which must not be part of a version."""
        files = self.table.files()
        for path in files.names(self.folder):
            document = files.read_json(path) if with_data else None
            if isinstance(document, dict):
                for name in StagedShare(tuple(document["fragments"]), 0, 0).files():
                    files.delete(name)
            files.delete(path)
