"""A value of a YAML file that knows its place, so that an error names the file, the line and the key.

Keys are always texts, so a column may be called ``no`` or ``1``. A key that is given twice is refused, because YAML
would take the second one silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_lance.declarations.table import DeclarationError, unknown_key

if TYPE_CHECKING:
    import yaml

_BOOLEANS = {"true": True, "false": False}
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Entry:
    """A node of the file and the keys that lead to it."""

    node: yaml.Node
    file: Path
    path: tuple[str, ...] = ()

    def fail(self, reason: str) -> NoReturn:
        """Raise the error about this entry."""
        raise DeclarationError(f"{self._place}: {reason}")

    @property
    def _place(self) -> str:
        line = self.node.start_mark.line + 1
        keys = f", {'.'.join(self.path)}" if self.path else ""
        return f"{self.file}, line {line}{keys}"

    def mapping(self, known: Sequence[str] | None = None) -> dict[str, Entry]:
        """The entries of a mapping; with ``known``, other keys are refused with the known ones that look like them."""
        if self.node.tag.endswith(":null"):
            return {}
        if self.node.id != "mapping":
            self.fail(f"keys with values are expected here, not {self._shown}.")
        found: dict[str, Entry] = {}
        for key, value in self.node.value:
            if key.id != "scalar":
                Entry(key, self.file, self.path).fail("a key must be a text.")
            entry = Entry(value, self.file, (*self.path, key.value))
            if key.value in found:
                Entry(key, self.file, entry.path).fail("the key is there twice.")
            if known is not None and key.value not in known:
                place = Entry(key, self.file, self.path)._place
                raise DeclarationError(unknown_key(place, key.value, known))
            found[key.value] = entry
        return found

    def items(self) -> list[Entry]:
        """The entries of a list. A single value counts as a list of one."""
        if self.node.id == "sequence":
            return [
                Entry(node, self.file, (*self.path, str(place))) for place, node in enumerate(self.node.value, start=1)
            ]
        return [self]

    def text(self) -> str:
        """A text. A number is taken as it is written."""
        if self.node.id != "scalar" or self.node.tag.endswith(":null") or not self.node.value.strip():
            self.fail(f"a text is expected here, not {self._shown}.")
        return str(self.node.value)

    def word(self) -> str:
        """A text as it is written, also ``null``."""
        return str(self.node.value) if self.node.id == "scalar" and self.node.value == "null" else self.text()

    def texts(self) -> list[str]:
        return [item.text() for item in self.items()]

    def boolean(self) -> bool:
        found = _BOOLEANS.get(self.node.value.lower()) if self.node.id == "scalar" else None
        if found is None:
            self.fail(f"true or false is expected here, not {self._shown}.")
        return found

    def integer(self) -> int:
        value = self.number()
        if not value.is_integer():
            self.fail(f"a whole number is expected here, not {self._shown}.")
        return int(value)

    def number(self) -> float:
        try:
            return float(self.text())
        except ValueError as error:
            if isinstance(error, DeclarationError):
                raise
            self.fail(f"a number is expected here, not {self._shown}.")

    def plain(self) -> object:
        """The value as YAML reads it: a dict, a list, a text, a number, a boolean or nothing."""
        if self.node.id == "mapping":
            return {key: entry.plain() for key, entry in self.mapping().items()}
        if self.node.id == "sequence":
            return [item.plain() for item in self.items()]
        import yaml

        value: object = yaml.SafeLoader("").construct_object(self.node)
        return value

    @property
    def _shown(self) -> str:
        if self.node.id != "scalar":
            return "a list" if self.node.id == "sequence" else "keys with values"
        return repr(self.node.value) if self.node.value else "nothing"


def read_documents(file: Path) -> Iterator[Entry]:
    """The documents of a YAML or JSON file. Anchors and ``<<`` are resolved."""
    import yaml

    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DeclarationError(f"There is no file {file}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    loader = loader_class(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None or node.tag.endswith(":null"):
                continue
            _resolve_merges(loader, node, set())
            yield Entry(node, file)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise DeclarationError(f"{file}{line}: this is not YAML: {problem}.") from None
    finally:
        loader.dispose()


def _resolve_merges(loader: yaml.SafeLoader, node: yaml.Node, seen: set[int]) -> None:
    """Put the keys of ``<<`` into the mappings that have it. A key of the mapping itself takes precedence."""
    if id(node) in seen or node.id == "scalar":
        return
    seen.add(id(node))
    if node.id == "sequence":
        for item in node.value:
            _resolve_merges(loader, item, seen)
        return
    own = [(key, value) for key, value in node.value if key.tag != _MERGE]
    if len(own) < len(node.value):
        loader.flatten_mapping(node)
        names = {key.value for key, _ in own}
        merged = {key.value: (key, value) for key, value in node.value[: len(node.value) - len(own)]}
        node.value = [pair for name, pair in merged.items() if name not in names] + own
    for _, value in node.value:
        _resolve_merges(loader, value, seen)
