"""Files that only their owner can read. Secrets reach a driver in them, because a command line is public."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600. It has that mode before anything is written to it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def private_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder of mode 0700, which is removed at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
