"""Polls that fail while a task or a watcher waits: they are counted, logged, and followed by longer pauses.

Operators, sensors and triggers share this module. It does no I/O.
"""

from __future__ import annotations

from airflow_provider_lance.api.errors import WireError
from airflow_provider_lance.tasks.errors import TaskLog

_LONGEST_PAUSE, _LONGEST_RETRY_AFTER = 60.0, 900.0


class PollErrors:
    """The failed polls in a row: a WARNING for each of them, and one line when the server answers again.

    :param log: The log that gets the lines.
    :param most: How many polls in a row may fail. ``None`` sets no limit.
    """

    def __init__(self, log: TaskLog, most: int | None = None) -> None:
        self._log = log
        self._most = most
        self._retry_after: float | None = None
        self._count = 0
        #: Why the last poll failed; ``None`` if it was answered.
        self.reason: str | None = None

    def tolerate(self, error: Exception, *, may_pass: bool = True) -> bool:
        """Count a failed poll and return whether to poll again.

        :param error: What the poll raised.
        :param may_pass: Whether the same poll may succeed later.
        """
        self._count += 1
        # The text of a WireError is a sentence; of other errors the class tells more than the text.
        self.reason = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
        self._retry_after = error.retry_after if isinstance(error, WireError) else None
        if self._most is None:
            self._log.warning("Look %d failed, will look again: %s", self._count, self.reason)
            return True
        if not may_pass or self._count > self._most:
            return False
        self._log.warning("Look %d of at most %d failed, will look again: %s", self._count, self._most, self.reason)
        return True

    def clear(self) -> None:
        """Start counting anew, because the server answered."""
        if self._count:
            self._log.info("The server answers again, after %d failed look%s.", self._count, "s"[: self._count > 1])
        self._count, self.reason, self._retry_after = 0, None, None

    def pause(self, usual: float) -> float:
        """The seconds until the next poll: more with each failure, and at least what ``Retry-After`` asked for."""
        if not self._count:
            return usual
        longer = max(usual, min(_LONGEST_PAUSE, usual * 2.0 ** min(self._count - 1, 6)))
        return max(longer, min(self._retry_after or 0.0, _LONGEST_RETRY_AFTER))
