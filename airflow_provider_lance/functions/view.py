"""``table_function_spec``: the ``udtf_spec`` of a view whose rows a Python function makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Unpack

from airflow_provider_lance.definitions.functions.envelope import OPTIONS_ATTRIBUTE, CallOptions
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.functions.signature import check_inputs, infer_call, infer_inputs, row_schema
from airflow_provider_lance.definitions.functions.table_function import wrap_table_function
from airflow_provider_lance.definitions.functions.table_function_spec import UdtfSpec, text_sha
from airflow_provider_lance.definitions.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa


def table_function_spec(
    function: Callable[..., object] | str,
    *,
    output: pa.Schema | None = None,
    kind: Literal["chunker", "udtf"] = "chunker",
    inputs: Sequence[str] | None = None,
    name: str | None = None,
    version: str = "1",
    batch: bool | None = None,
    partition_by: str | None = None,
    partition_by_indexed_column: str | None = None,
    error_handling: Mapping[str, object] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    manifest: str | None = None,
    arguments: Mapping[str, object] | None = None,
    **options: Unpack[CallOptions],
) -> JsonObject:
    """The ``udtf_spec`` of a CreateMaterializedView request, for a view whose rows a Python function makes.

    >>> def chunks(id: int, text: str) -> Iterator[Chunk]: ...
    >>> table_function_spec(chunks)

    :param function: The import path ``"package.module:function"`` of a function that is installed where Spark's workers
        run; or a function or class, which is pickled.
    :param output: The schema of the rows that the function yields. By default it is made of the dataclass or TypedDict
        in the function's return annotation, such as ``Iterator[Chunk]``. The request's ``output_schema`` is the same
        schema, encoded with :func:`encode_schema`; :func:`row_schema` gives the one of the annotation.
    :param kind: ``"chunker"`` makes any number of rows of each source row and follows the changes of its source.
        ``"udtf"`` gets whole partitions of the source and is always rebuilt. The view's kind must be the same.
    :param inputs: The columns of the source query that the function gets. For a chunker they are by default the names
        of its parameters that have no default. A ``udtf`` gets all columns by default.
    :param name: The name of the function that the view's description shows. The default is the function's own name, or
        its import path.
    :param version: The version of the function that the view's description shows.
    :param batch: Whether a chunker gets a ``pyarrow.RecordBatch`` of many rows instead of the values of one row. By
        default the annotation of its parameter decides.
    :param partition_by: The column of the source query by whose values the rows of a ``udtf`` are partitioned.
    :param partition_by_indexed_column: The column whose IVF index partitions the rows of a ``udtf``.
    :param error_handling: What happens to a partition of a ``udtf`` whose function raises, such as
        ``{"mode": "retry", "max_attempts": 3, "backoff": "exponential"}``.
    :param num_cpus: How many CPUs one task of the function needs.
    :param num_gpus: How many GPUs one task of the function needs.
    :param memory: How many bytes of memory one task of the function needs.
    :param manifest: The environment that the function needs, as JSON such as ``{"pip": ["spacy>=3"]}``.
    :param arguments: The arguments of the ``__init__`` of the function's class, by name.
    :param options: The options ``on_error``, ``retries``, ``timeout`` and ``batch_rows`` of :func:`udf` for the rows of
        a chunker. They take precedence over those of the function's own decorator.
    """
    if output is None:
        if isinstance(function, str):
            raise UdfError(f"the import path {function} does not name the columns of its rows: give output=….")
        output = row_schema(function)
    if kind == "chunker" and not isinstance(function, str):
        batch = _takes_batches(function) if batch is None else batch
        call = "batch" if batch else "scalar"
        inputs = infer_inputs(function, call) if inputs is None else inputs
        check_inputs(function, call, inputs)
    text = wrap_table_function(function, output, arguments=arguments, **options).encode()
    resources = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": memory}
    declared = getattr(function, OPTIONS_ATTRIBUTE, {})
    fields: JsonObject = {
        "kind": kind,
        "udtf": text,
        "udtf_sha": text_sha(text),
        "udtf_name": name or (function if isinstance(function, str) else getattr(function, "__name__", "udtf")),
        "udtf_version": version,
        "input_columns": None if inputs is None else list(inputs),
        "batch": batch,
        "partition_by": partition_by,
        "partition_by_indexed_column": partition_by_indexed_column,
        "error_handling": None if error_handling is None else dict(error_handling),
        **{name: declared.get(name) if value is None else value for name, value in resources.items()},
        "manifest": manifest,
    }
    spec = {key: value for key, value in fields.items() if value is not None}
    UdtfSpec.from_request(kind, spec)
    return spec


def _takes_batches(function: Callable[..., object]) -> bool | None:
    """Whether the annotations of a chunker ask for batches; None where they do not, as a request leaves it out."""
    call = infer_call(function)
    if call == "arrays":
        raise UdfError("a chunker gets the values of one row or a pa.RecordBatch, and not a pa.Array for each column.")
    return True if call == "batch" else None
