"""The Python function of a view inside a job: whether it may run, its environment, its inputs and its rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.definitions.expressions import parse_path
from airflow_provider_lance.definitions.functions.envelope import UdfPolicy
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.functions.table_function import TableFunction
from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec, check_manifest
from airflow_provider_lance.engine.functions.dataclass_rows import plain_rows
from airflow_provider_lance.engine.functions.exact_arrays import exact_array
from airflow_provider_lance.engine.functions.load_function import loaded_function
from airflow_provider_lance.engine.job.context import JobError
from airflow_provider_lance.engine.views.scan_tasks import FunctionFailedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

#: The function of a user, whose arguments and result depend on the kind of the view.
UserFunction = Callable[..., Any]

_INFORMATIVE = ("name", "version", "checksum", "description")


def open_function(udtf: UdtfSpec) -> TableFunction:
    """The view's function, if this deployment allows it; JobError says why it cannot run here."""
    try:
        function = TableFunction.decode(udtf.udtf)
        UdfPolicy.from_environment().check(function.envelope)
    except UdfError as error:
        raise JobError("plan", f"function {udtf.udtf_name} {udtf.udtf_version} cannot run here: {error}") from error
    return function


@dataclass(frozen=True)
class FunctionEnvironment:
    """What a manifest demands of Spark's workers: installed requirements and modules that are shipped to them."""

    requirements: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, udtf: UdtfSpec, override: str | None) -> FunctionEnvironment:
        """The demands of the request's manifest, or of the one that is stored with the view."""
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


# Requirements are checked once per worker process, not once per task.
_satisfied: set[tuple[str, ...]] = set()


@contextmanager
def open_in_worker(function: TableFunction, environment: FunctionEnvironment) -> Iterator[UserFunction]:
    """Load the function in a worker, **which runs a user's code**, after its requirements were found installed."""
    with ExitStack() as stack:
        try:
            if environment.requirements not in _satisfied:
                _check_requirements(environment.requirements)
                _satisfied.add(environment.requirements)
            loaded = stack.enter_context(loaded_function(function.envelope))
        except Exception as error:
            raise function_failure("the view's function cannot be loaded", error) from error
        yield loaded


def function_failure(what: str, error: Exception) -> FunctionFailedError:
    """The error of a user's function for the owner of the job: its message, and the place in the function."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return FunctionFailedError(f"{what}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})")


def function_inputs(batch: pa.RecordBatch, paths: tuple[str, ...]) -> pa.RecordBatch:
    """The columns that the function asked for, under the paths that it uses; nested fields leave their structs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for path in paths:
        first, *rest = parse_path(path)
        column = batch.column(first)
        columns.append(pc.struct_field(column, rest) if rest else column)
    return pa.RecordBatch.from_arrays(columns, names=list(paths))


def rows_table(rows: Sequence[object], schema: pa.Schema) -> pa.Table:
    """The rows of a function as Arrow columns of ``schema``. A row is a dictionary, a dataclass, a tuple, a list
    or a single value.

    ValueError says which value does not fit. A key that a dictionary lacks is null.
    """
    import pyarrow as pa

    names, rows = schema.names, plain_rows(rows)
    columns: Sequence[Sequence[object]]
    dictionaries = [row for row in rows if type(row) is dict]
    if len(dictionaries) == len(rows):
        # Most rows have the same keys in the same order, so each order is checked once.
        for keys in set(map(tuple, dictionaries)):
            _check_keys(keys, names)
        columns = [[row.get(name) for row in dictionaries] for name in names]
    else:
        columns = list(zip(*(_row_values(row, names) for row in rows), strict=True))
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            arrays.append(exact_array(values, field.type))
        except Exception as error:
            raise ValueError(f"column {field.name}: {error}") from error
    return pa.table(arrays, schema=schema)


def _row_values(row: object, names: Sequence[str]) -> Sequence[object]:
    if isinstance(row, Mapping):
        _check_keys(row, names)
        return [row.get(name) for name in names]
    values = row if isinstance(row, tuple | list) else (row,)
    if len(values) != len(names):
        raise ValueError(f"the function yielded {len(values)} values for the columns {', '.join(names)}")
    return values


def _check_keys(keys: Iterable[object], names: Sequence[str]) -> None:
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
