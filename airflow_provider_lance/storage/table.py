"""Where a table's files are and how it is opened: the value that drivers send to Spark workers."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.errors import no_column
from airflow_provider_lance.definitions.expressions import parse_path

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment
    from lance.file import LanceFileSession


@dataclass(frozen=True)
class TableRef:
    """A table by its location and branch; None is the main branch. Its ``repr`` hides the storage credentials."""

    location: str
    branch: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def base(self) -> str:
        """The folder of this branch's files: under ``tree/``, although Lance reports main's ``uri`` for a branch."""
        root = self.location.rstrip("/")
        return f"{root}/tree/{self.branch}" if self.branch else root

    def open(self, version: int | None = None) -> LanceDataset:
        """The table at ``version``, or its newest one."""
        import lance

        options = self.storage_options or None
        if not self.branch:
            return lance.dataset(self.location, version=version, storage_options=options)
        return lance.dataset(self.location, storage_options=options).checkout_version((self.branch, version))

    def data_path(self, name: str) -> str:
        return f"{self.base}/data/{name}"

    def files(self) -> TableFiles:
        return TableFiles(self)


class TableFiles:
    """Small files beside the data, on any storage that Lance can reach."""

    def __init__(self, table: TableRef) -> None:
        from lance.file import LanceFileSession

        self._session: LanceFileSession = LanceFileSession(table.base, storage_options=table.storage_options or None)

    def names(self, folder: str) -> list[str]:
        """Paths of all files under ``folder``; none if it does not exist."""
        try:
            return sorted(str(path) for path in self._session.list(folder))
        except OSError as error:
            if is_missing(error):
                return []
            raise

    def exists(self, path: str) -> bool:
        return bool(self._session.contains(path))

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._session.delete_file(path)
        except OSError as error:
            if not is_missing(error):
                raise

    def read_bytes(self, path: str) -> bytes | None:
        """A small file's content, or None where there is none."""
        with _scratch() as scratch:
            try:
                self._session.download_file(path, scratch)
            except OSError as error:
                if is_missing(error):
                    return None
                raise
            with open(scratch, "rb") as file:
                return file.read()

    def write_json(self, path: str, document: object) -> None:
        """Replace a small document in one step: readers see either the old one or the new one."""
        with _scratch() as scratch:
            with open(scratch, "w", encoding="utf-8") as file:
                json.dump(document, file, separators=(",", ":"))
            self._session.upload_file(scratch, path)

    def read_json(self, path: str) -> Any | None:
        """The document; None where there is none or where it is not JSON."""
        content = self.read_bytes(path)
        if content is not None:
            with contextlib.suppress(ValueError):
                return json.loads(content)
        return None


def is_missing(error: Exception) -> bool:
    """Whether an error of the storage says that a file, or a version of a table, is not there."""
    text = str(error).lower()
    return isinstance(error, FileNotFoundError) or "not found" in text or "no such file" in text


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    handle, path = tempfile.mkstemp(prefix="lance-")
    os.close(handle)
    try:
        yield path
    finally:
        os.unlink(path)


def fragments_of(dataset: LanceDataset, numbers: Iterable[int] | None) -> list[LanceFragment]:
    """The fragments with these ids in the order of the ids; all fragments for None."""
    if numbers is None:
        return dataset.get_fragments()
    found = []
    for number in numbers:
        fragment = dataset.get_fragment(number)
        if fragment is None:
            raise ValueError(f"version {dataset.version} of {dataset.uri} has no fragment {number}")
        found.append(fragment)
    return found


def field_ids(dataset: LanceDataset, paths: Iterable[str]) -> frozenset[int]:
    """The ids of the fields that the paths name, with all fields inside them.

    Data files list only leaves or all fields, depending on the storage version.
    """
    found: set[int] = set()
    for path in paths:
        fields = dataset.lance_schema.fields()
        chosen = None
        for name in parse_path(path):
            chosen = next((child for child in fields if child.name() == name), None)
            if chosen is None:
                raise no_column(f"There is no column {path!r} in version {dataset.version} of the table.")
            fields = chosen.children()
        stack = [chosen]
        while stack:
            top = stack.pop()
            if top is not None:
                found.add(top.id())
                stack.extend(top.children())
    return frozenset(found)
