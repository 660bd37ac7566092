"""The process that takes calls from ``worker_processes.py``: one at a time, with a bound on its memory."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import cache
from typing import Any

from lance_namespace.errors import ErrorCode, LanceNamespaceError

from airflow_provider_lance.namespace.worker_processes import receive, send


def operate(properties: tuple[tuple[str, str], ...], operation: str, fields: dict[str, Any], data: bytes | None) -> Any:
    """Carry out one operation of a namespace, in a worker."""
    method = getattr(_namespace(properties), operation)
    return method(fields) if data is None else method(fields, data)


def plan(schema: bytes, expression: str) -> None:
    """Plan an expression, in a worker; that it cannot be planned is for the caller to find out."""
    from airflow_provider_lance.engine.expressions import plan_serialized

    with contextlib.suppress(ValueError, OSError, TypeError):
        plan_serialized(schema, expression)


@cache
def _namespace(properties: tuple[tuple[str, str], ...]) -> Any:
    from airflow_provider_lance.namespace.namespace import SparkNamespace

    return SparkNamespace(None, None, **dict(properties))


def main() -> None:
    memory_bytes = int(sys.argv[1])
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is not an answer
    _warm_up()
    while True:
        try:
            function, arguments = receive(incoming)
        except EOFError:
            return
        _bound_memory(memory_bytes)
        try:
            answer = ("result", function(*arguments))
        except LanceNamespaceError as error:
            answer = ("lance", (int(ErrorCode(error.code)), str(error)))
        except Exception as error:
            answer = ("error", RuntimeError(f"{type(error).__name__}: {error}"))
        send(outgoing, answer)
        del answer


def _warm_up() -> None:
    """Start Lance's threads, whose stacks are not to be counted as a request's memory."""
    import lance
    import pyarrow as pa

    table = pa.table({"id": pa.array([1, 2, 3])})
    lance.write_dataset(table, "memory://").to_table(filter="id > 1")


def _bound_memory(more: int) -> None:
    """Let this process take so many bytes beyond what it has now. Only Linux keeps such a limit."""
    import resource

    now = 0
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (now + more, hard))


if __name__ == "__main__":
    main()
