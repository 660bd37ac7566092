"""The progress of a job: figures of running tasks, added up in the driver and reported once a second.

Spark tells a driver only that a task ended, so workers send small datagrams with their cumulative figures. The next
datagram makes up for a lost one; where a network drops all of them, the figures arrive when a task ends.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TextIO

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine.job.context import Reporter

INTERVAL_SECONDS = 1.0
COMPUTE = "compute"  # the phase in which tasks run
_RECEIVE_SECONDS = 0.25
_RATE_WINDOW = 10  # seconds over which the reported speed is averaged


@dataclass
class TaskFigures:
    """What one task has done so far."""

    fragments: int = 0
    rows: int = 0
    failed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    example: str = ""  # the first failed row and why

    def add(self, other: TaskFigures) -> None:
        for name, value in asdict(other).items():
            if name == "example":
                self.example = self.example or value
            else:
                setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class ProgressAddress:
    """Where a worker sends its figures; datagrams without the token are dropped."""

    host: str
    port: int
    token: str


class ProgressSender:
    """Sends the figures of a worker's task: at most one datagram a second, and it never raises."""

    def __init__(self, address: ProgressAddress | None, task: str) -> None:
        self.figures = TaskFigures()
        self._address = address
        self._task = task
        self._last = 0.0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if address else None

    def tick(self) -> None:
        now = time.monotonic()
        if self._address is None or self._socket is None or now - self._last < INTERVAL_SECONDS:
            return
        self._last = now
        message = {"token": self._address.token, "task": self._task, **asdict(self.figures)}
        with contextlib.suppress(OSError):
            self._socket.sendto(json.dumps(message).encode(), (self._address.host, self._address.port))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class ProgressMeter:
    """Adds up the figures in the driver, reports them once a second and draws a bar on a terminal.

    It is a context manager around a job. ``task_done`` replaces what datagrams said of a task by its result. ``host``
    gives the address at which workers reach this machine. It is asked when tasks need it, because Spark knows it.
    """

    def __init__(
        self, reporter: Reporter, *, host: Callable[[], str | None] = lambda: None, terminal: TextIO | None = None
    ) -> None:
        self._reporter = reporter
        self._terminal = terminal if terminal is not None else (sys.stderr if sys.stderr.isatty() else None)
        self._lock = threading.Lock()
        self._running: dict[str, TaskFigures] = {}
        self._done: set[str] = set()
        self._finished = TaskFigures()
        self._base = Progress()
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW + 1)
        self._computing_since: float | None = None
        self._stop = threading.Event()
        self._host = host
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressMeter:
        self._sample()
        self._thread.start()
        return self

    @cached_property
    def address(self) -> ProgressAddress:
        """Where workers send their figures."""
        host = self._host() or "127.0.0.1"
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1" if host in ("localhost", "127.0.0.1") else "", 0))
        receiver.settimeout(_RECEIVE_SECONDS)
        self._socket = receiver
        return ProgressAddress(host, receiver.getsockname()[1], secrets.token_hex(8))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):  # wakes the thread, which otherwise waits for its timeout
                self._socket.sendto(b"", ("127.0.0.1", self.address.port))
        self._thread.join(timeout=5)
        if self._socket is not None:
            self._socket.close()
        self._sample()
        self._publish()
        if self._terminal:
            self._terminal.write("\n")

    def phase(self, phase: str, **totals: int) -> None:
        """Set the current phase, and ``fragments_total`` and ``rows_total`` when they are known."""
        with self._lock:
            self._base = replace(self._base, phase=phase, **totals)
            if phase == COMPUTE and self._computing_since is None:
                # The speed is that of the computing, so the time until here does not count.
                self._computing_since = time.monotonic()
                self._samples.clear()
                self._samples.append((self._computing_since, self._finished.rows))
        self._publish()

    def task_done(self, task: str, figures: TaskFigures) -> None:
        with self._lock:
            self._running.pop(task, None)
            self._done.add(task)
            self._finished.add(figures)

    @property
    def rows_failed(self) -> int:
        """Failed rows so far, including those of tasks that still run."""
        with self._lock:
            return self._finished.failed + sum(figures.failed for figures in self._running.values())

    @property
    def example(self) -> str:
        """A failed row and why it failed; empty where none is known."""
        with self._lock:
            return next((found.example for found in (self._finished, *self._running.values()) if found.example), "")

    def current(self) -> Progress:
        with self._lock:
            total = TaskFigures()
            for figures in (self._finished, *self._running.values()):
                total.add(figures)
            rate = 0.0
            if len(self._samples) > 1:
                (start, before), (end, after) = self._samples[0], self._samples[-1]
                rate = max(0.0, (after - before) / (end - start)) if end > start else 0.0
            return replace(
                self._base,
                fragments_done=total.fragments,
                rows_done=total.rows,
                rows_failed=total.failed,
                bytes_read=total.bytes_read,
                bytes_written=total.bytes_written,
                rows_per_second=round(rate, 1),
                compute_seconds=round(time.monotonic() - since, 3) if (since := self._computing_since) else 0.0,
            )

    def _run(self) -> None:
        due = time.monotonic() + INTERVAL_SECONDS
        while not self._stop.is_set():
            if self._socket is None:
                self._stop.wait(_RECEIVE_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    self._receive(self._socket.recv(2048))
            if time.monotonic() >= due:
                due = time.monotonic() + INTERVAL_SECONDS
                self._sample()
                self._publish()

    def _sample(self) -> None:
        """Add a sample for the speed; the first is taken before any row, so that a short job has a speed too."""
        rows = self.current().rows_done
        with self._lock:
            self._samples.append((time.monotonic(), rows))

    def _receive(self, datagram: bytes) -> None:
        try:
            message = json.loads(datagram)
            if not secrets.compare_digest(str(message.pop("token")), self.address.token):
                return
            task = str(message.pop("task"))
            figures = TaskFigures(**message)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        with self._lock:
            if task not in self._done:
                self._running[task] = figures

    def _publish(self) -> None:
        progress = self.current()
        self._reporter.progress(progress)
        if self._terminal:
            width = 30
            filled = int(progress.fraction * width)
            bar = "█" * filled + "·" * (width - filled)
            self._terminal.write(f"\r{bar} {progress.fraction:4.0%} {progress.describe():<70.70}")
            self._terminal.flush()
