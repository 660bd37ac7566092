"""Commit to a view so that the commit lands exactly on the version that was read, or not at all.

Lance rebases commits that touch different fragments, and two refreshes that only add rows do: both would land and the
rows would be there twice, even with ``max_retries=0``. Versions are therefore created through a namespace that refuses
any but the next one. Knows nothing of definitions, sources or rows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lance_namespace import LanceNamespace
from lance_namespace.errors import ConcurrentModificationError, TableVersionNotFoundError

from airflow_provider_lance.engine.commit import COMMIT_ID
from airflow_provider_lance.engine.history import read_commit
from airflow_provider_lance.engine.table import TableRef

if TYPE_CHECKING:
    import lance


class ViewMovedError(Exception):
    """Somebody else committed to the view after it was read: what was computed may be out of date."""


@dataclass(frozen=True)
class ViewTable:
    """A view's table and who creates its versions.

    ``namespace`` with ``table_id`` is used where the namespace manages versions, and on object stores where the
    directory's name alone does not tell the table's; otherwise a view needs neither.
    """

    table: TableRef
    namespace: LanceNamespace | None = None
    table_id: tuple[str, ...] = ()
    managed: bool = False

    def versions(self) -> tuple[LanceNamespace, list[str]]:
        """The namespace that creates this table's versions, and the table's id in it."""
        from lance.namespace import DirectoryNamespace

        parent, _, name = self.table.base.rpartition("/")
        if self.managed and self.namespace is not None:
            return self.namespace, list(self.table_id)
        if name.endswith(".lance"):
            options = {f"storage.{key}": value for key, value in self.table.storage_options.items()}
            # Without the manifest table: this is one known directory, and nothing but its versions may be touched.
            directory = DirectoryNamespace(root=parent or "/", manifest_enabled="false", **options)
            return directory, [name.removesuffix(".lance")]
        path = self.table.base.removeprefix("file://")
        if "://" not in path:
            return LocalVersions(Path(path, "_versions")), [name]
        if self.namespace is None:
            raise ValueError(f"{self.table.base} does not end in .lance and there is no namespace to commit through.")
        return self.namespace, list(self.table_id)


class LocalVersions(LanceNamespace):
    """The versions of one table on a local disk, whatever its directory is called (nested tables end in no .lance)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def namespace_id(self) -> str:
        return f"local {self._folder}"

    def list_table_versions(self, request: Any) -> Any:
        found = sorted(map(self._version, self._folder.glob("*.manifest")), key=lambda entry: int(entry["version"]))
        if request.get("descending"):
            found.reverse()
        return {"versions": found[: request.get("limit")]}

    def describe_table_version(self, request: Any) -> Any:
        wanted = request.get("version")
        found = self.list_table_versions({"descending": True})["versions"]
        chosen = [entry for entry in found if wanted in (None, entry["version"])]
        if not chosen:
            raise TableVersionNotFoundError(f"version {wanted} is not in {self._folder}")
        return {"version": chosen[0]}

    def create_table_version(self, request: Any) -> Any:
        staged = Path("/", request["manifest_path"])
        final = staged.with_name(staged.name.split(".manifest", 1)[0] + ".manifest")
        try:
            os.link(staged, final)  # fails if the version exists: the one atomic "put if absent" of a disk
        except FileExistsError:
            raise ConcurrentModificationError(f"version {request['version']} exists already") from None
        staged.unlink()
        return {"version": self._version(final)}

    def _version(self, manifest: Path) -> dict[str, Any]:
        number = int(manifest.name.removesuffix(".manifest"))
        # Names of twenty digits count down from the largest number; the older short ones count up.
        version = 2**64 - 1 - number if len(manifest.name) == len("18446744073709551614.manifest") else number
        facts = manifest.stat()
        return {
            "version": version,
            "manifest_path": str(manifest.resolve()).lstrip("/"),
            "manifest_size": facts.st_size,
            "timestamp_millis": int(facts.st_mtime * 1000),
        }


class _NextVersionOnly(LanceNamespace):
    """Passes versions of one table through to ``inner``, except any that is not ``read_version + 1``."""

    def __init__(self, inner: LanceNamespace, read_version: int) -> None:
        self._wrapped = inner
        self._read_version = read_version
        self.refused: str | None = None

    def namespace_id(self) -> str:
        return self._wrapped.namespace_id()

    def describe_table(self, request: Any) -> Any:
        return self._wrapped.describe_table(request)

    def list_table_versions(self, request: Any) -> Any:
        return self._wrapped.list_table_versions(request)

    def describe_table_version(self, request: Any) -> Any:
        return self._wrapped.describe_table_version(request)

    def create_table_version(self, request: Any) -> Any:
        # Lance's Rust side hands over a dict with model methods, not the model.
        version = request["version"] if isinstance(request, Mapping) else request.version
        if version != self._read_version + 1:
            self.refused = request["manifest_path"] if isinstance(request, Mapping) else request.manifest_path
            raise ConcurrentModificationError(
                f"the view was at version {self._read_version} when it was read; {version} is not the next one"
            )
        return self._wrapped.create_table_version(request)


def commit_next(view: ViewTable, read_version: int, operation: Any, properties: Mapping[str, str]) -> int:
    """Commit ``operation`` as version ``read_version + 1`` and return that number.

    Raises :class:`ViewMovedError` when that version is somebody else's. A lost answer is settled by reading the
    version back: every commit carries an id of its own.
    """
    import lance

    commit_id = uuid.uuid4().hex
    inner, table_id = view.versions()
    fence = _NextVersionOnly(inner, read_version)
    transaction = lance.Transaction(
        read_version=read_version,
        operation=operation,
        transaction_properties={**properties, COMMIT_ID: commit_id},
    )
    try:
        lance.LanceDataset.commit(
            view.table.location,
            transaction,
            storage_options=view.table.storage_options or None,
            namespace_client=fence,
            table_id=table_id,
            namespace_client_managed_versioning=True,
            max_retries=0,
        )
    except (OSError, ValueError, RuntimeError, ConcurrentModificationError) as error:
        head = view.table.open()
        if head.version > read_version and _commit_id(head, read_version + 1) == commit_id:
            return read_version + 1
        if fence.refused is not None:
            _remove_staged(view, fence.refused)
        if head.version > read_version:
            raise ViewMovedError(
                f"the view moved from version {read_version} to {head.version} during the refresh"
            ) from error
        raise
    return read_version + 1


def _commit_id(dataset: lance.LanceDataset, version: int) -> str | None:
    commit = read_commit(dataset, version)
    return None if commit is None else commit.properties.get(COMMIT_ID)


def _remove_staged(view: ViewTable, manifest_path: str) -> None:
    """Lance keeps the manifest of a refused commit, in case it landed after all; here it is known that it did not."""
    try:
        view.table.files().delete(f"_versions/{manifest_path.rsplit('/', 1)[-1]}")
    except OSError:
        return  # harmless: no version names it
