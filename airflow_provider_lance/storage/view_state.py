"""How far a materialized view has come: the bookmark in its ``mv.*`` metadata, and the commits since then.

A refresh is two commits, as LanceDB's are. The first changes all rows, and its transaction names the outcome. The
second writes the bookmark: ``mv.source_version`` and the keys that belong to it. So the next refresh after a crash
between the two commits can finish the refresh.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.arrow_types import decode_schema, text_metadata
from airflow_provider_lance.definitions.view_definition import LANCEDB_FORMAT, SOURCE_ROW_ID, ViewDefinition
from airflow_provider_lance.storage.commits import JOB_ID
from airflow_provider_lance.storage.history import KEEPS_ROWS, keeps_files, read_commit
from airflow_provider_lance.storage.table import TableRef

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

VIEW_VERSION = "mv.view_version"
NEW_SCHEMA = "mv.new_schema"  # the schema of a replaced definition, until a refresh has written rows of it
OUTCOME = "mv.refresh"  # in the transaction of a row commit
FINISHED = "mv.refreshed"  # in the transaction of a bookmark
_SOURCE_VERSION = "mv.source_version"
_SOURCE_TIMESTAMP = "mv.source_version_ts"
_SOURCE_POINTS = "mv.source_points"  # only of a view with several sources
REFRESHED_AT = "mv.refreshed_at_ms"
_TRIMMED_TO = "mv.trimmed_to"
_REBUILT = "mv.rebuilt"
_FIRST, _REPLACED = "this is its first refresh", "its definition was replaced"


@dataclass(frozen=True)
class SourcePoint:
    """A version of a source. The timestamp (nanoseconds) tells a table from another one made later at its place."""

    version: int
    timestamp: int


@dataclass(frozen=True)
class RefreshDetails:
    """How a refresh found the rows that it had to write, for whoever reads its result.

    ``rows_read`` has the rows of each source that the query was computed over, and ``source_rows`` how many rows all
    sources have. ``estimated`` are the seconds that each way was expected to take.
    """

    technique: str | None = None
    key: Sequence[str] = ()
    keys: int | None = None
    rows_read: Mapping[str, int] | None = None
    source_rows: int | None = None
    estimated: Mapping[str, float] | None = None

    def to_result(self) -> dict[str, object]:
        """The fields of a job's result; what is not known is left out."""
        result: dict[str, object] = {"technique": self.technique} if self.technique else {}
        if self.key:
            result |= {"key": list(self.key), "keys": self.keys}
        if self.rows_read is not None:
            result |= {"source_rows_read": sum(self.rows_read.values()), "rows_read": dict(self.rows_read)}
        if self.source_rows is not None:
            result["source_rows"] = self.source_rows
        if self.estimated:
            result["estimated"] = dict(self.estimated)
        return result


@dataclass(frozen=True)
class Rebuilt:
    """What the last rebuild of a view took: the seconds, and the rows that its sources had."""

    seconds: float
    source_rows: int


