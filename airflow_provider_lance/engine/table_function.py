"""Table functions in views: the envelope they travel in, and their environment.

The envelope is base64 text of a small JSON document around the one that columns use (``udf.py``), plus the schema of
the rows that come out. Reading it runs nothing; :func:`load_function` does, inside Spark jobs only. See docs/views.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.engine.context import JobError
from airflow_provider_lance.engine.exact import exact_array
from airflow_provider_lance.engine.expressions import parse_path
from airflow_provider_lance.engine.scan_tasks import FunctionFailedError
from airflow_provider_lance.engine.udf import UdfEnvelope, UdfError, UdfPolicy, load, wrap
from airflow_provider_lance.engine.udtf_spec import UdtfSpec, check_manifest
from airflow_provider_lance.engine.view_definition import decode_schema, encode_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

_FORMAT = 1
_INFORMATIVE = ("name", "version", "checksum", "description")


@dataclass(frozen=True)
class TableFunction:
    """A wrapped function and the rows it yields."""

    envelope: UdfEnvelope
    output: pa.Schema

    def encode(self) -> str:
        """The text of ``udtf_spec.udtf``; ``udtf_sha`` is the SHA-256 of this text."""
        document = {
            "format": _FORMAT,
            "udf_backend": self.envelope.backend,
            "udf": self.envelope.encode(),
            "output_schema": encode_schema(self.output),
        }
        return base64.b64encode(json.dumps(document, sort_keys=True).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> TableFunction:
        """Read an envelope without running any of it; UdfError when it is not ours."""
        try:
            document = json.loads(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            document = None
        if not isinstance(document, dict) or document.get("format") != _FORMAT or "udf" not in document:
            raise UdfError(
                "the view's function is in an envelope of another system; this engine runs its own, base64 of JSON "
                '{"format": 1, "udf_backend": …, "udf": …, "output_schema": …}'
            )
        envelope = UdfEnvelope.decode(document.get("udf_backend"), document["udf"])
        return cls(envelope, decode_schema(document["output_schema"]))


def wrap_table_function(function: Callable[..., Any] | str, output: pa.Schema, **options: Any) -> TableFunction:
    """An envelope for a function, class or import path (``"package.module:function"``) that yields ``output`` rows."""
    return TableFunction(wrap(function, **options), output)


def open_function(udtf: UdtfSpec) -> TableFunction:
    """The view's function, checked against what this deployment allows; JobError says why it cannot run here."""
    try:
        function = TableFunction.decode(udtf.udtf)
        UdfPolicy.from_environment().check(function.envelope)
    except UdfError as error:
        raise JobError("plan", f"function {udtf.udtf_name} {udtf.udtf_version} cannot run here: {error}") from error
    return function


@dataclass(frozen=True)
class Environment:
    """What a manifest asks for, as far as Spark workers can give it."""

    requirements: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, udtf: UdtfSpec, override: str | None) -> Environment:
        """The manifest of this refresh if there is one, else the one stored with the view."""
        text = override if override is not None else udtf.manifest
        if text is None:
            return cls()
        manifest = check_manifest(text, "manifest")
        beyond = sorted(
            key for key, value in manifest.items() if value and key not in ("pip", "py_modules", *_INFORMATIVE)
        )
        if beyond:
            raise JobError(
                "plan",
                f"the manifest asks for {', '.join(beyond)}, which Spark workers cannot be given per job. They take "
                "pip (checked against what is installed) and py_modules (shipped).",
            )
        return cls(tuple(manifest.get("pip") or ()), tuple(manifest.get("py_modules") or ()))

    def ship(self, context: SparkContext) -> None:
        for module in self.modules:
            context.addPyFile(module)


# Requirements are looked up once per worker process, not once per task.
_satisfied: set[tuple[str, ...]] = set()


def load_function(function: TableFunction, environment: Environment) -> Callable[..., Any]:
    """Unwrap the function in a worker, **running foreign code**, after its requirements were found installed."""
    try:
        if environment.requirements not in _satisfied:
            _check_requirements(environment.requirements)
            _satisfied.add(environment.requirements)
        return load(function.envelope)
    except Exception as error:
        raise failed("the view's function cannot be loaded", error) from error


def failed(what: str, error: Exception) -> FunctionFailedError:
    """The function's error as the owner of the job reads it: its own words, and the place in its own code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return FunctionFailedError(f"{what}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})")


def function_inputs(batch: pa.RecordBatch, paths: tuple[str, ...]) -> pa.RecordBatch:
    """The columns the function named, nested ones taken out of their structs, under the names it used."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for path in paths:
        first, *rest = parse_path(path)
        column = batch.column(first)
        columns.append(pc.struct_field(column, rest) if rest else column)
    return pa.RecordBatch.from_arrays(columns, names=list(paths))


def rows_table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Rows as a function yields them (by key, in order, or a single value) as Arrow columns of ``schema``.

    ValueError says which value does not fit; a key that a row lacks is null.
    """
    import pyarrow as pa

    names = schema.names
    columns: Sequence[Sequence[Any]]
    if set(map(type, rows)) <= {dict}:
        # Most rows have the same keys in the same order: looked at once, not once per row.
        for keys in set(map(tuple, rows)):
            _check_keys(keys, names)
        columns = [[row.get(name) for row in rows] for name in names]
    else:
        columns = list(zip(*(_row_values(row, names) for row in rows), strict=True))
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(exact_array(values, field.type))
        except Exception as error:
            raise ValueError(f"column {field.name}: {error}") from error
    return pa.table(arrays, schema=schema)


def _row_values(row: Any, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(row, Mapping):
        _check_keys(row, names)
        return [row.get(name) for name in names]
    values = row if isinstance(row, tuple | list) else (row,)
    if len(values) != len(names):
        raise ValueError(f"the function yielded {len(values)} values for the columns {', '.join(names)}")
    return values


def _check_keys(keys: Iterable[Any], names: Sequence[str]) -> None:
    unknown = sorted(str(key) for key in keys if key not in names)
    if unknown:
        raise ValueError(f"the function yielded {', '.join(unknown)}; the view's columns are {', '.join(names)}")


def _check_requirements(requirements: tuple[str, ...]) -> None:
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            found = None
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            raise UdfError(
                f"the manifest requires {text}, and where Spark's Python workers run there is "
                f"{wanted.name + ' ' + found if found else 'no ' + wanted.name}. Install it in their environment."
            )
