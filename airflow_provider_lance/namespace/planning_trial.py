"""An expression is planned in a worker process before the server plans it: planning alone can end a process."""

from __future__ import annotations

import threading

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.namespace.bounded_requests import is_cheap_sql
from airflow_provider_lance.namespace.worker import plan
from airflow_provider_lance.namespace.worker_processes import WorkerLostError, WorkerProcesses

_MOST_REMEMBERED = 1000


class PlanningTrial:
    """Called with a serialized schema and an expression; ``InvalidInputError`` for one that ended its worker."""

    def __init__(self, workers: WorkerProcesses) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        # What planning costs depends on the expression, hardly on the schema.
        self._survived: dict[str, None] = {}

    def __call__(self, schema: bytes, expression: str) -> None:
        if is_cheap_sql(expression) or expression in self._survived:
            return
        try:
            self._workers.call(plan, schema, expression)
        except WorkerLostError as error:
            raise InvalidInputError(f"The expression {expression[:200]!r} cannot be planned. {error}") from None
        with self._lock:
            if len(self._survived) >= _MOST_REMEMBERED:
                self._survived.clear()
            self._survived[expression] = None
