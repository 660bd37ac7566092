"""Files that only their owner can read: how secrets reach a driver, which no command line may carry."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600; it has that mode before the first byte is in it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def private_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder of mode 0700, removed with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
