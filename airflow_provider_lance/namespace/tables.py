"""Tables as a whole: create, declare, describe, register, rename, restore and fill them.

Tables written here have stable row ids, which incremental views need and pylance's own create cannot give them.
Methods are operations of the wire by name; each takes its request model and returns its response model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.api.models import model
from airflow_provider_lance.namespace.catalog import Catalog, TablePlace, plain_location
from airflow_provider_lance.namespace.column_names import check_columns
from airflow_provider_lance.namespace.identifiers import check_identifier, table_identifier
from airflow_provider_lance.namespace.manifest import base_paths, refuse_foreign_bases
from airflow_provider_lance.namespace.tree import read_word

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

#: In a table's ``metadata``: ``"false"`` for tables whose views must rebuild at every refresh.
STABLE_ROW_IDS = "stable_row_ids"
_DEREGISTERED = ".lance-deregistered"
# A writer may tune how the server writes, not where to and as whom.
_NOT_FOR_CALLERS = re.compile(r"endpoint|allow_http|proxy|token|secret|key|credential|role|account", re.IGNORECASE)


class Tables:
    """Whole tables. ``before_move`` is called with a table's id before the table changes its name or goes."""

    def __init__(self, catalog: Catalog, before_move: Callable[[list[str]], None]) -> None:
        self._catalog = catalog
        self._before_move = before_move

    def create_table(self, request: Any, data: bytes) -> Any:
        mode = read_word("mode", request.mode, ("create", "exist_ok", "overwrite"))
        reader = read_stream(data)
        options = self._write_options(request.storage_options)
        place = self._catalog.find(request.id)
        declared_here = place is None
        if place is None:
            try:
                place = self.declare(request.id, request.properties)
            except TableAlreadyExistsError:
                place = self._catalog.find(request.id)  # declared by somebody who was faster
                if place is None or mode == "create":
                    raise
                declared_here = False
        if mode != "overwrite" and not place.only_declared:
            return self._existing(place, mode)
        try:
            version = (
                self.overwrite(place, reader, options) if mode == "overwrite" else self.begin(place, reader, options)
            )
        except TableAlreadyExistsError:
            return self._existing(place, mode)
        except Exception:
            if declared_here:
                self.remove_declared(request.id)
            raise
        return self._created(place, version)

    def _existing(self, place: TablePlace, mode: str) -> Any:
        if mode == "exist_ok":
            return self._created(place, None)
        raise TableAlreadyExistsError(f"Table {place.name} exists already.")

    def declare_table(self, request: Any) -> Any:
        place = self.declare(request.id, request.properties, request.location)
        return model("DeclareTableResponse")(
            location=place.location,
            properties=place.properties,
            storage_options=self._vended(request),
            managed_versioning=True,
        )

    def create_empty_table(self, request: Any) -> Any:
        """The older name of declare."""
        place = self.declare(request.id, request.properties, request.location)
        return model("CreateEmptyTableResponse")(location=place.location, properties=place.properties)

    def describe_table(self, request: Any) -> Any:
        place = self._catalog.locate(request.id, check_declared=True, properties=True)
        answer = model("DescribeTableResponse")(
            table=request.id[-1],
            namespace=request.id[:-1],
            location=place.location,
            properties=place.properties,
            storage_options=self._vended(request),
            managed_versioning=True,
            is_only_declared=place.only_declared,
        )
        if request.with_table_uri:
            answer.table_uri = f"file://{place.location}" if self._catalog.is_local else place.location
        pinned = any(value is not None for value in (request.version, request.tag, request.branch))
        if place.only_declared and not pinned:
            return answer
        if request.load_detailed_metadata is False and not pinned:
            return answer
        dataset = self._catalog.open(
            request.id, version=request.version, branch=request.branch, tag=request.tag, place=place
        )
        answer.version = dataset.version
        answer.var_schema = json_schema(dataset.schema)
        answer.metadata = {STABLE_ROW_IDS: "true" if dataset.has_stable_row_ids else "false"}
        if request.load_detailed_metadata:
            statistics = dataset.stats.dataset_stats()
            answer.stats = model("TableBasicStats")(
                num_deleted_rows=statistics["num_deleted_rows"], num_fragments=statistics["num_fragments"]
            )
            answer.metadata["total_rows"] = str(dataset.count_rows())
        return answer

    def table_exists(self, request: Any) -> Any:
        place = self._catalog.locate(request.id)
        if request.version is not None:
            self._catalog.open(request.id, version=request.version, place=place)
        return model("TableExistsResponse")()

    def register_table(self, request: Any) -> Any:
        """Take an existing Lance table below the root into the namespace."""
        mode = read_word("mode", request.mode, ("create", "overwrite"))
        if request.properties:
            raise UnsupportedOperationError("A registered table keeps no properties here; register it without them.")
        directory = self._catalog.directory_name(request.location)
        self._catalog.require_namespace(request.id[:-1])
        place = TablePlace(tuple(request.id), f"{self._catalog.root}/{directory}")
        try:
            dataset = self._catalog.open(request.id, place=place)
        except Exception as error:
            raise InvalidInputError(f"There is no readable Lance table at {directory!r} in this namespace.") from error
        refuse_foreign_bases(base_paths(dataset), place.location)
        self._refuse_alias(place, directory)
        existing = self._catalog.find(request.id)
        if existing is not None and mode == "create":
            raise TableAlreadyExistsError(f"Table {place.name} exists already.")
        if existing is not None:
            self._before_move(list(request.id))
            self._catalog.forget(request.id)
        self._catalog.call("register_table", model("RegisterTableRequest")(id=request.id, location=directory))
        if self._catalog.in_own_directory(place):
            self._catalog.files(place).delete(_DEREGISTERED)
        elif directory.endswith(".lance"):
            self._catalog.hide(directory)
        return model("RegisterTableResponse")(location=place.location)

    def _refuse_alias(self, place: TablePlace, directory: str) -> None:
        """Two names for one directory would drop each other's data."""
        owner = self._catalog.owner(directory)
        found = self._catalog.find(owner) if owner and owner != list(place.id) else None
        in_namespace = found is not None and (len(owner or []) > 1 or self._catalog.is_listed(owner or []))
        if found is not None and found.location == place.location and in_namespace:
            raise InvalidInputError(f"{directory!r} is the table {found.name}; rename that, or deregister it first.")

    def deregister_table(self, request: Any) -> Any:
        place = self._catalog.locate(request.id, check_declared=True, properties=True)
        self._before_move(list(request.id))
        self.remove(place) if place.only_declared else self._catalog.forget(request.id)
        return model("DeregisterTableResponse")(id=request.id, location=place.location, properties=place.properties)

    def drop_table(self, request: Any) -> Any:
        place = self._catalog.locate(request.id, check_declared=True, properties=True)
        self._before_move(list(request.id))
        self.remove(place)
        return model("DropTableResponse")(id=request.id, location=place.location, properties=place.properties)

    def remove(self, place: TablePlace) -> None:
        """Drop a table that nothing speaks for; ``TableNotFoundError`` where somebody else did at the same time."""
        table_id = list(place.id)
        try:
            if place.only_declared and not self._catalog.files(place).names(""):
                self._catalog.forget(table_id)  # declared at a place of its own: there is no directory yet
            else:
                self._catalog.call("drop_table", model("DropTableRequest")(id=table_id))
        except (InternalError, OSError, RuntimeError) as error:
            if self._catalog.find(table_id) is not None:
                raise
            raise TableNotFoundError(f"Table {place.name} was dropped by somebody who was faster.") from error

    def rename_table(self, request: Any) -> Any:
        """Move the table's directory to its new name; on object stores there is no such move."""
        old = self._catalog.locate(request.id, check_declared=True, properties=True)
        parent = request.id[:-1] if request.new_namespace_id is None else request.new_namespace_id
        new_id = [*check_identifier(parent, "namespace"), *table_identifier([request.new_table_name])]
        if not self._catalog.is_local:
            raise UnsupportedOperationError(
                "A table is renamed by moving its directory, which object stores cannot do in one step. Copy it, or "
                "deregister it and register its location under the new name."
            )
        if not old.only_declared and self._catalog.open(request.id, place=old).branches.list():
            raise UnsupportedOperationError(
                f"Table {old.name} has branches, and Lance's branches refer to their table's data by its full path. "
                "Delete them first."
            )
        self._before_move(list(request.id))
        new = self.declare(new_id, old.properties)
        markers = [os.path.join(new.location, name) for name in os.listdir(new.location)]
        for marker in markers:  # pylance's, of a declared table
            os.unlink(marker)
        # From here on the table is under its new name or its old one, never under neither: the rename takes the
        # declared, now empty directory's place in one step.
        try:
            os.rename(old.location, new.location)
        except OSError as error:
            for marker in markers:
                open(marker, "wb").close()
            self.remove_declared(new_id)
            if self._catalog.find(request.id) is not None:
                raise
            raise TableNotFoundError(f"Table {old.name} was moved or dropped by somebody who was faster.") from error
        if not self._catalog.in_own_directory(old) or self._catalog.find(list(request.id)) is not None:
            self._catalog.call("deregister_table", model("DeregisterTableRequest")(id=request.id))
        return model("RenameTableResponse")()

    def restore_table(self, request: Any) -> Any:
        self._catalog.open(request.id, version=request.version, branch=request.branch)
        return self._catalog.call("restore_table", request)

    def declare(
        self, table_id: list[str], properties: Mapping[str, str] | None = None, location: str | None = None
    ) -> TablePlace:
        """Reserve a name and a place; ``TableAlreadyExistsError`` if somebody has the name."""
        self._catalog.require_namespace(table_id[:-1])
        if self._catalog.find(table_id) is not None:
            raise TableAlreadyExistsError(f"Table {join_id(table_id)} exists already.")
        if location is None:
            request = model("DeclareTableRequest")(id=table_id, properties=dict(properties or {}) or None)
            try:
                answer = self._catalog.call("declare_table", request)
            except TableAlreadyExistsError:
                raise TableAlreadyExistsError(
                    f"The place of {join_id(table_id)} is taken: by somebody who was faster, or by the data of a "
                    "deregistered table. Register that again, or choose another name."
                ) from None
            return TablePlace(
                tuple(table_id), plain_location(answer.location), dict(answer.properties or {}), only_declared=True
            )
        return self._declare_at(table_id, properties, self._catalog.directory_name(location))

    def _declare_at(self, table_id: list[str], properties: Mapping[str, str] | None, directory: str) -> TablePlace:
        place = TablePlace(tuple(table_id), f"{self._catalog.root}/{directory}", dict(properties or {}), True)
        owner = self._catalog.owner(directory)
        if owner == table_id:
            made = self.declare(table_id, properties)
            if made.location == place.location:
                return made
            self._catalog.call("drop_table", model("DropTableRequest")(id=table_id))
        if owner is not None:
            raise InvalidInputError(f"{directory!r} is the place of another table; choose a name without .lance.")
        if properties:
            raise UnsupportedOperationError(
                "A table at a location of its own keeps no properties here; declare it without one of the two."
            )
        if self._catalog.files(place).names(""):
            raise InvalidInputError(f"There is something at {directory!r} already; register it if it is a Lance table.")
        self._catalog.call("register_table", model("RegisterTableRequest")(id=table_id, location=directory))
        return place

    def begin(self, place: TablePlace, reader: pa.RecordBatchReader, options: Mapping[str, str] | None = None) -> int:
        """Make a declared table's first version. Of several who try at once one does; ``TableAlreadyExistsError`` tells
        the others, whose rows are in no version."""
        import lance
        from lance.fragment import write_fragments

        check_columns(reader.schema)
        storage = dict(options or self._catalog.storage_options) or None
        transaction: lance.Transaction | None = None
        try:
            transaction = write_fragments(
                reader,
                place.location,
                return_transaction=True,
                mode="create",
                enable_stable_row_ids=True,
                storage_options=storage,
                session=self._catalog.session,
            )
            # No retries: with them Lance puts a lost "create" on top of the winner's version, as an overwrite.
            dataset = lance.LanceDataset.commit(
                place.location, transaction, enable_stable_row_ids=True, storage_options=storage, max_retries=0
            )
        except (OSError, ValueError, RuntimeError) as error:
            first = self._first_commit(place)
            if first is None:
                raise
            if transaction is not None and first == transaction.uuid:
                return 1  # only the answer was lost
            self._delete_written(place, transaction)
            raise TableAlreadyExistsError(f"Table {place.name} was created by somebody who was faster.") from error
        return int(dataset.version)

    def _first_commit(self, place: TablePlace) -> str | None:
        """Who made the table: the id of its first version's transaction, empty if that is gone; None: nobody did."""
        try:
            dataset = self._catalog.open(list(place.id), place=place)
        except TableNotFoundError:
            return None
        try:
            return str(dataset.read_transaction(1).uuid)
        except (OSError, ValueError, AttributeError):
            return ""

    def _delete_written(self, place: TablePlace, transaction: lance.Transaction | None) -> None:
        files = self._catalog.files(place)
        for fragment in transaction.operation.fragments if transaction is not None else []:
            for file in fragment.files:
                files.delete(f"data/{file.path}")

    def overwrite(
        self, place: TablePlace, reader: pa.RecordBatchReader, options: Mapping[str, str] | None = None
    ) -> int:
        """Write a table's rows anew, whatever it has, with stable row ids; the version that has them."""
        import lance

        check_columns(reader.schema)
        dataset = lance.write_dataset(
            reader,
            place.location,
            mode="overwrite",
            enable_stable_row_ids=True,
            storage_options=dict(options or self._catalog.storage_options) or None,
            session=self._catalog.session,
        )
        return int(dataset.version)

    def remove_declared(self, table_id: list[str]) -> None:
        """Take a declaration back, unless somebody has made a table of it meanwhile."""
        place = self._catalog.find(table_id)
        if place is not None and place.only_declared:
            self.remove(place)

    def _write_options(self, asked: Mapping[str, str] | None) -> dict[str, str]:
        refused = sorted(key for key in asked or {} if _NOT_FOR_CALLERS.search(key))
        if refused:
            raise InvalidInputError(
                f"storage_options may not set {', '.join(refused)}: that is the server's to choose."
            )
        return {**self._catalog.storage_options, **(asked or {})}

    def _created(self, place: TablePlace, version: int | None) -> Any:
        if version is None:
            version = self._catalog.open(list(place.id), place=place).version
        return model("CreateTableResponse")(location=place.location, version=version, properties=place.properties)

    def _vended(self, request: Any) -> dict[str, str] | None:
        """Credentials for the caller, where the root has a credential vendor and the caller did not decline."""
        if request.vend_credentials is False:
            return None
        return self._catalog.vended(list(request.id))


def read_stream(data: bytes | None) -> pa.RecordBatchReader:
    """The request's Arrow IPC stream; a stream without rows has a schema all the same.

    Every value is looked at first: Lance stores text that is none and indices beyond their dictionary, and cannot
    read them again. That look takes a twentieth of the time of the write.
    """
    import pyarrow as pa

    buffer = pa.py_buffer(data or b"")
    try:
        for batch in pa.ipc.open_stream(buffer):
            batch.validate(full=True)
        return pa.ipc.open_stream(buffer)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"The body is not a valid Arrow IPC stream: {error}") from None


def json_schema(schema: pa.Schema) -> Any:
    """A schema as JSON Arrow in Lance's words (``string``, not ``utf8``), which LanceDB's client insists on."""
    from lance.schema import schema_to_json

    return model("JsonArrowSchema").from_dict(schema_to_json(schema))
