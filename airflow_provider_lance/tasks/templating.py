"""The values of arguments after Airflow rendered them: Jinja gives text where a number or a dict is expected.

An empty text and the word ``None`` count as not given, so that a template can leave an argument out. A value that
cannot be read fails the task without another try, because another try would render the same value.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, get_args

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_lance.api.ids import Identifier, InvalidIdentifierError
from airflow_provider_lance.api.job_states import JobState
from airflow_provider_lance.tasks.errors import task_error

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_provider_lance.api.plain_data import JsonObject
    from airflow_provider_lance.hooks.lance import LanceNamespaceHook

    #: The dict that another task returned, or the reference to it that a DAG passes on, such as ``task.output``.
    TaskOutput = Mapping[str, object] | XComArg

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}
_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=str)

#: Reads the rendered value of the argument with this name.
Reader = Callable[[str, object], object]


def none_if_blank(value: _Value) -> _Value | None:
    """The value, or ``None`` where a template rendered to nothing."""
    return None if isinstance(value, str) and value.strip() in ("", "None") else value


def as_text(_name: str, value: object) -> object:
    """The value as it is, because the server checks texts itself."""
    return none_if_blank(value)


def as_integer(name: str, value: object) -> int | None:
    """An ``int``, or a text that is one."""
    value = none_if_blank(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise AirflowFailException(f"`{name}` must be a whole number, not {value!r}.")


def as_number(name: str, value: object) -> float | None:
    """An ``int`` or ``float``, or a text that is one."""
    value = none_if_blank(value)
    if value is None:
        return None
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise AirflowFailException(f"`{name}` must be a number, not {value!r}.")
    return found


def as_boolean(name: str, value: object) -> bool | None:
    """A ``bool``, or the word ``true`` or ``false`` in any case."""
    value = none_if_blank(value)
    if value is None or isinstance(value, bool):
        return value
    found = _BOOLEANS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise AirflowFailException(f"`{name}` must be true or false, not {value!r}.")
    return found


def parse_literal(value: object) -> object:
    """The value, or the dict or list that its text is: a template renders one as Python or JSON writes it."""
    value = none_if_blank(value)
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    parsers: tuple[Callable[[str], object], ...] = (ast.literal_eval, json.loads)
    for parse in parsers:
        try:
            return parse(value.strip())
        except (ValueError, SyntaxError, RecursionError):
            continue
    return value


def as_mapping(name: str, value: object) -> JsonObject | None:
    """A dict, or a text that is one."""
    value = parse_literal(value)
    if value is None or isinstance(value, Mapping):
        return None if value is None else dict(value)
    raise AirflowFailException(f"`{name}` must be a dict, not {value!r}.")


def as_version(name: str, value: object) -> int | None:
    """A version number, or the ``version`` in the dict that another Lance task returned."""
    found = parse_literal(value)
    if not isinstance(found, Mapping):
        return as_integer(name, found)
    if found.get("version") is None:
        raise AirflowFailException(f"`{name}` must be a version number, and {value!r} has none.")
    return as_integer(name, found["version"])


def rendered_fields(operator: object, readers: Mapping[str, Reader]) -> dict[str, object]:
    """The operator's attributes of these names, each read by its reader; those that were not given are left out."""
    fields = {name: read(name, getattr(operator, name)) for name, read in readers.items()}
    return {name: value for name, value in fields.items() if value is not None}


def read_table_id(hook: LanceNamespaceHook, identifier: Identifier, task_id: str) -> list[str]:
    """A table's identifier as a list. An identifier that names no table fails the task without another try."""
    try:
        parts = hook.parse_id(identifier)
    except InvalidIdentifierError as error:
        raise task_error(error) from None
    if not parts:
        raise AirflowFailException(f"Task {task_id} names no table: its identifier is empty.")
    return parts


def read_job_id(value: object) -> str:
    """A job's id, from an argument that is the id or the dict that a job operator returned."""
    found = parse_literal(value)
    text = str((found.get("job_id") if isinstance(found, Mapping) else found) or "").strip()
    if not text or text.startswith(("{", "[")):
        raise AirflowFailException("There is no job to look at: the job id is empty. Did the task that starts it run?")
    return text


def read_result_without_job(value: object) -> JsonObject | None:
    """What a job operator returned when its request needed no job; ``None`` where there is a job to wait for."""
    found = parse_literal(value)
    if isinstance(found, Mapping) and not found.get("job_id") and found.get("state") == JobState.DONE.value:
        return dict(found)
    return None


def choice(name: str, value: _Choice, choices: object) -> _Choice:
    """Check, while the DAG is parsed, that the value is one of the words of the ``Literal`` type ``choices``."""
    words = get_args(choices)
    if value not in words:
        quoted = [repr(word) for word in words]
        raise ValueError(f"{name} is {', '.join(quoted[:-1])} or {quoted[-1]}, not {value!r}.")
    return value
