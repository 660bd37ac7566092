"""Makes and removes tables: declares a name, writes the first version or overwrites all rows, and drops the table.

Tables written here have stable row ids, which incremental views need and pylance's own create cannot give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lance_namespace import DeclareTableRequest, DropTableRequest, LanceNamespace, RegisterTableRequest
from lance_namespace.errors import (
    InternalError,
    InvalidInputError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from airflow_provider_lance.api.ids import join_id
from airflow_provider_lance.namespace.requests.column_names import check_columns
from airflow_provider_lance.namespace.tables.catalog import Catalog, TablePlace, plain_location

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


class TableWriter:
    """Writes whole tables of one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def declare(
        self, table_id: list[str], properties: Mapping[str, str] | None = None, location: str | None = None
    ) -> TablePlace:
        """Reserve a name and a place; ``TableAlreadyExistsError`` if the name is taken."""
        self._catalog.require_namespace(table_id[:-1])
        if self._catalog.find(table_id) is not None:
            raise TableAlreadyExistsError(f"Table {join_id(table_id)} exists already.")
        if location is not None:
            return self._declare_at(table_id, properties, self._catalog.directory_name(location))
        request = DeclareTableRequest(id=table_id, properties=dict(properties or {}) or None)
        try:
            answer = self._catalog.run(LanceNamespace.declare_table, request)
        except TableAlreadyExistsError:
            raise TableAlreadyExistsError(
                f"The place of {join_id(table_id)} is taken: by somebody who was faster, or by the data of a "
                "deregistered table. Register that again, or choose another name."
            ) from None
        return TablePlace(
            tuple(table_id), plain_location(answer.location or ""), dict(answer.properties or {}), only_declared=True
        )

    def _declare_at(self, table_id: list[str], properties: Mapping[str, str] | None, directory: str) -> TablePlace:
        place = TablePlace(tuple(table_id), f"{self._catalog.root}/{directory}", dict(properties or {}), True)
        owner = self._catalog.owner_of(directory)
        if owner == table_id:
            made = self.declare(table_id, properties)
            if made.location == place.location:
                return made
            self._catalog.run(LanceNamespace.drop_table, DropTableRequest(id=table_id))
        if owner is not None:
            raise InvalidInputError(f"{directory!r} is the place of another table; choose a name without .lance.")
        if properties:
            raise UnsupportedOperationError(
                "A table at a location of its own keeps no properties here; declare it without one of the two."
            )
        if self._catalog.files(place).names(""):
            raise InvalidInputError(f"There is something at {directory!r} already; register it if it is a Lance table.")
        self._catalog.run(LanceNamespace.register_table, RegisterTableRequest(id=table_id, location=directory))
        return place

    def write_first_version(
        self, place: TablePlace, reader: pa.RecordBatchReader, options: Mapping[str, str] | None = None
    ) -> int:
        """Write the first version of a declared table, and return its number.

        Of several callers at the same time one succeeds. The others get ``TableAlreadyExistsError``, and their rows
        are in no version.
        """
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
            # With retries Lance commits a "create" that lost the race as an overwrite on top of the winner's version.
            dataset = lance.LanceDataset.commit(
                place.location, transaction, enable_stable_row_ids=True, storage_options=storage, max_retries=0
            )
        except (OSError, ValueError, RuntimeError) as error:
            first = self._first_transaction(place)
            if first is None:
                raise
            if transaction is not None and first == transaction.uuid:
                return 1  # The commit succeeded and only its answer was lost.
            self._delete_written(place, transaction)
            raise TableAlreadyExistsError(f"Table {place.name} was created by somebody who was faster.") from error
        return int(dataset.version)

    def _first_transaction(self, place: TablePlace) -> str | None:
        """The id of the first version's transaction; empty if it was cleaned up, None if the table has no version."""
        try:
            dataset = self._catalog.open(list(place.id), place=place)
        except TableNotFoundError:
            return None
        try:
            transaction = dataset.read_transaction(1)
        except (OSError, ValueError):
            return ""
        return "" if transaction is None else transaction.uuid

    def _delete_written(self, place: TablePlace, transaction: lance.Transaction | None) -> None:
        from lance import LanceOperation

        if transaction is None or not isinstance(transaction.operation, LanceOperation.Overwrite):
            return
        files = self._catalog.files(place)
        for fragment in transaction.operation.fragments:
            for file in fragment.files:
                files.delete(f"data/{file.path}")

    def overwrite(
        self, place: TablePlace, reader: pa.RecordBatchReader, options: Mapping[str, str] | None = None
    ) -> int:
        """Replace all rows of a table, and return the version that has the new ones."""
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

    def remove(self, place: TablePlace) -> None:
        """Drop a table without any check; ``TableNotFoundError`` where another request dropped it at the same time."""
        table_id = list(place.id)
        try:
            if place.only_declared and not self._catalog.files(place).names(""):
                # pylance cannot drop a table that was declared at a location of its own and has no directory yet.
                self._catalog.deregister(table_id)
            else:
                self._catalog.run(LanceNamespace.drop_table, DropTableRequest(id=table_id))
        except (InternalError, OSError, RuntimeError) as error:
            if self._catalog.find(table_id) is not None:
                raise
            raise TableNotFoundError(f"Table {place.name} was dropped by somebody who was faster.") from error

    def remove_declared(self, table_id: list[str]) -> None:
        """Withdraw a declaration, unless another request has written the table in the meantime."""
        place = self._catalog.find(table_id)
        if place is not None and place.only_declared:
            self.remove(place)
