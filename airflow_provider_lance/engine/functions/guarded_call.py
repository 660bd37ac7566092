"""Calls of a user's function under its error policy and its time limit, inside a Spark worker."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from airflow_provider_lance.definitions.functions.failure_policy import ErrorPolicy

_T = TypeVar("_T")


def call_with_retries(policy: ErrorPolicy, call: Callable[[], _T]) -> _T:
    """Call a function as often as the policy allows; the last error is raised as it is."""
    attempt = 0
    while True:
        try:
            return call()
        except Exception as error:
            decision = policy.decide(error, attempt)
            if isinstance(decision, str):
                raise
            time.sleep(decision)
            attempt += 1


def too_long(seconds: float) -> TimeoutError:
    """The error of a call that takes longer than its time limit."""
    return TimeoutError(f"the call took longer than {seconds:g} s")


def time_limited(function: Callable[..., _T], seconds: float) -> Callable[..., _T]:
    """The same function, which raises TimeoutError after ``seconds``.

    In the main thread a signal interrupts the call. In other threads, which ``intra_applier_concurrency`` starts, the
    call is left to end by itself.
    """

    def limited(*arguments: object) -> _T:
        if threading.current_thread() is threading.main_thread():
            return _interrupted(function, arguments, seconds)
        return _abandoned(function, arguments, seconds)

    return limited


def _interrupted(function: Callable[..., _T], arguments: tuple[object, ...], seconds: float) -> _T:
    def interrupt(*_: object) -> None:
        raise too_long(seconds)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _abandoned(function: Callable[..., _T], arguments: tuple[object, ...], seconds: float) -> _T:
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(function(*arguments))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True, name="limited-call").start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise  # the function itself raised it
        raise too_long(seconds) from None
