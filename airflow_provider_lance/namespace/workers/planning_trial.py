"""An expression is planned in a worker process before the server plans it, because planning can end a process."""

from __future__ import annotations

import threading

from lance_namespace.errors import InvalidInputError

from airflow_provider_lance.namespace.workers.costly_requests import is_cheap_sql
from airflow_provider_lance.namespace.workers.worker_main import plan
from airflow_provider_lance.namespace.workers.worker_pool import WorkerLostError, WorkerProcesses

_MOST_REMEMBERED = 1000


class PlanningTrial:
    """Plans an expression on a serialized schema; ``InvalidInputError`` for an expression that ended its worker."""

    def __init__(self, workers: WorkerProcesses) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        # The cost of planning depends on the expression, and hardly on the schema.
        self._planned: set[str] = set()

    def __call__(self, schema: bytes, expression: str) -> None:
        if is_cheap_sql(expression) or expression in self._planned:
            return
        try:
            self._workers.call(plan, schema, expression)
        except WorkerLostError as error:
            raise InvalidInputError(f"The expression {expression[:200]!r} cannot be planned. {error}") from None
        with self._lock:
            if len(self._planned) >= _MOST_REMEMBERED:
                self._planned.clear()
            self._planned.add(expression)
