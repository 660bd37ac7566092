"""Versions of tables: every commit of a Lance client arrives here as a staged manifest and becomes a version once.

The manifest is checked first (see ``staged_manifest.py``). Then pylance puts it in place if no version of that number
exists, which decides a race between threads, processes and servers. Each method is an operation of the wire by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from lance_namespace import (
    BatchCreateTableVersionsRequest,
    BatchCreateTableVersionsResponse,
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    CreateTableVersionEntry,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    LanceNamespace,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableVersion,
)
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
)
from lance_namespace_urllib3_client.models.version_range import VersionRange

from airflow_provider_lance.namespace.requests.values import RequestWithBranch, check_limit, cut_page, id_of
from airflow_provider_lance.namespace.tables.catalog import Catalog, TablePlace, names_branch, other_branch
from airflow_provider_lance.namespace.tables.staged_manifest import (
    StagedManifest,
    base_paths,
    missing_files,
    read_manifest,
    referred_files,
    refuse_foreign_bases,
)
from airflow_provider_lance.storage.manifests import MAX_VERSION, manifest_name, naming_scheme
from airflow_provider_lance.storage.table import TableFiles

# A folder beside the versions, with one small document for each version that came with metadata. Lance's cleanup
# leaves folders alone whose name begins with an underscore.
_RECORDS = "_version_records"
_NewVersion = CreateTableVersionRequest | CreateTableVersionEntry


@dataclass(frozen=True)
class _Staged:
    """A request that was checked and may become a version."""

    request: _NewVersion
    place: TablePlace
    files: TableFiles
    manifest: StagedManifest
    scheme: str

    @property
    def record(self) -> str:
        return _record_path(self.manifest.version, self.manifest.sha256)


class Versions:
    """Create, describe, list and delete the versions of tables."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        staged = self._check(request)
        return CreateTableVersionResponse(version=self._put(staged) if isinstance(staged, _Staged) else staged)

    def batch_create_table_versions(self, request: BatchCreateTableVersionsRequest) -> BatchCreateTableVersionsResponse:
        """Create all versions or none: all are checked before the first is put, and a lost race removes those put.

        Storage has no transaction over several tables, so between two puts a reader can see the first version only.
        """
        if len({(tuple(entry.id), entry.branch or "main") for entry in request.entries}) < len(request.entries):
            raise InvalidInputError("Two entries are for the same table and branch; a batch takes one of each.")
        checked = [self._check(entry) for entry in request.entries]
        done: list[_Staged] = []
        versions: list[TableVersion] = []
        for staged in checked:
            if not isinstance(staged, _Staged):
                versions.append(staged)  # An identical request has created this version before.
                continue
            try:
                versions.append(self._put(staged))
            except LanceNamespaceError as error:
                self._take_back(done, error)
                raise
            done.append(staged)
        return BatchCreateTableVersionsResponse(versions=versions)

    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        self._require_branch(request)
        answer = self._catalog.run(LanceNamespace.describe_table_version, request)
        self._add_metadata(request, [answer.version])
        return answer

    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        token, limit = request.page_token, request.limit
        check_limit(limit)
        if token and not (token.isascii() and token.isdecimal()):
            raise InvalidInputError("`page_token` is not one that this server gave out.")
        self._require_branch(request)
        # pylance supports a limit but no pages. One version more than the first page tells whether there is a second.
        most = limit + 1 if limit is not None and not token else None
        plain = request.model_copy(update={"page_token": None, "limit": most})
        found = self._catalog.run(LanceNamespace.list_table_versions, plain).versions
        by_key = {_sort_key(entry.version, request.descending): entry for entry in found}
        page, token = cut_page(sorted(by_key), token, limit)
        versions = [by_key[key] for key in page]
        self._add_metadata(request, versions)
        return ListTableVersionsResponse(versions=versions, page_token=token)

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        for entry in request.ranges:
            if entry.end_version < 0:
                raise InvalidInputError(
                    f"end_version is {entry.end_version}: to delete all versions at once is not supported. Name the "
                    "first one to keep; it is exclusive."
                )
            if entry.end_version <= entry.start_version:
                raise InvalidInputError(
                    f"The range {entry.start_version}–{entry.end_version} is empty: its end is exclusive."
                )
        place = self._catalog.locate(id_of(request))
        newest = self._newest(id_of(request), request.branch)
        if newest is not None and _in_ranges(newest.version, request.ranges):
            raise InvalidInputError(
                f"Version {newest.version} is the table's newest; deleting it would lose the table."
            )
        self._refuse_tagged(place, request)
        answer = self._catalog.run(LanceNamespace.batch_delete_table_versions, request)
        files = self._catalog.files(place, request.branch)
        for path in files.names(_RECORDS):
            if _in_ranges(int(path.rpartition("/")[2].partition("-")[0]), request.ranges):
                files.delete(path)
        return answer

    def _refuse_tagged(self, place: TablePlace, request: BatchDeleteTableVersionsRequest) -> None:
        """Refuse to delete a version that has a tag."""
        tags = self._catalog.open(id_of(request), place=place).tags.list() if request.ranges else {}
        for name, tag in sorted(tags.items()):
            here = other_branch(tag["branch"]) == other_branch(request.branch)
            if here and _in_ranges(tag["version"], request.ranges):
                raise InvalidInputError(f"Version {tag['version']} has the tag {name!r}; delete the tag first.")

    def _check(self, request: _NewVersion) -> _Staged | TableVersion:
        """Check a request before anything is written; return the existing version if the same request created it."""
        place = self._catalog.locate(id_of(request))
        self._require_branch(request)
        newest = self._newest(id_of(request), request.branch)
        scheme = self._scheme(request, newest)
        path = self._inside(place, request)
        expected = newest.version + 1 if newest is not None else 1
        if request.version < expected:
            return self._replayed(request, place, path)
        if request.version > expected:
            raise ConcurrentModificationError(
                f"Version {request.version} of {place.name} cannot be created: the next one is {expected}."
            )
        content = self._staged_content(place, request, path)
        manifest = read_manifest(content, manifest_name(request.version, scheme))
        if manifest.version != request.version:
            raise InvalidInputError(
                f"The staged manifest says it is version {manifest.version}, the request says {request.version}."
            )
        staged = _Staged(request, place, self._catalog.files(place, request.branch), manifest, scheme)
        self._check_files(staged, newest)
        return staged

    def _check_files(self, staged: _Staged, newest: TableVersion | None) -> None:
        """Check that the files which a manifest adds to the newest version are in the table."""
        request, manifest, place = staged.request, staged.manifest, staged.place
        before, known_bases = frozenset[str](), frozenset[str]()
        if newest is not None:
            head = self._catalog.open(id_of(request), version=newest.version, branch=request.branch, place=place)
            before, known_bases = referred_files(head), base_paths(head)
        refuse_foreign_bases(manifest.bases - known_bases, place.location)
        missing = missing_files(staged.files, manifest.files - before)
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InvalidInputError(
                f"The staged manifest adds files that are not there: {', '.join(missing[:3])}{more}. "
                "Upload the data before the version."
            )

    def _put(self, staged: _Staged) -> TableVersion:
        request = staged.request
        keeps_record = bool(request.metadata) or not request.e_tag
        if keeps_record:
            # The record is written before the version, so that no version is visible without its metadata. It is named
            # by content, so that the record of a lost race is not taken for the winner's. It also proves a replay that
            # names no e_tag.
            staged.files.write_json(
                staged.record, {"manifest_path": request.manifest_path, "metadata": request.metadata or {}}
            )
        put = CreateTableVersionRequest(
            id=request.id,
            version=request.version,
            branch=request.branch,
            manifest_path=request.manifest_path,
            manifest_size=staged.manifest.size,
            e_tag=request.e_tag,
            naming_scheme=staged.scheme,
        )
        try:
            created = self._catalog.run(LanceNamespace.create_table_version, put).version
        except ConcurrentModificationError:
            if keeps_record and not self._is_newest(staged):
                staged.files.delete(staged.record)
            raise
        version = created or self._describe(request)
        if version.timestamp_millis is None:
            with contextlib.suppress(TableVersionNotFoundError):  # It was deleted again in the meantime.
                version = self._describe(request)
        version.metadata = request.metadata or None
        return version

    def _take_back(self, done: Sequence[_Staged], error: LanceNamespaceError) -> None:
        stuck = []
        for staged in reversed(done):
            request = staged.request
            if not self._is_newest(staged):
                stuck.append(f"{staged.place.name} version {request.version}")
                continue
            ranges = [VersionRange(start_version=request.version, end_version=request.version + 1)]
            self._catalog.run(
                LanceNamespace.batch_delete_table_versions,
                BatchDeleteTableVersionsRequest(id=request.id, branch=request.branch, ranges=ranges),
            )
            staged.files.delete(staged.record)
        if stuck:
            raise InternalError(
                f"The batch failed ({error}), but others have already built on {', '.join(stuck)}: these versions stay."
            ) from error

    def _is_newest(self, staged: _Staged) -> bool:
        newest = self._newest(id_of(staged.request), staged.request.branch)
        if newest is None or newest.version != staged.request.version:
            return False
        final = f"_versions/{manifest_name(newest.version, staged.scheme)}"
        return _digest(staged.files, final) == staged.manifest.sha256

    def _replayed(self, request: _NewVersion, place: TablePlace, path: str) -> TableVersion:
        """The existing version, if this very request created it; ``ConcurrentModificationError`` otherwise."""
        lost = ConcurrentModificationError(
            f"Version {request.version} exists already, with other content: read the table again and commit anew."
        )
        try:
            found = self._describe(request)
        except TableVersionNotFoundError:
            raise lost from None
        if request.manifest_size is not None and request.manifest_size != found.manifest_size:
            raise lost
        if not self._has_content(request, place, path, found):
            raise lost
        self._add_metadata(request, [found])
        return found

    def _has_content(self, request: _NewVersion, place: TablePlace, path: str, found: TableVersion) -> bool:
        """Whether an existing version was made from the manifest that a request staged at ``path``."""
        if request.e_tag and request.e_tag == found.e_tag:
            return True  # The staged file itself was moved into place.
        table, files = self._catalog.files(place), self._catalog.files(place, request.branch)
        digest = _digest(files, f"_versions/{found.manifest_path.rpartition('/')[2]}")
        if table.exists(path) and _digest(table, path) == digest:
            table.delete(path)  # The client staged the same manifest again.
            return True
        record = files.read_json(_record_path(request.version, digest))
        return record is not None and record.get("manifest_path") == request.manifest_path

    def _describe(self, request: _NewVersion) -> TableVersion:
        describe = DescribeTableVersionRequest(id=request.id, version=request.version, branch=request.branch)
        return self._catalog.run(LanceNamespace.describe_table_version, describe).version

    def _staged_content(self, place: TablePlace, request: _NewVersion, path: str) -> bytes:
        files = self._catalog.files(place)
        content = files.read_bytes(path)
        if content is None:
            raise InvalidInputError(f"There is no staged manifest at {request.manifest_path!r}.")
        if request.manifest_size is not None and request.manifest_size != len(content):
            raise InvalidInputError(
                f"The staged manifest has {len(content)} bytes, the request says {request.manifest_size}."
            )
        if request.e_tag and self._catalog.is_local:
            # Only a local file's tag can be computed: the tag of an encrypted S3 object, for example, is no MD5.
            status = os.stat(os.path.join(place.location, path))
            actual = f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"'
            if request.e_tag.strip('"') != actual.strip('"'):
                raise InvalidInputError(f"The staged manifest's e_tag is {actual}, the request says {request.e_tag}.")
        return content

    def _inside(self, place: TablePlace, request: _NewVersion) -> str:
        """The staged file's path inside the table's directory; nothing outside of it is read."""
        path = request.manifest_path
        prefix = f"{place.path}/"
        relative = path.removeprefix(prefix)
        steps = relative.split("/")
        branch = other_branch(request.branch)
        home = ["tree", *branch.split("/")] if branch else []
        if (
            not path.startswith(prefix)
            or "\0" in path
            or any(step in {"", ".", ".."} for step in steps)
            or steps[: len(home)] != home
            or (steps[-1].endswith(".manifest") and steps[-2:-1] == ["_versions"])
        ):
            raise InvalidInputError(
                f"manifest_path {path[:200]!r} is not a staged file of this table: it must be a path inside the object "
                f"store that starts with {'/'.join([place.path, *home])}/ and is not a version yet."
            )
        return relative

    def _scheme(self, request: _NewVersion, newest: TableVersion | None) -> str:
        asked = request.naming_scheme.upper() if request.naming_scheme else None
        if asked not in {None, "V1", "V2"}:
            raise InvalidInputError(f"naming_scheme is {request.naming_scheme!r}; it must be V1 or V2.")
        if newest is None:
            return asked or "V2"
        used = naming_scheme(newest.manifest_path)
        if asked not in {None, used}:
            # Lance refuses to open a table whose versions follow two schemes.
            raise InvalidInputError(
                f"This table's versions are named by scheme {used}; {asked} would make it unopenable."
            )
        return used

    def _newest(self, table_id: list[str], branch: str | None) -> TableVersion | None:
        request = ListTableVersionsRequest(id=table_id, branch=other_branch(branch), limit=1, descending=True)
        versions = self._catalog.run(LanceNamespace.list_table_versions, request).versions
        return versions[0] if versions else None

    def _require_branch(self, request: RequestWithBranch) -> None:
        if names_branch(request.branch):
            self._catalog.open(id_of(request), branch=request.branch)

    def _add_metadata(self, request: RequestWithBranch, versions: Sequence[TableVersion]) -> None:
        """Add the metadata that each version came with, from the records beside the versions."""
        files = self._catalog.files(self._catalog.locate(id_of(request)), request.branch)
        recorded = {path.rpartition("/")[2] for path in files.names(_RECORDS)}
        with_record = {name.partition("-")[0] for name in recorded}
        for version in versions:
            if str(version.version) not in with_record:
                continue
            path = _record_path(
                version.version, _digest(files, f"_versions/{version.manifest_path.rpartition('/')[2]}")
            )
            record = files.read_json(path) if path.rpartition("/")[2] in recorded else None
            version.metadata = (record or {}).get("metadata") or None


def _in_ranges(version: int, ranges: Sequence[VersionRange]) -> bool:
    return any(entry.start_version <= version < entry.end_version for entry in ranges)


def _sort_key(version: int, descending: bool | None) -> str:
    """A version as text whose order is the order of the listing."""
    return f"{MAX_VERSION - version if descending else version:020d}"


def _record_path(version: int, sha256: str) -> str:
    return f"{_RECORDS}/{version}-{sha256[:32]}.json"


def _digest(files: TableFiles, path: str) -> str:
    return hashlib.sha256(files.read_bytes(path) or b"").hexdigest()
