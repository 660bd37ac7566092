"""The type of JSON documents."""

from __future__ import annotations

from typing import Any

#: A JSON object as ``json.loads`` returns it.
JsonObject = dict[str, Any]
