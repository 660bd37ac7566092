"""How a view is refreshed: by what changed, or by computing all of its rows again."""

from __future__ import annotations

from airflow_provider_lance.definitions.errors import invalid

#: The cheaper way.
AUTO = "auto"
#: By what changed wherever a technique applies, also where a rebuild would be cheaper.
INCREMENTAL = "incremental"
#: By what changed; a refresh fails with the reason instead of computing all rows again.
STRICT = "incremental_strict"
#: All rows are computed again.
FULL = "full"
REFRESH_POLICIES = (AUTO, INCREMENTAL, STRICT, FULL)


def read_policy(value: object) -> str | None:
    """The policy that a request names, or None; InvalidInputError (code 13) for another word."""
    if value is None:
        return None
    if value not in REFRESH_POLICIES:
        raise invalid(f"refresh_policy must be one of {', '.join(REFRESH_POLICIES)}, not {value!r}.")
    return str(value)
