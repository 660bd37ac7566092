"""Where the output of a driver goes that runs several jobs: into the log of the job at hand.

Python's own output is moved by replacing its descriptors. The JVM and its workers keep the descriptors that they were
started with, so they get a pipe, which a thread of the driver copies into the log.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_STANDARD = (1, 2)


class DriverOutput:
    """The output of this process and of the JVM that it starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log = os.dup(2)
        self._pipe: int | None = None

    def to(self, path: str) -> None:
        """Append to the file at ``path`` from now on. The file is private, as tracebacks may quote data."""
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with self._lock:
            before, self._log = self._log, opened
            if self._pipe is None:
                self._replace(opened)
            os.close(before)

    @contextlib.contextmanager
    def of_jvm(self) -> Iterator[None]:
        """Processes that are started inside the block write into the log of the job that is at hand when they write."""
        read, write = os.pipe()
        threading.Thread(target=self._copy, args=(read,), name="jvm-output", daemon=True).start()
        with self._lock:
            self._pipe = write
            self._replace(write)
        try:
            yield
        finally:
            with self._lock:
                self._replace(self._log)
                self._pipe = None
            os.close(write)  # The children have theirs.

    def _copy(self, read: int) -> None:
        while text := os.read(read, 1 << 16):
            # A JVM whose pipe nobody reads would stop, so a full disk only loses lines.
            with self._lock, contextlib.suppress(OSError):
                os.write(self._log, text)
        os.close(read)

    @staticmethod
    def _replace(descriptor: int) -> None:
        for standard in _STANDARD:
            os.dup2(descriptor, standard)
