"""Driver logs: one folder per job, one file per attempt, bounded and read from the end.

A driver appends to its file itself, so that a restart of the server cannot end it with a broken pipe.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"attempt-(\d+)\.log")
# A log that reached its bound keeps this fraction of it; older lines are dropped.
_KEPT = 0.5


class DriverLogs:
    """The logs below one directory, each of at most ``max_bytes``."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self.max_bytes = max_bytes

    def path(self, job_id: str, attempt: int) -> Path:
        return self.directory / job_id / f"attempt-{attempt}.log"

    @contextmanager
    def open(self, job_id: str, attempt: int) -> Iterator[int]:
        """A descriptor for the driver's output. The file is private, because tracebacks may quote data."""
        handle = os.open(self.create(job_id, attempt), os.O_WRONLY | os.O_APPEND)
        try:
            yield handle
        finally:
            os.close(handle)

    def create(self, job_id: str, attempt: int) -> Path:
        """The path of a log that exists and that only this user can read."""
        path = self.path(job_id, attempt)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return path

    def attempts(self, job_id: str) -> list[int]:
        try:
            names = [entry.name for entry in (self.directory / job_id).iterdir()]
        except OSError:
            return []
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def tail(self, job_id: str, attempt: int | None = None, most_bytes: int = 64 << 10) -> str:
        """The end of one attempt's log, the newest one's by default, from the start of a line."""
        known = self.attempts(job_id)
        if not known or (attempt is not None and attempt not in known):
            return ""
        return _tail(self.path(job_id, known[-1] if attempt is None else attempt), most_bytes)

    def last_lines(self, job_id: str, attempt: int, lines: int = 4) -> str:
        """The last lines that are not empty, for an error message."""
        return self.last_lines_of(self.path(job_id, attempt), lines)

    @staticmethod
    def last_lines_of(path: Path, lines: int = 4) -> str:
        """The last lines of any log that are not empty; "" if there is no such log."""
        try:
            tail = [line.strip() for line in _tail(path, 8192).splitlines() if line.strip()]
        except OSError:
            return ""
        return " | ".join(tail[-lines:])[-1000:]

    def bound(self, job_id: str, attempt: int) -> None:
        """Cut a log that is larger than its bound. The driver appends, so it goes on at the new end."""
        path = self.path(job_id, attempt)
        try:
            if path.stat().st_size <= self.max_bytes:
                return
            with path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(size - int(self.max_bytes * _KEPT))
                kept = file.read().partition(b"\n")[2]
                file.seek(0)
                file.truncate(0)
                # A handle that appends is used, because the driver may have appended in the meantime.
                with path.open("ab", buffering=0) as end:
                    end.write(b"[earlier lines were dropped: the log reached its bound]\n" + kept)
        except OSError:
            return

    def delete(self, job_id: str) -> None:
        shutil.rmtree(self.directory / job_id, ignore_errors=True)


def _tail(path: Path, most_bytes: int) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        text = file.read(most_bytes).decode("utf-8", "replace")
    return text if size <= most_bytes else text.partition("\n")[2]
