"""The request to load files into a table: every field read, checked and given its type.

The server reads a request before a job exists, and the engine reads it again when the job runs. A field that cannot be
honoured is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from airflow_provider_lance.definitions.errors import invalid

WriteMode = Literal["append", "overwrite", "upsert", "create"]
ROWS_PER_FILE = 1024 * 1024
_TEXTS = ("path", "file_format", "branch", "cluster")
_COUNTS = ("max_rows_per_file", "concurrency")
_ENVELOPE = ("id", "identity", "context")  # the request carries these for the server, not for the job


@dataclass(frozen=True)
class WriteRequest:
    """What is loaded, and how."""

    path: str
    file_format: str | None = None
    mode: WriteMode = "append"
    on: tuple[str, ...] = ()
    replace_schema: bool = False
    branch: str | None = None
    max_rows_per_file: int = ROWS_PER_FILE
    concurrency: int | None = None
    cluster: str | None = None

    @classmethod
    def parse(cls, request: Mapping[str, object]) -> WriteRequest:
        """Read a request body; ``InvalidInputError`` names the field that is wrong."""
        given = {name: value for name, value in request.items() if value is not None and name not in _ENVELOPE}
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            raise invalid(f"A write has no field {unknown[0]!r}; it has {', '.join(cls.__dataclass_fields__)}.")
        for name in _TEXTS:
            if name in given and not (isinstance(given[name], str) and str(given[name]).strip()):
                raise invalid(f"{name} is {given[name]!r}; it must be text that is not empty.")
        for name in _COUNTS:
            value = given.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise invalid(f"{name} is {value!r}; it must be a whole number of 1 or more.")
        if not isinstance(given.get("replace_schema", False), bool):
            raise invalid(f"replace_schema is {given['replace_schema']!r}; it must be true or false.")
        if "path" not in given:
            raise invalid("A write needs a path: a file, a folder or a pattern that the job can read.")
        given["on"] = _names(given.get("on", ()))
        parsed = cls(**given)  # type: ignore[arg-type]  # each field was checked above
        try:
            check_mode(parsed.mode, parsed.on, replace_schema=parsed.replace_schema)
        except ValueError as error:
            raise invalid(str(error)) from None
        return parsed


def check_mode(mode: str, on: str | Sequence[str] | None, *, replace_schema: bool = False) -> None:
    """Raise ``ValueError`` unless the mode is one and the other arguments fit it."""
    modes = get_args(WriteMode)
    if mode not in modes:
        raise ValueError(f"mode is {mode!r}; it must be {', '.join(modes[:-1])} or {modes[-1]}.")
    if mode == "upsert" and not on:
        raise ValueError("mode='upsert' needs `on`: the column, or columns, by which rows are found.")
    if mode != "upsert" and on:
        raise ValueError(f"`on` is for mode='upsert', not for mode={mode!r}.")
    if replace_schema and mode != "overwrite":
        raise ValueError(f"`replace_schema` is for mode='overwrite', not for mode={mode!r}.")


def _names(value: object) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) and name for name in found):
        raise invalid(f"on is {value!r}; it must be the name of a column, or a list of names.")
    return tuple(found)
