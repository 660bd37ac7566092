"""Materialized views: create, describe, list and drop them, and accept their refreshes.

What a definition means and how a view's table is written is the engine's (``view_definition.py``, ``view_table.py``);
here its names become tables of this namespace. Methods are operations of the wire by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, join_id
from airflow_provider_lance.api.job_words import IDEMPOTENCY_KEY, IF_EXISTS, JobState, JobType, parse_state
from airflow_provider_lance.api.models import DescribeMaterializedViewResponse, ViewSource, model
from airflow_provider_lance.engine.declarations import view_differences
from airflow_provider_lance.engine.view_definition import (
    DEFINITION_KEY,
    ViewDefinition,
    validate_refresh_request,
)
from airflow_provider_lance.engine.view_table import empty_view, read_points, replace_definition
from airflow_provider_lance.namespace.catalog import Catalog, TablePlace
from airflow_provider_lance.namespace.identifiers import table_identifier
from airflow_provider_lance.namespace.job_requests import JobRequests
from airflow_provider_lance.namespace.tables import Tables
from airflow_provider_lance.namespace.tree import Tree, cut_page, read_word

if TYPE_CHECKING:
    import lance

_OPENED_AT_ONCE = 8
_IF_EXISTS = ("fail", "skip", "refresh", "replace")


class Views:
    """The views of a namespace. A view is a table whose schema carries its definition."""

    def __init__(self, catalog: Catalog, tree: Tree, tables: Tables, jobs: JobRequests) -> None:
        self._catalog = catalog
        self._tree = tree
        self._tables = tables
        self._jobs = jobs

    def create_materialized_view(self, request: Any) -> Any:
        """Write the empty view; with data wanted, submit its first refresh as well.

        The context entry ``if-exists`` says what happens to a view of that name: ``skip`` and ``refresh`` accept an
        equal definition, ``replace`` stores another one.
        """
        if_exists = read_word(IF_EXISTS, (request.context or {}).get(IF_EXISTS), _IF_EXISTS)
        fields = {key: value for key, value in request.to_dict().items() if key not in {"id", "identity", "context"}}
        definition = ViewDefinition.from_request(fields)
        if not definition.with_no_data:
            self._jobs.service.check(None, None)  # says at once that there is nobody to fill the view
            repeated = self._repeated(request, definition)
            if repeated is not None:
                return repeated
        if if_exists != "fail" and self._is_view(request.id):
            return self._declared_again(request, definition, if_exists)
        sources = self.source_ids(request.id, definition)
        place = self._tables.declare(request.id)
        try:
            empty, definition = empty_view(definition, lambda name: self._catalog.open(sources[name]))
            version = self._tables.begin(place, empty.to_reader())
        except Exception:
            self._tables.remove_declared(request.id)
            raise
        try:
            job_id = None if definition.with_no_data else self._submit(place, definition, {}, request.context)
        except Exception:
            if self._catalog.open(request.id, place=place).schema.metadata == empty.schema.metadata:
                self._tables.remove(place)
            raise
        return model("CreateMaterializedViewResponse")(version=version, job_id=job_id)

    def _declared_again(self, request: Any, definition: ViewDefinition, if_exists: str) -> Any:
        """The answer for a view that is there: left alone, refreshed, or given another definition first."""
        place, existing = self.definition(request.id)
        sources = self.source_ids(request.id, definition)
        empty, bound = empty_view(definition, lambda name: self._catalog.open(sources[name]))
        differences = view_differences(existing, definition, bound)
        if differences and if_exists != "replace":
            told = "; ".join(map(str, differences))
            raise InvalidInputError(
                f"The view {place.name} is defined otherwise: {told}. if_exists='replace' changes it; its rows stay "
                "until the next refresh."
            )
        if differences:
            self._jobs.refuse_while_live(list(request.id))
            version = replace_definition(self._catalog.open(request.id, place=place), empty)
            existing = bound
        else:
            version = self._catalog.open(request.id, place=place).version
        # Without differences too: a try before this one may have ended between the definition and its refresh.
        fills = if_exists != "skip" and not definition.with_no_data
        job_id = self._submit(place, existing, {}, request.context) if fills else None
        return model("CreateMaterializedViewResponse")(version=version, job_id=job_id)

    def _repeated(self, request: Any, definition: ViewDefinition) -> Any:
        """The answer to a request that comes again with its key: the view is there, and its refresh goes on."""
        key = (request.context or {}).get(IDEMPOTENCY_KEY)
        name = join_id(request.id)
        jobs = self._jobs.service.list_jobs({"idempotency_key": key, "table": name})["jobs"] if key else []
        if not jobs:
            return None
        try:
            place, existing = self.definition(request.id)
        except TableNotFoundError:  # dropped meanwhile
            return None
        if (existing.kind, existing.query) != (definition.kind, definition.query):
            return None
        done = [job["job_id"] for job in jobs if parse_state(job.get("state")) is JobState.DONE]
        job_id = done[0] if done else self._submit(place, existing, {}, request.context)
        version = self._catalog.open(request.id).version
        return model("CreateMaterializedViewResponse")(version=version, job_id=job_id)

    def refresh_materialized_view(self, request: Any) -> Any:
        fields = {key: value for key, value in request.to_dict().items() if key not in {"id", "identity", "context"}}
        return model("RefreshMaterializedViewResponse")(job_id=self.refresh(request.id, fields, request.context))

    def refresh(self, view_id: list[str], fields: dict[str, Any], context: Mapping[str, str] | None = None) -> str:
        """Check a refresh to the letter and submit it; the job's id."""
        jobs = self._jobs.service
        place, definition = self.definition(view_id)
        validate_refresh_request(definition, fields)
        jobs.check(fields.get("cluster"), None)
        version = fields.get("src_version")
        if version is not None:
            (source,) = self.source_ids(view_id, definition).values()
            self._catalog.open(source, version=version)
        return self._submit(place, definition, fields, context)

    def describe_materialized_view(self, request: Any) -> Any:
        place, metadata = self._require_view(request.id)
        definition = _definition(metadata)
        texts = {key.decode(): value.decode() for key, value in metadata.items()}
        points = read_points(texts, definition) or {}
        sources = [
            ViewSource(
                name=name,
                table_id=self._find_source(list(place.id), parts),
                version=points[name].version if name in points else None,
            )
            for name, parts in definition.source_ids.items()
        ]
        return DescribeMaterializedViewResponse(**definition.describe(), sources=sources)

    def list_materialized_views(self, request: Any) -> Any:
        """The names of the views in one namespace."""
        self._catalog.require_namespace(request.id or [])
        names = [view_id[-1] for view_id in self._view_ids(request.id or [])]
        page, token = cut_page(names, request.page_token, request.limit)
        return model("ListMaterializedViewsResponse")(views=page, page_token=token)

    def drop_materialized_view(self, request: Any) -> Any:
        place, _ = self._require_view(request.id)
        self._jobs.refuse_while_live(list(request.id))
        self._tables.remove(place)
        return model("DropMaterializedViewResponse")()

    def definition(self, view_id: list[str]) -> tuple[TablePlace, ViewDefinition]:
        """A view's place and definition; ``TableNotFoundError`` for a table that is no view."""
        place, metadata = self._require_view(view_id)
        return place, _definition(metadata)

    def source_ids(self, view_id: list[str], definition: ViewDefinition) -> dict[str, list[str]]:
        """The tables a view reads, by their names in its query: looked up beside the view first, then from the root.

        ``people`` in the query of ``team$v`` is ``team$people`` if that exists, otherwise the root's ``people``;
        ``team.people`` and ```team$people``` are ids from the root.
        """
        found = {}
        for name, parts in definition.source_ids.items():
            table_id = self._find_source(view_id, parts)
            if table_id is None:
                near = self._near(view_id, parts)
                raise TableNotFoundError(
                    f"The view's query reads {name}, but there is no table {join_id(parts)}."
                    + (f" Did you mean {near}?" if near else "")
                )
            found[name] = table_id
        return found

    def _near(self, view_id: list[str], parts: list[str]) -> str:
        """The tables beside a view, or in the namespace that its query names, whose names look like the wanted one."""
        from airflow_provider_lance.definitions.spark_sql import near_names

        *space, name = [step for part in parts for step in part.split(DEFAULT_DELIMITER)]
        names: set[str] = set()
        for namespace_id in [space] if space else [view_id[:-1], []]:
            with contextlib.suppress(LanceNamespaceError):
                names.update(self._catalog.listing("list_tables", namespace_id, include_declared=False))
        return near_names(name, sorted(names))

    def _find_source(self, view_id: list[str], parts: list[str]) -> list[str] | None:
        parts = [step for part in parts for step in part.split(DEFAULT_DELIMITER)]
        table_identifier(parts)
        beside = [*view_id[:-1], *parts]
        candidates = [beside, parts] if len(view_id) > 1 else [parts]
        return next((candidate for candidate in candidates if self._catalog.find(candidate) is not None), None)

    def _require_view(self, view_id: list[str]) -> tuple[TablePlace, Mapping[bytes, bytes]]:
        place = self._catalog.locate(view_id)
        metadata = self._catalog.open(view_id, place=place).schema.metadata or {}
        if DEFINITION_KEY.encode() not in metadata:
            raise TableNotFoundError(f"{place.name} is a table, not a materialized view.")
        return place, metadata

    def _submit(
        self,
        place: TablePlace,
        definition: ViewDefinition,
        fields: Mapping[str, Any],
        context: Mapping[str, str] | None,
    ) -> str:
        sources = self.source_ids(list(place.id), definition)
        return self._jobs.submit(
            JobType.REFRESH,
            place,
            fields,
            locks=(f"view|{place.name}",),
            context=context,
            tables={name: self._catalog.locate(table_id).location for name, table_id in sources.items()},
        )

    def _view_ids(self, namespace_id: list[str]) -> Iterator[list[str]]:
        table_ids = [
            [*namespace_id, name] for name in self._catalog.listing("list_tables", namespace_id, include_declared=False)
        ]
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
            for table_id, is_view in zip(table_ids, pool.map(self._is_view, table_ids), strict=True):
                if is_view:
                    yield table_id

    def _is_view(self, table_id: list[str]) -> bool:
        try:
            dataset: lance.LanceDataset = self._catalog.open(table_id)
        except (LanceNamespaceError, ValueError, OSError):
            return False  # only declared, dropped in this moment, or damaged: no view in any case
        return DEFINITION_KEY.encode() in (dataset.schema.metadata or {})


def _definition(metadata: Mapping[bytes, bytes]) -> ViewDefinition:
    definition = ViewDefinition.from_metadata(metadata)
    assert definition is not None
    return definition
