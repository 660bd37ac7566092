"""Credentials that a namespace vends with its answers: for whoever opens the table, never for a log or an XCom."""

from __future__ import annotations

from typing import Any

_ANSWERS = ("lance_namespace", "lance_namespace_urllib3_client", __name__.partition(".")[0])


def without_credentials(value: Any) -> Any:
    """Plain data, at any depth without the credentials a namespace vends beside a table's address.

    The answer objects of a namespace become dicts; other objects are left as they are.
    """
    if isinstance(value, dict):
        return {key: without_credentials(item) for key, item in value.items() if key != "storage_options"}
    if type(value) in (list, tuple):
        return type(value)(without_credentials(item) for item in value)
    if type(value).__module__.partition(".")[0] in _ANSWERS and hasattr(value, "to_dict"):
        return without_credentials(value.to_dict())
    return value
