"""The envelope of a Python function: how a function of a column or view is wrapped, stored and checked.

An envelope is base64 text of a small JSON document; the virtual column's ``udf_backend`` names its format, which
``docs/udfs.md`` describes. Nothing here runs the function or needs Spark or Lance.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict, TypeVar, Unpack, get_args, overload

from airflow_provider_lance.definitions.functions.failure_policy import (
    ON_ERROR,
    ErrorPolicy,
    FailureRule,
    UdfError,
    read_rules,
)
from airflow_provider_lance.definitions.functions.source_function import SourceFunction
from airflow_provider_lance.definitions.json_types import JsonObject

IMPORT_PATH_BACKEND = "ImportPathUDFSpecV1"
CLOUDPICKLE_BACKEND = "CloudpickleUDFSpecV1"
SOURCE_BACKEND = "SourceUDFSpecV1"
BACKENDS = (IMPORT_PATH_BACKEND, CLOUDPICKLE_BACKEND, SOURCE_BACKEND)

Call = Literal["scalar", "batch", "arrays"]
CALLS = get_args(Call)
# The pickle is in the table's manifest, which every reader loads. Models belong in files that setup() opens.
MAX_PICKLE_BYTES = 1 << 20

#: Where the decorator keeps its options. They travel in the envelope, and the pickle of the function leaves them out.
OPTIONS_ATTRIBUTE = "__lance_udf__"
RESOURCES = ("num_cpus", "num_gpus", "memory")
_LIMITS = ("timeout", "batch_rows", "max_concurrency", *RESOURCES)
_F = TypeVar("_F", bound=Callable[..., object])


OnError = Literal["fail", "null", "retry"] | Sequence[FailureRule]


class CallOptions(TypedDict, total=False):
    """How a function is called and what happens where it raises: arguments of :func:`udf`."""

    call: Call
    on_error: OnError
    retries: int | None
    timeout: float | None
    batch_rows: int | None
    max_concurrency: int | None


class UdfOptions(CallOptions, total=False):
    """The arguments of :func:`udf`: how a function is called, and what a task of it needs of the machine."""

    num_cpus: float | None
    num_gpus: float | None
    memory: int | None


@dataclass(frozen=True)
class UdfEnvelope:
    """One wrapped function.

    A function is called with the values of one row and returns one value (``call`` is ``scalar``). Or it is called with
    a ``pyarrow.RecordBatch`` (``batch``) or with one ``pyarrow.Array`` for each input (``arrays``), and returns as many
    values in an array or batch. A class is instantiated once in each worker, its optional ``setup()`` is called, and
    the instance is called like a function.
    """

    backend: str
    call: str = "scalar"
    on_error: str = "fail"
    retries: int | None = None
    path: str | None = None
    pickle: bytes | None = None
    sha256: str | None = None
    python: str | None = None
    rules: tuple[FailureRule, ...] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)
    timeout: float | None = None
    batch_rows: int | None = None
    max_concurrency: int | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    source: SourceFunction | None = None

    @property
    def secrets(self) -> Mapping[str, str]:
        """The ids of the secrets that the function needs, by the environment variables in which it finds them."""
        return self.source.secrets if self.source is not None else {}

    @property
    def policy(self) -> ErrorPolicy:
        return ErrorPolicy.of_rules(self.rules) if self.rules else ErrorPolicy.of(self.on_error, self.retries)

    @property
    def limits(self) -> dict[str, float | int]:
        """What the declaration says of the size of batches, of time and of resources."""
        named = {name: getattr(self, name) for name in _LIMITS}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def fingerprint(self) -> str:
        """What the function computes, as far as its envelope can tell."""
        content = f"{self.backend}\0{self.call}\0{self.path}\0{self.sha256}"
        if self.source is not None:
            content += f"\0{self.source.fingerprint}"
        if self.arguments:
            content += f"\0{json.dumps(self.arguments, sort_keys=True)}"
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self) -> str:
        """The text of the ``udf`` field."""
        document: dict[str, object] = {"format": 1, "call": self.call, "on_error": self.on_error}
        if self.retries is not None:
            document["retries"] = self.retries
        if self.rules:
            document["rules"] = [rule.to_dict() for rule in self.rules]
        if self.arguments:
            document["arguments"] = dict(self.arguments)
        document |= self.limits
        if self.path is not None:
            document["path"] = self.path
        if self.pickle is not None:
            document |= {
                "pickle": base64.b64encode(self.pickle).decode(),
                "sha256": self.sha256,
                "python": self.python,
            }
        if self.source is not None:
            document["source"] = self.source.to_dict()
        return base64.b64encode(json.dumps(document, sort_keys=True).encode()).decode()

    @classmethod
    def decode(cls, backend: str | None, text: str) -> UdfEnvelope:
        """Read and check an envelope without running any of it."""
        if backend not in BACKENDS:
            raise UdfError(
                f"the function's udf_backend is {backend!r}; this engine runs {', '.join(BACKENDS)} only. The "
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
        limits: JsonObject = {
            name: _read_limit(name, document[name]) for name in _LIMITS if document.get(name) is not None
        }
        envelope = cls(
            backend=backend,
            call=document.get("call", "scalar"),
            on_error=document.get("on_error", "fail"),
            retries=document.get("retries"),
            rules=read_rules(document.get("rules")),
            arguments=_read_arguments(document.get("arguments") or {}),
            **limits,
        )
        _ = envelope.policy  # raises for an unknown on_error
        if backend == IMPORT_PATH_BACKEND:
            return replace(envelope, path=_check_path(document.get("path")))
        if backend == SOURCE_BACKEND:
            return replace(envelope, source=SourceFunction.from_dict(document.get("source") or {}))
        return _with_pickle(envelope, document)


def _read_limit(name: str, value: object) -> int | float:
    whole = name in ("batch_rows", "max_concurrency", "memory")
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UdfError(f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number above 0")
    return value


def _read_arguments(arguments: object) -> Mapping[str, object]:
    if not isinstance(arguments, Mapping):
        raise UdfError(f"the arguments of the function's class are {arguments!r}; they must be an object")
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UdfError(
                f"the argument {name!r} cannot be stored as JSON ({error}). Give text, numbers, lists or dicts, such "
                "as the path of a file that setup() opens."
            ) from None
    return dict(arguments)


def _check_path(path: object) -> str:
    module, _, attribute = str(path).partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not isinstance(path, str) or not all(name.isidentifier() for name in names):
        raise UdfError(f"the import path {path!r} is not of the form package.module:function")
    return path


def _with_pickle(envelope: UdfEnvelope, document: JsonObject) -> UdfEnvelope:
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
    return replace(envelope, pickle=payload, sha256=stated, python=document.get("python"))


@overload
def udf(function: _F, /) -> _F: ...


@overload
def udf(
    *,
    call: Call | None = None,
    on_error: OnError | None = None,
    retries: int | None = None,
    timeout: float | None = None,
    batch_rows: int | None = None,
    max_concurrency: int | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
) -> Callable[[_F], _F]: ...


def udf(
    function: _F | None = None,
    /,
    *,
    call: Call | None = None,
    on_error: OnError | None = None,
    retries: int | None = None,
    timeout: float | None = None,
    batch_rows: int | None = None,
    max_concurrency: int | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
) -> _F | Callable[[_F], _F]:
    """Mark a function or class with how it is called; the options become part of its envelope.

    >>> @udf(on_error="null", retries=2)
    ... def length(text: pa.Array) -> Annotated[pa.Array, "int32"]:
    ...     return pyarrow.compute.utf8_length(text)

    The annotations say the rest: parameters are columns, and the return annotation is the type of the result.

    :param function: The function, where the decorator is used without parentheses.
    :param call: How the function is called. ``"scalar"`` calls it with the values of one row, and it returns one value.
        ``"arrays"`` calls it with one ``pyarrow.Array`` for each input, and ``"batch"`` with one
        ``pyarrow.RecordBatch`` of them; it returns an array of as many rows. By default the annotations decide:
        ``pa.RecordBatch``, ``pa.Array``, or anything else for the values of a row.
    :param on_error: What happens to a row whose function raises. ``"fail"`` (the default) fails the job, ``"null"``
        stores a null (a chunker leaves the row out), and ``"retry"`` calls the function again before it fails the job.
        Or a list of :class:`Retry`, :class:`Skip` and :class:`Fail`, of which the first that is for the error decides.
    :param retries: How many times the function is called again for a row before ``on_error`` applies. The default is 3
        for ``on_error="retry"`` and 0 otherwise.
    :param timeout: The seconds that one call may take. A longer call raises ``TimeoutError``.
    :param batch_rows: The most rows of one call with arrays or a batch. By default the engine chooses a number by how
        long the calls take.
    :param max_concurrency: How many calls of an ``async def`` a worker awaits at once. The default is 8.
    :param num_cpus: How many CPUs one task of the function needs. Numeric libraries get as many threads.
    :param num_gpus: How many GPUs one task of the function needs.
    :param memory: How many bytes of memory one task of the function needs.
    """
    given = {
        "call": call,
        "on_error": on_error,
        "retries": retries,
        "timeout": timeout,
        "batch_rows": batch_rows,
        "max_concurrency": max_concurrency,
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "memory": memory,
    }

    def mark(marked: _F) -> _F:
        setattr(marked, OPTIONS_ATTRIBUTE, {name: value for name, value in given.items() if value is not None})
        return marked

    return mark if function is None else mark(function)


def wrap(
    function: Callable[..., object] | str,
    *,
    arguments: Mapping[str, object] | None = None,
    **options: Unpack[UdfOptions],
) -> UdfEnvelope:
    """Put a function into the envelope in which a table stores it.

    :param function: The import path ``"package.module:function"`` of a function that is installed where Spark's workers
        run; or a function or class, which is pickled with everything that it uses of modules that are not installed,
        such as a DAG file or a notebook.
    :param arguments: The arguments of the class's ``__init__``, by name. They are stored as JSON.
    :param options: The options of :func:`udf`. They take precedence over those of the function's own decorator.
    """
    chosen = UdfOptions(**{**getattr(function, OPTIONS_ATTRIBUTE, {}), **options})
    fields: JsonObject = {**chosen, **_failure_fields(chosen.get("on_error", "fail"), chosen.get("retries"))}
    fields["arguments"] = _read_arguments(arguments or {})
    if isinstance(function, str):
        envelope = UdfEnvelope(IMPORT_PATH_BACKEND, path=function, **fields)
    else:
        from airflow_provider_lance.definitions.functions.pickling import pickle_function
        from airflow_provider_lance.definitions.functions.signature import check_arguments, infer_call

        check_arguments(function, fields["arguments"])
        fields.setdefault("call", infer_call(function))
        payload = pickle_function(function)
        envelope = UdfEnvelope(
            CLOUDPICKLE_BACKEND,
            pickle=payload,
            sha256=hashlib.sha256(payload).hexdigest(),
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            **fields,
        )
    return UdfEnvelope.decode(envelope.backend, envelope.encode())


def _failure_fields(on_error: object, retries: int | None) -> JsonObject:
    if isinstance(on_error, str):
        return {"on_error": on_error}
    rules = (on_error,) if isinstance(on_error, FailureRule) else on_error
    if not isinstance(rules, list | tuple) or not rules or not all(isinstance(rule, FailureRule) for rule in rules):
        raise UdfError(f"on_error is {on_error!r}; it must be {', '.join(ON_ERROR)} or a list of Retry, Skip and Fail")
    if retries is not None:
        raise UdfError("retries belongs to on_error as a word; in a list of rules, Retry(retries=…) has it")
    return {"on_error": ErrorPolicy.of_rules(rules).on_error, "rules": tuple(rules)}


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
        if envelope.backend == SOURCE_BACKEND and not self.allow_pickles:
            raise UdfError(
                "registered functions are source text that travels with the table, which is not allowed here "
                "(LANCE_UDF_PICKLES=forbid); put the function in a package and name its path"
            )
        if envelope.path is not None and self.import_prefixes:
            module = envelope.path.partition(":")[0]
            if not any(module == prefix or module.startswith(prefix + ".") for prefix in self.import_prefixes):
                raise UdfError(f"{envelope.path} is outside the import paths allowed here: {self.import_prefixes}")
