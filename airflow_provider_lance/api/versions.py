"""How a table's version is asked for, and read from the answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: Without it, pylance's namespaces describe a table without its version and schema.
WITH_VERSION: Mapping[str, Any] = MappingProxyType({"load_detailed_metadata": True})


def version_of(answer: Mapping[str, Any]) -> int | None:
    """The version; ``None`` for a table without one (it was only declared)."""
    version = answer.get("version")
    return int(version) if version is not None else None
