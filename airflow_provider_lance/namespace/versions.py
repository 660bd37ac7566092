"""Versions of tables: every commit of a Lance client arrives here as a staged manifest and becomes a version once.

The manifest is checked first (see ``manifest.py``); then pylance puts it in place if nothing is there, which is what
decides a race, between threads, processes and servers alike. Methods are operations of the wire by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
)

from airflow_provider_lance.api.models import model
from airflow_provider_lance.engine.table import TableFiles
from airflow_provider_lance.namespace.catalog import Catalog, TablePlace, names_branch
from airflow_provider_lance.namespace.manifest import (
    MAX_VERSION,
    StagedManifest,
    base_paths,
    manifest_name,
    missing_files,
    naming_scheme,
    read_manifest,
    referred_files,
    refuse_foreign_bases,
)
from airflow_provider_lance.namespace.tree import check_limit, cut_page

# Beside the versions, one small document for each that came with metadata; Lance's cleanup leaves "_*" folders alone.
_RECORDS = "_version_records"


@dataclass(frozen=True)
class _Staged:
    """A request that may become a version: all that was checked, and what putting it takes."""

    request: Any
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

    def create_table_version(self, request: Any) -> Any:
        staged = self._check(request)
        version = self._put(staged) if isinstance(staged, _Staged) else staged
        return model("CreateTableVersionResponse")(version=version)

    def batch_create_table_versions(self, request: Any) -> Any:
        """All or none: everything is checked before anything is put, and what was put is taken back on a lost race.

        Storage has no transaction over several tables: for the moment between two puts a reader can see the first.
        """
        if len({(tuple(entry.id), entry.branch or "main") for entry in request.entries}) < len(request.entries):
            raise InvalidInputError("Two entries are for the same table and branch; a batch takes one of each.")
        checked = [self._check(entry) for entry in request.entries]
        done: list[_Staged] = []
        versions = []
        for staged in checked:
            if not isinstance(staged, _Staged):
                versions.append(staged)  # a replay: it is there already, and stays
                continue
            try:
                versions.append(self._put(staged))
            except LanceNamespaceError as error:
                self._take_back(done, error)
                raise
            done.append(staged)
        return model("BatchCreateTableVersionsResponse")(versions=versions)

    def describe_table_version(self, request: Any) -> Any:
        self._require_branch(request)
        answer = self._catalog.call("describe_table_version", request)
        self._add_metadata(request, [answer.version])
        return answer

    def list_table_versions(self, request: Any) -> Any:
        token, limit = request.page_token, request.limit
        check_limit(limit)
        if token and not (token.isascii() and token.isdecimal()):
            raise InvalidInputError("`page_token` is not one that this server gave out.")
        self._require_branch(request)
        # pylance knows a limit and no pages: one more than the first page has tells whether there is a second.
        most = limit + 1 if limit is not None and not token else None
        plain = request.model_copy(update={"page_token": None, "limit": most})
        found = self._catalog.call("list_table_versions", plain).versions
        by_place = {_place_in_list(entry.version, request.descending): entry for entry in found}
        page, token = cut_page(sorted(by_place), token, limit)
        versions = [by_place[place] for place in page]
        self._add_metadata(request, versions)
        return model("ListTableVersionsResponse")(versions=versions, page_token=token)

    def batch_delete_table_versions(self, request: Any) -> Any:
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
        place = self._catalog.locate(request.id)
        newest = self._newest(request.id, request.branch)
        if newest is not None and any(e.start_version <= newest.version < e.end_version for e in request.ranges):
            raise InvalidInputError(
                f"Version {newest.version} is the table's newest; deleting it would lose the table."
            )
        self._refuse_tagged(place, request)
        answer = self._catalog.call("batch_delete_table_versions", request)
        files = self._catalog.files(place, _branch(request.branch))
        for path in files.names(_RECORDS):
            version = int(path.rpartition("/")[2].partition("-")[0])
            if any(entry.start_version <= version < entry.end_version for entry in request.ranges):
                files.delete(path)
        return answer

    def _refuse_tagged(self, place: TablePlace, request: Any) -> None:
        """A tag promises that its version stays."""
        tags = self._catalog.open(request.id, place=place).tags.list() if request.ranges else {}
        for name, tag in sorted(tags.items()):
            here = _branch(tag["branch"]) == _branch(request.branch)
            if here and any(entry.start_version <= tag["version"] < entry.end_version for entry in request.ranges):
                raise InvalidInputError(f"Version {tag['version']} has the tag {name!r}; delete the tag first.")

    def _check(self, request: Any) -> _Staged | Any:
        """Everything that can be wrong with a request, before anything is touched; an identical replay's version."""
        place = self._catalog.locate(request.id)
        files = self._catalog.files(place, _branch(request.branch))
        self._require_branch(request)
        newest = self._newest(request.id, request.branch)
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
        before, known_bases = frozenset[str](), frozenset[str]()
        if newest is not None:
            head = self._catalog.open(request.id, version=newest.version, branch=request.branch, place=place)
            before, known_bases = referred_files(head), base_paths(head)
        refuse_foreign_bases(manifest.bases - known_bases, place.location)
        missing = missing_files(files, manifest.files - before)
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise InvalidInputError(
                f"The staged manifest adds files that are not there: {', '.join(missing[:3])}{more}. "
                "Upload the data before the version."
            )
        return _Staged(request, place, files, manifest, scheme)

    def _put(self, staged: _Staged) -> Any:
        request = staged.request
        keeps_record = bool(request.metadata) or not request.e_tag
        if keeps_record:
            # Before the put: a version is never visible without its metadata. Named by content, so a loser's record
            # is never taken for the winner's. Also what proves a replay that names no e_tag.
            staged.files.write_json(
                staged.record, {"manifest_path": request.manifest_path, "metadata": request.metadata or {}}
            )
        put = model("CreateTableVersionRequest")(
            id=request.id,
            version=request.version,
            branch=request.branch,
            manifest_path=request.manifest_path,
            manifest_size=staged.manifest.size,
            e_tag=request.e_tag,
            naming_scheme=staged.scheme,
        )
        try:
            answer = self._catalog.call("create_table_version", put)
        except ConcurrentModificationError:
            if keeps_record and not self._is_newest(staged):
                staged.files.delete(staged.record)
            raise
        return self._completed(request, answer.version, request.metadata or None)

    def _take_back(self, done: Sequence[_Staged], error: LanceNamespaceError) -> None:
        stuck = []
        for staged in reversed(done):
            request = staged.request
            if not self._is_newest(staged):
                stuck.append(f"{staged.place.name} version {request.version}")
                continue
            ranges = [{"start_version": request.version, "end_version": request.version + 1}]
            fields = {"id": request.id, "branch": request.branch, "ranges": ranges}
            self._catalog.call(
                "batch_delete_table_versions", model("BatchDeleteTableVersionsRequest").from_dict(fields)
            )
            staged.files.delete(staged.record)
        if stuck:
            raise InternalError(
                f"The batch failed ({error}), but others have already built on {', '.join(stuck)}: these versions stay."
            ) from error

    def _is_newest(self, staged: _Staged) -> bool:
        newest = self._newest(staged.request.id, staged.request.branch)
        if newest is None or newest.version != staged.request.version:
            return False
        final = f"_versions/{manifest_name(newest.version, staged.scheme)}"
        return _digest(staged.files, final) == staged.manifest.sha256

    def _replayed(self, request: Any, place: TablePlace, path: str) -> Any:
        """The version that is there, if this very request made it; otherwise the race is lost."""
        table, files = self._catalog.files(place), self._catalog.files(place, _branch(request.branch))
        lost = ConcurrentModificationError(
            f"Version {request.version} exists already, with other content: read the table again and commit anew."
        )
        describe = model("DescribeTableVersionRequest")(id=request.id, version=request.version, branch=request.branch)
        try:
            found = self._catalog.call("describe_table_version", describe).version
        except TableVersionNotFoundError:
            raise lost from None
        if request.manifest_size is not None and request.manifest_size != found.manifest_size:
            raise lost
        final = f"_versions/{found.manifest_path.rpartition('/')[2]}"
        if request.e_tag and request.e_tag == found.e_tag:
            return self._recorded(request, found)  # the file itself was moved into place
        digest = _digest(files, final)
        if table.exists(path) and _digest(table, path) == digest:
            table.delete(path)  # staged once more
            return self._recorded(request, found)
        record = files.read_json(_record_path(request.version, digest))
        if record is not None and record.get("manifest_path") == request.manifest_path:
            return self._recorded(request, found)
        raise lost

    def _recorded(self, request: Any, version: Any) -> Any:
        self._add_metadata(request, [version])
        return version

    def _completed(self, request: Any, version: Any, metadata: dict[str, str] | None = None) -> Any:
        if version.timestamp_millis is None:
            describe = model("DescribeTableVersionRequest")(
                id=request.id, version=version.version, branch=request.branch
            )
            with contextlib.suppress(TableVersionNotFoundError):  # deleted again in this very moment
                version = self._catalog.call("describe_table_version", describe).version
        version.metadata = metadata
        return version

    def _staged_content(self, place: TablePlace, request: Any, path: str) -> bytes:
        files = self._catalog.files(place)
        content = files.read_bytes(path)
        if content is None:
            raise InvalidInputError(f"There is no staged manifest at {request.manifest_path!r}.")
        if request.manifest_size is not None and request.manifest_size != len(content):
            raise InvalidInputError(
                f"The staged manifest has {len(content)} bytes, the request says {request.manifest_size}."
            )
        if request.e_tag and self._catalog.is_local:
            # Elsewhere only the store knows how it makes its tags (an encrypted S3 object's is no MD5).
            status = os.stat(os.path.join(place.location, path))
            actual = f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"'
            if request.e_tag.strip('"') != actual.strip('"'):
                raise InvalidInputError(f"The staged manifest's e_tag is {actual}, the request says {request.e_tag}.")
        return content

    def _inside(self, place: TablePlace, request: Any) -> str:
        """The staged file's path inside the table's directory; nothing outside of it is read."""
        path = request.manifest_path
        prefix = f"{place.path}/"
        relative = path.removeprefix(prefix)
        steps = relative.split("/")
        branch = _branch(request.branch)
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

    def _scheme(self, request: Any, newest: Any | None) -> str:
        asked = request.naming_scheme.upper() if request.naming_scheme else None
        if asked not in {None, "V1", "V2"}:
            raise InvalidInputError(f"naming_scheme is {request.naming_scheme!r}; it must be V1 or V2.")
        if newest is None:
            return asked or "V2"
        used = naming_scheme(newest.manifest_path)
        if asked not in {None, used}:
            # Lance refuses to open a table whose versions follow two schemes (seen).
            raise InvalidInputError(
                f"This table's versions are named by scheme {used}; {asked} would make it unopenable."
            )
        return used

    def _newest(self, table_id: list[str], branch: str | None) -> Any | None:
        request = model("ListTableVersionsRequest")(id=table_id, branch=_branch(branch), limit=1, descending=True)
        versions = self._catalog.call("list_table_versions", request).versions
        return versions[0] if versions else None

    def _require_branch(self, request: Any) -> None:
        if _branch(request.branch):
            self._catalog.open(request.id, branch=request.branch)

    def _add_metadata(self, request: Any, versions: Sequence[Any]) -> None:
        files = self._catalog.files(self._catalog.locate(request.id), _branch(request.branch))
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


def _place_in_list(version: int, descending: bool | None) -> str:
    """A version as text that sorts where the list has it."""
    return f"{MAX_VERSION - version if descending else version:020d}"


def _record_path(version: int, sha256: str) -> str:
    return f"{_RECORDS}/{version}-{sha256[:32]}.json"


def _digest(files: TableFiles, path: str) -> str:
    return hashlib.sha256(files.read_bytes(path) or b"").hexdigest()


def _branch(branch: str | None) -> str | None:
    return branch if names_branch(branch) else None
