"""A column bound to a registered function: LanceDB's binding read, checked and turned into a virtual column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_lance.definitions.column_rules import virtual_column_entry
from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.functions.envelope import SOURCE_BACKEND, UdfEnvelope
from airflow_provider_lance.definitions.functions.source_function import (
    SCALAR_RESULT,
    SourceFunction,
    check_variable,
    function_type,
    read_artifact,
)
from airflow_provider_lance.definitions.json_types import JsonObject

_FORMAT = 1


@dataclass(frozen=True)
class FunctionBinding:
    """Which version of which function fills which columns from which inputs.

    ``inputs`` are field paths by the parameters of the function. ``outputs`` are the results of the function by the
    columns that they fill.
    """

    function_id: tuple[str, ...]
    version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    initialization: JsonObject

    @classmethod
    def read(cls, document: Mapping[str, object]) -> FunctionBinding:
        if document.get("binding_metadata_version") != _FORMAT:
            raise invalid(f"this server reads function bindings of version {_FORMAT}.")
        application = _mapping(document, "application")
        function = _mapping(application, "function")
        inputs: dict[str, str] = {}
        for entry in _list(application, "inputs"):
            if entry.get("kind") != "column":
                raise invalid(f"the input {entry.get('parameter')!r} is {entry.get('kind')!r}; bind it to a column.")
            inputs[str(entry.get("parameter"))] = str(_mapping(entry, "value").get("path"))
        outputs = {
            str(entry.get("output_name")): str(entry.get("result_field")) for entry in _list(document, "outputs")
        }
        version, place = str(function.get("version")), str(function.get("location"))
        if not version.isdigit() or len(version) > 9:
            raise invalid(f"the function's version is {version[:40]!r}; it must be a number.")
        return cls(read_location(place), int(version), inputs, outputs, dict(_optional(application, "initialization")))

    def virtual_column(self, definition: Mapping[str, object]) -> JsonObject:
        """The declaration of the columns, with the function of that definition inside it."""
        signature = _mapping(definition, "signature")
        parameters = [str(entry.get("name")) for entry in _list(signature, "inputs")]
        if set(parameters) != set(self.inputs):
            raise invalid(f"the function takes {parameters}, and the binding gives {sorted(self.inputs)}.")
        known = {str(entry.get("name")): entry for entry in _list(signature, "initialization")}
        for name in self.initialization:
            if name not in known:
                raise invalid(f"the function is not initialized with {name!r}; it takes {sorted(known) or 'nothing'}.")
        results = result_types(signature)
        if sorted(self.outputs.values()) != sorted(results):
            raise invalid(f"the function returns {sorted(results)}, and the binding stores {self.outputs}.")
        source = source_function(definition, self.initialization)
        entry = virtual_column_entry(
            UdfEnvelope(SOURCE_BACKEND, call=source.call, on_error="null", source=source),
            inputs=[self.inputs[name] for name in parameters],
            outputs={column: function_type(results[result]) for column, result in self.outputs.items()},
            name="$".join(self.function_id),
            version=str(self.version),
        )
        for output in entry["outputs"]:
            result = self.outputs[output["column"]]
            output["struct_field"] = output["column"] if result == SCALAR_RESULT else result
        return entry


def location(function_id: Sequence[str]) -> str:
    """Where a function is, as its versions say it and bindings repeat it."""
    return f"function:{'$'.join(function_id)}"


def read_location(text: str) -> tuple[str, ...]:
    scheme, _, path = text.partition(":")
    if scheme != "function" or not path:
        raise invalid(f"the function's location is {text[:100]!r}, which is not of this server.")
    return tuple(path.split("$"))


def result_types(signature: Mapping[str, object]) -> dict[str, str]:
    """The types of a function's results by their names; the only value of a scalar function is ``$value``."""
    output = _mapping(signature, "output")
    if output.get("kind") == "scalar":
        return {SCALAR_RESULT: str(output.get("arrow_type"))}
    if output.get("kind") != "named_struct":
        raise invalid(f"the function's output is {output.get('kind')!r}; it must be scalar or named_struct.")
    return {str(entry.get("name")): str(entry.get("arrow_type")) for entry in _list(output, "fields")}


def source_function(definition: Mapping[str, object], initialization: JsonObject | None = None) -> SourceFunction:
    """The function of a definition; every part is checked and none is run."""
    digest, entrypoint, files = read_artifact(_mapping(definition, "artifact"))
    signature, runtime = _mapping(definition, "signature"), _mapping(definition, "runtime")
    if runtime.get("kind") != "python" or runtime.get("gpu"):
        raise invalid("this server runs functions of the runtime `python`, without a GPU of their own.")
    environment = _optional(runtime, "environment")
    if environment.get("kind", "pip") != "pip":
        raise invalid("this server checks pip packages of a function. Leave conda out, and install what it needs.")
    packages = environment.get("packages") or []
    if not isinstance(packages, list):
        raise invalid("runtime.environment.packages must be a list.")
    for kind in (*result_types(signature).values(), *(str(i.get("arrow_type")) for i in _list(signature, "inputs"))):
        function_type(kind)
    secrets = {}
    for binding in _list(definition, "secret_bindings"):
        if binding.get("kind") != "env":
            raise invalid(f"a secret is bound as {binding.get('kind')!r}; it must be env.")
        reference = _mapping(binding, "secret_ref")
        path = reference.get("namespace_path") or []
        if not isinstance(path, list):
            raise invalid("the namespace_path of a secret must be a list.")
        secrets[check_variable(str(binding.get("variable")))] = "$".join([*map(str, path), str(reference.get("name"))])
    return SourceFunction(
        digest=digest,
        entrypoint=entrypoint,
        files=files,
        parameters=tuple(str(entry.get("name")) for entry in _list(signature, "inputs")),
        results=tuple(result_types(signature)),
        initialization=initialization or {},
        packages=tuple(str(package) for package in packages),
        python=str(runtime.get("python_version") or ""),
        env={check_variable(name): str(value) for name, value in _optional(runtime, "env").items()},
        secrets=secrets,
    )


def _mapping(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = document.get(name)
    if not isinstance(found, Mapping):
        raise invalid(f"the function's `{name}` must be an object.")
    return found


def _optional(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    return _mapping(document, name) if document.get(name) is not None else {}


def _list(document: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    found = document.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise invalid(f"the function's `{name}` must be a list of objects.")
    return found
