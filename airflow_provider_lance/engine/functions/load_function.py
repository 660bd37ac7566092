"""Loads the function of an envelope inside a Spark worker. Only this module runs foreign code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import cast

from airflow_provider_lance.definitions.function_envelope import UdfEnvelope, UdfError
from airflow_provider_lance.definitions.function_signature import is_stateful

# A worker process runs many tasks, and a stateful function is set up once per process and not once per task.
_loaded: dict[str, Callable[..., object]] = {}


def unwrap(envelope: UdfEnvelope) -> Callable[..., object]:
    """Load a function, **which runs foreign code**; a class becomes an instance, set up once per process."""
    key = envelope.fingerprint
    if key not in _loaded:
        function = _import(envelope.path) if envelope.path is not None else _unpickle(envelope)
        if is_stateful(function):
            function = cast(type, function)()
            setup = getattr(function, "setup", None)
            if callable(setup):
                setup()
        if not callable(function):
            raise UdfError(f"{envelope.path or 'the pickled object'} is a {type(function).__name__}, not a function")
        _loaded[key] = function
    return _loaded[key]


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
