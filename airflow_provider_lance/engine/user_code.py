"""Which lines of a traceback are the user's: what a person needs to find a mistake in a function of their own."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).resolve().parent.parent) + "/"
_FOREIGN = ("/pyspark/", "/cloudpickle/", "/py4j/")
_MOST_FRAMES = 20
_MOST_CHARACTERS = 4000


def user_traceback(error: BaseException) -> str:
    """The traceback of an error without the frames of this package and of Spark; empty where none is left.

    Libraries that the function called are kept, because the error may say something only there.
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
    text = "".join(lines).rstrip()
    return text if len(text) <= _MOST_CHARACTERS else "..." + text[-_MOST_CHARACTERS + 3 :]
