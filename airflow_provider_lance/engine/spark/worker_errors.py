"""What an error of Spark says about the Python worker in which a task failed."""

from __future__ import annotations

import re

_WORKER_DIED = ("Python worker exited unexpectedly", "EOFException", "Connection reset")


def worker_error(error: Exception) -> str:
    """The last line of the worker's traceback, or Spark's own message where there is none.

    Java's stack follows the message; it is in the driver's log.
    """
    message = str(error).split("\n\tat ", 1)[0]
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith((" ", "\t", "SQLSTATE"))]
    return lines[-1].lstrip(": ")[:1000] if lines else type(error).__name__


def worker_death(error: Exception, rule: str) -> str | None:
    """A sentence for a task whose Python worker process died while it ran ``rule``; None for any other error."""
    text = str(error)
    if not any(sign in text for sign in _WORKER_DIED):
        return None
    code = re.search(r"exit(?:ed with)? (?:code|status)[: ]+(-?\d+)", text)
    ending = f" (exit code {code[1]})" if code else ""
    return (
        f"the Python worker process died{ending} while it ran {rule}. It may have run out of memory, called os._exit "
        "or crashed in native code; the executor's log may say more."
    )
