"""A stateful function in a worker: its arguments, one setup for many tasks, and close() when it is no longer used."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope, wrap
from airflow_provider_lance.engine.functions import load_function
from airflow_provider_lance.engine.functions.load_function import loaded_function
from airflow_provider_lance.functions import UdfColumn, UdfError

HERE = "tests.engine.backfill.test_loaded_functions"
events: list[str] = []
closed = threading.Event()


class Model:
    def __init__(self, name: str, *, factor: int = 1) -> None:
        self.name, self.factor = name, factor

    def setup(self) -> None:
        events.append(f"setup {self.name}")

    def __call__(self, id: int) -> int:
        return id * self.factor

    def close(self) -> None:
        events.append(f"close {self.name}")
        closed.set()


class AsyncModel(Model):
    async def setup(self) -> None:  # type: ignore[override]
        super().setup()

    async def __call__(self, id: int) -> int:  # type: ignore[override]
        return id * self.factor

    async def close(self) -> None:  # type: ignore[override]
        super().close()


@pytest.mark.parametrize("kind", ["Model", "AsyncModel"])
def test_a_model_is_set_up_once_and_closed_when_it_is_idle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_function, "IDLE_SECONDS", 0.01)
    events.clear()
    closed.clear()
    envelope = wrap(f"{HERE}:{kind}", arguments={"name": kind, "factor": 3})
    envelope = UdfEnvelope.decode(envelope.backend, envelope.encode())
    with loaded_function(envelope) as first:
        with loaded_function(envelope) as second:
            assert (first(2), second(3)) == (6, 9)
        assert not closed.wait(0.1), "it is still in use"
    assert closed.wait(30)
    assert events == [f"setup {kind}", f"close {kind}"]
    closed.clear()
    with loaded_function(envelope) as again:
        assert again(1) == 3
    assert closed.wait(30)
    assert events == [f"setup {kind}", f"close {kind}"] * 2


def test_other_arguments_are_another_rule() -> None:
    path = f"{HERE}:Model"
    one, other = (wrap(path, arguments={"name": name}).fingerprint for name in ("a", "b"))
    assert one != other
    assert wrap(path, arguments={"name": "a"}, retries=5, timeout=3, batch_rows=9).fingerprint == one


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (UdfColumn(Model), "missing a required argument: 'name'"),
        (UdfColumn(Model, arguments={"name": "a", "size": 1}), "unexpected keyword argument 'size'"),
        (UdfColumn(Model, arguments={"name": object()}), "the argument 'name' cannot be stored as JSON"),
        (
            UdfColumn(len, ["text"], "int64", arguments={"a": 1}),
            "len is no class, so it takes no arguments",
        ),
        (UdfColumn(len, ["text"], "int64", {"timeout": -1}), "timeout is -1; it must be a number above 0"),
        (UdfColumn(len, ["text"], "int64", {"batch_rows": 0}), "batch_rows is 0; it must be a whole number above 0"),
        (UdfColumn(len, ["text"], "int64", {"on_error": []}), "must be fail, null, retry or a list of Retry"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_column_is_declared(column: UdfColumn, reason: str) -> None:
    with pytest.raises(UdfError, match=f"The column 'n' cannot be declared: .*{reason}"):
        column.entry("n")
