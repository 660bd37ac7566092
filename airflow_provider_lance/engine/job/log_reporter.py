"""The reporter of a run without a server, which writes progress to the driver's log.

Such a run has no lease. The process that starts it may lock the spec's file instead, and the job ends when the lock is
released: a driver whose starter was killed must not run beside the driver of the next attempt.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from pathlib import Path

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine.job.context import JobCancelledError

log = logging.getLogger("airflow_provider_lance.engine")

LINE_SECONDS = 3.0
_LOCK_SECONDS = 1.0


class LogReporter:
    """Logs events at once, and progress when it changed, at most every few seconds."""

    def __init__(self, *, lines: bool = True, lock: Path | None = None) -> None:
        self._lines = lines
        self._lock = lock
        self._guard = threading.Lock()
        self._stage = ("", False)
        self._line = ""
        self._logged = 0.0
        self._checked = 0.0

    def progress(self, progress: Progress) -> None:
        line = progress.describe()
        with self._guard:
            stage = (progress.phase, progress.fraction >= 1.0)  # the last figures are always logged
            due = time.monotonic() - self._logged >= LINE_SECONDS or stage != self._stage
            if not self._lines or line == self._line or not due:
                return
            self._stage, self._line, self._logged = stage, line, time.monotonic()
        log.info("Progress: %s", line)

    def event(self, message: str, **fields: object) -> None:
        log.info("%s", message)

    def check(self) -> None:
        if time.monotonic() - self._checked >= _LOCK_SECONDS:
            self.check_commit()

    def check_commit(self) -> None:
        self._checked = time.monotonic()
        if self._lock is not None and not _is_locked(self._lock):
            raise JobCancelledError("The process that started this run is gone")


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file was removed
        return False
    return False
