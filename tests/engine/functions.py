"""Functions that virtual columns of the tests name by import path."""

from __future__ import annotations

import os
from typing import Any

import pyarrow.compute as pc

from airflow_provider_lance.definitions.functions.envelope import udf


def double(number: int) -> int:
    return number * 2


@udf(call="batch")
def lengths(batch: Any) -> Any:
    return pc.utf8_length(batch.column("text"))


class Counter:
    """Stateful: set up once per worker process, however many batches it sees."""

    def setup(self) -> None:
        self.process = os.getpid()
        self.calls = 0

    def __call__(self, number: int) -> dict[str, Any]:
        self.calls += 1
        return {"process": self.process, "calls": self.calls}


def odd_only(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number
