"""Declarations in YAML: reads a file, or every file of a folder, into the objects of ``table.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from airflow_provider_lance.declarations.table import (
    FUNCTION_OPTIONS,
    INDEX_OPTIONS,
    DeclarationError,
    LanceChecks,
    LanceIndex,
    LanceTable,
    LanceView,
    LanceViewFunction,
    ViewFunctionKind,
)
from airflow_provider_lance.declarations.yaml_node import Entry, read_documents
from airflow_provider_lance.definitions.functions.envelope import UdfOptions
from airflow_provider_lance.functions import UdfColumn

SUFFIXES = (".yaml", ".yml", ".json")
#: The key of a file that ``airflow-lance manifest`` has written.
MANIFEST = "manifest"

_TABLE_KEYS = ("schema", "computed", "virtual", "views", "indices", "checks", "promote", "tags")
_VIEW_KEYS = ("query", "function", "auto_refresh", "refresh_policy", "checks", "promote", "tags", "sources")
_FILE_KEYS = ("tables", "views", MANIFEST)
_CHECK_KEYS = ("min_rows", "max_rows", "not_null", "max_nulls", "predicate")
_INDEX_KEYS = ("column", "type", "name", *INDEX_OPTIONS)
_VIEW_FUNCTION_KEYS = ("function", "output", "kind", "inputs", "version", "batch", "partition_by", *FUNCTION_OPTIONS)
_FUNCTION_KEYS = ("function", "inputs", "type", "version", "call", "on_error", "retries")

_Built = TypeVar("_Built")


class FileContent:
    """What a file declares."""

    def __init__(self) -> None:
        self.tables: list[LanceTable] = []
        self.views: list[LanceView] = []
        self.is_manifest = False


def read_path(path: Path) -> FileContent:
    """Read a file, or every YAML and JSON file in and below a folder."""
    content = FileContent()
    for file in _files(path):
        for document in read_documents(file):
            _read_document(document, content)
    if not content.tables and not content.views:
        raise DeclarationError(f"{path} declares no table and no view.")
    return content


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise DeclarationError(f"The folder {path} has no file that ends in {', '.join(SUFFIXES)}.")
    yield from found


def _read_document(document: Entry, content: FileContent) -> None:
    keys = document.mapping()
    if "table" in keys:
        keys = document.mapping(("table", *_TABLE_KEYS))
        name = keys.pop("table")
        content.tables.append(_table(name, _identifier(name), keys))
        return
    keys = document.mapping(_FILE_KEYS if any(key in keys for key in _FILE_KEYS) else ("table", *_FILE_KEYS))
    content.is_manifest = content.is_manifest or MANIFEST in keys
    if "tables" in keys:
        for table, entry in keys["tables"].mapping().items():
            content.tables.append(_table(entry, table, entry.mapping(_TABLE_KEYS)))
    if "views" in keys:
        content.views += _views(keys["views"])


def _identifier(entry: Entry) -> str | list[str]:
    return entry.texts() if entry.node.id == "sequence" else entry.text()


def _table(place: Entry, name: str | list[str], keys: Mapping[str, Entry]) -> LanceTable:
    arguments: dict[str, Any] = {}
    if "schema" in keys:
        arguments["schema"] = _texts_by_name(keys["schema"])
    if "computed" in keys:
        arguments["computed"] = _texts_by_name(keys["computed"])
    if "virtual" in keys:
        arguments["virtual"] = {column: _function(entry) for column, entry in keys["virtual"].mapping().items()}
    if "views" in keys:
        arguments["views"] = _views(keys["views"])
    if "indices" in keys:
        arguments["indices"] = [_index(entry) for entry in keys["indices"].items()]
    return _built(place, LanceTable, table_id=name, **arguments, **_shared(keys))


def _views(entry: Entry) -> list[LanceView]:
    return [_view(name, view) for name, view in entry.mapping().items()]


def _view(name: str, entry: Entry) -> LanceView:
    if entry.node.id == "scalar":
        return _built(entry, LanceView, table_id=name, query=entry.text())
    keys = entry.mapping(_VIEW_KEYS)
    if "query" not in keys:
        entry.fail("a view needs the key 'query'.")
    arguments: dict[str, Any] = {"query": keys["query"].text()}
    if "function" in keys:
        arguments["function"] = _view_function(keys["function"])
    if "auto_refresh" in keys:
        arguments["auto_refresh"] = keys["auto_refresh"].boolean()
    if "refresh_policy" in keys:
        arguments["refresh_policy"] = keys["refresh_policy"].text()
    if "sources" in keys:
        arguments["sources"] = [_identifier(source) for source in keys["sources"].items()]
    return _built(entry, LanceView, table_id=name, **arguments, **_shared(keys))


def _shared(keys: Mapping[str, Entry]) -> dict[str, Any]:
    """The arguments that tables and views both have."""
    found: dict[str, Any] = {}
    if "checks" in keys:
        found["checks"] = _checks(keys["checks"])
    if "promote" in keys:
        found["promote"] = keys["promote"].text()
    if "tags" in keys:
        found["tags"] = keys["tags"].texts()
    return found


def _checks(entry: Entry) -> LanceChecks:
    keys = entry.mapping(_CHECK_KEYS)
    found: dict[str, Any] = {name: keys[name].integer() for name in ("min_rows", "max_rows") if name in keys}
    if "not_null" in keys:
        found["not_null"] = keys["not_null"].texts()
    if "max_nulls" in keys:
        found["max_nulls"] = keys["max_nulls"].number()
    if "predicate" in keys:
        found["predicate"] = keys["predicate"].text()
    return _built(entry, LanceChecks, **found)


def _index(entry: Entry) -> LanceIndex:
    keys = entry.mapping(_INDEX_KEYS)
    _require(entry, keys, "column", "type")
    named = {name: keys[name].text() for name in ("column", "type", "name") if name in keys}
    return _built(
        entry, LanceIndex, **named, options={name: keys[name].plain() for name in INDEX_OPTIONS if name in keys}
    )


def _function(entry: Entry) -> UdfColumn | dict[str, Any]:
    """A function of a column by its import path; or, with ``outputs``, the entry of a request as a manifest has it."""
    if entry.node.id == "mapping" and "outputs" in entry.mapping():
        return cast("dict[str, Any]", entry.plain())
    keys = entry.mapping(_FUNCTION_KEYS)
    _require(entry, keys, "function", "inputs", "type")
    options: dict[str, Any] = {name: keys[name].word() for name in ("call", "on_error") if name in keys}
    if "retries" in keys:
        options["retries"] = keys["retries"].integer()
    return _built(
        entry,
        UdfColumn,
        function=_import_path(keys["function"]),
        inputs=keys["inputs"].texts(),
        type=keys["type"].text(),
        options=cast("UdfOptions", options),
        version=keys["version"].text() if "version" in keys else "1",
    )


def _view_function(entry: Entry) -> LanceViewFunction:
    keys = entry.mapping(_VIEW_FUNCTION_KEYS)
    _require(entry, keys, "function", "output")
    arguments: dict[str, Any] = {}
    if "inputs" in keys:
        arguments["inputs"] = keys["inputs"].texts()
    if "batch" in keys:
        arguments["batch"] = keys["batch"].boolean()
    arguments |= {name: keys[name].text() for name in ("version", "partition_by") if name in keys}
    if "kind" in keys:
        arguments["kind"] = cast("ViewFunctionKind", keys["kind"].text())
    return _built(
        entry,
        LanceViewFunction,
        function=_import_path(keys["function"]),
        output=_texts_by_name(keys["output"]),
        options={name: keys[name].plain() for name in FUNCTION_OPTIONS if name in keys},
        **arguments,
    )


def _import_path(entry: Entry) -> str:
    path = entry.text()
    if ":" not in path:
        entry.fail(f"a function is named by its import path, such as 'features.text:embed', not {path!r}.")
    return path


def _texts_by_name(entry: Entry) -> dict[str, str]:
    return {name: value.text() for name, value in entry.mapping().items()}


def _require(entry: Entry, keys: Mapping[str, Entry], *names: str) -> None:
    for name in names:
        if name not in keys:
            entry.fail(f"the key {name!r} is missing.")


def _built(entry: Entry, kind: Callable[..., _Built], /, **arguments: Any) -> _Built:
    """The object; its own complaint names the place in the file."""
    try:
        return kind(**arguments)
    except ValueError as error:
        entry.fail(str(error))
