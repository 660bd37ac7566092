"""Loads the function of an envelope inside a Spark worker. This module and ``source_loader.py`` run foreign code."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from airflow_provider_lance.definitions.functions.envelope import UdfEnvelope
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.functions.signature import is_async, is_stateful
from airflow_provider_lance.engine.functions.async_function import AsyncFunction, EventLoop
from airflow_provider_lance.engine.functions.guarded_call import time_limited
from airflow_provider_lance.engine.functions.source_loader import load_source

log = logging.getLogger(__name__)


DEFAULT_CONCURRENCY = 8
# A function that no task has used for this long is closed. Spark ends idle workers after a minute, without a warning.
IDLE_SECONDS = 20.0


class _Loaded:
    """A loaded function, the instance that it belongs to, and how many tasks use it."""

    def __init__(self, function: Callable[..., object], instance: object | None, loop: EventLoop | None) -> None:
        self.function = function
        self.instance = instance
        self.loop = loop
        self.users = 0
        self.timer: threading.Timer | None = None

    def close(self) -> None:
        """Call the instance's own ``close()``; an error there changes no value, so it is only logged."""
        try:
            _run(getattr(self.instance, "close", None), self.loop)
        except Exception:
            log.exception("close() of %s failed", type(self.instance).__name__)
        if self.loop is not None:
            self.loop.stop()


# A worker process runs many tasks, and a stateful function is set up once per process and not once per task.
_loaded: dict[str, _Loaded] = {}
_lock = threading.Lock()


@contextmanager
def loaded_function(envelope: UdfEnvelope) -> Iterator[Callable[..., Any]]:
    """Load a function, **which runs foreign code**; a class becomes an instance, set up once per process.

    Its ``close()`` is called when no task has used it for a while.
    """
    key = f"{envelope.fingerprint}-{envelope.timeout}-{envelope.max_concurrency}"
    with _lock:
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _loaded[key] = _load(envelope)
        loaded.users += 1
        if loaded.timer is not None:
            loaded.timer.cancel()
    try:
        yield loaded.function
    finally:
        with _lock:
            loaded.users -= 1
            if not loaded.users and (loaded.loop is not None or callable(getattr(loaded.instance, "close", None))):
                loaded.timer = threading.Timer(IDLE_SECONDS, _close_idle, (key, loaded))
                loaded.timer.daemon = True
                loaded.timer.start()


def _close_idle(key: str, loaded: _Loaded) -> None:
    with _lock:
        if loaded.users or _loaded.get(key) is not loaded:
            return
        del _loaded[key]
    loaded.close()


def _load(envelope: UdfEnvelope) -> _Loaded:
    if envelope.source is not None:
        function, instance = load_source(envelope.source)
        return _Loaded(function, instance, None)
    found = _import(envelope.path) if envelope.path is not None else _unpickle(envelope)
    loop = EventLoop() if is_async(found) else None
    instance = None
    if is_stateful(found):
        try:
            instance = found = cast(type, found)(**envelope.arguments)
            _run(getattr(instance, "setup", None), loop)
        except BaseException:
            if loop is not None:
                loop.stop()
            raise
    elif envelope.arguments:
        raise UdfError(f"{envelope.path} is no class, so it takes no arguments")
    if not callable(found):
        raise UdfError(f"{envelope.path or 'the pickled object'} is a {type(found).__name__}, not a function")
    called: Callable[..., object] = found
    if loop is not None:
        limit = envelope.max_concurrency or DEFAULT_CONCURRENCY
        called = AsyncFunction(found, loop, limit, envelope.timeout)
    elif envelope.timeout is not None:
        called = time_limited(found, envelope.timeout)
    return _Loaded(called, instance, loop)


def _run(method: object, loop: EventLoop | None) -> None:
    """Call a method of a stateful function, which may be a coroutine function."""
    if not callable(method):
        return
    result = method()
    if inspect.iscoroutine(result):
        if loop is None:
            result.close()
            raise UdfError("setup() and close() can only be async where the function itself is")
        loop.run(result)


def _import(path: str) -> object:
    module, _, attributes = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for name in attributes.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise UdfError(
            f"{path} cannot be imported where Spark's Python workers run ({error}). Install the package there, or "
            "ship it with py_files."
        ) from error
    return found


def _unpickle(envelope: UdfEnvelope) -> object:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if envelope.python and envelope.python != running:
        raise UdfError(
            f"the function was pickled by Python {envelope.python} and the worker runs {running}: byte code does not "
            "travel between them. Declare it again from the worker's version, or use an import path."
        )
    import cloudpickle

    assert envelope.pickle is not None
    try:
        function: object = cloudpickle.loads(envelope.pickle)
        return function
    except (ImportError, AttributeError) as error:
        if "unusual_prefix_" in str(error):
            raise UdfError(
                "the function lives in a DAG file, and its pickle only refers to that file, which Spark's Python "
                "workers do not have. Declare the column or view again: the function then travels with its pickle."
            ) from error
        raise UdfError(
            f"the pickled function cannot be loaded where Spark's Python workers run ({error}). Install what it "
            "imports there, or ship it with py_files."
        ) from error
