"""A registered function: Python source text with its signature, as LanceDB's client registers it.

The source is checked by its digest and parsed, and never run here. Spark's workers run it.
"""

from __future__ import annotations

import ast
import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.definitions.errors import invalid
from airflow_provider_lance.definitions.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow as pa

#: The file of a bundle that has the function.
ENTRY_FILE = "user_function.py"
#: The name of the only value of a function that returns no named fields.
SCALAR_RESULT = "$value"
MAX_SOURCE_BYTES = 1 << 20

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"(?:[A-Za-z_]\w*/)*[A-Za-z_]\w*\.py")
_NESTED = re.compile(r"(list|large_list|fixed_size_list)<(.+?)(?:,\s*(\d+))?>")
_ARROW_NAMES = {"utf8": "string", "large_utf8": "large_string", "boolean": "bool", "float16": "halffloat"}
_ARRAYS = ("Array", "ChunkedArray", "RecordBatch")
# The loader of every process reads these, so a function may not choose them for its worker.
_RESERVED = re.compile(r"(LD_|DYLD_|PYTHON|SPARK_|LANCE_|JAVA_).*|PATH|HOME|TMPDIR")


@dataclass(frozen=True)
class SourceFunction:
    """A function as it travels to a worker.

    ``files`` are Python files by their paths, of which ``ENTRY_FILE`` has the ``entrypoint``. ``parameters`` are
    the names of its inputs, ``results`` the names of its outputs. ``initialization`` are the arguments of a class.
    ``secrets`` are the ids of secrets by the environment variables in which the function finds their values.
    """

    digest: str
    entrypoint: str
    files: Mapping[str, str]
    parameters: tuple[str, ...]
    results: tuple[str, ...] = ()
    initialization: JsonObject = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> SourceFunction:
        known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
        for name in ("parameters", "results", "packages"):
            listed = known.get(name)
            known[name] = tuple(str(item) for item in listed) if isinstance(listed, list | tuple) else ()
        function = cls(**known)  # type: ignore[arg-type]
        check_source(function.files, function.entrypoint)
        return function

    @property
    def fingerprint(self) -> str:
        """What the function computes: its files, how it is initialized, and its environment."""
        content = [
            dict(self.files),
            self.entrypoint,
            self.parameters,
            self.results,
            self.initialization,
            self.packages,
            dict(self.env),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def call(self) -> str:
        """``batch`` for a function whose parameters are annotated as Arrow arrays or a batch, otherwise ``scalar``."""
        arguments = _arguments(self.files[ENTRY_FILE], self.entrypoint)
        return "batch" if any(_names_array(argument.annotation) for argument in arguments) else "scalar"

    @property
    def takes_batch(self) -> bool:
        """Whether the function takes one record batch instead of an array for each input."""
        arguments = _arguments(self.files[ENTRY_FILE], self.entrypoint)
        return len(arguments) == 1 and _last_name(arguments[0].annotation) == "RecordBatch"


def read_artifact(artifact: Mapping[str, object]) -> tuple[str, str, dict[str, str]]:
    """The digest, the entry point and the files of an artifact; its content must have the digest."""
    kind, content = artifact.get("kind"), artifact.get("content")
    stated = _DIGEST.fullmatch(str(artifact.get("digest")))
    if kind not in {"python_callable", "python_bundle"}:
        raise invalid(f"the artifact's kind is {kind!r}; this server takes python_callable and python_bundle.")
    if stated is None or not isinstance(content, Mapping) or content.get("encoding") != "base64":
        raise invalid("the artifact needs a digest sha256:… and a content in base64.")
    try:
        data = base64.b64decode(str(content.get("data")), validate=True)
        text = data.decode()
    except (binascii.Error, ValueError):
        raise invalid("the artifact's content is not base64 of UTF-8 text.") from None
    if len(data) > MAX_SOURCE_BYTES:
        raise invalid(f"the function's source has {len(data):,} bytes, more than {MAX_SOURCE_BYTES:,}.")
    actual = hashlib.sha256(data).hexdigest()
    if actual != stated[1]:
        raise invalid(f"the artifact was altered: its sha256 is {actual}, its digest says {stated[1]}.")
    files = {ENTRY_FILE: text} if kind == "python_callable" else _bundle(text)
    entrypoint = str(artifact.get("entrypoint"))
    check_source(files, entrypoint)
    return f"sha256:{actual}", entrypoint, files


def _bundle(text: str) -> dict[str, str]:
    try:
        files = json.loads(text)["files"]
    except (ValueError, KeyError, TypeError):
        raise invalid('a python_bundle is JSON of the form {"files": {"name.py": "source"}}.') from None
    if not isinstance(files, dict) or ENTRY_FILE not in files:
        raise invalid(f"a python_bundle must have the file {ENTRY_FILE}.")
    for name, source in files.items():
        if not _FILE.fullmatch(name) or not isinstance(source, str):
            raise invalid(f"{name[:100]!r} cannot be a file of a bundle.")
    return dict(files)


def check_source(files: Mapping[str, str], entrypoint: str) -> None:
    """Check that every file is Python and that the entry point is a function or a class of the entry file."""
    if ENTRY_FILE not in files:
        raise invalid(f"the function has no file {ENTRY_FILE}.")
    for name, source in files.items():
        try:
            ast.parse(source, name)
        except (SyntaxError, ValueError) as error:
            raise invalid(f"the function's {name} is not valid Python: {error}") from None
    _arguments(files[ENTRY_FILE], entrypoint)


def check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name) or _RESERVED.fullmatch(name):
        raise invalid(f"{name[:100]!r} cannot be an environment variable of a function.")
    return name


def function_type(text: str) -> pa.DataType:
    """The Arrow type of LanceDB's notation: ``int64``, ``utf8``, ``fixed_size_list<float32, 4>`` or JSON."""
    import pyarrow as pa

    if text.startswith("{"):
        from lance.schema import json_to_schema

        try:
            stated = {"name": "value", "nullable": True, "type": json.loads(text)}
            kind: pa.DataType = json_to_schema({"fields": [stated]}).field(0).type
            return kind
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise invalid(f"the type {text[:200]} cannot be read: {error}") from None
    nested = _NESTED.fullmatch(text)
    if nested is not None:
        item = pa.field("item", function_type(nested[2].strip()))
        if nested[1] == "fixed_size_list":
            return pa.list_(item, int(nested[3] or 0))
        return pa.list_(item) if nested[1] == "list" else pa.large_list(item)
    try:
        found: pa.DataType = pa.type_for_alias(_ARROW_NAMES.get(text, text))  # type: ignore[call-overload]
        return found
    except ValueError:
        raise invalid(f"the type {text[:100]!r} is not one that this server knows.") from None


def _arguments(source: str, entrypoint: str) -> list[ast.arg]:
    """The parameters of the entry point: of the function, or of the class's ``__call__`` without ``self``."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == entrypoint:
            return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if isinstance(node, ast.ClassDef) and node.name == entrypoint:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__call__":
                    return [*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs][1:]
            raise invalid(f"the class {entrypoint!r} has no __call__ of its own.")
    raise invalid(f"the source defines no function or class {entrypoint[:100]!r}.")


def _names_array(annotation: ast.expr | None) -> bool:
    return _last_name(annotation) in _ARRAYS


def _last_name(annotation: ast.expr | None) -> str:
    """``Array`` of ``pa.Array``, also where the annotation is text."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.rpartition(".")[2]
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    return annotation.id if isinstance(annotation, ast.Name) else ""
