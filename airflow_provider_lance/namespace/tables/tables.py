"""Tables as a whole: create, declare, describe, register, rename, restore and drop them.

Each method is an operation of the wire by name, and takes its request model and returns its response model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lance_namespace import (
    CreateTableRequest,
    CreateTableResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropTableRequest,
    DropTableResponse,
    LanceNamespace,
    RegisterTableRequest,
    RegisterTableResponse,
    RenameTableRequest,
    RenameTableResponse,
    RestoreTableRequest,
    RestoreTableResponse,
    TableExistsRequest,
    TableExistsResponse,
)
from lance_namespace.errors import (
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from airflow_provider_lance.api.models import CreateEmptyTableRequest, CreateEmptyTableResponse
from airflow_provider_lance.namespace.requests.identifiers import check_identifier, table_identifier
from airflow_provider_lance.namespace.requests.values import id_of, read_word
from airflow_provider_lance.namespace.tables.catalog import Catalog, TablePlace
from airflow_provider_lance.namespace.tables.staged_manifest import base_paths, refuse_foreign_bases
from airflow_provider_lance.namespace.tables.table_writer import TableWriter

if TYPE_CHECKING:
    import pyarrow as pa

#: In a table's ``metadata``: ``"false"`` for tables whose views must rebuild at every refresh.
STABLE_ROW_IDS = "stable_row_ids"
_DEREGISTERED = ".lance-deregistered"
# A caller may tune how the server writes, but not to which storage and with whose rights.
_NOT_FOR_CALLERS = re.compile(r"endpoint|allow_http|proxy|token|secret|key|credential|role|account", re.IGNORECASE)


class Tables:
    """Whole tables. ``before_move`` is called with a table's id before the table is renamed, replaced or dropped."""

    def __init__(self, catalog: Catalog, before_move: Callable[[list[str]], None]) -> None:
        self._catalog = catalog
        self._writer = TableWriter(catalog)
        self._before_move = before_move

    def create_table(self, request: CreateTableRequest, data: bytes) -> CreateTableResponse:
        mode = read_word("mode", request.mode, ("create", "exist_ok", "overwrite"))
        reader = read_stream(data)
        options = self._write_options(request.storage_options)
        place, declared_here = self._find_or_declare(id_of(request), request.properties, mode)
        if mode != "overwrite" and not place.only_declared:
            return self._existing(place, mode)
        try:
            if mode == "overwrite":
                version = self._writer.overwrite(place, reader, options)
            else:
                version = self._writer.write_first_version(place, reader, options)
        except TableAlreadyExistsError:
            return self._existing(place, mode)
        except Exception:
            if declared_here:
                self._writer.remove_declared(id_of(request))
            raise
        return CreateTableResponse(location=place.location, version=version, properties=place.properties)

    def _find_or_declare(
        self, table_id: list[str], properties: Mapping[str, str] | None, mode: str
    ) -> tuple[TablePlace, bool]:
        """The place of a table, and whether this call declared it."""
        place = self._catalog.find(table_id)
        if place is not None:
            return place, False
        try:
            return self._writer.declare(table_id, properties), True
        except TableAlreadyExistsError:
            place = self._catalog.find(table_id)  # Another request declared it in the meantime.
            if place is None or mode == "create":
                raise
            return place, False

    def _existing(self, place: TablePlace, mode: str) -> CreateTableResponse:
        if mode != "exist_ok":
            raise TableAlreadyExistsError(f"Table {place.name} exists already.")
        version = self._catalog.open(list(place.id), place=place).version
        return CreateTableResponse(location=place.location, version=version, properties=place.properties)

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        place = self._writer.declare(id_of(request), request.properties, request.location)
        return DeclareTableResponse(
            location=place.location,
            properties=place.properties,
            storage_options=self._vended(request),
            managed_versioning=True,
        )

    def create_empty_table(self, request: CreateEmptyTableRequest) -> CreateEmptyTableResponse:
        """Declare a table; this is the older name of the operation."""
        place = self._writer.declare(id_of(request), request.properties, request.location)
        return CreateEmptyTableResponse(location=place.location, properties=place.properties)

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        table_id = id_of(request)
        place = self._catalog.locate(table_id, check_declared=True, properties=True)
        answer = DescribeTableResponse(
            table=table_id[-1],
            namespace=table_id[:-1],
            location=place.location,
            properties=place.properties,
            storage_options=self._vended(request),
            managed_versioning=True,
            is_only_declared=place.only_declared,
        )
        if request.with_table_uri:
            answer.table_uri = f"file://{place.location}" if self._catalog.is_local else place.location
        pinned = any(value is not None for value in (request.version, request.tag, request.branch))
        if (place.only_declared or request.load_detailed_metadata is False) and not pinned:
            return answer
        dataset = self._catalog.open(
            table_id, version=request.version, branch=request.branch, tag=request.tag, place=place
        )
        answer.version = dataset.version
        answer.var_schema = json_schema(dataset.schema)
        metadata = {STABLE_ROW_IDS: "true" if dataset.has_stable_row_ids else "false"}
        if request.load_detailed_metadata:
            statistics = dataset.stats.dataset_stats()
            answer.stats = TableBasicStats(
                num_deleted_rows=statistics["num_deleted_rows"], num_fragments=statistics["num_fragments"]
            )
            metadata["total_rows"] = str(dataset.count_rows())
            sizes = [file.file_size_bytes for part in dataset.get_fragments() for file in part.data_files()]
            if all(sizes):  # manifests of old Lance versions have no sizes
                metadata["total_files_size"] = str(sum(size or 0 for size in sizes))
        answer.metadata = metadata
        return answer

    def table_exists(self, request: TableExistsRequest) -> TableExistsResponse:
        place = self._catalog.locate(id_of(request))
        if request.version is not None:
            self._catalog.open(id_of(request), version=request.version, place=place)
        return TableExistsResponse()

    def register_table(self, request: RegisterTableRequest) -> RegisterTableResponse:
        """Give an existing Lance table below the root a name in the namespace."""
        mode = read_word("mode", request.mode, ("create", "overwrite"))
        if request.properties:
            raise UnsupportedOperationError("A registered table keeps no properties here; register it without them.")
        table_id = id_of(request)
        directory = self._catalog.directory_name(request.location)
        self._catalog.require_namespace(table_id[:-1])
        place = TablePlace(tuple(table_id), f"{self._catalog.root}/{directory}")
        try:
            dataset = self._catalog.open(table_id, place=place)
        except Exception as error:
            raise InvalidInputError(f"There is no readable Lance table at {directory!r} in this namespace.") from error
        refuse_foreign_bases(base_paths(dataset), place.location)
        self._refuse_alias(place, directory)
        if self._catalog.find(table_id) is not None:
            if mode == "create":
                raise TableAlreadyExistsError(f"Table {place.name} exists already.")
            self._before_move(table_id)
            self._catalog.deregister(table_id)
        self._catalog.run(LanceNamespace.register_table, RegisterTableRequest(id=table_id, location=directory))
        if self._catalog.in_own_directory(place):
            self._catalog.files(place).delete(_DEREGISTERED)
        elif directory.endswith(".lance"):
            self._catalog.hide(directory)
        return RegisterTableResponse(location=place.location)

    def _refuse_alias(self, place: TablePlace, directory: str) -> None:
        """Refuse a second name for one directory: dropping one of them would delete the data of the other."""
        owner = self._catalog.owner_of(directory)
        if owner is None or owner == list(place.id):
            return
        found = self._catalog.find(owner)
        if found is None or found.location != place.location:
            return
        if len(owner) > 1 or self._catalog.is_listed(owner):
            raise InvalidInputError(f"{directory!r} is the table {found.name}; rename that, or deregister it first.")

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        table_id = id_of(request)
        place = self._catalog.locate(table_id, check_declared=True, properties=True)
        self._before_move(table_id)
        if place.only_declared:
            self._writer.remove(place)
        else:
            self._catalog.deregister(table_id)
        return DeregisterTableResponse(id=table_id, location=place.location, properties=place.properties)

    def drop_table(self, request: DropTableRequest) -> DropTableResponse:
        table_id = id_of(request)
        place = self._catalog.locate(table_id, check_declared=True, properties=True)
        self._before_move(table_id)
        self._writer.remove(place)
        return DropTableResponse(id=table_id, location=place.location, properties=place.properties)

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        """Move the table's directory to its new name; object stores have no such move."""
        table_id = id_of(request)
        old = self._catalog.locate(table_id, check_declared=True, properties=True)
        parent = table_id[:-1] if request.new_namespace_id is None else request.new_namespace_id
        new_id = [*check_identifier(parent, "namespace"), *table_identifier([request.new_table_name])]
        if not self._catalog.is_local:
            raise UnsupportedOperationError(
                "A table is renamed by moving its directory, which object stores cannot do in one step. Copy it, or "
                "deregister it and register its location under the new name."
            )
        if not old.only_declared and self._catalog.open(table_id, place=old).branches.list():
            raise UnsupportedOperationError(
                f"Table {old.name} has branches, and Lance's branches refer to their table's data by its full path. "
                "Delete them first."
            )
        self._before_move(table_id)
        self._move(old, self._writer.declare(new_id, old.properties))
        if not self._catalog.in_own_directory(old) or self._catalog.find(table_id) is not None:
            self._catalog.run(LanceNamespace.deregister_table, DeregisterTableRequest(id=table_id))
        return RenameTableResponse()

    def _move(self, old: TablePlace, new: TablePlace) -> None:
        """Move a table's directory into the empty place of a declared table.

        The rename replaces the emptied directory in one step, so the table is always under one of its two names.
        """
        markers = [os.path.join(new.location, name) for name in os.listdir(new.location)]
        for marker in markers:  # pylance marks the directory of a declared table with files.
            os.unlink(marker)
        try:
            os.rename(old.location, new.location)
        except OSError as error:
            for marker in markers:
                open(marker, "wb").close()
            self._writer.remove_declared(list(new.id))
            if self._catalog.find(list(old.id)) is not None:
                raise
            raise TableNotFoundError(f"Table {old.name} was moved or dropped by somebody who was faster.") from error

    def restore_table(self, request: RestoreTableRequest) -> RestoreTableResponse:
        self._catalog.open(id_of(request), version=request.version, branch=request.branch)
        return self._catalog.run(LanceNamespace.restore_table, request)

    def _write_options(self, asked: Mapping[str, str] | None) -> dict[str, str]:
        refused = sorted(key for key in asked or {} if _NOT_FOR_CALLERS.search(key))
        if refused:
            raise InvalidInputError(
                f"storage_options may not set {', '.join(refused)}: that is the server's to choose."
            )
        return {**self._catalog.storage_options, **(asked or {})}

    def _vended(self, request: DeclareTableRequest | DescribeTableRequest) -> dict[str, str] | None:
        """Credentials for the caller, where the root has a credential vendor and the caller did not decline them."""
        return None if request.vend_credentials is False else self._catalog.vended(id_of(request))


def read_stream(data: bytes) -> pa.RecordBatchReader:
    """The request's Arrow IPC stream; a stream without rows still has a schema.

    Every value is validated first, because Lance stores invalid UTF-8 and indices beyond their dictionary and cannot
    read them again. The validation takes a twentieth of the time of the write.
    """
    import pyarrow as pa

    buffer = pa.py_buffer(data)
    try:
        for batch in pa.ipc.open_stream(buffer):
            batch.validate(full=True)
        return pa.ipc.open_stream(buffer)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"The body is not a valid Arrow IPC stream: {error}") from None


def json_schema(schema: pa.Schema) -> JsonArrowSchema | None:
    """A schema as JSON Arrow with Lance's names of types (``string``, not ``utf8``), which LanceDB's client expects."""
    from lance.schema import schema_to_json

    return JsonArrowSchema.from_dict(schema_to_json(schema))