@dataclass(frozen=True)
class Outcome:
    """What a refresh did: its sources' versions and its figures. The row commit carries it."""

    points: Mapping[str, SourcePoint]
    mode: str
    rows_written: int = 0
    rows_deleted: int = 0
    rows_failed: int = 0
    reason: str | None = None
    trimmed_to: int | None = None
    details: RefreshDetails = field(default_factory=RefreshDetails)
    rebuilt: Rebuilt | None = None

    def encode(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Outcome:
        data = json.loads(text)
        data["points"] = {name: SourcePoint(**point) for name, point in data["points"].items()}
        data["details"] = RefreshDetails(**data.get("details", {}))
        data["rebuilt"] = Rebuilt(**data["rebuilt"]) if data.get("rebuilt") else None
        return cls(**data)


@dataclass(frozen=True)
class ViewState:
    """A view at its newest version.

    ``points`` is where each source was at the last refresh. It is None when the view's rows cannot be relied on, and
    ``doubt`` then says why. ``unfinished`` is a refresh that has committed its rows and not its bookmark.
    ``trimmed_to`` tells that the last refresh left rows out because of ``output_limit``. ``new_schema`` is the schema
    of a replaced definition: the table has the old schema and the old rows until the next refresh. ``rebuilt`` is what
    the last rebuild took.
    """

    dataset: lance.LanceDataset
    definition: ViewDefinition
    points: Mapping[str, SourcePoint] | None
    doubt: str | None = None
    unfinished: Outcome | None = None
    trimmed_to: int | None = None
    new_schema: pa.Schema | None = None
    rebuilt: Rebuilt | None = None

    @property
    def has_rows(self) -> bool:
        """Whether a refresh has written rows of this definition before."""
        return self.doubt not in (_FIRST, _REPLACED)

    @property
    def version(self) -> int:
        return self.dataset.version

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that the next refresh writes, without metadata."""
        return self.dataset.schema.remove_metadata() if self.new_schema is None else self.new_schema


def read_state(table: TableRef) -> ViewState:
    """How far the view at ``table`` has come, and whether its rows are what its bookmark says."""
    dataset = table.open()
    metadata = text_metadata(dataset.schema.metadata)
    definition = ViewDefinition.from_metadata(metadata)
    if definition is None:
        raise ValueError(f"{table.location} is not a materialized view: its schema has no mv.definition")
    points: Mapping[str, SourcePoint] | None = read_points(metadata, definition)
    trimmed = int(metadata.get(_TRIMMED_TO) or 0) or None
    bookmark = int(metadata.get(VIEW_VERSION, 0))
    if points is not None and not bookmark:
        return ViewState(dataset, definition, None, "the view does not say which of its versions was refreshed")
    new_schema = decode_schema(metadata[NEW_SCHEMA]) if metadata.get(NEW_SCHEMA) else None
    unfinished: Outcome | None = None
    for version in range((bookmark or 1) + 1, dataset.version + 1):
        commit = read_commit(dataset, version)
        if commit is not None and OUTCOME in commit.properties and unfinished is None:
            unfinished = Outcome.decode(commit.properties[OUTCOME])
            points, trimmed = unfinished.points, unfinished.trimmed_to
        elif not (commit is not None and commit.operation in KEEPS_ROWS) and not keeps_files(dataset, version):
            changed = f"the view itself was changed at its version {version}"
            return ViewState(dataset, definition, None, changed, new_schema=new_schema)
    if points and unfinished is None and _has_rows_twice(dataset, definition, bookmark):
        return ViewState(dataset, definition, None, "rows are there twice: two systems refreshed it at the same moment")
    doubt = None
    if not points:
        doubt = _REPLACED if bookmark else _FIRST
    rebuilt = Rebuilt(**json.loads(metadata[_REBUILT])) if metadata.get(_REBUILT) else None
    return ViewState(dataset, definition, points, doubt, unfinished, trimmed, new_schema, rebuilt)


def read_points(metadata: Mapping[str, str], definition: ViewDefinition) -> dict[str, SourcePoint] | None:
    """Where each source was at the last refresh, as the bookmark has it; None before the first refresh."""
    if _SOURCE_VERSION not in metadata or not definition.sources:
        return None
    if _SOURCE_POINTS in metadata:
        return {name: SourcePoint(**point) for name, point in json.loads(metadata[_SOURCE_POINTS]).items()}
    point = SourcePoint(int(metadata[_SOURCE_VERSION]), int(metadata.get(_SOURCE_TIMESTAMP, 0)))
    return {definition.sources[0]: point}


def bookmark_updates(outcome: Outcome, version: int, stored: Mapping[str, str]) -> dict[str, str | None]:
    """The changes to the metadata ``stored`` that say: the rows before ``version`` are those of ``outcome``.

    ``version`` is the one that this bookmark is committed as.
    """
    first = next(iter(outcome.points.values()))
    updates: dict[str, str | None] = {
        _SOURCE_VERSION: str(first.version),
        _SOURCE_TIMESTAMP: str(first.timestamp),
        REFRESHED_AT: str(time.time_ns() // 1_000_000),
        VIEW_VERSION: str(version),
    }
    if len(outcome.points) > 1:
        updates[_SOURCE_POINTS] = json.dumps({name: asdict(point) for name, point in outcome.points.items()})
    if outcome.rebuilt is not None:
        updates[_REBUILT] = json.dumps(asdict(outcome.rebuilt))
    if outcome.trimmed_to is not None:
        updates[_TRIMMED_TO] = str(outcome.trimmed_to)
    elif _TRIMMED_TO in stored:
        updates[_TRIMMED_TO] = ""
    if NEW_SCHEMA in stored:
        updates[NEW_SCHEMA] = ""
    return updates


def read_finished(state: ViewState, job_id: str) -> tuple[Outcome, int] | None:
    """What this job did to the view and the version of its bookmark, if the last refresh was its own."""
    bookmarked = int(text_metadata(state.dataset.schema.metadata).get(VIEW_VERSION, 0))
    commit = read_commit(state.dataset, bookmarked) if bookmarked else None
    if commit is None or commit.properties.get(JOB_ID) != job_id or FINISHED not in commit.properties:
        return None
    return Outcome.decode(commit.properties[FINISHED]), bookmarked


def _has_rows_twice(dataset: lance.LanceDataset, definition: ViewDefinition, bookmark: int) -> bool:
    """Whether a refresh by LanceDB was rebased onto another one: its commits do not exclude each other.

    Rows are looked at only after a refresh that is not ours. That costs a scan of one integer column.
    """
    import pyarrow.compute as pc

    commit = read_commit(dataset, bookmark)
    if definition.format != LANCEDB_FORMAT or (commit is not None and JOB_ID in commit.properties):
        return False
    ids = dataset.to_table(columns=[SOURCE_ROW_ID])[SOURCE_ROW_ID]
    return int(pc.count_distinct(ids).as_py()) != len(ids)
