"""The registered functions in the registry's database. A version never changes, and its number is never used again."""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from airflow_provider_lance.api.ids import DEFAULT_DELIMITER, join_id
from airflow_provider_lance.api.plain_data import JsonObject
from airflow_provider_lance.namespace.job_conflict import JobConflictError
from airflow_provider_lance.namespace.jobs.database import Database, functions, now_ms
from airflow_provider_lance.namespace.jobs.registry import JobRow
from airflow_provider_lance.namespace.submission import RegisteredFunction


class FunctionStore:
    """A ``FunctionRegistry`` over SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, function_id: list[str], definition: JsonObject) -> RegisteredFunction:
        text = json.dumps(definition, sort_keys=True)
        digest, name = hashlib.sha256(text.encode()).hexdigest(), join_id(function_id)
        for _ in range(10):
            newest = self.find(function_id)
            if newest is not None and newest.definition == definition:
                return newest
            now = now_ms()
            try:
                with self.database.writing() as connection:
                    last = connection.scalar(select(func.max(functions.c.version)).where(functions.c.name == name))
                    row = RegisteredFunction(tuple(function_id), (last or 0) + 1, definition, now)
                    values = {"name": name, "version": row.version, "definition": definition}
                    connection.execute(insert(functions).values(**values, definition_hash=digest, created_ms=now))
                return row
            except IntegrityError:
                continue  # Another request took the same number.
        raise JobConflictError("Too many registrations of the same function at once: try again.")

    def find(self, function_id: list[str], version: int | None = None) -> RegisteredFunction | None:
        query = select(functions).where(functions.c.name == join_id(function_id), functions.c.dropped_ms.is_(None))
        if version is not None:
            query = query.where(functions.c.version == version)
        with self.database.reading() as connection:
            row = connection.execute(query.order_by(functions.c.version.desc()).limit(1)).one_or_none()
        return None if row is None else _function(row)

    def drop(self, function_id: list[str], version: int) -> bool:
        with self.database.writing() as connection:
            live = (functions.c.name == join_id(function_id), functions.c.version == version)
            dropped = connection.execute(
                update(functions).where(*live, functions.c.dropped_ms.is_(None)).values(dropped_ms=now_ms())
            )
            return dropped.rowcount > 0

    def listed(self, namespace_id: list[str]) -> list[RegisteredFunction]:
        query = (
            select(functions).where(functions.c.dropped_ms.is_(None)).order_by(functions.c.name, functions.c.version)
        )
        with self.database.reading() as connection:
            rows = [_function(row) for row in connection.execute(query)]
        return list({row.id: row for row in rows if list(row.id[:-1]) == namespace_id}.values())


def _function(row: JobRow) -> RegisteredFunction:
    return RegisteredFunction(tuple(row.name.split(DEFAULT_DELIMITER)), row.version, row.definition, row.created_ms)
