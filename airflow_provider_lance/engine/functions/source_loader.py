"""Loads a registered function's source inside a Spark worker, with what its environment must have."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.functions.source_function import ENTRY_FILE, SCALAR_RESULT, SourceFunction


def load_source(source: SourceFunction) -> tuple[Callable[..., object], object | None]:
    """The function, to be called with the values of its inputs or with a record batch of them, and its instance."""
    _check_environment(source)
    prefix = f"lance_function_{source.fingerprint[:16]}"
    finder = _SourceFinder(prefix, source.files)
    sys.meta_path.insert(0, finder)
    try:
        target = getattr(importlib.import_module(f"{prefix}.{ENTRY_FILE.removesuffix('.py')}"), source.entrypoint)
    except ImportError as error:
        raise UdfError(
            f"the function {source.entrypoint!r} imports what Spark's Python workers lack: {error}"
        ) from error
    instance = None
    if isinstance(target, type):
        arguments = {name: value for name, value in source.initialization.items() if value is not None}
        instance = target = target(**arguments)
    return _adapted(source, target), instance


def _adapted(source: SourceFunction, target: Callable[..., Any]) -> Callable[..., object]:
    """The function as the engine calls it. Inputs are passed by name, since they may be keyword-only."""
    names = source.parameters
    if source.call == "scalar":
        alone = source.results[0] if len(source.results) == 1 and source.results[0] != SCALAR_RESULT else None

        def call(*values: Any) -> Any:
            result = _plain(target(**dict(zip(names, values, strict=True))))
            return result if alone is None or result is None else result[alone]

        return call
    if source.takes_batch:
        return lambda batch: target(batch.rename_columns(list(names)))
    return lambda batch: target(**dict(zip(names, batch.columns, strict=True)))


def _plain(result: Any) -> Any:
    """A dict or value of a result; functions with several outputs may return a dataclass or a named tuple."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return dataclasses.asdict(result)
    return result._asdict() if hasattr(result, "_asdict") else result


def _check_environment(source: SourceFunction) -> None:
    """Refuse a worker that lacks a declared package; nothing is ever installed."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if source.python and _numbers(source.python) > _numbers(running):
        raise UdfError(f"the function needs Python {source.python} and Spark's Python workers run {running}.")
    wrong = [problem for text in source.packages if (problem := _problem(text))]
    if wrong:
        raise UdfError(
            f"Spark's Python workers lack what the function {source.entrypoint!r} declares: {'; '.join(wrong)}. "
            "Install it where the workers run, or name an environment of the server that has it."
        )


def _problem(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        return f"{text[:100]!r} is no requirement ({str(error).splitlines()[0]})"
    if wanted.marker is not None and not wanted.marker.evaluate():
        return ""
    try:
        found = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{wanted} is not installed"
    return "" if wanted.specifier.contains(found, prereleases=True) else f"{wanted}, where {found} is installed"


def _numbers(version: str) -> tuple[int, ...]:
    with contextlib.suppress(ValueError):
        return tuple(int(part) for part in version.split(".")[:2])
    return (0,)


class _SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the files of a function from memory: the entry under a prefix of its own, helpers by their names."""

    def __init__(self, prefix: str, files: Mapping[str, str]) -> None:
        self.prefix = prefix
        self.sources = {prefix: ""}
        self.packages = {prefix}
        for path, text in files.items():
            if path == ENTRY_FILE:
                self.sources[f"{prefix}.{path.removesuffix('.py')}"] = text
                continue
            folders = path.removesuffix(".py").split("/")
            if folders[-1] == "__init__":
                folders.pop()
                self.packages.add(".".join(folders))
            self.sources[".".join(folders)] = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.sources:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=f"<{fullname}>")
        if spec is not None and fullname in self.packages:
            spec.submodule_search_locations = []
        return spec

    def is_package(self, fullname: str) -> bool:
        return fullname in self.packages

    def get_source(self, fullname: str) -> str:
        return self.sources[fullname]

    def exec_module(self, module: ModuleType) -> None:
        source, name = self.sources[module.__name__], f"<{module.__name__}>"
        # Tracebacks show the lines of the function from here.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102 - a user's function, in a Spark worker
