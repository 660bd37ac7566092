"""Worker processes with bounded memory, for calls that may end the process they run in.

A worker runs ``worker_main.py``. It is started when it is first needed, is kept, and takes one call at a time. When
Lance ends it (out of memory, out of stack) or a call takes too long, the caller gets an error, and the next call gets a
new worker.
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
from typing import IO, Any, Literal, TypeVar, TypeVarTuple, cast

from lance_namespace.errors import ServiceUnavailableError, from_error_code

from airflow_provider_lance.system.process_groups import environment_without_secrets

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<Q")
_PACKAGES = Path(__file__).resolve().parents[3]
_START_SECONDS = 60.0

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")
#: A function of a module and its arguments, as they travel to a worker.
Call = tuple[Callable[..., object], tuple[object, ...]]
#: What a worker answers: a result, the code and text of a Lance error, or any other error.
Answer = (
    tuple[Literal["result"], object] | tuple[Literal["lance"], tuple[int, str]] | tuple[Literal["error"], RuntimeError]
)


class WorkerLostError(Exception):
    """A worker ended in the middle of a call, or was ended because it took too long."""


class WorkerProcesses:
    """At most ``count`` workers. A call may take ``memory_bytes`` and must end within ``seconds``."""

    def __init__(self, count: int, memory_bytes: int, seconds: float) -> None:
        self.memory_bytes = memory_bytes
        self._seconds = seconds
        # The worker that was used last is used again first, so that no more are started than are needed.
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._closed = threading.Event()

    def call(self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
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
            return cast("_Result", worker.call((function, arguments), max(until - time.monotonic(), 0.1)))
        finally:
            self._free.put(worker if worker is not None and worker.alive else None)

    def close(self) -> None:
        """End all idle workers. A busy worker ends when its call's time is over, or with this process."""
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
            [sys.executable, "-m", "airflow_provider_lance.namespace.workers.worker_main", str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a signal that a terminal sends to the server must not reach its workers
        )
        self._memory_bytes = memory_bytes
        self.call((os.getpid, ()), _START_SECONDS)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # closing flushes what was not sent yet
                    pipe.close()

    def call(self, call: Call, seconds: float) -> object:
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
            send(self._process.stdin, call)
            answer: Answer = _receive(self._process.stdout)
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
            self.kill()  # the rest of this answer must not be read as the answer to the next call
            raise
        finally:
            timer.cancel()
        if answer[0] == "result":
            return answer[1]
        if answer[0] == "lance":
            raise from_error_code(*answer[1])
        raise answer[1]


def send(pipe: IO[bytes], message: Call | Answer) -> None:
    """Write one message: its length, then its pickle. Only this package has the two ends of the pipe."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def receive_call(pipe: IO[bytes]) -> Call:
    """The next call; ``EOFError`` where the other process has ended."""
    call: Call = _receive(pipe)
    return call


def _receive(pipe: IO[bytes]) -> Any:
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return pickle.loads(_exactly(pipe, length))  # noqa: S301 - written by our own process


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    content = pipe.read(size)
    if len(content) < size:
        raise EOFError
    return content
