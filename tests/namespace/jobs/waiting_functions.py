"""Functions of a user that leave traces in their process, and one that looks for them."""

from __future__ import annotations

import json
import os
import tempfile
import threading

SOILED: list[str] = []


def soil(text: str) -> str:
    """Leave one trace of each kind, and say which process it was."""
    SOILED.append(text)
    os.environ["LANCE_SOILED"] = "yes"
    os.chdir(tempfile.gettempdir())
    json.dumps = lambda *_, **__: "soiled"
    if not any(thread.name == "soil" for thread in threading.enumerate()):
        threading.Thread(target=threading.Event().wait, name="soil", daemon=True).start()
    return str(os.getppid())


def look(_text: str) -> str:
    """Which traces of :func:`soil` there are."""
    found = {
        "global": bool(SOILED),
        "variable": "LANCE_SOILED" in os.environ,
        "working directory": os.getcwd() == tempfile.gettempdir(),
        "patch": json.dumps({}) == "soiled",
        "thread": any(thread.name == "soil" for thread in threading.enumerate()),
    }
    return ", ".join(name for name, there in found.items() if there) or "nothing"
