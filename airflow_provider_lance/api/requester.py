"""``Requester``: the Airflow task that asked for a job, as context entries of its request and as the job's description.

It is shown to people. Nothing else depends on it: neither a job's idempotency key, nor the comparison of two requests,
nor what a caller may do.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self
from urllib.parse import quote, unquote

from airflow_provider_lance.api.plain_data import JsonMapping, JsonObject

DAG_ID = "dag-id"
RUN_ID = "run-id"
TASK_ID = "task-id"
MAP_INDEX = "map-index"
TRY = "try"
# An HTTP header carries no letters beyond Latin-1, which DAGs, runs and tasks may have in their names.
_SAFE = "".join(sorted(set(string.punctuation + " ") - {"%"}))
# Airflow's names have 250 characters at most; the encoded forms stay far below the limits of servers and proxies.
_LONGEST_NAME = 250
_LONGEST_ENCODED = 1000


@dataclass(frozen=True)
class Requester:
    """A try of a task. ``map_index`` is -1 for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = 1

    def to_context(self) -> dict[str, str]:
        """The context entries of a request that name the task."""
        return {
            DAG_ID: _encoded(self.dag_id),
            RUN_ID: _encoded(self.run_id),
            TASK_ID: _encoded(self.task_id),
            MAP_INDEX: str(self.map_index),
            TRY: str(self.try_number),
        }

    @classmethod
    def from_context(cls, context: Mapping[str, str]) -> Self | None:
        """The task that a request's context names; ``None`` where it names none. ``ValueError`` with a sentence."""
        dag_id, run_id, task_id = (_decoded(context.get(key)) for key in (DAG_ID, RUN_ID, TASK_ID))
        if not (dag_id or run_id or task_id):
            return None
        return cls(dag_id, run_id, task_id, _number(context, MAP_INDEX, -1), _number(context, TRY, 1))

    def to_dict(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> Self | None:
        """The task in a job's description of any server; ``None`` where it has none that can be read."""
        if not isinstance(data, Mapping):
            return None
        dag_id, run_id, task_id = (_text(data, key) for key in ("dag_id", "run_id", "task_id"))
        if not (dag_id or run_id or task_id):
            return None
        return cls(dag_id, run_id, task_id, _whole(data, "map_index", -1), _whole(data, "try_number", 1))

    @property
    def task(self) -> str:
        """The task, with its map index where it has one: ``fill[3]``."""
        return f"{self.task_id}[{self.map_index}]" if self.map_index >= 0 else self.task_id

    def describe(self) -> str:
        """The DAG, the task and the run in one line: ``etl · fill[3] · manual__2026-01-05 · try 2``."""
        again = f"try {self.try_number}" if self.try_number > 1 else ""
        return " · ".join(filter(None, (self.dag_id, self.task, self.run_id, again)))


def _encoded(text: str) -> str:
    while len(encoded := quote(text, safe=_SAFE)) > _LONGEST_ENCODED:
        text = text[: len(text) * 9 // 10]
    return encoded.strip()


def _decoded(text: str | None) -> str:
    decoded = unquote(text or "").strip()
    return "".join(character for character in decoded if character.isprintable())[:_LONGEST_NAME]


def _number(context: Mapping[str, str], key: str, default: int) -> int:
    text = context.get(key)
    if not text:
        return default
    try:
        number = int(text)
    except ValueError:
        number = -2
    if not -1 <= number < 2**31:
        raise ValueError(f"The context's `{key}` must be a whole number.")
    return number


def _text(data: JsonMapping, key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _whole(data: JsonMapping, key: str, default: int) -> int:
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
