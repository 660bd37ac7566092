"""The process that runs the calls of ``worker_pool.py``, one at a time and with a bound on its memory."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode, LanceNamespaceError

from airflow_provider_lance.api.operations import OPERATIONS
from airflow_provider_lance.api.plain_data import Fields
from airflow_provider_lance.namespace.workers.worker_pool import Answer, receive_call, send

if TYPE_CHECKING:
    from airflow_provider_lance.namespace.spark_namespace import SparkNamespace


def operate(properties: tuple[tuple[str, str], ...], operation: str, fields: Fields, data: bytes | None) -> object:
    """Run one operation of a namespace, in a worker."""
    return _namespace(properties).run(OPERATIONS[operation], fields, data)


def plan(schema: bytes, expression: str) -> None:
    """Plan an expression, in a worker. The caller plans it again and so finds out whether it can be planned."""
    from airflow_provider_lance.definitions.expressions import plan_serialized

    with contextlib.suppress(ValueError, OSError, TypeError):
        plan_serialized(schema, expression)


@cache
def _namespace(properties: tuple[tuple[str, str], ...]) -> SparkNamespace:
    from airflow_provider_lance.namespace.spark_namespace import SparkNamespace

    return SparkNamespace(None, None, **dict(properties))


def main() -> None:
    memory_bytes = int(sys.argv[1])
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text goes to stderr, because stdout carries the answers
    _warm_up()
    while True:
        try:
            function, arguments = receive_call(incoming)
        except EOFError:
            return
        _bound_memory(memory_bytes)
        answer: Answer
        try:
            answer = ("result", function(*arguments))
        except LanceNamespaceError as error:
            answer = ("lance", (int(ErrorCode(error.code)), str(error)))
        except Exception as error:
            answer = ("error", RuntimeError(f"{type(error).__name__}: {error}"))
        send(outgoing, answer)
        del answer


def _warm_up() -> None:
    """Start Lance's threads, so that their stacks do not count as the memory of a request."""
    import lance
    import pyarrow as pa

    table = pa.table({"id": pa.array([1, 2, 3])})
    lance.write_dataset(table, "memory://").to_table(filter="id > 1")


def _bound_memory(more: int) -> None:
    """Let this process take that many bytes more than it has now. Only Linux enforces such a limit."""
    import resource

    now = 0
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (now + more, hard))


if __name__ == "__main__":
    main()
