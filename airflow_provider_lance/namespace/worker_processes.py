"""Worker processes with bounded memory, for what may end the process it runs in.

A worker is this package's ``worker.py``, started when it is first needed and kept. It takes one call at a time. When
Lance ends it (out of memory, out of stack) or it takes too long, the caller gets an error and the next call a new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from lance_namespace.errors import ServiceUnavailableError, from_error_code

from airflow_provider_lance.namespace.processes import environment_without_secrets

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<Q")
_PACKAGES = Path(__file__).resolve().parents[2]
_START_SECONDS = 60.0


class WorkerLostError(Exception):
    """A worker ended in the middle of a call, or was ended because it took too long."""


class WorkerProcesses:
    """At most ``count`` workers, each of which may take ``memory_bytes`` for a call that ends within ``seconds``."""

    def __init__(self, count: int, memory_bytes: int, seconds: float) -> None:
        self.memory_bytes = memory_bytes
        self._seconds = seconds
        # Last used, first used again: those that are not needed are never started.
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._closed = threading.Event()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of a module in a worker. Raises what it raises there, and ``WorkerLostError``."""
        until = time.monotonic() + self._seconds
        try:
            worker = self._free.get(timeout=self._seconds)
        except queue.Empty:
            raise ServiceUnavailableError("All worker processes are busy: try again in a moment.") from None
        try:
            if self._closed.is_set():
                raise ServiceUnavailableError("The server is stopping.")
            if worker is None or not worker.alive:
                worker = _Worker(self.memory_bytes)
            return worker.call(function, arguments, max(until - time.monotonic(), 0.1))
        finally:
            self._free.put(worker if worker is not None and worker.alive else None)

    def close(self) -> None:
        """End all workers that are idle; a busy one is ended by its call's time limit, or with this process."""
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._free.get_nowait()
                if worker is not None:
                    worker.kill()


class _Worker:
    def __init__(self, memory_bytes: int) -> None:
        environment = environment_without_secrets()
        environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGES), *filter(None, sys.path)])
        self._process = subprocess.Popen(  # noqa: S603 - our own module, by this Python
            [sys.executable, "-m", "airflow_provider_lance.namespace.worker", str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # what a terminal sends to the server is not for its workers
        )
        self._memory_bytes = memory_bytes
        self.call(os.getpid, (), _START_SECONDS)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not sent yet
                    pipe.close()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            send(self._process.stdin, (function, arguments))
            outcome, value = receive(self._process.stdout)
        except (OSError, EOFError):
            self.kill()
            if overdue.is_set():
                raise WorkerLostError(f"It took longer than {seconds:.0f} s and was ended.") from None
            log.warning("Worker process %d ended with %s.", self._process.pid, self._process.returncode)
            raise WorkerLostError(
                f"It needs more than the {self._memory_bytes} bytes of memory a request may take ([limits] "
                "query_memory_bytes), or its SQL is nested too deeply."
            ) from None
        except BaseException:
            self.kill()  # a call that was not read to its end must not answer the next one
            raise
        finally:
            timer.cancel()
        if outcome == "result":
            return value
        if outcome == "lance":
            raise from_error_code(*value)
        raise value


def send(pipe: IO[bytes], message: Any) -> None:
    """One message: its length, then its pickle. Both ends are this package, and nobody else has the pipe."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message; ``EOFError`` where the other end is gone."""
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return pickle.loads(_exactly(pipe, length))  # noqa: S301 - written by our own process


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    content = pipe.read(size)
    if len(content) < size:
        raise EOFError
    return content
