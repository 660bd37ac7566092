"""Environment variables of a job's functions in a Python worker: stated values and secrets.

A worker process belongs to one job, so nothing is taken back. Values of secrets are replaced in messages, because
libraries put them into the text of their errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_HIDDEN = "***"
# A shorter value would be found in ordinary words.
_SHORTEST = 4

_values: set[str] = set()


def set_variables(plain: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Put the variables of a function into the environment of this worker."""
    os.environ.update(plain)
    os.environ.update(secrets)
    _values.update(value for value in secrets.values() if len(value) >= _SHORTEST)


def hide_secrets(text: str) -> str:
    """The text without the values of the job's secrets."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return text
