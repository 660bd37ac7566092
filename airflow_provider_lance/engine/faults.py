"""Places where tests let a process die. Inert unless ``LANCE_ENGINE_TEST_FAULT`` names one of them.

``point`` kills the process with SIGKILL when it is reached, ``point:3`` the third time, ``point:once:/path`` only while
that file does not exist (it is created first), which kills one worker of many, once. Commas separate several.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "LANCE_ENGINE_TEST_FAULT"
_seen: dict[str, int] = {}


def reach(point: str) -> None:
    for chosen in os.environ.get(VARIABLE, "").split(","):
        name, _, rule = chosen.partition(":")
        if name == point and _due(point, rule):
            os.kill(os.getpid(), signal.SIGKILL)


def _due(point: str, rule: str) -> bool:
    if rule.startswith("once:"):
        try:
            os.close(os.open(rule.removeprefix("once:"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
    _seen[point] = _seen.get(point, 0) + 1
    return _seen[point] == int(rule or 1)
