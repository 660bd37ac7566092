"""Commit to a view so that the commit becomes the version after the one that was read, or fails.

Lance rebases commits that touch different fragments, and two refreshes that only add rows do: both would succeed and
the rows would be there twice, even with ``max_retries=0``. So versions are created through a namespace that refuses any
version but the next one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from airflow_provider_lance.api.commit_client import PlainAnswer
from airflow_provider_lance.definitions.errors import refusals
from airflow_provider_lance.storage.commits import COMMIT_ID
from airflow_provider_lance.storage.history import read_commit
from airflow_provider_lance.storage.manifests import named_version
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    import lance
    from lance import LanceOperation
    from lance_namespace import LanceNamespace


class ViewMovedError(Exception):
    """Another commit to the view came after it was read, so what was computed may be out of date."""


class TableVersions(Protocol):
    """The part of a ``LanceNamespace`` that Lance uses to commit; requests are the models of its API or dictionaries.

    The classes here do not inherit from ``LanceNamespace``, whose import takes a second.
    """

    def namespace_id(self) -> str: ...

    def list_table_versions(self, request: Any) -> object: ...

    def describe_table_version(self, request: Any) -> object: ...

    def create_table_version(self, request: Any) -> object: ...


@dataclass(frozen=True)
class ViewTable:
    """A view's table and who creates its versions.

    The result of ``namespace`` with ``table_id`` is used where the namespace manages versions, and on object stores
    where the directory's name alone does not tell the table's; otherwise a view needs neither.
    """

    table: TableRef
    namespace: Callable[[], LanceNamespace | None] = lambda: None
    table_id: tuple[str, ...] = ()
    managed: bool = False

    def versions(self) -> tuple[TableVersions, list[str]]:
        """Who creates this table's versions, and the table's id there."""
        parent, _, name = self.table.base.rpartition("/")
        if self.managed and (namespace := self.namespace()) is not None:
            return namespace, list(self.table_id)
        path = self.table.base.removeprefix("file://")
        if "://" not in path:
            return LocalVersions(Path(path, "_versions")), [name]
        if name.endswith(".lance"):
            from lance.namespace import DirectoryNamespace

            options = {f"storage.{key}": value for key, value in self.table.storage_options.items()}
            # Without the manifest table, because nothing but the versions of this one directory may be touched.
            directory = DirectoryNamespace(  # type: ignore[no-untyped-call]
                root=parent, manifest_enabled="false", **options
            )
            return directory, [name.removesuffix(".lance")]
        if (namespace := self.namespace()) is None:
            raise ValueError(f"{self.table.base} does not end in .lance and there is no namespace to commit through.")
        return namespace, list(self.table_id)


class LocalVersions:
    """The versions of one table on a local disk, whatever its directory is called (nested tables end in no .lance)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def namespace_id(self) -> str:
        return f"local {self._folder}"

    def list_table_versions(self, request: Any) -> object:
        found = self._versions()
        if _field(request, "descending"):
            found.reverse()
        limit = _field(request, "limit")
        return PlainAnswer(versions=[_described(path) for path in found[: limit if isinstance(limit, int) else None]])

    def describe_table_version(self, request: Any) -> object:
        wanted = _field(request, "version")
        chosen = [path for path in self._versions() if wanted in (None, named_version(path.name))]
        if not chosen:
            from lance_namespace.errors import TableVersionNotFoundError

            raise TableVersionNotFoundError(f"version {wanted} is not in {self._folder}")
        return PlainAnswer(version=_described(chosen[-1]))

    def create_table_version(self, request: Any) -> object:
        staged = Path("/", str(_field(request, "manifest_path")))
        final = staged.with_name(staged.name.split(".manifest", 1)[0] + ".manifest")
        try:
            os.link(staged, final)  # the one atomic "put if absent" of a disk: it fails if the version exists
        except FileExistsError:
            raise _conflict(f"version {_field(request, 'version')} exists already") from None
        staged.unlink()
        return PlainAnswer(version=_described(final))

    def _versions(self) -> list[Path]:
        return sorted(self._folder.glob("*.manifest"), key=lambda path: named_version(path.name))


def _described(manifest: Path) -> dict[str, object]:
    facts = manifest.stat()
    return {
        "version": named_version(manifest.name),
        "manifest_path": str(manifest.resolve()).lstrip("/"),
        "manifest_size": facts.st_size,
        "timestamp_millis": int(facts.st_mtime * 1000),
    }


def _field(request: object, name: str) -> object:
    return request.get(name) if isinstance(request, Mapping) else getattr(request, name)


def _conflict(message: str) -> Exception:
    from lance_namespace.errors import ConcurrentModificationError

    return ConcurrentModificationError(message)


class _NextVersionOnly:
    """Passes the versions of one table through to ``inner``, and refuses any that is not ``read_version + 1``."""

    def __init__(self, inner: TableVersions, read_version: int) -> None:
        self._wrapped = inner
        self._read_version = read_version
        #: The staged manifest of the version that was refused.
        self.refused: str | None = None

    def namespace_id(self) -> str:
        return self._wrapped.namespace_id()

    def describe_table(self, request: Any) -> object:
        return cast("LanceNamespace", self._wrapped).describe_table(request)

    def list_table_versions(self, request: Any) -> object:
        return self._wrapped.list_table_versions(request)

    def describe_table_version(self, request: Any) -> object:
        return self._wrapped.describe_table_version(request)

    def create_table_version(self, request: Any) -> object:
        version = _field(request, "version")
        if version != self._read_version + 1:
            self.refused = str(_field(request, "manifest_path"))
            raise _conflict(
                f"the view was at version {self._read_version} when it was read; {version} is not the next one"
            )
        return self._wrapped.create_table_version(request)


def commit_next(
    view: ViewTable, read_version: int, operation: LanceOperation.BaseOperation, properties: Mapping[str, str]
) -> int:
    """Commit ``operation`` as version ``read_version + 1`` and return that number.

    Raises :class:`ViewMovedError` when another commit took that version. Every commit carries an id of its own, so a
    commit whose answer got lost is recognised by reading the version back.
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
            namespace_client=cast("LanceNamespace", fence),
            table_id=table_id,
            namespace_client_managed_versioning=True,
            max_retries=0,
        )
    except _commit_errors() as error:
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


def _commit_errors() -> tuple[type[Exception], ...]:
    return (OSError, ValueError, RuntimeError, *refusals())


def _commit_id(dataset: lance.LanceDataset, version: int) -> str | None:
    commit = read_commit(dataset, version)
    return None if commit is None else commit.properties.get(COMMIT_ID)


def _remove_staged(view: ViewTable, manifest_path: str) -> None:
    """Delete the manifest of a refused commit. Lance keeps it, because it cannot know that the commit failed."""
    try:
        view.table.files().delete(f"_versions/{manifest_path.rsplit('/', 1)[-1]}")
    except OSError:
        return  # the file does no harm, because no version names it
