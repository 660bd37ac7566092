"""Looks that fail while a task or a watcher waits: counted, told in the log, and followed by longer pauses.

Without I/O. Operators, sensors and triggers share it, so that a failed look reads the same wherever it happens.
"""

from __future__ import annotations

from typing import Any

_LONGEST_PAUSE, _LONGEST_ASKED = 60.0, 900.0


class FailedLooks:
    """Failed looks in a row: a WARNING for each of them, and one line when the server answers again.

    :param log: a logger, or anything with its ``warning`` and ``info``.
    :param most: how many looks in a row may fail; ``None`` for somebody who never gives up.
    """

    def __init__(self, log: Any, most: int | None = None) -> None:
        self._log = log
        self._most = most
        self._asked: float | None = None  # the pause the server asked for
        self.count = 0
        #: What the last look said, if it failed.
        self.reason: str | None = None

    def failed(self, error: Exception, *, may_pass: bool = True) -> bool:
        """Count a failed look; whether to look again. ``may_pass``: the same look may succeed later."""
        self.count += 1
        self.reason = describe_error(error)
        self._asked = getattr(error, "retry_after", None)
        if self._most is not None and (not may_pass or self.count > self._most):
            return False
        if self._most is None:
            self._log.warning("Look %d failed, will look again: %s", self.count, self.reason)
        else:
            self._log.warning("Look %d of at most %d failed, will look again: %s", self.count, self._most, self.reason)
        return True

    def answered(self) -> None:
        """A look was answered, whatever it showed."""
        if self.count:
            self._log.info("The server answers again, after %d failed look%s.", self.count, "s"[: self.count > 1])
        self.count, self.reason, self._asked = 0, None, None

    def pause(self, usual: float) -> float:
        """How long to wait for the next look: longer and longer while looks fail, and as long as the server says."""
        if not self.count:
            return usual
        longer = max(usual, min(_LONGEST_PAUSE, usual * 2 ** min(self.count - 1, 6)))
        return max(longer, min(self._asked or 0.0, _LONGEST_ASKED))


def describe_error(error: Exception) -> str:
    """Our own errors are sentences; of others the class tells more than the text."""
    from airflow_provider_lance.api.errors import WireError

    return str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
