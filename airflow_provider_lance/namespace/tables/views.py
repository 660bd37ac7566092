"""Materialized views: create, describe, list and drop them, and accept their refreshes.

``definitions/view_definition.py`` says what a definition means, and ``storage/view_table.py`` how a view's table is
written. This module resolves the names of a definition to tables of the namespace. Each public method that takes one
request is an operation of the wire by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from lance_namespace import CreateMaterializedViewResponse, RefreshMaterializedViewResponse
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, join_id
from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY, IF_EXISTS, JobState, JobType
from airflow_provider_lance.api.models import (
    DescribeMaterializedViewRequest,
    DescribeMaterializedViewResponse,
    DropMaterializedViewRequest,
    DropMaterializedViewResponse,
    ListJobsRequest,
    ListMaterializedViewsRequest,
    ListMaterializedViewsResponse,
    ViewRequest,
    ViewSource,
)
from airflow_provider_lance.definitions.differences import view_differences
from airflow_provider_lance.definitions.refresh_request import RefreshRequest
from airflow_provider_lance.definitions.sql.text import near_names
from airflow_provider_lance.definitions.view_definition import DEFINITION_KEY, ViewDefinition
from airflow_provider_lance.namespace.requests.identifiers import table_identifier
from airflow_provider_lance.namespace.requests.values import cut_page, id_of, read_word
from airflow_provider_lance.namespace.tables.catalog import Catalog, TablePlace
from airflow_provider_lance.namespace.tables.job_requests import JobRequests, job_fields
from airflow_provider_lance.namespace.tables.table_writer import TableWriter
from airflow_provider_lance.storage.view_state import read_points
from airflow_provider_lance.storage.view_table import empty_view, replace_definition

_OPENED_AT_ONCE = 8
_IF_EXISTS = ("fail", "skip", "refresh", "replace")


class Views:
    """The views of a namespace. A view is a table whose schema metadata has its definition."""

    def __init__(self, catalog: Catalog, jobs: JobRequests) -> None:
        self._catalog = catalog
        self._writer = TableWriter(catalog)
        self._jobs = jobs

    def create_materialized_view(self, request: ViewRequest) -> CreateMaterializedViewResponse:
        """Write the empty view, and submit its first refresh unless the request says ``with_no_data``.

        The context entry ``if-exists`` says what happens to an existing view of that name: ``skip`` and ``refresh``
        accept an equal definition, ``replace`` stores another one.
        """
        if_exists = read_word(IF_EXISTS, (request.context or {}).get(IF_EXISTS), _IF_EXISTS)
        view_id = id_of(request)
        definition = ViewDefinition.from_request(job_fields(request))
        if not definition.with_no_data:
            self._jobs.service.check(None, None)  # A namespace without a jobs service refuses before it writes.
            repeated = self._repeated(request, definition)
            if repeated is not None:
                return repeated
        if if_exists != "fail" and self._is_view(view_id):
            return self._declared_again(request, definition, if_exists)
        sources = self.source_ids(view_id, definition)
        place = self._writer.declare(view_id)
        try:
            empty, bound = empty_view(definition, lambda name: self._catalog.open(sources[name]))
            version = self._writer.write_first_version(place, empty.to_reader())
        except Exception:
            self._writer.remove_declared(view_id)
            raise
        try:
            job_id = None if bound.with_no_data else self._submit(place, bound, {}, request.context)
        except Exception:
            if self._catalog.open(view_id, place=place).schema.metadata == empty.schema.metadata:
                self._writer.remove(place)
            raise
        return CreateMaterializedViewResponse(version=version, job_id=job_id)

    def _declared_again(
        self, request: ViewRequest, definition: ViewDefinition, if_exists: str
    ) -> CreateMaterializedViewResponse:
        """The answer for a view that exists: it is left alone, refreshed, or given another definition first."""
        view_id = id_of(request)
        place, existing = self.definition(view_id)
        sources = self.source_ids(view_id, definition)
        empty, bound = empty_view(definition, lambda name: self._catalog.open(sources[name]))
        differences = view_differences(existing, definition, bound)
        if differences and if_exists != "replace":
            told = "; ".join(map(str, differences))
            raise InvalidInputError(
                f"The view {place.name} is defined otherwise: {told}. if_exists='replace' changes it; its rows stay "
                "until the next refresh."
            )
        if differences:
            self._jobs.refuse_while_live(view_id)
            version = replace_definition(self._catalog.open(view_id, place=place), empty)
            existing = bound
        else:
            version = self._catalog.open(view_id, place=place).version
        # A view with an equal definition is refreshed too: an earlier request may have stored the definition and failed
        # before it submitted the refresh.
        fills = if_exists != "skip" and not definition.with_no_data
        job_id = self._submit(place, existing, {}, request.context) if fills else None
        return CreateMaterializedViewResponse(version=version, job_id=job_id)

    def _repeated(self, request: ViewRequest, definition: ViewDefinition) -> CreateMaterializedViewResponse | None:
        """The answer to a request that came before with the same key, if its view still exists; None for a new one."""
        key = (request.context or {}).get(IDEMPOTENCY_KEY)
        if not key:
            return None
        view_id = id_of(request)
        jobs = self._jobs.find_jobs(ListJobsRequest(idempotency_key=key, table=join_id(view_id)))
        if not jobs:
            return None
        try:
            place, existing = self.definition(view_id)
        except TableNotFoundError:  # The view was dropped in the meantime.
            return None
        if (existing.kind, existing.query) != (definition.kind, definition.query):
            return None
        done = [job.job_id for job in jobs if job.state is JobState.DONE]
        job_id = done[0] if done else self._submit(place, existing, {}, request.context)
        return CreateMaterializedViewResponse(version=self._catalog.open(view_id).version, job_id=job_id)

    def refresh_materialized_view(self, request: ViewRequest) -> RefreshMaterializedViewResponse:
        job_id = self.refresh(id_of(request), _in_words_of_spec(job_fields(request)), request.context)
        return RefreshMaterializedViewResponse(job_id=job_id)

    def refresh(
        self, view_id: list[str], fields: Mapping[str, object], context: Mapping[str, str] | None = None
    ) -> str:
        """Check every field of a refresh and submit it; return the job's id."""
        jobs = self._jobs.service
        place, definition = self.definition(view_id)
        request = RefreshRequest.parse(definition, fields)
        jobs.check(request.cluster, None)
        if request.src_version is not None:
            (source,) = self.source_ids(view_id, definition).values()
            self._catalog.open(source, version=request.src_version)
        return self._submit(place, definition, fields, context)

    def describe_materialized_view(self, request: DescribeMaterializedViewRequest) -> DescribeMaterializedViewResponse:
        place, metadata = self._require_view(id_of(request))
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

    def list_materialized_views(self, request: ListMaterializedViewsRequest) -> ListMaterializedViewsResponse:
        """List the names of the views in one namespace."""
        self._catalog.require_namespace(id_of(request))
        names = [view_id[-1] for view_id in self._view_ids(id_of(request))]
        page, token = cut_page(names, request.page_token, request.limit)
        return ListMaterializedViewsResponse(views=page, page_token=token)

    def drop_materialized_view(self, request: DropMaterializedViewRequest) -> DropMaterializedViewResponse:
        view_id = id_of(request)
        place, _ = self._require_view(view_id)
        self._jobs.refuse_while_live(view_id)
        self._writer.remove(place)
        return DropMaterializedViewResponse()

    def definition(self, view_id: list[str]) -> tuple[TablePlace, ViewDefinition]:
        """A view's place and definition; ``TableNotFoundError`` for a table that is no view."""
        place, metadata = self._require_view(view_id)
        return place, _definition(metadata)

    def source_ids(self, view_id: list[str], definition: ViewDefinition) -> dict[str, list[str]]:
        """The ids of the tables that a view reads, by their names in its query.

        A name is looked up in the view's own namespace first, and then from the root.
        ``people`` in the query of ``team$v`` is ``team$people`` if that exists, otherwise the root's ``people``;
        ``team.people`` and ```team$people``` are ids from the root.
        """
        found = {}
        for name, parts in definition.source_ids.items():
            table_id = self._find_source(view_id, parts)
            if table_id is None:
                near = self._similar_names(view_id, parts)
                raise TableNotFoundError(
                    f"The view's query reads {name}, but there is no table {join_id(parts)}."
                    + (f" Did you mean {near}?" if near else "")
                )
            found[name] = table_id
        return found

    def _similar_names(self, view_id: list[str], parts: list[str]) -> str:
        """The tables in the view's namespace, or in the one that its query names, whose names are similar."""
        *space, name = [step for part in parts for step in part.split(DEFAULT_DELIMITER)]
        names: set[str] = set()
        for namespace_id in [space] if space else [view_id[:-1], []]:
            with contextlib.suppress(LanceNamespaceError):
                names.update(self._catalog.table_names(namespace_id, include_declared=False))
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
        fields: Mapping[str, object],
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
            user_code=definition.user_code,
            on_spark=definition.dialect == "spark" or definition.udtf is not None,
        )

    def _view_ids(self, namespace_id: list[str]) -> Iterator[list[str]]:
        table_ids = [[*namespace_id, name] for name in self._catalog.table_names(namespace_id, include_declared=False)]
        with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
            for table_id, is_view in zip(table_ids, pool.map(self._is_view, table_ids), strict=True):
                if is_view:
                    yield table_id

    def _is_view(self, table_id: list[str]) -> bool:
        try:
            schema = self._catalog.open(table_id).schema
        except (LanceNamespaceError, ValueError, OSError):
            return False  # The table is only declared, was dropped in the meantime, or is damaged.
        return DEFINITION_KEY.encode() in (schema.metadata or {})


def _in_words_of_spec(fields: dict[str, object]) -> dict[str, object]:
    """The fields of a refresh; LanceDB's client says ``source_version`` where the spec says ``src_version``."""
    if "source_version" in fields and "src_version" not in fields:
        return {("src_version" if name == "source_version" else name): value for name, value in fields.items()}
    return fields


def _definition(metadata: Mapping[bytes, bytes]) -> ViewDefinition:
    definition = ViewDefinition.from_metadata(metadata)
    assert definition is not None
    return definition
