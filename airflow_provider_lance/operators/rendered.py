"""Arguments after Airflow rendered them: a template gives text where a number or a truth was meant.

An empty text and the word ``None`` count as not given, so that a template may leave an argument out. What is neither
fails the task at once, with a sentence that names the argument: another try would render the same.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

_WHOLE = re.compile(r"[+-]?[0-9]+")
_WORDS = {"true": True, "false": False}


def given(value: Any) -> Any:
    """The value itself, or ``None`` where a template left nothing."""
    return None if isinstance(value, str) and value.strip() in ("", "None") else value


def text(_name: str, value: Any) -> Any:
    """Left to whoever reads it."""
    return given(value)


def whole_number(name: str, value: Any) -> int | None:
    """An ``int``, or text that is one."""
    value = given(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    raise AirflowFailException(f"`{name}` must be a whole number, not {value!r}.")


def number(name: str, value: Any) -> float | None:
    """An ``int`` or ``float``, or text that is one."""
    value = given(value)
    if value is None:
        return None
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise AirflowFailException(f"`{name}` must be a number, not {value!r}.")
    return found


def truth(name: str, value: Any) -> bool | None:
    """A ``bool``, or the word for one."""
    value = given(value)
    if value is None or isinstance(value, bool):
        return value
    found = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise AirflowFailException(f"`{name}` must be true or false, not {value!r}.")
    return found


def literal(value: Any) -> Any:
    """The value itself, or what its text says: a template renders a dict or a list as text, in Python or in JSON."""
    value = given(value)
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    for read in (ast.literal_eval, json.loads):
        try:
            return read(value.strip())
        except (ValueError, SyntaxError, RecursionError):
            continue
    return value


def mapping(name: str, value: Any) -> dict[str, Any] | None:
    """A dict, or text that is one."""
    value = literal(value)
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(value)
    raise AirflowFailException(f"`{name}` must be a dict, not {value!r}.")


def version_number(name: str, value: Any) -> int | None:
    """A version: a number, or the dict of another Lance task that has one."""
    found = literal(value)
    number = found.get("version") if isinstance(found, Mapping) else found
    if isinstance(found, Mapping) and number is None:
        raise AirflowFailException(f"`{name}` must be a version number, and {value!r} has none.")
    return whole_number(name, number)


def rendered_fields(operator: Any, kinds: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
    """The arguments of these names that were given, each as its kind reads it."""
    fields = {name: read(name, getattr(operator, name)) for name, read in kinds.items()}
    return {name: value for name, value in fields.items() if value is not None}
