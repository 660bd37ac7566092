"""A view as a table: make it, read how far it has come, move it forward. The only writer of the ``mv.*`` metadata.

A refresh is two commits, as LanceDB's are: all row changes in one, then the bookmark (``mv.source_version`` and what
belongs to it). The first names its source version in its transaction, so that whoever comes after a crash between the
two finishes it. Knows nothing of how rows are computed; the server calls :func:`create_view` in process.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.changes import SourcePoint
from airflow_provider_lance.engine.commit import JOB_ID
from airflow_provider_lance.engine.expressions import expression_type
from airflow_provider_lance.engine.history import read_commit
from airflow_provider_lance.engine.table import TableRef
from airflow_provider_lance.engine.udtf_spec import refuse
from airflow_provider_lance.engine.view_binding import bind
from airflow_provider_lance.engine.view_commit import ViewMovedError, ViewTable, commit_next
from airflow_provider_lance.engine.view_definition import LANCEDB_FORMAT, SOURCE_ROW_ID, ViewDefinition, encode_schema

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata
    from lance_namespace import LanceNamespace

SOURCE_VERSION = "mv.source_version"
SOURCE_TIMESTAMP = "mv.source_version_ts"
SOURCE_POINTS = "mv.source_points"  # of a view with several sources
REFRESHED_AT = "mv.refreshed_at_ms"
VIEW_VERSION = "mv.view_version"
INCARNATION = "mv.incarnation"
TRIMMED_TO = "mv.trimmed_to"
NEW_SCHEMA = "mv.new_schema"  # of a replaced definition, until a refresh has written the rows of it
OUTCOME = "mv.refresh"  # in the transaction of a row commit
FINISHED = "mv.refreshed"  # in the transaction of a bookmark

_OWN_KEYS = "mv."

# Commits that leave every row as it was, so a view may be compacted and indexed between two refreshes.
_HARMLESS = frozenset(["Rewrite", "CreateIndex", "UpdateConfig"])


@dataclass(frozen=True)
class Outcome:
    """What a refresh did: its sources' versions and its figures. Travels in the row commit, for whoever finishes it."""

    points: Mapping[str, SourcePoint]
    mode: str
    rows_written: int = 0
    rows_deleted: int = 0
    rows_failed: int = 0
    reason: str | None = None
    trimmed_to: int | None = None

    def encode(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Outcome:
        data = json.loads(text)
        data["points"] = {name: SourcePoint(**point) for name, point in data["points"].items()}
        return cls(**data)


@dataclass(frozen=True)
class ViewState:
    """A view at its newest version.

    ``points`` is where each source was at the last refresh, ``None`` when the view's rows cannot be relied on;
    ``doubt`` then says why. ``unfinished`` is a refresh whose rows are there and whose bookmark is not.
    ``trimmed_to`` tells that the last refresh left rows out, because of ``output_limit``. ``new_schema`` is the one of
    a definition that was replaced: the table has the old one, and its old rows, until the next refresh.
    """

    dataset: lance.LanceDataset
    definition: ViewDefinition
    points: Mapping[str, SourcePoint] | None
    doubt: str | None = None
    unfinished: Outcome | None = None
    trimmed_to: int | None = None
    new_schema: pa.Schema | None = None

    @property
    def version(self) -> int:
        return int(self.dataset.version)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that the next refresh writes, without metadata."""
        return self.dataset.schema.remove_metadata() if self.new_schema is None else self.new_schema


@dataclass(frozen=True)
class RowChanges:
    """All row changes of one refresh. With ``schema`` the table is written anew under that schema."""

    new: list[FragmentMetadata] = field(default_factory=list)
    updated: list[FragmentMetadata] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    schema: pa.Schema | None = None

    @property
    def empty(self) -> bool:
        return not (self.new or self.updated or self.removed or self.schema)


def empty_view(
    definition: ViewDefinition, open_source: Callable[[str], lance.LanceDataset]
) -> tuple[pa.Table, ViewDefinition]:
    """The view's table without rows, and its definition as it is stored there.

    ``open_source`` opens the table a name of ``definition.sources`` stands for; whatever it raises for a missing table
    passes through. Raises InvalidInputError (code 13) for a definition that does not hold over its source.
    """
    bound, schema = bind(definition, open_source)
    if bound.partition_key is not None:
        check_partition_key(bound, open_source(bound.sources[0]).schema)
    metadata = {**bound.to_metadata(), INCARNATION: str(uuid.uuid4())}
    stored = ViewDefinition.from_metadata(metadata)
    if stored is None or stored.select != bound.select:
        refuse(f"the view's query would not be read back as it was understood: {bound.query}")
    return schema.with_metadata(metadata).empty_table(), bound


def create_view(
    location: str,
    definition: ViewDefinition,
    open_source: Callable[[str], lance.LanceDataset],
    *,
    storage_options: Mapping[str, str] | None = None,
    namespace: LanceNamespace | None = None,
    table_id: list[str] | None = None,
) -> tuple[int, ViewDefinition]:
    """Write the :func:`empty_view` at ``location`` and return its version and its definition as it was stored.

    Pass ``namespace`` and ``table_id`` for a table that the namespace declared with managed versions.
    """
    import lance

    empty, bound = empty_view(definition, open_source)
    managed: dict[str, Any] = {"mode": "create"}
    if namespace is not None:
        # A declared table exists already, without a version: "create" would refuse it.
        managed = {"mode": "append", "namespace_client": namespace, "table_id": list(table_id or [])}
    dataset = lance.write_dataset(
        empty,
        None if namespace is not None else location,
        enable_stable_row_ids=True,
        storage_options=dict(storage_options or {}) or None,
        **managed,
    )
    return int(dataset.version), bound


def replace_definition(dataset: lance.LanceDataset, empty: pa.Table) -> int:
    """Give a view the definition of ``empty``, an :func:`empty_view`; returns the version that has it.

    Only metadata changes: readers keep the old rows in the old columns until the next refresh, which rebuilds and
    writes both in one commit. Without ``mv.source_version`` every engine takes the view for one that was not refreshed.
    """
    metadata = {key.decode(): value.decode() for key, value in (dataset.schema.metadata or {}).items()}
    kept = {key: value for key, value in metadata.items() if key == INCARNATION or not key.startswith(_OWN_KEYS)}
    wanted = {key.decode(): value.decode() for key, value in empty.schema.metadata.items()}
    updates = {**wanted, **kept, VIEW_VERSION: str(dataset.version + 1)}
    if not empty.schema.remove_metadata().equals(dataset.schema.remove_metadata()):
        updates[NEW_SCHEMA] = encode_schema(empty.schema.remove_metadata())
    dataset.update_schema_metadata(updates, replace=True)
    return int(dataset.version)


def read_schema(text: str) -> pa.Schema:
    """The schema of :func:`replace_definition`, the view's own column included."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def check_partition_key(definition: ViewDefinition, source: pa.Schema) -> None:
    """Refuse to partition a table function's rows by what cannot be compared as one value."""
    import pyarrow as pa

    key = definition.partition_key
    kind = None if key is None else expression_type(source, key)
    if kind is not None and pa.types.is_nested(kind):
        refuse(
            f"partition_by {key!r} is of type {kind}: rows are partitioned by a single value, such as a field of it."
        )


def read_state(table: TableRef) -> ViewState:
    """How far the view at ``table`` has come, and whether its rows are what its bookmark says."""
    dataset = table.open()
    metadata = {key.decode(): value.decode() for key, value in (dataset.schema.metadata or {}).items()}
    definition = ViewDefinition.from_metadata(metadata)
    if definition is None:
        raise ValueError(f"{table.location} is not a materialized view: its schema has no mv.definition")
    points: Mapping[str, SourcePoint] | None = read_points(metadata, definition)
    trimmed = int(metadata.get(TRIMMED_TO) or 0) or None
    bookmark = int(metadata.get(VIEW_VERSION, 0))
    if points is not None and not bookmark:
        return ViewState(dataset, definition, None, "the view does not say which of its versions was refreshed")
    new_schema = read_schema(metadata[NEW_SCHEMA]) if metadata.get(NEW_SCHEMA) else None
    unfinished: Outcome | None = None
    for version in range((bookmark or 1) + 1, dataset.version + 1):
        commit = read_commit(dataset, version)
        if commit is not None and OUTCOME in commit.properties and unfinished is None:
            unfinished = Outcome.decode(commit.properties[OUTCOME])
            points, trimmed = unfinished.points, unfinished.trimmed_to
        elif not (commit is not None and commit.operation in _HARMLESS) and not _same_rows(dataset, version):
            changed = f"the view itself was changed at its version {version}"
            return ViewState(dataset, definition, None, changed, new_schema=new_schema)
    if points and unfinished is None and _doubled(dataset, definition, bookmark):
        return ViewState(dataset, definition, None, "rows are there twice: two systems refreshed it at the same moment")
    replaced = "its definition was replaced" if bookmark else "this is its first refresh"
    doubt = None if points else replaced
    return ViewState(dataset, definition, points, doubt, unfinished, trimmed, new_schema)


def read_finished(state: ViewState, job_id: str) -> tuple[Outcome, int] | None:
    """What this very job did to the view, and the version that says so, if the last refresh was its own."""
    bookmark = int((state.dataset.schema.metadata or {}).get(VIEW_VERSION.encode(), 0))
    commit = read_commit(state.dataset, bookmark) if bookmark else None
    if commit is None or commit.properties.get(JOB_ID) != job_id or FINISHED not in commit.properties:
        return None
    return Outcome.decode(commit.properties[FINISHED]), bookmark


def _doubled(dataset: lance.LanceDataset, definition: ViewDefinition, bookmark: int) -> bool:
    """Whether a refresh that is not ours was rebased onto another one: LanceDB's commits do not exclude each other.

    Looked for only after such a refresh; costs a scan of one integer column.
    """
    import pyarrow.compute as pc

    commit = read_commit(dataset, bookmark)
    if definition.format != LANCEDB_FORMAT or (commit is not None and JOB_ID in commit.properties):
        return False
    ids = dataset.to_table(columns=[SOURCE_ROW_ID])[SOURCE_ROW_ID]
    return int(pc.count_distinct(ids).as_py()) != len(ids)


def _same_rows(dataset: lance.LanceDataset, version: int) -> bool:
    """Whether a commit that pylance has no name for (a compaction reserves fragment numbers first) touched no row."""
    try:
        before, after = (dataset.checkout_version(number).get_fragments() for number in (version - 1, version))
    except (OSError, ValueError):
        return False
    describe = lambda fragments: [  # noqa: E731
        (f.fragment_id, [file.path for file in f.data_files()], f.num_deletions) for f in fragments
    ]
    return describe(before) == describe(after)


def write_rows(view: ViewTable, state: ViewState, changes: RowChanges, outcome: Outcome, job_id: str) -> int:
    """Commit all row changes of a refresh as the view's next version; raises ViewMovedError if it moved."""
    operation = _row_operation(state.dataset, changes)
    return commit_next(view, state.version, operation, {OUTCOME: outcome.encode(), JOB_ID: job_id})


def _row_operation(dataset: lance.LanceDataset, changes: RowChanges) -> Any:
    """The cheapest operation that says it: an Update looks every new row up, two seconds for ten million of them.

    None of them would stop another refresh at the same moment; the fence of :func:`commit_next` does.
    """
    from lance import LanceOperation

    if changes.schema is not None:
        return LanceOperation.Overwrite(changes.schema.with_metadata(dataset.schema.metadata), changes.new)
    if changes.new and not changes.updated:
        if not changes.removed:
            return LanceOperation.Append(changes.new)
        everything = len(changes.removed) == len(dataset.get_fragments())
        if everything and not dataset.describe_indices():  # which an Overwrite would drop
            return LanceOperation.Overwrite(dataset.lance_schema, changes.new)
    return LanceOperation.Update(
        removed_fragment_ids=changes.removed, updated_fragments=changes.updated, new_fragments=changes.new
    )


def write_bookmark(view: ViewTable, version: int, outcome: Outcome, job_id: str) -> int:
    """Say that the rows at ``version`` are those of ``outcome``; returns the version that says so.

    Another refresh may finish for us and a compaction may slip in: both leave these rows, and both are recognised.
    """
    from lance import LanceOperation

    first = next(iter(outcome.points.values()))
    while True:
        updates = {
            SOURCE_VERSION: str(first.version),
            SOURCE_TIMESTAMP: str(first.timestamp),
            REFRESHED_AT: str(time.time_ns() // 1_000_000),
            VIEW_VERSION: str(version + 1),
        }
        if len(outcome.points) > 1:
            updates[SOURCE_POINTS] = json.dumps({name: asdict(point) for name, point in outcome.points.items()})
        if outcome.trimmed_to is not None:
            updates[TRIMMED_TO] = str(outcome.trimmed_to)
        elif TRIMMED_TO.encode() in (view.table.open().schema.metadata or {}):
            updates[TRIMMED_TO] = ""
        if NEW_SCHEMA.encode() in (view.table.open().schema.metadata or {}):
            updates[NEW_SCHEMA] = ""
        operation = LanceOperation.UpdateConfig(schema_metadata_updates=LanceOperation.UpdateMap(updates))
        try:
            return commit_next(view, version, operation, {FINISHED: outcome.encode(), JOB_ID: job_id})
        except ViewMovedError:
            state = read_state(view.table)
            if state.points != outcome.points:
                raise
            if state.unfinished is None:
                return state.version
            version = state.version


def read_points(metadata: Mapping[str, str], definition: ViewDefinition) -> dict[str, SourcePoint] | None:
    """Where each source was at the last refresh, as the bookmark has it; ``None`` before the first."""
    if SOURCE_VERSION not in metadata or not definition.sources:
        return None
    if SOURCE_POINTS in metadata:
        return {name: SourcePoint(**point) for name, point in json.loads(metadata[SOURCE_POINTS]).items()}
    point = SourcePoint(int(metadata[SOURCE_VERSION]), int(metadata.get(SOURCE_TIMESTAMP, 0)))
    return {definition.sources[0]: point}
