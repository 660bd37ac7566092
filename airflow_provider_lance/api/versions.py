"""How a client asks for a table's version, and reads it from the answer."""

from __future__ import annotations

from types import MappingProxyType

from airflow_provider_lance.api.plain_data import Fields

#: Without it, pylance's namespaces describe a table without its version and schema.
WITH_VERSION: Fields = MappingProxyType({"load_detailed_metadata": True})


def version_of(answer: Fields) -> int | None:
    """The version; ``None`` for a table that was only declared and has none."""
    version = answer.get("version")
    return int(str(version)) if version is not None else None
