"""Python functions as column and view rules: how they are wrapped, checked, unwrapped and called.

A function travels in an *envelope*: base64 text that holds a small JSON document, named by the virtual column's
``udf_backend``. Wrapping, reading and checking an envelope needs neither Spark nor Lance, so the server can do it;
only :func:`load` runs foreign code, and only Spark jobs call it. The format is in ``docs/udfs.md``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

IMPORT_PATH_BACKEND = "ImportPathUDFSpecV1"
CLOUDPICKLE_BACKEND = "CloudpickleUDFSpecV1"
BACKENDS = (IMPORT_PATH_BACKEND, CLOUDPICKLE_BACKEND)

CALLS = ("scalar", "batch")
ON_ERROR = ("fail", "null", "retry")
DEFAULT_RETRIES = 3
# The payload lives in the table's manifest, which every reader loads: models belong in files that setup() opens.
MAX_PICKLE_BYTES = 1 << 20

_OPTIONS = "__lance_udf__"
_F = TypeVar("_F", bound=Callable[..., Any])


class UdfError(ValueError):
    """An envelope that cannot be read, is not ours, was altered or is not allowed here."""


@dataclass(frozen=True)
class ErrorPolicy:
    """What happens to a row whose function raises: try again ``retries`` times, then fail the job or leave a null."""

    on_error: str = "fail"
    retries: int = 0

    @classmethod
    def of(cls, on_error: str, retries: int | None = None) -> ErrorPolicy:
        if on_error not in ON_ERROR:
            raise UdfError(f"on_error is {on_error!r}; it must be one of {', '.join(ON_ERROR)}")
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
            raise UdfError(f"retries is {retries!r}; it must be a whole number, 0 or more")
        default = DEFAULT_RETRIES if on_error == "retry" else 0
        return cls("null" if on_error == "null" else "fail", default if retries is None else retries)


@dataclass(frozen=True)
class UdfEnvelope:
    """One wrapped function. ``call`` is ``scalar`` (values of one row in, one value out) or ``batch`` (a
    ``pyarrow.RecordBatch`` of the inputs in, an array or batch of as many rows out). A class is stateful: it is made
    once per worker, its optional ``setup()`` runs then, and the instance is called like a function."""

    backend: str
    call: str = "scalar"
    on_error: str = "fail"
    retries: int | None = None
    path: str | None = None
    pickle: bytes | None = None
    sha256: str | None = None
    python: str | None = None

    @property
    def policy(self) -> ErrorPolicy:
        return ErrorPolicy.of(self.on_error, self.retries)

    @property
    def fingerprint(self) -> str:
        """What the function computes, as far as its envelope can tell."""
        return hashlib.sha256(f"{self.backend}\0{self.call}\0{self.path}\0{self.sha256}".encode()).hexdigest()

    def encode(self) -> str:
        """The text of the ``udf`` field."""
        document: dict[str, Any] = {"format": 1, "call": self.call, "on_error": self.on_error}
        if self.retries is not None:
            document["retries"] = self.retries
        if self.path is not None:
            document["path"] = self.path
        if self.pickle is not None:
            document |= {
                "pickle": base64.b64encode(self.pickle).decode(),
                "sha256": self.sha256,
                "python": self.python,
            }
        return base64.b64encode(json.dumps(document, sort_keys=True).encode()).decode()

    @classmethod
    def decode(cls, backend: str | None, text: str) -> UdfEnvelope:
        """Read and check an envelope without running any of it."""
        if backend not in BACKENDS:
            raise UdfError(
                f"the function's udf_backend is {backend!r}; this engine runs {' and '.join(BACKENDS)} only. The "
                "column is left alone: fill it with the system that declared it, or declare it again with one of these."
            )
        try:
            document = json.loads(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error) as error:
            raise UdfError(f"the udf field is not a {backend} envelope (base64 of a JSON document): {error}") from None
        if not isinstance(document, dict) or document.get("format") != 1:
            raise UdfError(f"the udf field is not a {backend} envelope of format 1")
        if document.get("call", "scalar") not in CALLS:
            raise UdfError(f"the envelope's call is {document.get('call')!r}; it must be one of {', '.join(CALLS)}")
        envelope = cls(
            backend=backend,
            call=document.get("call", "scalar"),
            on_error=document.get("on_error", "fail"),
            retries=document.get("retries"),
        )
        _ = envelope.policy  # refuses an unknown on_error here, not in the middle of a job
        if backend == IMPORT_PATH_BACKEND:
            return replace(envelope, path=_check_path(document.get("path")))
        return replace(envelope, **_check_pickle(document))


def _check_path(path: object) -> str:
    module, _, attribute = str(path).partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not isinstance(path, str) or not all(name.isidentifier() for name in names):
        raise UdfError(f"the import path {path!r} is not of the form package.module:function")
    return path


def _check_pickle(document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        payload = base64.b64decode(document["pickle"], validate=True)
        stated = str(document["sha256"])
    except (KeyError, TypeError, ValueError) as error:
        raise UdfError(f"the envelope lacks a readable pickle or its sha256: {error!r}") from None
    if len(payload) > MAX_PICKLE_BYTES:
        raise UdfError(
            f"the pickled function has {len(payload):,} bytes, more than {MAX_PICKLE_BYTES:,}: every reader of the "
            "table would load it. Load large objects in setup() from a file instead."
        )
    actual = hashlib.sha256(payload).hexdigest()
    if actual != stated:
        raise UdfError(f"the pickled function was altered: its sha256 is {actual}, its envelope says {stated}")
    return {"pickle": payload, "sha256": stated, "python": document.get("python")}


def udf(*, call: str = "scalar", on_error: str = "fail", retries: int | None = None) -> Callable[[_F], _F]:
    """Mark a function or class with how it wants to be called; the options travel in its envelope."""

    def mark(function: _F) -> _F:
        setattr(function, _OPTIONS, {"call": call, "on_error": on_error, "retries": retries})
        return function

    return mark


def wrap(function: Callable[..., Any] | str, **options: Any) -> UdfEnvelope:
    """An envelope for an import path (``"package.module:function"``) or for a function or class, which is pickled.

    What is not installed (a DAG file, modules beside it, a notebook) is pickled by value; see ``pickling.py``.

    ``options`` (``call``, ``on_error``, ``retries``) win over those of the :func:`udf` decorator.
    """
    chosen = {**getattr(function, _OPTIONS, {}), **options}
    if isinstance(function, str):
        envelope = UdfEnvelope(IMPORT_PATH_BACKEND, path=function, **chosen)
    else:
        from airflow_provider_lance.engine.pickling import pickle_function

        payload = pickle_function(function)
        envelope = UdfEnvelope(
            CLOUDPICKLE_BACKEND,
            pickle=payload,
            sha256=hashlib.sha256(payload).hexdigest(),
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            **chosen,
        )
    return UdfEnvelope.decode(envelope.backend, envelope.encode())


@dataclass(frozen=True)
class UdfPolicy:
    """What a deployment allows: pickles or not, and which import paths (module prefixes; empty = any)."""

    allow_pickles: bool = True
    import_prefixes: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> UdfPolicy:
        """``LANCE_UDF_PICKLES=forbid`` and ``LANCE_UDF_IMPORTS=my_package,other.module``."""
        environ = os.environ if environ is None else environ
        prefixes = (part.strip() for part in environ.get("LANCE_UDF_IMPORTS", "").split(","))
        return cls(
            allow_pickles=environ.get("LANCE_UDF_PICKLES", "allow").strip().lower() != "forbid",
            import_prefixes=tuple(part for part in prefixes if part),
        )

    def check(self, envelope: UdfEnvelope) -> None:
        if envelope.backend == CLOUDPICKLE_BACKEND and not self.allow_pickles:
            raise UdfError("pickled functions are not allowed here; put the function in a package and name its path")
        if envelope.path is not None and self.import_prefixes:
            module = envelope.path.partition(":")[0]
            if not any(module == prefix or module.startswith(prefix + ".") for prefix in self.import_prefixes):
                raise UdfError(f"{envelope.path} is outside the import paths allowed here: {self.import_prefixes}")


# One worker process serves many tasks: a stateful function's model must be set up once, not once per task.
_loaded: dict[str, Callable[..., Any]] = {}


def load(envelope: UdfEnvelope) -> Callable[..., Any]:
    """Unwrap the function, **running foreign code**; a class becomes an instance, set up once per process."""
    key = envelope.fingerprint
    if key not in _loaded:
        function = _import(envelope.path) if envelope.path is not None else _unpickle(envelope)
        # A class like str converts by being called; one whose instances can be called holds state.
        if inspect.isclass(function) and any("__call__" in base.__dict__ for base in function.__mro__):
            function = function()
            setup = getattr(function, "setup", None)
            if callable(setup):
                setup()
        if not callable(function):
            raise UdfError(f"{envelope.path or 'the pickled object'} is a {type(function).__name__}, not a function")
        _loaded[key] = function
    return _loaded[key]


def _import(path: str) -> Any:
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in attributes.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise UdfError(
            f"{path} cannot be imported where Spark's Python workers run ({error}). Install the package there, or "
            "ship it with py_files."
        ) from error
    return found


def _unpickle(envelope: UdfEnvelope) -> Any:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if envelope.python and envelope.python != running:
        raise UdfError(
            f"the function was pickled by Python {envelope.python} and the worker runs {running}: byte code does not "
            "travel between them. Declare it again from the worker's version, or use an import path."
        )
    import cloudpickle

    assert envelope.pickle is not None
    try:
        return cloudpickle.loads(envelope.pickle)
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
