"""The part of a traceback that shows a user's own function."""

from __future__ import annotations

import traceback
from pathlib import Path

from airflow_provider_lance.engine.functions.worker_variables import hide_secrets

_OURS = str(Path(__file__).resolve().parents[2]) + "/"
_FOREIGN = ("/pyspark/", "/cloudpickle/", "/py4j/")
_MOST_FRAMES = 20
_MOST_CHARACTERS = 4000


def user_traceback(error: BaseException) -> str:
    """The traceback of an error without the frames of this package and of Spark; empty where none is left.

    Frames of libraries that the function called are kept, because they may explain the error.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS) and not any(part in frame.filename for part in _FOREIGN)
    ]
    if not frames:
        return ""
    shown = frames if len(frames) <= _MOST_FRAMES else [*frames[: _MOST_FRAMES // 2], *frames[-_MOST_FRAMES // 2 :]]
    lines = traceback.format_list(shown) + traceback.format_exception_only(error)
    text = hide_secrets("".join(lines).rstrip())
    return text if len(text) <= _MOST_CHARACTERS else "..." + text[-_MOST_CHARACTERS + 3 :]
