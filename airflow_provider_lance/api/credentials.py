"""Removes the credentials that a namespace vends with its answers, which must not get into a log or an XCom."""

from __future__ import annotations

from typing import overload

from airflow_provider_lance.api.plain_data import JsonObject

_ANSWERS = ("lance_namespace", "lance_namespace_urllib3_client", __name__.partition(".")[0])


@overload
def without_credentials(value: JsonObject) -> JsonObject: ...
@overload
def without_credentials(value: object) -> object: ...
def without_credentials(value: object) -> object:
    """Plain data without vended credentials at any depth.

    The answer objects of a namespace become dicts. Other objects are left as they are.
    """
    if isinstance(value, dict):
        return {key: without_credentials(item) for key, item in value.items() if key != "storage_options"}
    if isinstance(value, list):
        return [without_credentials(item) for item in value]
    if type(value) is tuple:
        return tuple(without_credentials(item) for item in value)
    if type(value).__module__.partition(".")[0] in _ANSWERS and hasattr(value, "to_dict"):
        return without_credentials(value.to_dict())
    return value
