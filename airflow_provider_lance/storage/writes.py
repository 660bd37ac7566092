"""Rows written into a table by this process: staged files first, then one commit that carries the writer's key.

A writer that died is repeated with the same key. :func:`find_write` then finds its commit in the table's history, so
that no row is written twice. Files of a write that was never committed belong to no version; Lance's cleanup removes
them. Knows nothing of tasks, servers or jobs.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from airflow_provider_lance.definitions.write_request import ROWS_PER_FILE
from airflow_provider_lance.storage.commits import CommitConflict, Committer
from airflow_provider_lance.storage.history import read_transactions
from airflow_provider_lance.storage.indices import has_current_indices

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.fragment import FragmentMetadata

    from airflow_provider_lance.storage.table import TableRef

log = logging.getLogger(__name__)

WRITE_KEY = "write_key"
_FIGURES = "write_figures"
_ATTEMPTS = 5


class RowsDoNotFitError(ValueError):
    """The rows cannot be stored in the table as it is; nothing was committed."""


@dataclass(frozen=True)
class WriteResult:
    """What a write did to the table, and the version that holds it. ``repeated``: an earlier try had done it."""

    version: int
    inserted: int
    updated: int = 0
    deleted: int = 0
    repeated: bool = False


def write_new_share(
    reader: pa.RecordBatchReader, table: TableRef, schema: pa.Schema, max_rows_per_file: int
) -> list[FragmentMetadata]:
    """Write rows as fragments of a table that has no version yet; every share of its rows has the same schema."""
    from lance.fragment import write_fragments

    stream = RowStream(reader, schema)
    with stream.own_errors():
        found = write_fragments(
            stream.reader,
            table.location,
            schema=schema,
            mode="create",
            max_rows_per_file=max_rows_per_file,
            enable_stable_row_ids=True,
            storage_options=table.storage_options or None,
        )
    assert isinstance(found, list)  # a transaction only where one is asked for
    return found


class RowWriter(Protocol):
    """Rows that can be written as fragments of a table, again where a conflict repeats the write."""

    def write(
        self, dataset: lance.LanceDataset, mode: Literal["append", "overwrite"]
    ) -> tuple[list[FragmentMetadata], pa.Schema]:
        """Write all rows as fragments that belong to no version yet; returns them with the schema of the rows."""


@dataclass(frozen=True)
class Rows:
    """Rows that this process writes. ``open`` gives a new reader of all of them each time."""

    open: Callable[[], pa.RecordBatchReader]
    max_rows_per_file: int = ROWS_PER_FILE

    def write(
        self, dataset: lance.LanceDataset, mode: Literal["append", "overwrite"]
    ) -> tuple[list[FragmentMetadata], pa.Schema]:
        return write_share(self.open(), dataset, mode, self.max_rows_per_file)


def write_share(
    reader: pa.RecordBatchReader,
    dataset: lance.LanceDataset,
    mode: Literal["append", "overwrite"],
    max_rows_per_file: int,
) -> tuple[list[FragmentMetadata], pa.Schema]:
    """Write rows, all of a write or some, as fragments of a table that belong to no version yet."""
    from lance.fragment import write_fragments

    stream = RowStream(reader, dataset.schema if mode == "append" else None)
    with stream.own_errors():
        found = write_fragments(
            stream.reader,
            dataset,
            schema=stream.schema,
            mode=mode,
            max_rows_per_file=max_rows_per_file,
            data_storage_version=dataset.data_storage_version,
            enable_stable_row_ids=bool(dataset.has_stable_row_ids),
        )
    assert isinstance(found, list)  # a transaction only where one is asked for
    return found, stream.schema


@dataclass(frozen=True)
class _Staged:
    """A change that is written and not committed, and the files that are to go if it never is."""

    operation: lance.LanceOperation.BaseOperation
    inserted: int
    updated: int = 0
    deleted: int = 0
    files: tuple[str, ...] = ()


def create_table(committer: Committer, rows: Rows, key: str) -> WriteResult:
    """Write the first version of a table that is declared, or that is not there at all, with stable row ids."""
    import lance

    stream = RowStream(rows.open())
    with stream.own_errors():
        dataset = lance.write_dataset(
            stream.reader,
            None if committer.managed else committer.table.location,
            # A declared table exists already, without a version: "create" would refuse it.
            mode="append" if committer.managed else "create",
            enable_stable_row_ids=True,
            max_rows_per_file=rows.max_rows_per_file,
            storage_options=committer.table.storage_options or None,
            transaction_properties={WRITE_KEY: key},
            namespace_client=committer.namespace if committer.managed else None,
            table_id=list(committer.table_id) if committer.managed else None,
        )
    return WriteResult(int(dataset.version), int(dataset.count_rows()))


def create_from_fragments(
    committer: Committer, fragments: list[FragmentMetadata], schema: pa.Schema, key: str
) -> WriteResult:
    """Make fragments of :func:`write_new_share` the first version of a table; CommitConflict if it has one already."""
    import lance

    rows = _count(fragments)
    transaction = lance.Transaction(
        read_version=0,
        operation=lance.LanceOperation.Overwrite(schema, fragments),
        transaction_properties={WRITE_KEY: key, _FIGURES: json.dumps({"inserted": rows})},
    )
    try:
        # With retries Lance commits a "create" that lost the race as an overwrite on top of the winner's version.
        dataset = lance.LanceDataset.commit(
            committer.table.location,
            transaction,
            enable_stable_row_ids=True,
            max_retries=0,
            storage_options=committer.table.storage_options or None,
            namespace_client=committer.namespace if committer.managed else None,
            table_id=list(committer.table_id) if committer.managed else None,
            namespace_client_managed_versioning=committer.managed,
        )
    except (OSError, ValueError, RuntimeError) as error:
        try:
            head = committer.table.open()
        except (OSError, ValueError):
            raise error from None
        if found := find_write(head, key, 0):  # only the answer to the commit was lost
            return replace(found, repeated=False)
        _remove(committer, _files(fragments))
        raise CommitConflict("Somebody else created the table first.") from error
    return WriteResult(int(dataset.version), rows)


def append_rows(committer: Committer, rows: RowWriter, key: str) -> WriteResult:
    """Add rows. Columns that they lack are null, and a column of a wider type takes a narrower one."""

    def stage(dataset: lance.LanceDataset) -> _Staged:
        from lance import LanceOperation

        fragments, _ = rows.write(dataset, "append")
        return _Staged(LanceOperation.Append(fragments), _count(fragments), files=_files(fragments))

    return _commit(committer, stage, key)


def replace_rows(committer: Committer, rows: RowWriter, key: str) -> WriteResult:
    """Remove every row that is there and add these, in one commit. Schema, rules and indices of the table stay.

    Rows that somebody else appends at the same time stay too.
    """

    def stage(dataset: lance.LanceDataset) -> _Staged:
        from lance import LanceOperation

        fragments, _ = rows.write(dataset, "append")
        old = [fragment.fragment_id for fragment in dataset.get_fragments()]
        operation = LanceOperation.Update(removed_fragment_ids=old, updated_fragments=[], new_fragments=fragments)
        return _Staged(operation, _count(fragments), deleted=int(dataset.count_rows()), files=_files(fragments))

    return _commit(committer, stage, key)


def replace_table(committer: Committer, rows: RowWriter, key: str) -> WriteResult:
    """Give the table the schema of these rows, and these rows only. Rules and indices of its columns are gone."""

    def stage(dataset: lance.LanceDataset) -> _Staged:
        from lance import LanceOperation

        fragments, schema = rows.write(dataset, "overwrite")
        operation = LanceOperation.Overwrite(schema, fragments)
        return _Staged(operation, _count(fragments), deleted=int(dataset.count_rows()), files=_files(fragments))

    return _commit(committer, stage, key)


def upsert_rows(committer: Committer, rows: Rows, on: Sequence[str], key: str) -> WriteResult:
    """Update the rows whose columns ``on`` are equal to those of a new row, and insert the other new rows.

    Columns that the new rows lack keep their values in updated rows and are null in inserted ones.
    """

    def stage(dataset: lance.LanceDataset) -> _Staged:
        missing = [name for name in on if name not in dataset.schema.names]
        if missing:
            raise RowsDoNotFitError(
                f"The table has no column {missing[0]!r}; it has {', '.join(dataset.schema.names)}."
            )
        stream = RowStream(rows.open(), dataset.schema, on)
        merge = dataset.merge_insert(list(on)).use_index(has_current_indices(dataset))
        merge = merge.when_matched_update_all().when_not_matched_insert_all()
        with stream.own_errors():
            transaction, done = merge.execute_uncommitted(stream.reader)
        stream.refuse_repeated_keys()
        return _Staged(transaction.operation, int(done["num_inserted_rows"]), int(done["num_updated_rows"]))

    return _commit(committer, stage, key)


def find_write(dataset: lance.LanceDataset, key: str, after: int) -> WriteResult | None:
    """What a write with this key did to the table after version ``after``; None where there is no such commit."""
    for version, transaction in read_transactions(dataset, after):
        properties = (transaction.transaction_properties or {}) if transaction is not None else {}
        if properties.get(WRITE_KEY) == key:
            figures = json.loads(properties.get(_FIGURES) or "null")
            if figures is None:  # the first version of a table, which has the figures in its rows
                figures = {"inserted": int(dataset.checkout_version(version).count_rows())}
            return WriteResult(version, figures["inserted"], figures.get("updated", 0), figures.get("deleted", 0), True)
    return None


def _commit(committer: Committer, stage: Callable[[lance.LanceDataset], _Staged], key: str) -> WriteResult:
    """Stage a change against the newest version and commit it; where somebody else was faster, stage it again."""
    for attempt in range(1, _ATTEMPTS + 1):
        dataset = committer.table.open()
        staged = stage(dataset)
        figures = {"inserted": staged.inserted, "updated": staged.updated, "deleted": staged.deleted}
        try:
            version = committer.commit(
                staged.operation,
                dataset=dataset,
                properties={WRITE_KEY: key, _FIGURES: json.dumps(figures)},
                attempts=1,
            )
        except CommitConflict as conflict:
            _remove(committer, staged.files)
            if attempt == _ATTEMPTS:
                raise
            log.info("Another writer changed the table first, writing again: %s", conflict)
            continue
        return WriteResult(version, staged.inserted, staged.updated, staged.deleted)
    raise AssertionError("unreachable")


def _count(fragments: Iterable[FragmentMetadata]) -> int:
    return sum(fragment.physical_rows for fragment in fragments)


def _files(fragments: Iterable[FragmentMetadata]) -> tuple[str, ...]:
    return tuple(f"data/{file.path}" for fragment in fragments for file in fragment.files)


def _remove(committer: Committer, paths: Iterable[str]) -> None:
    files = committer.table.files()
    for path in paths:
        files.delete(path)


class RowStream:
    """Rows on their way into a table: given the types of its columns, counted, and their keys remembered.

    :param wanted: the schema of the table; None takes the rows as they are.
    :param on: the columns of a key. They are kept, to find a key that occurs twice: Lance refuses two new rows for one
        row of the table, but inserts both where the table has none.
    :param counted: Whether ``rows`` is wanted. Rows that need nothing else pass without Python, a quarter faster.
    """

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        wanted: pa.Schema | None = None,
        on: Sequence[str] = (),
        *,
        counted: bool = False,
    ) -> None:
        import pyarrow as pa

        missing = [name for name in on if name not in reader.schema.names]
        if missing:
            raise RowsDoNotFitError(f"The rows have no column {missing[0]!r}, by which they are to be found.")
        self.rows = 0
        self.schema = reader.schema if wanted is None else _chosen(reader.schema, wanted)
        self._on = list(on)
        changes_nothing = self.schema.equals(reader.schema) and all(field.nullable for field in self.schema)
        if changes_nothing and not on and not counted:
            self.reader = reader
        else:
            self.reader = pa.RecordBatchReader.from_batches(self.schema, self._batches(reader))
        self._keys: list[pa.RecordBatch] = []
        self._error: Exception | None = None

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            for batch in reader:
                columns = [_cast(batch.column(at), field) for at, field in enumerate(self.schema)]
                fitted = pa.RecordBatch.from_arrays(columns, schema=self.schema)
                self.rows += fitted.num_rows
                if self._on:
                    self._keys.append(fitted.select(self._on))
                yield fitted
        except Exception as error:
            self._error = error
            raise

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        """Raise an error of reading the rows as it was: Lance turns it into an OSError with a whole traceback in it."""
        try:
            yield
        except OSError:
            if self._error is not None:
                raise self._error from None
            raise

    def refuse_repeated_keys(self) -> None:
        """RowsDoNotFitError if two of the rows that passed have the same key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._keys:
            return
        counts = pa.Table.from_batches(self._keys).group_by(self._on).aggregate([([], "count_all")])
        twice = counts.filter(pc.greater(counts["count_all"], pa.scalar(1)))
        if twice.num_rows:
            first = {name: twice[name][0].as_py() for name in self._on}
            raise RowsDoNotFitError(
                f"{twice.num_rows:,} keys occur more than once in the rows, such as {first}: which of them is to be "
                "stored cannot be told. Remove the repeated ones first."
            )


