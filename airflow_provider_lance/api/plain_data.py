"""Plain data on the wire, for modules that must not load httpx or the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A JSON object as it was received. Its values have any type until the code that reads them has checked it.
JsonObject = dict[str, Any]
#: A JSON object that is only read.
JsonMapping = Mapping[str, Any]
#: The fields of a request, as a caller gives them.
Fields = Mapping[str, object]
#: The port of a namespace server where an address names none.
DEFAULT_PORT = 2333
#: The fields of a request that are for the server. They travel in the path and in headers, and a job does without them.
REQUEST_ENVELOPE = ("id", "identity", "context")
