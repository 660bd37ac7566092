"""How far a job is, once a second: figures from running tasks, added up in the driver, shown and reported.

Spark tells a driver only that a task ended. Workers therefore send small datagrams with their cumulative figures; one
that gets lost is made up for by the next, and where a network does not carry them the figures arrive per task.
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
from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine.context import Reporter

INTERVAL_SECONDS = 1.0
_RATE_WINDOW = 10  # seconds the shown speed is averaged over


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
    """Where a worker sends its figures; the token keeps strangers' datagrams out."""

    host: str
    port: int
    token: str


class ProgressSender:
    """The worker's side: at most one datagram a second, and never an error."""

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
    """The driver's side: a thread that adds up, reports once a second and draws a bar on a terminal.

    Use as a context manager around a job. ``task_done`` replaces what datagrams said of a task by its result.
    """

    def __init__(self, reporter: Reporter, *, host: str | None = None, terminal: TextIO | None = None) -> None:
        self._reporter = reporter
        self._terminal = terminal if terminal is not None else (sys.stderr if sys.stderr.isatty() else None)
        self._lock = threading.Lock()
        self._running: dict[str, TaskFigures] = {}
        self._done: set[str] = set()
        self._finished = TaskFigures()
        self._base = Progress()
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW + 1)
        self._stop = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1" if host in (None, "localhost", "127.0.0.1") else "", 0))
        self._socket.settimeout(0.25)
        self.address = ProgressAddress(host or "127.0.0.1", self._socket.getsockname()[1], secrets.token_hex(8))
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressMeter:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):  # wakes the thread, which would otherwise sleep until its timeout
            self._socket.sendto(b"", ("127.0.0.1", self.address.port))
        self._thread.join(timeout=5)
        self._socket.close()
        self._sample()
        self._publish()
        if self._terminal:
            self._terminal.write("\n")

    def phase(self, phase: str, **totals: int) -> None:
        """Name what happens now; ``fragments_total`` and ``rows_total`` when they become known."""
        with self._lock:
            self._base = replace(self._base, phase=phase, **totals)
        self._publish()

    def task_done(self, task: str, figures: TaskFigures) -> None:
        with self._lock:
            self._running.pop(task, None)
            self._done.add(task)
            self._finished.add(figures)

    def task_lost(self, task: str) -> None:
        """Forget a task whose work will be done again."""
        with self._lock:
            self._running.pop(task, None)
            self._done.add(task)

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
            )

    def _run(self) -> None:
        due = time.monotonic() + INTERVAL_SECONDS
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                self._receive(self._socket.recv(2048))
            if time.monotonic() >= due:
                due = time.monotonic() + INTERVAL_SECONDS
                self._sample()
                self._publish()

    def _sample(self) -> None:
        """What the speed is taken from; the first is from before any row, so that a short job has a speed too."""
        rows = self.current().rows_done
        with self._lock:
            self._samples.append((time.monotonic(), rows))

    def _receive(self, datagram: bytes) -> None:
        try:
            message: dict[str, Any] = json.loads(datagram)
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
