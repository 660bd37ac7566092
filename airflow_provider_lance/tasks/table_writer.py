"""Write rows into a table of a namespace: straight to its storage where this process can reach it, else by the server.

Every write carries a key. A task that is tried again looks for a commit with its key before it writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from airflow_provider_lance.api.codes import ErrorCode
from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.api.job_states import IDEMPOTENCY_KEY
from airflow_provider_lance.definitions.write_request import ROWS_PER_FILE, WriteMode

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_lance.hooks.lance import LanceNamespaceHook, TableAccess
    from airflow_provider_lance.storage.commits import Committer
    from airflow_provider_lance.storage.writes import Rows, WriteResult
    from airflow_provider_lance.tasks.errors import TaskLog
    from airflow_provider_lance.tasks.row_source import RowSource

Way = Literal["auto", "storage", "server"]


class TableExistsError(ValueError):
    """``mode="create"`` for a table that somebody else created."""


@dataclass(frozen=True)
class WriteOrder:
    """What is to be written, where and how."""

    table_id: list[str]
    rows: RowSource
    mode: WriteMode = "append"
    on: Sequence[str] = ()
    branch: str | None = None
    replace_schema: bool = False
    max_rows_per_file: int = ROWS_PER_FILE
    way: Way = "auto"


@dataclass(frozen=True)
class Written:
    """What was done: the figures, the way that the rows took, and whether the table is new."""

    result: WriteResult
    created: bool
    way: Literal["storage", "server"]


def write_table(hook: LanceNamespaceHook, order: WriteOrder, *, key: str, after: int | None, log: TaskLog) -> Written:
    """Write the rows, once for each key.

    ``after``: the version from which on an earlier try may have written; None where there was none.
    """
    from airflow_provider_lance.storage.writes import Rows as StoredRows
    from airflow_provider_lance.storage.writes import append_rows, find_write, replace_rows, replace_table, upsert_rows

    rows = StoredRows(order.rows.open, order.max_rows_per_file)
    access = _find_table(hook, order.table_id)
    if access is None or access.version is None:
        return _create(hook, order, access, rows, key, log)
    committer = _committer(hook, order, access)
    if order.way == "server" or (order.way == "auto" and not _reaches(committer, access, log)):
        return _write_by_server(hook, order, access, key, after)
    if after is not None:
        found = find_write(committer.table.open(), key, after)
        if found is not None:
            log.info("An earlier try has written these rows already, as version %d.", found.version)
            return Written(found, order.mode == "create", "storage")
    if order.mode == "create":
        raise _exists(hook, order, access)
    if order.mode == "append":
        result = append_rows(committer, rows, key)
    elif order.mode == "upsert":
        result = upsert_rows(committer, rows, order.on, key)
    else:
        result = (replace_table if order.replace_schema else replace_rows)(committer, rows, key)
    return Written(result, False, "storage")


def _exists(hook: LanceNamespaceHook, order: WriteOrder, access: TableAccess) -> TableExistsError:
    return TableExistsError(f"The table {hook.join_id(order.table_id)} is there already, at version {access.version}.")


def _find_table(hook: LanceNamespaceHook, table_id: list[str]) -> TableAccess | None:
    try:
        return hook.table_access(table_id)
    except WireError as error:
        if error.code == ErrorCode.TABLE_NOT_FOUND:
            return None
        raise


def _committer(hook: LanceNamespaceHook, order: WriteOrder, access: TableAccess) -> Committer:
    from airflow_provider_lance.storage.commits import Committer
    from airflow_provider_lance.storage.table import TableRef

    return Committer(
        TableRef(access.location, order.branch, dict(access.storage_options)),
        namespace=hook.get_conn() if access.managed else None,
        table_id=tuple(order.table_id),
        managed=access.managed,
    )


def _reaches(committer: Committer, access: TableAccess, log: TaskLog) -> bool:
    """Whether this process sees the very table that the namespace described."""
    try:
        seen = committer.table.open(access.version if committer.table.branch is None else None)
    except (OSError, ValueError) as error:
        log.info("%s cannot be reached from here, so the rows pass the server: %s", access.location, error)
        return False
    if access.columns and list(seen.schema.names) != list(access.columns):
        log.info("Another table is at %s on this machine, so the rows pass the server.", access.location)
        return False
    return True


def _create(
    hook: LanceNamespaceHook,
    order: WriteOrder,
    access: TableAccess | None,
    rows: Rows,
    key: str,
    log: TaskLog,
) -> Written:
    from airflow_provider_lance.storage.writes import create_table

    if order.way == "server":
        return _create_by_server(hook, order, key)
    if access is None:
        hook.call("create_empty_table", {"id": order.table_id})
        access = hook.table_access(order.table_id)
    if order.way == "auto" and hook.speaks_rest and not _has_folder(access.location):
        log.info("%s is not on this machine, so the rows pass the server.", access.location)
        return _create_by_server(hook, order, key)
    return Written(create_table(_committer(hook, order, access), rows, key), True, "storage")


def _has_folder(location: str) -> bool:
    """Whether a declared table can be here: a folder on a local disk is there, and object storage is everywhere."""
    path = location.removeprefix("file://")
    return "://" in path or os.path.isdir(path)


def _create_by_server(hook: LanceNamespaceHook, order: WriteOrder, key: str) -> Written:
    """Create the table without rows and insert them with the key, so that a repeated request stores them once."""
    from airflow_provider_lance.definitions.arrow_types import empty_batch

    reader = order.rows.open()
    try:
        hook.call("create_table", {"id": order.table_id, "mode": "create"}, empty_batch(reader.schema))
    except WireError as error:
        if order.mode == "create" or error.code != ErrorCode.TABLE_ALREADY_EXISTS:
            raise
    return replace(_send_rows(hook, replace(order, mode="append", on=()), reader, key), created=True)


def _write_by_server(
    hook: LanceNamespaceHook, order: WriteOrder, access: TableAccess, key: str, after: int | None
) -> Written:
    if order.mode == "create":
        if after != 0:  # 0: there was no table when an earlier try of this run began, so that try created it
            raise _exists(hook, order, access)
        order = replace(order, mode="append")
    if len(order.on) > 1:
        raise ValueError(
            "A server takes one column in `on`. This task does not reach the table's storage, where several would do."
        )
    return _send_rows(hook, order, order.rows.open(), key)


def _send_rows(hook: LanceNamespaceHook, order: WriteOrder, reader: pa.RecordBatchReader, key: str) -> Written:
    """Send the rows. Whether a repeated request is stored once is up to the server, which gets the key."""
    from airflow_provider_lance.storage.writes import RowStream, WriteResult

    stream = RowStream(reader, on=order.on, counted=True)
    fields: dict[str, object] = {"id": order.table_id, "branch": order.branch, "context": {IDEMPOTENCY_KEY: key}}
    if order.mode == "upsert":
        operation = "merge_insert_into_table"
        fields |= {"on": order.on[0], "when_matched_update_all": True, "when_not_matched_insert_all": True}
    else:
        operation = "insert_into_table"
        fields["mode"] = order.mode
    with stream.own_errors():
        answer = hook.call(operation, fields, stream.reader)
    updated = int(answer.get("num_updated_rows") or 0)
    inserted = int(answer.get("num_inserted_rows") or stream.rows - updated)
    version = int(answer.get("version") or hook.current_version(order.table_id, order.branch) or 0)
    return Written(WriteResult(version, inserted, updated), False, "server")