def _chosen(given: pa.Schema, table: pa.Schema) -> pa.Schema:
    """The fields of the table for the columns that the rows have; RowsDoNotFitError where that cannot be."""
    import pyarrow as pa

    unknown = [name for name in given.names if name not in table.names]
    if unknown:
        raise _no_column(unknown[0], table)
    repeated = {name for name in given.names if given.names.count(name) > 1}
    if repeated:
        raise RowsDoNotFitError(f"The rows have the column {min(repeated)!r} twice.")
    missing = [field.name for field in table if not field.nullable and field.name not in given.names]
    if missing:
        raise RowsDoNotFitError(f"The rows have no column {missing[0]!r}, which cannot be null in the table.")
    return pa.schema([table.field(name) for name in given.names])


def _no_column(name: str, table: pa.Schema) -> RowsDoNotFitError:
    return RowsDoNotFitError(f"The table has no column {name!r}; it has {', '.join(table.names)}.")


def _cast(column: pa.Array[pa.Scalar[pa.DataType]], field: pa.Field[pa.DataType]) -> pa.Array[pa.Scalar[pa.DataType]]:
    import pyarrow as pa

    try:
        found = column if column.type.equals(field.type) else column.cast(field.type)
    except pa.ArrowException as error:
        raise RowsDoNotFitError(
            f"The column {field.name!r} is {field.type} in the table, and the rows have {column.type}: {error}"
        ) from None
    if not field.nullable and found.null_count:
        raise RowsDoNotFitError(
            f"The column {field.name!r} cannot be null in the table, and a row has no value for it."
        )
    return found
