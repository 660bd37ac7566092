"""Points in the code at which tests kill the process. They do nothing unless ``LANCE_ENGINE_TEST_FAULT`` names them.

``point`` kills the process with SIGKILL when the point is reached, ``point:3`` when it is reached for the third time.
``point:once:/path`` kills it only while that file does not exist and creates the file first, which kills one worker of
many, once. Commas separate several points.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "LANCE_ENGINE_TEST_FAULT"
_seen: dict[str, int] = {}


def failpoint(point: str) -> None:
    """Kill this process if the test asks for it at ``point``."""
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
