"""The reporter of a run without a server: the driver's log tells how far the job is.

Such a run has no lease either. Whoever starts it may hold a lock on the spec's file instead, and the job ends with that
lock: a driver whose starter was killed must not go on beside the next one.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from pathlib import Path
from typing import Any

from airflow_provider_lance.api.jobs import Progress
from airflow_provider_lance.engine.context import JobCancelledError

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
        self._looked = 0.0

    def progress(self, progress: Progress) -> None:
        line = progress.describe()
        with self._guard:
            stage = (progress.phase, progress.fraction >= 1.0)  # the last figures are worth a line, however soon
            due = time.monotonic() - self._logged >= LINE_SECONDS or stage != self._stage
            if not self._lines or line == self._line or not due:
                return
            self._stage, self._line, self._logged = stage, line, time.monotonic()
        log.info("Progress: %s", line)

    def event(self, message: str, **fields: Any) -> None:
        log.info("%s", message)

    def check(self) -> None:
        if time.monotonic() - self._looked >= _LOCK_SECONDS:
            self.check_commit()

    def check_commit(self) -> None:
        self._looked = time.monotonic()
        if self._lock is not None and not _is_locked(self._lock):
            raise JobCancelledError("Whoever started this run is gone")


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file is gone, too
        return False
    return False
