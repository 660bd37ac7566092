"""Reads and checks a staged manifest before it may become a version, so that every version can be opened.

Lance reads the manifest in a scratch directory that has nothing else, so no rule of the format is repeated here.
pylance's ``create_table_version`` does not read the content: four bytes of junk make a table unopenable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.namespace.tables.catalog import plain_location
from airflow_provider_lance.storage.history import read_transaction
from airflow_provider_lance.storage.manifests import MAGIC
from airflow_provider_lance.storage.table import TableFiles

if TYPE_CHECKING:
    import lance

# Beyond this number of files one listing is cheaper than a request for each of them.
_ASK_ONE_BY_ONE = 32


@dataclass(frozen=True)
class StagedManifest:
    """What a manifest says: its version, and every file it refers to by its path inside the table."""

    version: int
    size: int
    sha256: str
    files: frozenset[str] = field(repr=False)
    bases: frozenset[str] = frozenset()


def read_manifest(content: bytes, name: str) -> StagedManifest:
    """Read a manifest's content under the file name it would get; ``InvalidInputError`` if Lance cannot."""
    if not content.endswith(MAGIC):
        raise _unreadable(content)  # Lance does not check this, and reads zeros as an empty table of version 0.
    with _opened(content, name) as dataset:
        return StagedManifest(
            version=int(dataset.version),
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            files=_plain_paths(referred_files(dataset) | _new_index_files(dataset)),
            bases=base_paths(dataset),
        )


def base_paths(dataset: lance.LanceDataset) -> frozenset[str]:
    """The other places in which a version may have data files, deletion files and indices."""
    return frozenset(base.path for base in dataset.base_paths().values())


def refuse_foreign_bases(bases: frozenset[str], location: str) -> None:
    """Refuse a version that reads files outside of its own table, as a shallow clone does.

    A branch refers to its table's directory. Any other place would be read with the rights of the server, which the
    caller may not have.
    """
    for base in sorted(bases):
        place = plain_location(base)
        steps = place.removeprefix(location).split("/")
        if (place != location and not place.startswith(f"{location}/")) or ".." in steps:
            raise InvalidInputError(
                f"The table refers to files at {base[:200]!r}, which is outside of it. A table here holds its own "
                "files: copy the data instead of cloning it."
            )


def _plain_paths(files: frozenset[str]) -> frozenset[str]:
    for path in files:
        if path.startswith("/") or any(step in {"", ".", ".."} for step in path.split("/")):
            raise InvalidInputError(f"The staged manifest refers to {path[:200]!r}, which is outside of the table.")
    return files


def referred_files(dataset: lance.LanceDataset) -> frozenset[str]:
    """The data and deletion files of a version that lie in its own table."""
    found: set[str] = set()
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        found.update(f"data/{file.path}" for file in metadata.files if getattr(file, "base_id", None) is None)
        deletions = metadata.deletion_file
        if deletions is not None and deletions.base_id is None:
            found.add(deletions.path(metadata.id))
    return frozenset(found)


def missing_files(files: TableFiles, wanted: frozenset[str]) -> list[str]:
    """The files of ``wanted`` that do not exist."""
    if len(wanted) <= _ASK_ONE_BY_ONE:
        return sorted(path for path in wanted if not files.exists(path))
    folders = {path.partition("/")[0] for path in wanted}
    there = {name for folder in folders for name in files.names(folder)}
    return sorted(wanted - there)


def _new_index_files(dataset: lance.LanceDataset) -> frozenset[str]:
    """The files of the indices that this version adds; its transaction lists them."""
    transaction = read_transaction(dataset, dataset.version)
    added = getattr(transaction.operation, "new_indices", None) if transaction is not None else None
    return frozenset(
        f"_indices/{index.uuid}/{file.path}"
        for index in added or []
        if index.base_id is None
        for file in index.files or []
    )


@contextlib.contextmanager
def _opened(content: bytes, name: str) -> Iterator[lance.LanceDataset]:
    import lance

    with tempfile.TemporaryDirectory(prefix="lance-manifest-") as scratch:
        os.mkdir(os.path.join(scratch, "_versions"))
        with open(os.path.join(scratch, "_versions", name), "wb") as file:
            file.write(content)
        try:
            dataset = lance.dataset(scratch)
            _ = dataset.schema, dataset.get_fragments()
        except Exception as error:
            raise _unreadable(content) from error
        except BaseException as error:
            # Lance panics on some junk, which pyo3 raises as a PanicException, which is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise _unreadable(content) from error
        yield dataset


def _unreadable(content: bytes) -> InvalidInputError:
    return InvalidInputError(
        f"The staged file of {len(content)} bytes is not a readable Lance manifest; the table was left as it is."
    )
